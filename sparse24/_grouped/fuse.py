"""Scales, biases and activations of grouped products, as kernels take them."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _check, _foreign, _product
from sparse24._errors import ArgumentError, DeviceError, ShapeError
from sparse24._options import ACTIVATIONS, Call
from sparse24._records import PLAIN, Fused, Operand24


def fused(call: Call, a: Operand24, tokens: int, result: str, *, by_rows: bool) -> Fused:
    """The epilogue of the products of all experts with so many tokens, for a type of result.

    Its vectors of rows have one row for each expert: (e, m) for matrices `a` (e, m, k), in place of
    (m,); they are contiguous.  `by_rows`: the scale of the tokens is the first one.
    """
    e = call.epilogue
    if e is None and call.scales is None:
        return PLAIN
    maker = _Maker(a, tokens, result)
    alpha, of_rows, of_tokens = 1.0, None, None
    for name, scale, of_experts in _scales(call.scales, by_rows=by_rows):
        if _check.is_scalar(scale):
            alpha *= _check.number(scale, argument=name)
        elif of_experts:
            of_rows = maker.of_experts(name, scale)
        else:
            of_tokens = maker.of_tokens(name, scale, by_rows=by_rows)
    activation = None if e is None else e.activation
    if activation is not None:
        _check.one_of(activation, ACTIVATIONS, argument="activation")
    bias = None if e is None or e.bias is None else maker.bias(e.bias)
    return Fused(
        alpha, row_scale=of_rows, column_scale=of_tokens, row_bias=bias,
        activation=activation or "identity",
    )  # fmt: skip


def _scales(pair: Any, *, by_rows: bool) -> list[tuple[str, Any, bool]]:
    """The scales that are given: name, value, and whether it is that of the experts."""
    if pair is None:
        return []
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        order = "that of x and that of As" if by_rows else "that of As and that of b"
        raise ArgumentError(f"scales must be a pair, {order}, got {_check.shown(pair)}")
    named = enumerate(pair)
    return [(f"scales[{i}]", x, (i == 0) != by_rows) for i, x in named if x is not None]


class _Maker:
    """Makes vectors where the matrices are, in the type in which epilogues of a result work."""

    def __init__(self, a: Operand24, tokens: int, result: str):
        self._a, self._tokens = a, tokens
        self._xp, self._real = _product.vectors_of(a, result)

    def bias(self, bias: Any) -> Any:
        array = self._taken("bias", bias)
        e, m, _ = self._a.shape
        if array.shape != (e, m):
            raise ShapeError(
                f"bias must have shape (e, m) = {(e, m)}, a row for each expert, got "
                f"{tuple(array.shape)}"
            )
        return self._xp.ascontiguousarray(array)

    def of_experts(self, name: str, scale: Any) -> Any:
        array = self._taken(name, scale)
        e, m, _ = self._a.shape
        if array.shape not in ((), (e,), (e, 1), (e, 1, 1), (e, m), (e, m, 1)):
            raise ShapeError(
                f"{name}, the scale of As, must have shape (e,) = {(e,)} or (e, m) = {(e, m)}, got "
                f"{tuple(array.shape)}"
            )
        lead = array[:, None] if array.ndim == 1 else array.reshape(array.shape[:2])
        return self._xp.ascontiguousarray(self._xp.broadcast_to(lead, (e, m)))

    def of_tokens(self, name: str, scale: Any, *, by_rows: bool) -> Any:
        array, t = self._taken(name, scale), self._tokens
        if array.shape not in ((), (t,), (t, 1) if by_rows else (1, t)):
            operand = "x" if by_rows else "b"
            raise ShapeError(
                f"{name}, the scale of {operand}, must have shape (t,) = {(t,)}, got "
                f"{tuple(array.shape)}"
            )
        flat = array.reshape(-1) if array.ndim else array
        return self._xp.ascontiguousarray(self._xp.broadcast_to(flat, (t,)))

    def _taken(self, name: str, x: Any) -> Any:
        array, _ = _foreign.take(x, argument=name)
        here, there = _arrays.device_of(array), _arrays.device_of(self._a.elements)
        if here != there:
            raise DeviceError(f"{name} is on {here}, As on {there}; pass an array on that device")
        _arrays.check_real(array, argument=name)
        return array.astype(self._real, copy=False)
