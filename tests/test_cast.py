"""Conversion between element types on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import cast, reference


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("source", _dtypes.NAMES)
@pytest.mark.parametrize("target", _dtypes.NAMES)
def test_equals_the_reference(source, target, rng):
    import cupy

    row, wanted = _dtypes.TABLE[source], _dtypes.TABLE[target]
    x = rng.normal(scale=60, size=(3, 5, 11)).astype(np.float32)
    x[0, 0, :3] = [0, -0.0, 1e-3]
    x = reference.to_dtype(x, row.logical)
    carried = x.view(np.uint8) if row.is_float8 else x
    got = to_numpy(cast.launch(cupy.asarray(carried), row, wanted))
    expected = reference.to_dtype(x, wanted.logical)
    np.testing.assert_array_equal(got.view(wanted.storage), expected.view(wanted.storage))
    assert got.shape == x.shape


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty(shape):
    import cupy

    table = _dtypes.TABLE
    got = cast.launch(cupy.empty(shape, np.float32), table["float32"], table["float16"])
    assert got.shape == shape
