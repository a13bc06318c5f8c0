"""Rows, matrices of a batch and transposes of 2:4 arrays, whose parts are views."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _record_parts, _spec, _storage
from sparse24._records import Compressed24


def test_a_transpose_outlives_its_array(rng):
    w = s24.prune(rng.standard_normal((8, 16)).astype(np.float32))
    turned = s24.compress(w).T
    assert turned.T is turned.T
    assert turned.T.T is turned
    np.testing.assert_array_equal(turned.T.toarray(), w)


def test_transposed_views_share_storage():
    a = s24.random((6, 12), rng=0)
    assert a.T.shape == (12, 6)
    assert a.T.axis == -2
    assert a.T.T is a
    assert np.shares_memory(a.T.values, a.values)
    np.testing.assert_array_equal(a.T.toarray(), a.toarray().T)
    with pytest.raises(s24.ArgumentError, match=r"use \.mT"):
        _ = s24.random((2, 4, 4), rng=0).T


@pytest.mark.parametrize("rows", [(0, 0), (0, 64), (3, 9), (64, 100), (99, 130)])
def test_row_slices(rows):
    a = s24.random((130, 40), rng=0)
    _ = a.packed
    part = a[slice(*rows)]
    np.testing.assert_array_equal(part.toarray(), a.toarray()[slice(*rows)])
    assert part.packed.shape == _spec.packed_shape(part.shape[0], 40)
    np.testing.assert_array_equal(part.packed, s24.compress(part.toarray()).packed)


def test_batches_are_indexed():
    a = s24.random((3, 5, 8), rng=0)
    np.testing.assert_array_equal(a[1].toarray(), a.toarray()[1])
    np.testing.assert_array_equal(a[1:].toarray(), a.toarray()[1:])
    assert a[2].shape == (5, 8)
    for array in (a, s24.compress(a.toarray(), pattern=(3, 4))):
        for error in (s24.ArgumentError, IndexError):  # as lists and NumPy raise
            with pytest.raises(error, match=r"A\[3\] is out of range for 3 matrices"):
                array[3]


@pytest.mark.parametrize(("start", "stop"), [(0, 64), (64, 130), (128, 200), (5, 70), (64, 64)])
def test_rows_of_packed_codes(rng, start, stop):
    a = s24.random((200, 72), rng=rng)
    record = a._operand.stored
    packed = Compressed24(record.values, None, a.packed, record.shape, record.dtype)
    part = _record_parts.rows(packed, start, stop)
    assert part.shape == (stop - start, 72)
    np.testing.assert_array_equal(_storage.decompress(part), a.toarray()[start:stop])


@pytest.mark.parametrize(
    "key", [1, np.s_[1:3], np.s_[::2], np.s_[::-1], np.s_[:, 1], np.s_[1::2, :2], [2, 0], np.s_[:0]]
)
def test_packed_codes_of_a_batch_follow_one_another(key):
    """Launches are remembered by their address, which says no more of where they lie."""
    a = s24.random((4, 3, 70, 136), rng=0)
    record = a._operand.stored
    packed = Compressed24(record.values, None, a.packed, record.shape, record.dtype)
    part = _record_parts.of_batch(packed, key if isinstance(key, tuple) else (key,))
    np.testing.assert_array_equal(_storage.decompress(part), a.toarray()[key])
    assert part.packed.flags.c_contiguous


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("key", [np.s_[::-1], np.s_[::-2], np.s_[2:0:-1], np.s_[::2]])
def test_parts_of_a_batch_are_multiplied_on_a_gpu(rng, dtype, key):
    import cupy

    w = rng.integers(-3, 4, (5, 128, 256)).astype(dtype)
    a = s24.compress(cupy.asarray(w), on_excess="prune")
    b = cupy.asarray(rng.integers(-2, 3, (256, 40)).astype(dtype))
    np.testing.assert_array_equal((a[key] @ b).get(), (a.toarray() @ b)[key].get())


def test_what_parts_keep():
    eye = np.eye(8, dtype=np.float32)
    one = s24.compress(eye, transposable=True, keep_dense=True)
    rows, stored = one[:4], s24.compress(eye[:4])
    assert (rows.transposable, rows.nbytes) == (False, stored.nbytes)
    assert np.shares_memory(rows.values, one.values)
    (part,) = s24.compress(eye[None], transposable=True, keep_dense=True)
    assert (part.transposable, part.nbytes) == (True, one.nbytes - eye.nbytes)
