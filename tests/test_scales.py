"""Measures and choices that square numbers are those of any other scale."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _autotune, _checkpoint, _demo, _scales, schedule

SIZES = pytest.mark.parametrize("size", [2.0**-700, 2.0**-560, 2.0**600, 2.0**1000])


@pytest.mark.parametrize("largest", [5e-324, 1e-200, 0.7, 1.0, 3e8, 1.7e308])
def test_a_scale_is_an_exact_power_of_two(largest):
    scale = _scales.of_largest(largest)
    assert np.frexp(scale)[0] == 0.5
    assert largest * scale / scale == largest
    assert 0 < (largest * scale) ** 2 <= 1 << 49
    assert _scales.of(np.array([[-largest, 0.0]])) == scale


def test_what_has_no_size_has_the_scale_of_one():
    for x in ([], [0.0], [np.inf, 3.0], [np.nan, 3.0]):
        assert _scales.of(np.array(x)) == 1.0


@SIZES
def test_reports_are_those_of_the_same_numbers_near_one(rng, size):
    dense = {"a": rng.standard_normal((4, 8)), "b": 5 * rng.standard_normal((2, 8))}
    pruned = {name: s24.prune(x) for name, x in dense.items()}
    with warnings.catch_warnings(action="error"):
        got = s24.report({n: x * size for n, x in pruned.items()},
                         {n: x * size for n, x in dense.items()})  # fmt: skip
    want = s24.report(pruned, dense)
    assert got.kept_energy == pytest.approx(want.kept_energy)
    assert got["a"].kept_energy == pytest.approx(want["a"].kept_energy)
    assert got["a"].norm / size == pytest.approx(np.linalg.norm(dense["a"]))
    assert _checkpoint.kept_energy(pruned["a"] * size, dense["a"] * size) == pytest.approx(
        want["a"].kept_energy
    )
    assert str(got) == str(want)


def test_the_largest_of_all_blocks_sets_the_scale_of_the_kept_energy(monkeypatch):
    monkeypatch.setattr(_checkpoint, "_BLOCK", 4)
    dense = np.repeat([2.0**1000, 2.0**-1000, 2.0**999], 4)
    assert _checkpoint.kept_energy(dense[:8], dense) == 0.8
    assert _checkpoint.kept_energy(dense[::-1][:8], dense) == 0.2


@SIZES
@pytest.mark.parametrize("pattern", [(2, 4), (16, 32)])
def test_weights_of_any_size_are_pruned_and_refitted_alike(rng, pattern, size):
    w, x = rng.standard_normal((4, 32)), rng.standard_normal((100, 32))
    x[:, 1:] += x[:, :-1]
    want = s24.prune(w, pattern=pattern, method="sparsegpt", calibration=x)
    got = s24.prune(w * size, pattern=pattern, method="sparsegpt", calibration=x)
    np.testing.assert_array_equal(got / size, want)
    kept = s24.prune(w, pattern=pattern)
    np.testing.assert_array_equal(s24.refit(kept * size, w * size, x) / size, s24.refit(kept, w, x))


@SIZES
def test_results_of_any_size_are_compared(size):
    right = np.full((4, 4), size)
    wrong = 1.5 * right
    assert _autotune.agrees(right, right, "float64")
    assert not _autotune.agrees(wrong, right, "float64")
    assert _demo._error(wrong, right) == 0.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_kept_norm_of_weights_of_any_size(dtype):
    w = np.array([[3.0, 0.5, 4.0, 0.25]])
    recipe = schedule.Recipe(schedule.ConstantScheduler(0.5), pattern=schedule.NM(2, 4))
    exponents = [-140, -80, -30, 0, 30, 80, 120] + [-900, 900] * (dtype is np.float64)
    for exponent in exponents:
        made = schedule.MaskScheduler(recipe, telemetry=schedule.Telemetry())
        made.step(weights={"w": (w * 2.0**exponent).astype(dtype)})
        norm = float(made.events[0].kept_norm)
        assert norm == pytest.approx(5 * 2.0**exponent, rel=1e-6, abs=0)
