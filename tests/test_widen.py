"""8-bit 2:4 matrices made such of 16 bits on a GPU: bit for bit, elements and codes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _storage
from sparse24._arrays import empty_rows, to_numpy
from sparse24._dtypes import OF_16_BITS, TABLE, numpy_dtype
from sparse24.kernels import widen

pytestmark = [pytest.mark.gpu, pytest.mark.stem("widen")]
PAIRS = [(stored, dtype) for stored in widen.TYPES for dtype in OF_16_BITS]
SHAPES = [
    (1, 4), (1, 5), (3, 18), (16, 128), (50, 300), (70, 1001), (64, 4100), (200, 8192),
    (3, 64, 256), (2, 3, 33, 70),
]  # fmt: skip


def record_of(rng, shape, stored: str):
    """A record on the GPU with every byte that the type has."""
    import cupy as cp

    record = s24.random(shape, dtype="int8", rng=rng, device="cuda")._operand.stored
    drawn = cp.asarray(rng.integers(0, 256, record.values.shape), np.uint8)
    values = empty_rows(cp, drawn.shape, TABLE[stored].carried)
    values[...] = drawn.view(values.dtype)
    return dataclasses.replace(record, values=values, dtype=TABLE[stored], metadata=None)


def assert_same(found, record, dtype: str):
    stored = to_numpy(record.values).view(numpy_dtype(record.dtype.name))
    wanted = stored.astype(np.float32).astype(numpy_dtype(dtype))
    got = found.values.get().view(wanted.dtype)
    known = ~np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(got.view(np.uint16)[known], wanted.view(np.uint16)[known])
    assert np.isnan(got[~known].astype(np.float32)).all()
    want, codes = _storage.canonical(record), _storage.canonical(found)
    np.testing.assert_array_equal(codes.get(), want.get())
    assert (found.shape, found.dtype, found.metadata) == (record.shape, TABLE[dtype], None)


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_byte(cupy, rng, stored, dtype, shape):
    record = record_of(rng, shape, stored)
    assert widen.takes(record, TABLE[dtype])
    assert_same(widen.launch(record, TABLE[dtype]), record, dtype)


def test_more_than_the_grid_has_warps(cupy, rng):
    record = record_of(rng, (40000, 2056), "int8")
    assert_same(widen.launch(record, TABLE["float16"]), record, "float16")


def test_parts_that_lie_elsewhere_are_converted_as_well(cupy, rng):
    a = s24.random((4, 64, 256), dtype="int8", rng=rng, device="cuda")
    for part in (a[1], a[::2], a[:, 16:40], a[2, 3:]):
        wanted = part.toarray().astype(np.float16)
        np.testing.assert_array_equal(part.astype("float16").toarray().get(), wanted.get())


@pytest.mark.parametrize("stored", widen.TYPES)
def test_products_with_many_tokens(cupy, rng, stored):
    a = s24.random((256, 512), dtype=stored, rng=rng, device="cuda")
    wide = a.astype("float16")
    for _ in range(3):
        x = cupy.asarray(rng.standard_normal((600, 512))).astype(np.float16)
        y = s24.matmul(x, a.T, algorithm="sparse_wgmma")
        want = s24.matmul(x, wide.T, algorithm="sparse_wgmma")
        np.testing.assert_array_equal(y.get(), want.get())


@pytest.mark.parametrize("left_out", ["wider", "metadata", "empty"])
def test_others_are_left_to_the_general_conversion(cupy, rng, left_out):
    record = record_of(rng, (16, 128), "int8")
    dtype = TABLE["float32" if left_out == "wider" else "float16"]
    if left_out == "metadata":
        codes = _storage.canonical(record)
        record = dataclasses.replace(record, packed=None, metadata=codes)
    if left_out == "empty":
        record = s24.random((0, 8), dtype="int8", device="cuda")._operand.stored
    assert not widen.takes(record, dtype)
    assert _storage.cast(record, dtype).dtype is dtype
