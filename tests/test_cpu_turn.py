"""Copies in C order of matrices whose columns are contiguous, and what is pruned through them."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.kernels import cpu_turn

SHAPES = [(300, 130), (64, 256), (257, 33), (16, 4097)]


def as_bytes(x):
    return x.view(np.uint8).tobytes()


def matrix(rng, shape, dtype):
    return (8 * rng.standard_normal(shape)).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*(row.logical for row in _dtypes.TABLE.values()), bool])
def test_a_copy_in_c_order_has_the_bytes_of_numpys(rng, shape, dtype):
    x = np.asfortranarray(matrix(rng, shape, dtype))
    assert cpu_turn.by_columns(x)
    for given in (x, x[1:, ::-1], x[:, ::2]):
        got = cpu_turn.in_c_order(given)
        assert got.flags.c_contiguous
        assert got.dtype == x.dtype
        assert as_bytes(got) == as_bytes(np.ascontiguousarray(given))


def test_what_is_in_c_order_or_small_is_left_to_numpy():
    rows = np.ones((256, 256), np.float32)
    assert cpu_turn.in_c_order(rows) is rows
    swapped = np.asfortranarray(rows).astype(">f4", order="F")
    for x in (rows, rows[:, ::2], np.ones((8, 8), order="F"), rows[0], swapped):
        assert not cpu_turn.by_columns(x)
        np.testing.assert_array_equal(cpu_turn.in_c_order(x), x)


@pytest.mark.parametrize("pattern", [(2, 4), (3, 8)])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_the_order_of_memory_does_not_show(rng, name, pattern):
    """Runs of columns, squares and what is left of them, filled up to whole groups."""
    x = matrix(rng, (83, 142), _dtypes.TABLE[name].logical)
    turned = np.asfortranarray(x)
    for axis in (0, 1):
        want = s24.prune(x, pattern=pattern, axis=axis)
        got = s24.prune(turned, pattern=pattern, axis=axis)
        assert got.flags.c_contiguous
        assert as_bytes(got) == as_bytes(want)
        made = s24.compress(turned, pattern=pattern, axis=axis, on_excess="prune").toarray()
        assert as_bytes(np.ascontiguousarray(made)) == as_bytes((want + 0).astype(x.dtype))


def test_scores_and_masks_by_columns(rng):
    x, scores = rng.standard_normal((2, 83, 142))
    mask = s24.mask(x)
    by_columns = np.asfortranarray(mask), np.asfortranarray(scores)
    want = s24.prune(x, scores=scores)
    np.testing.assert_array_equal(s24.prune(x, scores=by_columns[1]), want)
    kept = s24.compress(x, mask=by_columns[0]).toarray()
    np.testing.assert_array_equal(kept, np.where(mask, x, 0))
