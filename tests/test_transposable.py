"""transposable.cu against the reference, and the reference against all 90 masks."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from packing_cases import KINDS, LAYOUTS, SHAPES, assert_same_bits, matrix, place, poison

from sparse24 import _dtypes, _spec
from sparse24.kernels import reference, transposable

gpu = pytest.mark.gpu
stem = pytest.mark.stem("transposable")
ONE_PASS_SHAPES = ((64, 256), (128, 128), (72, 304), (4, 8), (132, 136), (2, 68, 264), (3, 260, 8))


def mask_word(keep: np.ndarray) -> int:
    return int((keep.reshape(-1).astype(int) << np.arange(16)).sum())


def test_golden_list_of_masks():
    masks = np.asarray(_spec.TILE_MASKS, "<u2")
    assert len(masks) == 90
    assert f"{zlib.crc32(masks.tobytes()):08x}" == "cad794fc"


@pytest.mark.parametrize(
    ("tile", "mask"),
    [
        ([[3, 6, 11, 2], [9, 16, 15, 13], [8, 1, 12, 4], [14, 7, 10, 5]], 0x95A6),
        ([[9, 1, 5, 3], [2, 8, 7, 1], [6, 4, 1, 9], [3, 6, 2, 8]], 0xA965),
    ],
)
def test_golden_tiles(tile, mask):
    assert mask_word(reference.transposable_mask(np.array(tile, np.float32))) == mask


def wide_matrix(rng, shape, row):
    """Magnitudes so far apart that float32 sums round: ties of rounded totals, not of sums."""
    exponents = rng.integers(-20, 5, shape) if row.itemsize > 1 else 0
    return (rng.integers(1, 4, shape) * 2.0**exponents).astype(row.logical)


@gpu
@stem
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_mask_matches_reference(rng, name):
    row = _dtypes.TABLE[name]
    for shape in SHAPES:
        for layout in LAYOUTS:
            cases = [matrix(rng, shape, row, kind) for kind in KINDS]
            for x in (*cases, wide_matrix(rng, shape, row)):
                poison()
                assert_same_bits(
                    transposable.mask(place(x, layout), row), reference.transposable_mask(x)
                )


@gpu
@stem
@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_mask_of_subnormal_numbers(rng, name):
    row = _dtypes.TABLE[name]
    x = (rng.standard_normal((37, 66)) * 1e-40).astype(row.logical)
    poison()
    assert_same_bits(transposable.mask(place(x, LAYOUTS[0]), row), reference.transposable_mask(x))


@gpu
@stem
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int8"])
def test_both_orientations(rng, name):
    row = _dtypes.TABLE[name]
    for shape in (*ONE_PASS_SHAPES, (70, 300), (5, 7)):
        for x in (*(matrix(rng, shape, row, kind) for kind in KINDS), wide_matrix(rng, shape, row)):
            keep = reference.transposable_mask(x)
            poison()
            both = transposable.launch(place(x), row)
            for got, dense, mask in zip(both, (x, turned(x)), (keep, turned(keep)), strict=True):
                values, metadata = reference.compress(dense, mask)
                assert_same_bits(got.values, values)
                assert_same_bits(
                    got.packed, reference.pack_metadata(metadata, dense.shape[-1], row.itemsize)
                )
                assert got.shape == dense.shape


def turned(x):
    return x.swapaxes(-1, -2)
