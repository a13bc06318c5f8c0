"""Products of hybrid matrices on the CPU: over the non-zeros, or the dense matrix by BLAS."""

from __future__ import annotations

import functools

import numpy as np

from sparse24 import _replay
from sparse24._hybrid import room
from sparse24._hybrid.cost import bucket
from sparse24._hybrid.layouts import layout
from sparse24._ready_cpu import ReadyOnCpu

OVERLAP = "out shares memory with b; pass another array"
# The time of the path `cpu` grows with the non-zeros, that of the others with all elements.  Here
# are the shares of non-zeros at which they break even, measured on 384 x 384 to 4096 x 4096:
# docs/benchmarks/log_cpu.rst, "Unstructured, by few columns".
# `masks` against `cpu`: by bytes of a vector register, then bytes of a sum (or int8), then columns.
# For numbers of columns that are missing, `cpu` is always faster.
EVEN_MASKS: dict[int, dict[int | str, dict[int, float]]] = {
    64: {
        4: {1: 0.18, 4: 0.05, 8: 0.13, 16: 0.33},
        8: {1: 0.36, 4: 0.12, 8: 0.35, 16: 0.5},
        "int8": {1: 0.05, 4: 0.02, 8: 0.08, 16: 0.25, 32: 0.4},
    },
    32: {
        4: {1: 0.22, 4: 0.21, 8: 0.45},
        8: {4: 0.55},
        "int8": {1: 0.28, 4: 0.2, 8: 0.55},
    },
}
# BLAS against `cpu` for many columns.  For 2 to 16 it is slower than `masks`, for 17 to 32 hardly
# faster.  With AVX-512 `cpu` multiplies panels of columns, which 64 columns fill and some other
# numbers leave partly empty.
MANY_COLUMNS = 64
EVEN_BLAS, EVEN_BLAS_OF_AVX512, EVEN_BLAS_OF_64 = 0.4, 0.45, 0.5
# BLAS against `cpu` for one column, where it is the fastest if the matrix stays in the caches.  For
# a smaller share of non-zeros than WORTH_DENSE a dense copy is not worth its memory.
CACHED_BYTES, EVEN_CACHED, WORTH_DENSE = 1 << 23, 0.15, 0.3


def even_shares(h, n: int) -> dict[str, float]:
    """The share of non-zeros from which each candidate beside `cpu` is faster than that.

    Candidates are paths for which the machine has room.
    """
    known, shares = bucket(n), {}
    blas = _even_blas(h, known)
    if blas is not None and room.for_dense(h):
        shares["blas"] = blas
    masks = _even_masks(h, known)
    if masks is not None and room.for_masks(h):
        shares["masks"] = masks
    return shares


def would_take_blas(h, n: int) -> bool:
    """Whether `blas` is a candidate for n columns wherever there is room for its dense copy."""
    return _even_blas(h, bucket(n)) is not None


def _even_blas(h, n: int) -> float | None:
    from sparse24.kernels._simd import VECTOR_BYTES

    if h._dtype.name == "int8":
        return None
    if n >= MANY_COLUMNS:
        if VECTOR_BYTES < 64:
            return EVEN_BLAS
        return EVEN_BLAS_OF_64 if n == MANY_COLUMNS else EVEN_BLAS_OF_AVX512
    in_cache = h.size * np.dtype(h._dtype.accumulator).itemsize <= CACHED_BYTES
    narrow = h._dtype.itemsize == 2  # its b and its result are converted beside BLAS
    return EVEN_CACHED if n == 1 and in_cache and not narrow and h.density > WORTH_DENSE else None


def _even_masks(h, n: int) -> float | None:
    from sparse24.kernels import cpu_hybrid_masks
    from sparse24.kernels._simd import VECTOR_BYTES

    dtype, k = h._dtype, h.shape[1]
    if not k or not cpu_hybrid_masks.is_available(dtype):
        return None
    kind = "int8" if dtype.name == "int8" else np.dtype(dtype.accumulator).itemsize
    even = EVEN_MASKS[VECTOR_BYTES][kind].get(4 if n in (2, 3) else n)
    return None if even is None else even * cpu_hybrid_masks.filled_up(dtype, k) / k


def choose(h, n: int) -> str:
    """The path for n columns, by counts: tiles of a transposed matrix need not be built."""
    shares = even_shares(h, n)
    best = min(shares, key=shares.__getitem__, default="cpu")
    return best if shares.get(best, np.inf) < h.density else "cpu"


def multiply(h, b, out, path: str) -> None:
    """out = h @ b for matrices."""
    _bound(h, path, b.shape[1])(b, out)


def _bound(h, path: str, n: int):
    from sparse24.kernels import cpu_hybrid_masks, cpu_hybrid_rows

    if path == "masks":
        return cpu_hybrid_masks.FewColumns(layout(h, path), h.shape[1], n)
    return functools.partial(cpu_hybrid_rows.multiply, layout(h, path))


class _ReadyRows:
    """``x @ h.T``: the kernel writes rows of ``h @ x.T``, and the result is a view of those."""

    captured = True  # there are no graphs on the CPU

    def __init__(self, multiply, product: np.ndarray):
        self._multiply, self._dtype = multiply, product.dtype
        self._shape = product.shape[::-1]

    def __call__(self, x: np.ndarray, out: None) -> np.ndarray:
        rows = np.empty(self._shape, self._dtype)
        self._multiply(x.T, rows)
        return rows.T


def remember(
    h, key: tuple, b: np.ndarray, product: np.ndarray, algorithm: str = "auto", *,
    rows: bool = False,
) -> None:  # fmt: skip
    """Keep what repeats ``h @ b`` for a matrix or a vector, neither of them empty.

    With `rows`, ``b @ h.T``.
    """
    if b.ndim > 2 or not (b.size and product.size):
        return
    n = 1 if b.ndim == 1 else b.shape[0 if rows else 1]
    bound = _bound(h, choose(h, n) if algorithm == "auto" else algorithm, n)
    if rows and b.ndim == 2:
        _replay.keep(h._plans, key, _ReadyRows(bound, product))
        return
    prepared = ReadyOnCpu(lambda b, out, _: bound(b, out), None, product, overlap=OVERLAP)
    _replay.keep(h._plans, key, prepared)
