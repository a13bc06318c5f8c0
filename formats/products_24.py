"""Products of the formats whose elements obey 2:4, by their operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _product
from sparse24._errors import ArgumentError
from sparse24._options import NO_OPTIONS
from sparse24._records import Operand24
from sparse24.formats.base import SparseArray, densified


class Products24(SparseArray):
    """``A @ b`` and ``x @ A`` of a format that has an `Operand24`."""

    __slots__ = ()

    _operand: Operand24
    _plans: dict[Any, Any]

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
