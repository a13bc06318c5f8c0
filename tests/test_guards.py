"""No kernel writes outside of its results: odd sizes, by every kernel that takes them."""

from __future__ import annotations

import numpy as np
import pytest
from guards import Guarded

import sparse24 as s24
from sparse24 import _dtypes

pytestmark = pytest.mark.gpu
SHAPES = [(61, 1, 384), (58, 1, 679), (301, 13, 256), (77, 9, 130), (515, 67, 201)]
OF_A_KERNEL = 2  # configurations that run


@pytest.fixture
def guarded():
    """CuPy with guards around all memory that a test asks for."""
    cupy = pytest.importorskip("cupy")
    guards = Guarded(cupy)
    with cupy.cuda.using_allocator(guards):
        yield cupy
        assert not guards.damage()


def whole_numbers(cupy, rng, shape, name: str):
    """Small whole numbers as the GPU carries the type."""
    row = _dtypes.TABLE[name]
    x = rng.integers(-3, 4, shape).astype(row.logical)
    return cupy.asarray(x.view(np.uint8) if row.is_float8 else x), x.astype(np.float64)


def some_of_each_kernel(candidates) -> list[str]:
    names: dict[str, list[str]] = {}
    for candidate in candidates:
        if candidate.refusal is None:
            names.setdefault(candidate.kernel, []).append(candidate.name)
    return [name for of_kernel in names.values() for name in of_kernel[:OF_A_KERNEL]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["float16", "float32", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_products(guarded, rng, name, shape, order):
    m, n, k = shape
    w, _ = whole_numbers(guarded, rng, (m, k), name)
    a = s24.compress(w, on_excess="prune", dtype=name, keep_dense=True)
    b, host = whole_numbers(guarded, rng, (k, n), name)
    b = guarded.asarray(b, order=order)
    options = {"b_dtype": name, "dtype": "float32"} if name.startswith("float8") else {}
    pruned = _dtypes.TABLE[name].logical
    want = a.toarray().get().view(pruned).astype(np.float64) @ host
    for algorithm in some_of_each_kernel(s24.explain(a, b, **options).candidates):
        got = s24.matmul(a, b, algorithm=algorithm, **options).get()
        np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=algorithm)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8"])
def test_unstructured_products(guarded, rng, name, shape):
    m, n, k = shape
    w, _ = whole_numbers(guarded, rng, (m, k), name)
    w *= guarded.asarray(rng.random((m, k)) < 0.2).astype(w.dtype)
    h = s24.hybrid(w)
    b, host = whole_numbers(guarded, rng, (k, n), name)
    want = w.get().astype(np.float64) @ host
    for path in h.explain(n)["candidates"]:
        got = h.matmul(b, algorithm=path).get()
        np.testing.assert_array_equal(got, want.astype(got.dtype), err_msg=path)


@pytest.mark.parametrize("pattern", [(2, 4), (1, 2), (3, 4), (2, 5), (6, 8)])
@pytest.mark.parametrize("shape", [(61, 39), (3, 17, 130), (2, 3, 5, 21)])
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_packing(guarded, rng, name, shape, pattern):
    x, _ = whole_numbers(guarded, rng, shape, name)
    kept = s24.prune(x, pattern=pattern)
    a = s24.compress(kept, pattern=pattern)
    np.testing.assert_array_equal(a.toarray().get(), kept.get())
