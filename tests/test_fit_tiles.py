"""The planner's model of the Hopper kernel, fitted to timings."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sparse24.kernels import sparse_split
from sparse24.kernels import sparse_wgmma_plan as plan

SCRIPT = Path(__file__).parent / "bench" / "fit_tiles.py"
SHAPES = [
    (512, 4096, 256), (1024, 8192, 96), (4096, 2048, 64), (384, 16384, 1536), (264, 6144, 520),
    (2048, 2048, 2048), (128, 9216, 72), (4096, 4096, 512), (896, 1024, 896), (8192, 1024, 136),
]  # fmt: skip


@pytest.fixture
def fit_tiles(monkeypatch):
    """The script."""
    spec = importlib.util.spec_from_file_location("fit_tiles", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fit_tiles", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def other(model: plan.Model) -> plan.Model:
    """That of a chip with other rates."""
    factors = {"latency": 1.3, "into_sm": 0.8, "tile": 2.0, "of_part": 0.5}
    changed = {name: factor * getattr(model, name) for name, factor in factors.items()}
    return dataclasses.replace(model, **changed)


def write(file, fit_tiles, dtype: str, kernel, model: plan.Model) -> None:
    """Timings as a model predicts them."""
    cases = []
    for (m, k, n), order in zip(SHAPES * 2, ["column", "row"] * len(SHAPES), strict=True):
        case = {"m": m, "k": k, "n": n, "dtype": dtype, "b_order": order}
        problem = fit_tiles.problem_of(case)
        tiles = kernel.configs(problem)
        us = {c.name: 1e6 * kernel.predict(problem, c, plan.CHIP, model) for c in tiles}
        cases.append({**case, "cublas_us": None, "us": {**us, "no tile of today": 1.0}})
    file.write_text(json.dumps({"header": {}, "cases": cases}))


@pytest.mark.parametrize(
    ("dtype", "kernel", "options"),
    [("float16", plan, []), ("float32", sparse_split, ["--pieces"])],
)
def test_a_fit_finds_what_a_chip_with_other_rates_takes(
    fit_tiles, tmp_path, capsys, monkeypatch, dtype, kernel, options
):
    file, kind = tmp_path / "tiles.json", fit_tiles.PIECES if options else fit_tiles.PLAIN
    write(file, fit_tiles, dtype, kernel, other(kind.start))
    products = fit_tiles.read([file], kind)
    error = lambda model: np.abs(fit_tiles.errors(products, kind, model)).mean()  # noqa: E731
    assert error(fit_tiles.fit(products, kind)) < 0.1 * error(kind.start)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(file), *options])
    fit_tiles.main()
    assert "held back: 5 products" in capsys.readouterr().out
    assert not fit_tiles.read([file], fit_tiles.PLAIN if options else fit_tiles.PIECES)


def test_a_case_is_the_problem_that_the_planner_sees(fit_tiles):
    case = {"m": 8, "k": 72, "n": 24, "dtype": "int8", "b_order": "column"}
    problem = fit_tiles.problem_of(case)
    assert (problem.m, problem.k, problem.n) == (8, 72, 24)
    assert (problem.out_dtype, problem.b_in_lines) == ("int32", False)
    rows = fit_tiles.problem_of({**case, "dtype": "float16", "n": 64, "b_order": "row"})
    assert (rows.out_dtype, rows.b_in_lines) == ("float16", True)
