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
