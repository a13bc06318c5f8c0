"""Pickles and copies of arrays of every format."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import sparse24 as s24

DIAGONAL = np.diag(np.arange(1, 81, dtype=np.float32))
EVERY_FORMAT = {
    "2:4": lambda: s24.compress(DIAGONAL),
    "transposable": lambda: s24.compress(DIAGONAL, transposable=True, keep_dense=True),
    "turned": lambda: s24.random((4, 8), dtype="bfloat16", rng=0).T,
    "fp8": lambda: s24.random((2, 4, 8), dtype="float8_e5m2", rng=0),
    "deferred": lambda: s24.compress(np.ones((2, 8), np.float32), check="deferred"),
    "1:4": lambda: s24.compress(DIAGONAL, pattern=(1, 4)).T,
    "hybrid": lambda: s24.hybrid(DIAGONAL),
}


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_arrays_are_pickled_and_copied(name):
    array = EVERY_FORMAT[name]()
    _ = array @ np.ones(array.shape[-1], array.dtype)  # whatever it keeps prepared
    assert copy.copy(array) is array
    for other in (pickle.loads(pickle.dumps(array)), copy.deepcopy(array)):
        assert (type(other), other.shape, other.dtype) == (type(array), array.shape, array.dtype)
        np.testing.assert_array_equal(other.toarray(), array.toarray())
        assert not np.shares_memory(other.toarray(), array.toarray())
        product = [x @ np.ones(x.shape[-1], x.dtype) for x in (other, array)]
        np.testing.assert_array_equal(*product)
    if name == "deferred":
        with pytest.raises(s24.PatternError):
            pickle.loads(pickle.dumps(array)).check()
    if name == "transposable":
        assert other.transposable


@pytest.mark.parametrize("axis", [-1, -2])
def test_windows_stay_immutable(axis):
    eye = np.eye(12, dtype=np.float32)
    windows = s24.compress(eye, pattern=(6, 8), axis=axis).windows()
    assert copy.copy(windows) is windows
    for other in (pickle.loads(pickle.dumps(windows)), copy.deepcopy(windows)):
        assert (other.shape, other.pattern, other.axis) == ((12, 12), (6, 8), axis)
        assert not other.index.flags.writeable
        assert not np.shares_memory(other.array.values, windows.array.values)
        np.testing.assert_array_equal(other @ eye if axis == -1 else eye @ other, eye)


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_what_products_prepared_is_not_pickled(name):
    array = EVERY_FORMAT[name]()
    before = len(pickle.dumps(array)), len(pickle.dumps(array.mT))
    for turned in (array, array.mT):  # the first kind of product of one is the second of the other
        for _ in range(3):
            _ = turned @ np.ones(turned.shape[-1], array.dtype)
    assert (len(pickle.dumps(array)), len(pickle.dumps(array.mT))) == before


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "decompress")
def test_arrays_are_pickled_from_the_gpu():
    array = s24.random((8, 16), dtype="float16", rng=0).to_device("cuda")
    other = pickle.loads(pickle.dumps(array))
    assert other.device == array.device
    dense = [x.to_device("cpu").toarray() for x in (other, array)]
    np.testing.assert_array_equal(*dense)
