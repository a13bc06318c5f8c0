"""Telemetry: how masks changed, and warnings where they change too much."""

from __future__ import annotations

import csv
import inspect
import sys
import warnings

import numpy as np
import pytest
from schedule_cases import RECIPES, data

from sparse24 import schedule as S
from sparse24._errors import UnsupportedError


@pytest.mark.parametrize(
    "schedule",
    [
        S.OneShot(0.5, at=3),
        S.CubicScheduler(0.5, start=2, stop=8),
        S.dense_sparse_dense(0.5, start=0, stop=8, every=2),
    ],
)
def test_flips_that_a_new_sparsity_needs_are_below_any_limit(schedule):
    telemetry = S.Telemetry(flip_limit=0.0)
    recipe = S.Recipe(schedule, pattern=S.Elastic(least=2))
    scheduler = S.MaskScheduler(recipe, telemetry=telemetry)
    weights = np.random.default_rng(0).standard_normal((64, 128))
    with warnings.catch_warnings():
        warnings.simplefilter("error", S.MaskWarning)
        for _ in range(10):
            scheduler.step(weights={"a": weights})
    assert max(telemetry.column("flip_rate")[1:]) > 0.1


def test_more_flips_than_a_new_sparsity_needs_are_told():
    telemetry = S.Telemetry(flip_limit=0.1)
    recipe = S.Recipe(S.StepScheduler({0: 0.5, 1: 0.75}), pattern=S.Unstructured())
    scheduler = S.MaskScheduler(recipe, telemetry=telemetry)
    scheduler.step(weights={"a": np.arange(1.0, 17.0).reshape(4, 4)})
    words = r"50.0% of .* at step 1 beside those of the new sparsity, 25.0%, more than .*; raise"
    with pytest.warns(S.MaskWarning, match=words):  # 8 leave, and the 4 that are kept come back
        scheduler.step(weights={"a": np.arange(16.0, 0.0, -1.0).reshape(4, 4)})


def test_telemetry(tmp_path):
    assert list(inspect.signature(S.Telemetry).parameters) == ["flip_limit", "live"]
    telemetry = S.Telemetry(flip_limit=0.01)
    scheduler = S.MaskScheduler(RECIPES["rigl"], telemetry=telemetry)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(5):
            scheduler.step(**data(t))
    assert all(w.category is S.MaskWarning for w in caught)
    assert "of the mask flipped at step 2, more than flip_limit=1.0%" in str(caught[0].message)
    assert telemetry.column("step", "a") == [0, 2, 4]
    assert telemetry.column("age", "a") == [0, 2, 2]
    assert telemetry.rows[-1]["flip_rate"] > 0
    weight = data(4)["weights"]["b"]
    norm = np.sqrt((weight[scheduler.masks["b"]] ** 2).sum())
    assert telemetry.rows[-1]["kept_norm"] == pytest.approx(norm, rel=1e-5)
    telemetry.to_csv(tmp_path / "masks.csv")
    with open(tmp_path / "masks.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(telemetry.rows) == 6
    assert int(rows[0]["nnz"]) == telemetry.rows[0]["nnz"]


def test_a_csv_file_that_fails_leaves_the_one_before(tmp_path):
    telemetry = S.Telemetry()
    scheduler = S.MaskScheduler(RECIPES["rigl"], telemetry=telemetry)
    scheduler.step(**data(0))
    file = tmp_path / "masks.csv"
    telemetry.to_csv(file)
    before = file.read_bytes()

    class Interrupted:
        def __str__(self):
            raise KeyboardInterrupt

    telemetry.rows.append({**telemetry.rows[0], "name": Interrupted()})
    with pytest.raises(KeyboardInterrupt):
        telemetry.to_csv(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_telemetry_plots():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    telemetry = S.Telemetry(live=True)
    scheduler = S.MaskScheduler(RECIPES["rigl"], telemetry=telemetry)
    for t in range(3):
        scheduler.step(**data(t))
    axes = telemetry.plot()
    assert len(axes[0].lines) == 2


def test_telemetry_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'sparse24\[plot\]'"):
        S.Telemetry().plot()
