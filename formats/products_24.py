"""Products of the formats whose elements obey 2:4, by their operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _product, _settled
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError
from sparse24._options import NO_OPTIONS
from sparse24._records import Operand24
from sparse24.formats.base import SparseArray, densified, made_by


class Products24(SparseArray):
    """A format that has an `Operand24`: what that says of the array, ``A @ b`` and ``x @ A``."""

    __slots__ = ()

    _operand: Operand24
    _plans: dict[Any, Any]
    _transpose: Any

    def _take(self, operand: Operand24, *, maker: str) -> None:
        """Begin with an operand; `maker` is how users make an array."""
        if type(operand) is not Operand24:
            raise made_by(self, operand, maker)
        object.__setattr__(self, "_operand", operand)
        object.__setattr__(self, "_plans", {})  # prepared launches, by signature of b
        object.__setattr__(self, "_transpose", None)  # the transposed view, made at first use
        _settled.note_capture(operand)

    @property
    def _dtype(self) -> DType:  # type: ignore[override]
        return self._operand.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._operand.shape

    @property
    def pattern(self) -> tuple[int, int]:
        return (2, 4)

    @property
    def axis(self) -> int:
        return -1 if self._operand.rows is not None else -2

    @property
    def device(self) -> str:
        return _arrays.device_of(self._operand.stored.values)

    def _multiply(self, other, out=None, call=NO_OPTIONS):
        if type(other) is not np.ndarray and isinstance(other, SparseArray):
            call = call._replace(other_dtype=other.dtype)  # its dense form may be fp8 bits
        other = _dense_operand(other, self)
        return _product.multiply(self._operand, other, out, call, self._plans)

    def _multiply_from_left(self, other, out=None, call=NO_OPTIONS):
        if type(other) is not np.ndarray and isinstance(other, SparseArray):
            call = call._replace(other_dtype=other.dtype)
        other = _dense_operand(other, self)
        return _product.multiply(self._operand, other, out, call, self._plans, from_left=True)


def _dense_operand(other, sparse: Products24):
    """The other operand as a dense array; sparse ones are made dense."""
    both_on_cpu = type(other) is type(sparse._operand.elements) is np.ndarray
    if both_on_cpu or _arrays.is_cupy(other):
        return other
    other = densified(other)
    if _check.is_scalar(other) and not isinstance(other, str | bytes):
        raise ArgumentError(
            "@ needs an array on either side, got a scalar; factors go to alpha= of sparse24.matmul"
        )
    if isinstance(other, np.ndarray):
        _devices.refuse_apart(other, sparse.device, argument="the other operand")
    return other
