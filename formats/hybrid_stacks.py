"""Stacks of products with one hybrid matrix: as one product, in one launch, or in turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._moved_layout import laying_out

FOLD_BELOW = 64  # columns under which a stack becomes one product


def multiply(h, stack, out, algorithm: str, balance: bool):
    """``h @ stack`` in `out`; those with few columns as one, so that the matrix is read once.

    Returns what multiplied, if it can again with stacks like these elsewhere.
    """
    ran: list[Any] = []

    def one(b, result) -> None:
        ran.append(hybrid_dispatch.multiply(h, b, result, algorithm, balance))

    if balance and _is_folded(stack):
        _fold(one, stack, out)
        return None if None in ran else _Folded(ran[0])
    together = hybrid_dispatch.multiply_together(h, stack, out, algorithm, balance)
    if together is not None:
        return together
    for index in np.ndindex(stack.shape[:-2]):
        one(stack[index], out[index])
    if not ran or None in ran:
        return None
    bound = all(hasattr(product, "bind") for product in ran)
    return _BoundInTurn(ran) if bound else _InTurn(ran)


def chosen_by(stack):
    """The matrix by which the path of a stack is chosen: that of all its columns, or the first."""
    return _as_one(stack) if _is_folded(stack) else stack[(0,) * (stack.ndim - 2)]


def _is_folded(stack) -> bool:
    return stack.shape[-1] < FOLD_BELOW


def _fold(multiply: Callable[..., Any], stack, out) -> None:
    """``multiply(b, result)`` for a stack as one matrix."""
    xp, wide = _arrays.namespace(stack), _as_one(stack)
    batch, n, m = stack.shape[:-2], stack.shape[-1], out.shape[-2]
    result = xp.empty((m, wide.shape[1]), out.dtype)
    multiply(wide, result)
    out[...] = xp.moveaxis(result.reshape(m, *batch, n), 0, -2)


def _as_one(stack):
    """The matrices (k, n) of a stack side by side, in one."""
    *batch, k, n = stack.shape
    return _arrays.namespace(stack).moveaxis(stack, -2, 0).reshape(k, n * math.prod(batch))


class _Folded:
    """What multiplied a stack as one matrix."""

    captured = False  # a graph would not keep the copies

    def __init__(self, product: Any):
        self._product = product

    def __call__(self, stack, out) -> None:
        with laying_out:
            _fold(self._product, stack, out)


class _InTurn:
    """What multiplied the matrices of a stack, as many products as there are."""

    def __init__(self, products: list[Any]):
        self._products = products
        self.captured = all(product.captured for product in products)

    def __call__(self, stack, out) -> None:
        with laying_out:
            for product, index in zip(self._products, np.ndindex(stack.shape[:-2]), strict=True):
                product(stack[index], out[index])


class _BoundInTurn(_InTurn):
    """An `_InTurn` of single launches, which `bind` lays out for views by address."""

    def bind(self, stack, out, stream: int) -> _Launches:
        indices = np.ndindex(stack.shape[:-2])
        return _Launches([
            product.bind(stack.matrix(index), out.matrix(index), stream)
            for product, index in zip(self._products, indices, strict=True)
        ])  # fmt: skip


class _Launches:
    """Several launches as one, made one after another."""

    def __init__(self, launches: list[Callable[[int], None]]):
        self._launches = launches

    def __call__(self, stream: int) -> None:
        for launch in self._launches:
            launch(stream)
