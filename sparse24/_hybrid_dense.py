"""Dense products beside a hybrid matrix: of one operand, or of a whole stack in one launch."""

from __future__ import annotations

import copy
import functools
from itertools import pairwise
from typing import Any

from sparse24._ready import View
from sparse24._records import Problem
from sparse24.kernels import dense
from sparse24.kernels.launch import current_stream


class Gemm(dense.Gemm):
    """The same launch; it looks for CuPy's parts once, not at each call."""

    __slots__ = ()

    def __call__(self, stream: int) -> None:
        if stream != current_stream():
            super().__call__(stream)
            return
        launch, handle = _cublas()
        launch(handle(), *self._arguments)


@functools.cache
def _cublas() -> tuple[Any, Any]:
    from cupy.cuda.device import get_cublas_handle
    from cupy_backends.cuda.libs import cublas

    return cublas.gemmStridedBatchedEx, get_cublas_handle


class DenseProduct(dense.BoundDense):
    """Products with one dense matrix (m, k); stacks (batch, k, n) and (batch, m, n) as well."""

    def bind(self, b: Any, out: Any, stream: int) -> Gemm:
        name, (m, k), n = self._a.dtype.name, self._a.shape, b.shape[-1]
        batch = b.shape[0] if b.ndim == 3 else 1
        problem = Problem(m, n, k, batch, name, name, name, b_batched=batch > 1)
        return Gemm(self._a, b, out, problem)


class DenseStack:
    """The same for stacks (..., k, n) and (..., m, n) that `flat_views` takes."""

    captured = False  # CuPy does not capture cuBLAS

    def __init__(self, product: DenseProduct):
        self._product = product

    def bind(self, stack: Any, out: Any, stream: int) -> Gemm:
        return self._product.bind(_flat(stack), _flat(out), stream)

    def __call__(self, stack: Any, out: Any) -> None:
        self._product(_flat(stack), _flat(out))


def flat_views(stack: Any, out: Any) -> tuple[View, View] | None:
    """Both by address, with one batch axis; None where cuBLAS cannot step from matrix to matrix.

    It steps by one distance, forward, and writes matrices of the result in any order.
    """
    if not (_is_even(stack) and _is_even(out)):
        return None
    b, result = _flat(stack), _flat(out)
    (of_b, *_), (of_out, *inner) = b.strides, result.strides
    span = sum(abs(s) * (size - 1) for s, size in zip(inner, result.shape[1:], strict=True))
    apart = of_out >= span + result.itemsize or result.shape[0] == 1
    return (b, result) if of_b >= 0 and apart else None


def _is_even(stack: Any) -> bool:
    """Whether the matrices of a stack follow each other at one distance."""
    return all(
        outer == inner * size for (_, outer), (size, inner) in pairwise(_batch_axes(stack))
    )


def _batch_axes(stack: Any) -> list[tuple[int, int]]:
    """Sizes and strides of the batch axes but for those of size 1, whose strides mean nothing."""
    axes = zip(stack.shape[:-2], stack.strides[:-2], strict=True)
    return [(size, stride) for size, stride in axes if size > 1]


def _flat(stack: Any) -> View:
    """A stack whose matrices follow each other at one distance, with one batch axis."""
    view = copy.copy(stack) if isinstance(stack, View) else View(stack)
    (m, n), axes = stack.shape[-2:], _batch_axes(stack)
    distance = axes[-1][1] if axes else stack.size * stack.itemsize
    view.shape = (stack.size // (m * n), m, n)
    view.strides, view.ndim = (distance, *stack.strides[-2:]), 3
    return view
