"""Operands and judgement shared by the tests of grouped products."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_cases import logical, put, sample
from product_cases import dense_float8

import sparse24 as s24
from sparse24 import _dtypes, _planner
from sparse24._arrays import to_numpy
from sparse24._grouped import choice as grouped_choice
from sparse24.kernels import reference_grouped
from sparse24.kernels.reference import to_dtype

KERNELS = [
    pytest.param(name, marks=[pytest.mark.gpu, pytest.mark.stem(name)])
    for name in grouped_choice.KERNELS
]


def only(kernel: str, monkeypatch):
    """Leave no other kernel for grouped products; gives CuPy."""
    monkeypatch.setattr(grouped_choice, "KERNELS", (kernel,))
    return pytest.importorskip("cupy")


def kernel():
    """The launcher of the kernel that `only` has left."""
    (name,) = grouped_choice.KERNELS
    return _planner.kernel_module(name)


def runs(name: str = "float16") -> bool:
    """Whether the kernel that `only` has left takes such products on this GPU."""
    import cupy

    capability = int(cupy.cuda.Device().compute_capability)
    if kernel().NAME == "grouped_wgmma":
        return capability == 90
    return capability >= (89 if name.startswith("float8") else 80)


def offsets_of(counts) -> np.ndarray:
    """Where experts with so many tokens each begin and end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class Layer:
    """Random 2:4 matrices, tokens, and their exact products, on the CPU or the GPU.

    Attributes
    ----------
    experts : Sparse24Array, shape (e, m, k)
    x : array, shape (t, k)
    offsets : ndarray of int64, shape (e + 1,)
    exact : ndarray, shape (m, t)
    """

    def __init__(self, name: str, m: int, k: int, counts, xp, rng):
        self.name, self.offsets = name, offsets_of(counts)
        experts = s24.random((len(counts), m, k), dtype=name, rng=rng)
        x = sample((int(self.offsets[-1]), k), name, rng)
        self.exact = reference_grouped.grouped_matmul(experts.toarray(), x.T, self.offsets)
        self.experts = experts if xp is np else experts.to_device("cuda")
        self.x = put(x, xp)

    def multiply(self, out=None, **options):
        """The grouped product, tokens as columns."""
        options.setdefault("offsets", self.offsets)
        options.setdefault("b_dtype", self.name)
        return s24.grouped_matmul(self.experts, self.x.T, out, **options)

    def one_by_one(self, **options) -> np.ndarray:
        """The same by a product for each expert."""
        options = {"b_dtype": self.name, **options}
        parts = [
            to_numpy(s24.matmul(a, self.x[start:stop].T, **options))
            for a, start, stop in zip(self.experts, self.offsets, self.offsets[1:])
        ]
        return np.concatenate(parts, axis=1)


def error_of(got: np.ndarray, exact: np.ndarray) -> float:
    """Relative error of the whole result."""
    return float(np.linalg.norm(got.astype(np.float64) - exact) / np.linalg.norm(exact))


def dense_error(case: Layer, result: str) -> float:
    """The same of dense products by cuBLAS, one for each expert, rounded to the type `result`."""
    parts, want = [], []
    for i, (start, stop) in enumerate(zip(case.offsets, case.offsets[1:])):
        if start == stop:
            continue
        a, b, exact = case.experts[i], case.x[start:stop].T, case.exact[:, start:stop]
        if case.name.startswith("float8"):
            got, exact = dense_float8(*(logical(y, case.name) for y in (a.toarray(), b)), fast=True)
        else:
            got = to_numpy(s24.matmul(a, b, dtype="float32", algorithm="dense"))
        parts.append(to_dtype(got, _dtypes.numpy_dtype(result)))
        want.append(exact)
    return error_of(np.concatenate(parts, axis=1), np.concatenate(want, axis=1))


def assert_right(got, case: Layer, result: str) -> None:
    """Integers exact; floats at most twice as far from the exact product as cuBLAS is."""
    got = logical(got, result)
    assert got.dtype == _dtypes.numpy_dtype(result)
    assert got.shape == case.exact.shape
    if case.name == "int8":
        np.testing.assert_array_equal(got, to_dtype(case.exact, got.dtype))
    elif got.size and case.exact.any():
        assert error_of(got, case.exact) <= 2 * dense_error(case, result) + 1e-6


def poisoned(cupy, shape, result: str, order="F"):
    """An array of the GPU that holds NaN, or a number that no product is."""
    dtype = _dtypes.numpy_dtype(result)
    poison = np.full(shape, -77 if dtype.kind == "i" else np.nan).astype(dtype)
    return cupy.asarray(
        poison.view(np.uint8) if result.startswith("float8") else poison, order=order
    )


def refused(error, words, experts, b, out=None, **options):
    """A grouped product of three experts of 4 x 8 and 5 tokens raises, unless told otherwise."""
    options.setdefault("offsets", [0, 2, 2, 5])
    with pytest.raises(error, match=words):
        s24.grouped_matmul(experts, b, out, **options)
