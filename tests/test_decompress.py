"""decompress.cu against the reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from packing_cases import (
    EMPTY_SHAPES,
    FEW_SHAPES,
    LAYOUTS,
    SHAPES,
    assert_same_bits,
    matrix,
    place,
    poison,
    record_of,
)

from sparse24 import _dtypes, _spec
from sparse24.kernels import decompress, reference

pytestmark = [pytest.mark.gpu, pytest.mark.stem("decompress")]


def shapes_for(name):
    return SHAPES if name in ("bfloat16", "int8") else FEW_SHAPES


@pytest.mark.parametrize("packed", [False, True], ids=["canonical", "packed"])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_matches_reference(rng, name, packed):
    row = _dtypes.TABLE[name]
    for shape in shapes_for(name):
        values, metadata = reference.compress(reference.prune(matrix(rng, shape, row, "odd")))
        want = reference.decompress(values, metadata, shape[-1])
        record = record_of(values, metadata, shape, row, packed=packed)
        poison()
        assert_same_bits(decompress.launch(record), want)
        assert_same_bits(decompress.mask(record), want != 0)
        for layout in LAYOUTS:
            out = place(matrix(rng, shape, row), layout)
            assert decompress.launch(record, out=out) is out
            assert_same_bits(out, want)


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_metadata_changes_order_and_back(rng, name):
    row = _dtypes.TABLE[name]
    for shape in SHAPES:
        x = reference.prune(matrix(rng, shape, row))
        _, metadata = reference.compress(x)
        packed = reference.pack_metadata(metadata, shape[-1], row.itemsize)
        poison()
        assert_same_bits(decompress.pack_metadata(place(metadata), shape[-1], row.itemsize), packed)
        back = decompress.unpack_metadata(place(packed), *shape[-2:], row.itemsize)
        assert_same_bits(back, metadata)


def test_empty():
    row = _dtypes.TABLE["float32"]
    for shape in EMPTY_SHAPES:
        values, metadata = reference.compress(np.zeros(shape, np.float32))
        record = record_of(values, metadata, shape, row, packed=False)
        assert decompress.launch(record).shape == shape
        packed = decompress.pack_metadata(record.metadata, shape[-1], 4)
        assert packed.shape == (*shape[:-2], *_spec.packed_shape(*shape[-2:]))
        assert decompress.unpack_metadata(packed, *shape[-2:], 4).shape == metadata.shape


def test_rows_of_a_larger_matrix(rng):
    """Views with a row pitch wider than their rows, and values that start anywhere."""
    row = _dtypes.TABLE["float16"]
    x = reference.prune(matrix(rng, (64, 200), row))
    record = record_of(*reference.compress(x), x.shape, row, packed=False)
    part = record_of(*reference.compress(x[5:31]), (26, 200), row, packed=False)
    moved = type(part)(record.values[5:31], part.metadata, None, part.shape, row)
    assert_same_bits(decompress.launch(moved), x[5:31])
