"""like.cu against the reference: gathering bit for bit, gradients to the rounding."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import (
    FEW_SHAPES,
    LAYOUTS,
    SHAPES,
    assert_same_bits,
    matrix,
    place,
    poison,
    record_of,
)

from sparse24 import _dtypes
from sparse24.kernels import like, reference

gpu = pytest.mark.gpu
stem = pytest.mark.stem("like")
FLOATS = tuple(name for name in _dtypes.NAMES if name != "int8")


def old_matrix(rng, shape, row, *, packed=True):
    values, metadata = reference.compress(reference.prune(matrix(rng, shape, row, "odd")))
    return metadata, record_of(values, metadata, shape, row, packed=packed)


def test_reference_agrees_with_compress(rng):
    row = _dtypes.TABLE["float32"]
    x = matrix(rng, (9, 30), row)
    values, metadata = reference.compress(reference.prune(x))
    assert_same_bits(reference.like(metadata, x), values)
    mask = reference.stored_mask(metadata, 30)
    assert_same_bits(reference.masked_gradient(metadata, x), np.where(mask, x, np.float32(0)))


@gpu
@stem
@pytest.mark.parametrize("packed", [False, True], ids=["canonical", "packed"])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_reference(rng, name, packed):
    row = _dtypes.TABLE[name]
    for shape in SHAPES if name in ("bfloat16", "int8") else FEW_SHAPES:
        metadata, record = old_matrix(rng, shape, row, packed=packed)
        for layout in LAYOUTS:
            x = matrix(rng, shape, row, "odd")
            poison()
            got = like.launch(record, place(x, layout))
            assert_same_bits(got.values, reference.like(metadata, x))
            assert got.packed is record.packed
            assert got.metadata is record.metadata


@gpu
@stem
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_zeros_stay_zeros_on_request(rng, name):
    row = _dtypes.TABLE[name]
    for shape in FEW_SHAPES:
        old = matrix(rng, shape, row, "odd")
        values, metadata = reference.compress(reference.prune(old))
        record = record_of(values, metadata, shape, row, packed=True)
        for layout in LAYOUTS:
            x = matrix(rng, shape, row, "odd")
            poison()
            got = like.launch(record, place(x, layout), nonzero=True)
            want = reference.like(metadata, x)
            assert_same_bits(got.values, np.where(values != 0, want, np.zeros((), want.dtype)))


def spoilt(x, stored):
    """Variants of x, and whether non-zeros are lost, and whether there are infinities or NaNs."""
    least = np.nextafter(np.zeros((), x.dtype), np.ones((), x.dtype))
    kept, lost = (np.argwhere(places) for places in (stored, ~stored))
    yield x, (0, 0)
    for at, value, seen in (
        (lost[-1], least, (1, 0)),
        (lost[len(lost) // 2], -least, (1, 0)),
        (lost[0], np.nan, (1, 1)),
        (kept[-1], -np.inf, (0, 1)),
        (kept[0], np.nan, (0, 1)),
    ):
        changed = x.copy()
        changed[tuple(at)] = value
        yield changed, seen


@gpu
@stem
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_lost_is_seen(rng, name):
    import cupy as cp

    row = _dtypes.TABLE[name]
    for shape in FEW_SHAPES:
        metadata, record = old_matrix(rng, shape, row)
        stored = reference.stored_mask(metadata, shape[-1])
        x = np.where(stored, matrix(rng, shape, row), -np.zeros((), row.logical))
        for layout in LAYOUTS:
            for changed, seen in spoilt(x, stored):
                on_gpu, found = place(changed, layout), cp.zeros(2, record.values.dtype)
                values = cp.full_like(record.values, 7)
                dense = on_gpu.reshape(-1, *shape[-2:])
                like.gathering_call(dense, record.packed, values, row, seen=found).enqueue()
                assert tuple(found.astype(np.float32).tolist()) == seen
                assert_same_bits(values, reference.like(metadata, changed))


@gpu
@stem
@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("size", [16, 4096, 4096 * 16, 3 * 4096 * 8 + 16])
def test_elements_under_a_mask(rng, name, size):
    row = _dtypes.TABLE[name]
    x, mask = matrix(rng, (1, size), row, "odd"), rng.random((1, size)) < 0.5
    mask = np.where(mask, rng.integers(1, 256, mask.shape), 0).astype(np.uint8)  # any byte but zero
    on_gpu, under = place(x), place(mask)
    poison()
    got = place(np.ones_like(x))
    like.under_mask_call(on_gpu, under, got, row).enqueue()
    assert_same_bits(got, np.where(mask != 0, x, np.zeros((), x.dtype)))


@gpu
@stem
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_gradient_is_selected(rng, name):
    row = _dtypes.TABLE[name]
    for shape in FEW_SHAPES:
        metadata, record = old_matrix(rng, shape, row)
        for layout in ("rows", "columns"):
            gradient = matrix(rng, shape, row, "odd")
            poison()
            got = like.masked_gradient(record, place(gradient, layout))
            assert_same_bits(got, reference.masked_gradient(metadata, gradient))


@gpu
@stem
@pytest.mark.parametrize("name", FLOATS)
def test_pruned_weights_decay(rng, name):
    """A power of two as decay leaves one rounding, so the result is exact to the bit."""
    row = _dtypes.TABLE[name]
    for shape in (*FEW_SHAPES, (5, 37)):
        metadata, record = old_matrix(rng, shape, row)
        gradient, weight = matrix(rng, shape, row), matrix(rng, shape, row)
        on_gpu = place(gradient)
        got = like.masked_gradient(record, on_gpu, weight=place(weight), decay=2.0**-12, out=on_gpu)
        assert_same_bits(got, reference.masked_gradient(metadata, gradient, weight, 2.0**-12))


@gpu
@stem
@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
def test_subnormal_gradients_stay(rng, name):
    row, shape = _dtypes.TABLE[name], (70, 300)
    metadata, record = old_matrix(rng, shape, row)
    number = rng.integers(1, 9, shape).astype(f"u{row.itemsize}")  # of the smallest ones
    gradient, double = number.view(row.logical), (2 * number).view(row.logical)
    decayed = like.masked_gradient(
        record, place(gradient), weight=place(np.zeros(shape, row.logical)), decay=0.5
    )
    assert_same_bits(decayed, gradient)
    ones = reference.like(metadata, np.ones(shape, row.logical))
    squares = record_of(ones, metadata, shape, row, packed=True)
    for layout in ("rows", "columns"):
        got = like.launch(squares, place(gradient, layout), derivative=True)
        assert_same_bits(got.values, reference.like(metadata, double))
