"""Dense products of a whole stack in one launch, beside a hybrid matrix."""

from __future__ import annotations

import copy
from typing import Any

from sparse24._memory_order import batch_axes, is_even
from sparse24._views import View
from sparse24.kernels.dense import BoundDense, Gemm


class DenseStack:
    """Products of one matrix and stacks (..., k, n) and (..., m, n) that `flat_views` takes."""

    captured = False  # CuPy does not capture cuBLAS

    def __init__(self, product: BoundDense):
        self._product = product

    def bind(self, stack: Any, out: Any, stream: int) -> Gemm:
        return self._product.bind(_flat(stack), _flat(out), stream)

    def __call__(self, stack: Any, out: Any) -> None:
        self._product(_flat(stack), _flat(out))


def flat_views(stack: Any, out: Any) -> tuple[View, View] | None:
    """Both by address, with one batch axis; None where cuBLAS cannot step from matrix to matrix.

    It steps by one distance, forward, and writes matrices of the result in any order.
    """
    if not (is_even(stack) and is_even(out)):
        return None
    b, result = _flat(stack), _flat(out)
    (of_b, *_), (of_out, *inner) = b.strides, result.strides
    span = sum(abs(s) * (size - 1) for s, size in zip(inner, result.shape[1:], strict=True))
    apart = of_out >= span + result.itemsize or result.shape[0] == 1
    return (b, result) if of_b >= 0 and apart else None


def _flat(stack: Any) -> View:
    """A stack whose matrices follow each other at one distance, with one batch axis."""
    view = copy.copy(stack) if isinstance(stack, View) else View(stack)
    (m, n), axes = stack.shape[-2:], batch_axes(stack)
    distance = axes[-1][1] if axes else stack.size * stack.itemsize
    view.shape = (stack.size // (m * n), m, n)
    view.strides, view.ndim = (distance, *stack.strides[-2:]), 3
    return view
