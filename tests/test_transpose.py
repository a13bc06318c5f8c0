"""transpose.cu against the reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from sparse24.kernels import reference, transpose

pytestmark = pytest.mark.stem("transpose")


def test_reference_stores_by_columns():
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    turned = reference.transpose(x)
    np.testing.assert_array_equal(turned, x)
    assert turned.strides == (1, 2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.float32])
@pytest.mark.parametrize(
    "shape", [(1, 1), (128, 128), (16, 300), (301, 15), (200, 264), (2, 70, 33), (3, 256, 128)]
)
def test_matches_reference(rng, dtype, shape):
    import cupy as cp

    for margin in (0, 1, 16):  # pitches and starts on and off 16-byte boundaries
        wide = rng.integers(-100, 101, (*shape[:-1], shape[-1] + margin)).astype(dtype)
        x = cp.asarray(wide)[..., margin:]
        assert transpose.takes(x)
        turned = transpose.launch(x)
        np.testing.assert_array_equal(turned.get(), reference.transpose(wide[..., margin:]))
        assert turned.strides[-2] == turned.dtype.itemsize
        assert turned.shape[-1] == 1 or turned.strides[-1] % 16 == 0


@pytest.mark.gpu
def test_takes_rows_of_small_elements_only():
    import cupy as cp

    assert not transpose.takes(cp.ones((4, 4), np.float64))
    assert not transpose.takes(cp.ones((4, 4), np.uint8).T)
