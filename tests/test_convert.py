"""Parts, bit masks and tensors."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes


def test_parts_round_trip_and_are_checked():
    a = s24.random((6, 20), dtype="bfloat16", rng=0)
    bits = a.values.view(np.uint16)
    b = s24.convert.from_parts(bits, a.metadata, a.shape, dtype="bfloat16")
    np.testing.assert_array_equal(a.toarray(), b.toarray())
    bad = a.metadata.copy()
    bad[2, 1] = 0x55
    with pytest.raises(s24.FormatError, match="code"):
        s24.convert.from_parts(a.values, bad, a.shape)
    with pytest.raises(s24.FormatError, match="values"):
        s24.convert.from_parts(a.values[:, 1:], a.metadata, a.shape)


def test_parts_are_plain_arrays():
    a = s24.random((4, 8), rng=0)
    values, bits = s24.convert.to_bitmask(a)
    for make, other in ((s24.convert.from_parts, a.metadata), (s24.convert.from_bitmask, bits)):
        with pytest.raises(s24.DTypeError, match="values must not be a MaskedArray"):
            make(np.ma.array(values), other, a.shape)
        with pytest.raises(s24.ShapeError, match=r"values must be an array: .*sequence"):
            make([[1.0], [2.0, 3.0]], other, a.shape)


def test_bitmask_round_trip():
    a = s24.random((6, 20), dtype="float16", rng=0)
    values, bitmask = s24.convert.to_bitmask(a)
    assert bitmask.shape == (6, 3)
    np.testing.assert_array_equal(
        s24.convert.from_bitmask(values, bitmask, a.shape).toarray(), a.toarray()
    )
    with pytest.raises(s24.FormatError, match="bits set"):
        s24.convert.from_bitmask(values[:, 1:], bitmask, a.shape)
    with pytest.raises(s24.FormatError, match="uint8 of shape"):
        s24.convert.from_bitmask(values, bitmask[:, :1], a.shape)
    with pytest.raises(s24.ShapeError, match="multiple of 4"):
        s24.convert.to_bitmask(s24.random((4, 6), rng=0))
    with pytest.raises(s24.ArgumentError, match="a must be a Sparse24Array, got HybridArray"):
        s24.convert.to_bitmask(s24.hybrid(np.eye(4)))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_parts_may_be_tensors_of_torch(name):
    pytest.importorskip("torch")
    from sparse24._foreign import to_torch

    a = s24.random((6, 20), dtype=name, rng=0)
    parts = [to_torch(np.array(part)) for part in (a.values, a.metadata)]
    b = s24.convert.from_parts(*parts, a.shape)
    assert b.dtype == a.dtype
    np.testing.assert_array_equal(b.toarray(), a.toarray())
    values, bitmask = s24.convert.to_bitmask(a)
    c = s24.convert.from_bitmask(to_torch(np.array(values)), to_torch(bitmask), a.shape)
    assert c.dtype == a.dtype
    np.testing.assert_array_equal(c.toarray(), a.toarray())


def test_bitmask_of_known_bytes():
    bitmask = np.array([[0b10010011]], np.uint8)  # columns 0, 1 and 4, 7
    a = s24.convert.from_bitmask(np.array([1, 2, 3, 4], np.float32), bitmask, (1, 8))
    np.testing.assert_array_equal(a.toarray(), [[1, 2, 0, 0, 3, 0, 0, 4]])


def test_the_shape_of_a_bitmask_may_be_a_column():
    a = s24.random((6, 20), rng=0)
    parts = s24.convert.to_bitmask(a)
    b = s24.convert.from_bitmask(*parts, np.array([[6], [20]]))
    np.testing.assert_array_equal(b.toarray(), a.toarray())


def test_to_torch():
    torch = pytest.importorskip("torch")
    a = s24.random((4, 8), dtype="bfloat16", rng=0)
    assert s24.convert.to_torch(a).dtype == torch.bfloat16
    eye = np.eye(4, dtype=np.float32)
    for other in (s24.hybrid(eye), s24.compress(eye, pattern=(3, 4))):
        assert torch.equal(s24.convert.to_torch(other), torch.eye(4))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_dense_arrays_of_a_file_become_tensors(name):
    torch = pytest.importorskip("torch")
    x = np.ones((2, 3)).astype(_dtypes.TABLE[name].logical if name in _dtypes.TABLE else name)
    tensor = s24.convert.to_torch(x)
    assert tensor.dtype == getattr(torch, name)
    assert tensor.shape == (2, 3)
    tensor.zero_()
    assert not x.astype(bool).any()  # the memory is shared
    with pytest.raises(s24.ArgumentError, match="a must be a Sparse24Array"):
        s24.convert.to_torch([1.0])


def test_dense_arrays_whose_memory_torch_cannot_share_are_refused():
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for a in (x[::-1], x.astype(">f4"), x.astype("bfloat16")[:, ::-1]):
        with pytest.raises(s24.ArgumentError, match=r"a must have strides .* is a copy"):
            s24.convert.to_torch(a)
        copy = np.array(a, a.dtype.newbyteorder("="), order="C")  # as the message says
        assert torch.equal(s24.convert.to_torch(copy).float(), torch.tensor(a.tolist()))
    for a in (x.astype(str), x.astype(object), x.astype("M8[s]")):
        with pytest.raises(s24.DTypeError, match="a must hold numbers that torch has, got"):
            s24.convert.to_torch(a)
