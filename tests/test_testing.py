"""The helpers for tests, and the laws of pruning and compressing tried with them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings

import sparse24 as s24
from sparse24 import testing

quick = settings(max_examples=40, deadline=None)


@quick
@given(testing.arrays())
def test_a_pruned_array_obeys_and_compresses_without_loss(x):
    pruned = s24.prune(x)
    testing.assert_24(pruned)
    dense = s24.compress(pruned).toarray()
    np.testing.assert_array_equal(dense.astype(np.float64), pruned.astype(np.float64))
    again = s24.prune(pruned)
    np.testing.assert_array_equal(again.astype(np.float64), pruned.astype(np.float64))


@quick
@given(testing.arrays(special=False))
def test_pruning_keeps_the_largest(x):
    size, kept = (np.abs(a.astype(np.float64)) for a in (x, s24.prune(x)))
    pad = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 4)]
    size, kept = (np.pad(a, pad).reshape(-1, 4) for a in (size, kept))
    np.testing.assert_array_equal(np.sort(size, axis=1)[:, 2:].sum(1), kept.sum(1))


@quick
@given(testing.arrays(dtypes=("float32", "int8"), special=False, max_batch=0))
def test_products_of_small_integers_are_exact(x):
    array = s24.compress(x, on_excess="prune")
    b = np.arange(x.shape[1] * 3).reshape(x.shape[1], 3) % 7 - 3
    exact = array.toarray().astype(np.int64) @ b
    np.testing.assert_array_equal((array @ b.astype(x.dtype)).astype(np.int64), exact)


def test_a_wrong_product_is_caught():
    exact = np.arange(1.0, 9.0).reshape(2, 4)
    right = exact.astype(np.float32)
    testing.assert_accurate(right, exact, rival=right)
    with pytest.raises(AssertionError, match=r"relative error 1.00e-02 exceeds 2.0 times"):
        testing.assert_accurate(right * np.float32(1.01), exact, rival=right)


def test_a_wrong_product_is_caught_without_assert_statements():
    script = """
import numpy as np
from sparse24 import testing
try:
    testing.assert_accurate(np.full(2, 3.0), np.ones(2), rival=np.ones(2))
except AssertionError:
    print("caught")
"""
    told = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True)
    assert told.stdout == "caught\n", told.stderr


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_products_of_torch_are_judged_by_their_type(name):
    torch = pytest.importorskip("torch")
    exact = torch.arange(1.0, 9.0, dtype=torch.float64)
    right = exact.to(getattr(torch, name))
    testing.assert_accurate(right, exact, rival=right)
    with pytest.raises(AssertionError, match=r"exceeds 2.0 times"):
        testing.assert_accurate(right * 1.5, exact, rival=right)


def test_an_error_against_zero_is_infinite():
    assert testing.relative_error(np.ones(2), np.zeros(2)) == np.inf
    assert testing.relative_error(np.zeros(0), np.zeros(0)) == 0


def test_compressed_arrays_are_read():
    testing.assert_24(s24.random((4, 8), rng=0))
    with pytest.raises(AssertionError, match=r"x\[0, 0:4\] has more than 2"):
        testing.assert_24(np.ones((1, 4), np.float32))


def test_errors_of_very_large_and_small_numbers_are_seen():
    relative_error = s24.testing.relative_error
    for scale in (1e-200, 1e200, 1.0):
        assert relative_error(np.array([scale, 0]), np.array([2 * scale, 0])) == 0.5
    assert relative_error(np.array([np.inf]), np.array([np.inf])) == 0
    assert relative_error(np.array([np.inf]), np.array([1.0])) == np.inf
    assert np.isnan(relative_error(np.array([np.nan]), np.array([1.0])))
    with pytest.raises(s24.DTypeError, match="actual must hold real numbers"):
        relative_error(np.array([1 + 5j]), np.array([1.0]))
    with pytest.raises(s24.DTypeError, match="exact must not be a MaskedArray"):
        relative_error(np.array([1.0, 2.0]), np.ma.array([1.0, 5.0], mask=[False, True]))
