"""`report`: what pruning kept."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _row_blocks


def test_report_takes_the_pattern_of_compressed_arrays():
    w = np.random.default_rng(0).standard_normal((16, 16))
    arrays = {
        "rows": s24.compress(w, pattern=(4, 8), on_excess="prune"),
        "columns": s24.compress(w, pattern=(1, 4), axis=-2, on_excess="prune"),
        "plain": s24.prune(w),
    }
    found = s24.report(arrays)
    assert [layer.pattern for layer in found.layers] == [(4, 8), (1, 4), (2, 4)]
    assert found.obeys
    assert not s24.report(arrays["rows"], pattern=(2, 4)).obeys
    assert "kept of all" not in str(s24.report({}))


def test_report_refuses_the_bits_of_fp8():
    with pytest.raises(s24.DTypeError, match="up holds uint8, perhaps the bits of fp8"):
        s24.report({"up": np.zeros((2, 8), np.uint8)})


@pytest.mark.parametrize("x", [np.eye(4) * 1j, np.full((4, 4), "a"), np.full((4, 4), None)])
def test_report_is_of_real_numbers(x):
    for arrays in ((x,), (np.eye(4), x)):
        with pytest.raises(s24.DTypeError, match="x must hold real numbers"):
            s24.report(*arrays)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [np.inf, np.nan])
def test_report_of_what_is_not_finite_does_not_warn(size):
    assert np.isnan(s24.report(np.full((4, 4), size), np.full((4, 4), size)).kept_energy)


@pytest.mark.parametrize("pattern", [(2, 4), (1, 4), (3, 8)])
def test_a_single_element_too_many_in_one_group_is_told(pattern):
    n, m = pattern
    x = np.zeros((3, 2 * m))
    x[1, m : m + n] = 1
    assert s24.report(x, pattern=pattern).obeys
    x[1, m + n] = 1
    assert not s24.report(x, pattern=pattern).obeys


def test_report_counts_and_totals(rng):
    dense = {"a": rng.standard_normal((4, 10)), "b": rng.standard_normal((2, 8))}
    pruned = {"a": s24.compress(dense["a"], on_excess="prune"), "b": dense["b"]}
    got = s24.report(pruned, dense)
    assert got["a"].histogram == (0, 0, 12, 0, 0)
    assert got["b"].histogram == (0, 0, 0, 0, 4)
    assert got["a"].obeys
    assert not got["b"].obeys
    assert not got.obeys
    kept = (s24.prune(dense["a"]) ** 2).sum() + (dense["b"] ** 2).sum()
    assert got.kept_energy == pytest.approx(kept / sum((x**2).sum() for x in dense.values()))
    assert "4x10" in str(got)
    alone = s24.report(dense["b"])
    assert np.isnan(alone.kept_energy)
    assert "nan" not in str(alone)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2000, 700), -1), ((700, 2000), 0), ((3, 800, 501), 1)]
)
def test_report_of_a_large_array_takes_little_more_memory(rng, shape, axis):
    dense = rng.standard_normal(shape).astype(np.float32)
    pruned = s24.prune(dense, axis=axis)
    tracemalloc.start()
    got = s24.report(pruned, dense, axis=axis)["x"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < dense.nbytes / 2
    wide = abs(dense.astype(np.float64))
    kept = wide * (pruned != 0)
    assert got.energy == pytest.approx((wide**2).sum())
    assert got.norm == pytest.approx(np.linalg.norm(wide))
    assert got.kept_energy == pytest.approx((kept**2).sum() / (wide**2).sum())
    assert got.kept_magnitude == pytest.approx(kept.sum() / wide.sum())
    assert got.density == np.count_nonzero(pruned) / pruned.size
    assert got.histogram[3:] == (0, 0)
    assert sum(got.histogram) == dense.size // shape[axis] * -(-shape[axis] // 4)


@pytest.mark.parametrize("shape", [(20000, 4, 8), (2, 300, 1000), (3, 2, 5, 70000), (5,), (0, 4)])
def test_blocks_hold_each_row_once_and_small_matrices_together(shape):
    seen, blocks = np.zeros(shape, int), list(_row_blocks.blocks_of_rows(shape))
    for block in blocks:
        seen[block] += 1
    assert (seen == 1).all()
    row = shape[-1] if len(shape) > 1 else 1
    assert len(blocks) <= 2 + 2 * seen.size // max(row, _row_blocks.BLOCK)
