"""Products of n:m arrays on a GPU: cuBLAS with the matrix made dense, prepared once."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _foreign
from sparse24.formats.n_m import NMArray

pytestmark = [pytest.mark.gpu, pytest.mark.stem("n_m")]


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_repeated_products_on_the_gpu_read_their_operands_anew(rng, dtype, axis, library):
    cupy, _ = pytest.importorskip("cupy"), pytest.importorskip(library)
    logical = _dtypes.TABLE[dtype].logical
    w = cupy.asarray(rng.integers(-4, 5, (40, 48)).astype(logical))
    a = NMArray.from_dense(w, pattern=(5, 8), axis=axis, on_excess="prune")
    dense = _arrays.to_numpy(a.toarray()).astype(np.float32)
    for shape, left in (((48, 7), True), ((48,), True), ((9, 40), False), ((40,), False)):
        for _ in range(3):
            x = rng.integers(-3, 4, shape).astype(np.float32)
            given = cupy.asarray(x.astype(logical))
            given = _foreign.to_torch(given) if library == "torch" else given
            got = a @ given if left else given @ a
            assert type(got) is type(given)
            got = got.float().cpu().numpy() if library == "torch" else got.get()
            want = dense @ x if left else x @ dense
            np.testing.assert_allclose(got.astype(np.float32), want, rtol=1e-2)
    assert len(a._plans) == 4


def test_sums_of_16_bits_on_the_gpu_are_rounded_once(rng):
    cupy = pytest.importorskip("cupy")
    w = s24.prune(rng.standard_normal((8, 64)).astype(np.float16), pattern=(5, 8))
    a = NMArray.from_dense(cupy.asarray(w), pattern=(5, 8))
    x = rng.standard_normal((64, 3)).astype(np.float16)
    exact = w.astype(np.float64) @ x.astype(np.float64)
    for _ in range(2):
        wide = s24.matmul(a, cupy.asarray(x), dtype="float32").get()
        np.testing.assert_allclose(wide, exact, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal((a @ cupy.asarray(x)).get(), wide.astype(np.float16))
