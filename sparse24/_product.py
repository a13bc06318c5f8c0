"""Products of a 2:4 operand: shapes and types here, the choice of a kernel in the planner.

Everything becomes ``out (m, n) = A (m, k) @ b (k, n)`` with A's groups along k; a
product from the right, ``x @ A``, is the transposed one and only exchanges views.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _dispatch, _dtypes, _foreign, _fuse, _replay
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError
from sparse24._fuse import Call
from sparse24._records import Epilogue, Operand24

Plans = dict[tuple, Callable[[Any, Any], Any]]  # prepared products, by the signature of a call


def multiply(a: Operand24, b, out=None, call: Call = _fuse.PLAIN, plans: Plans | None = None):
    """``a @ b`` with NumPy's rules for shapes; `plans` remembers what the call prepared."""
    key = None if plans is None else _replay.signature(b, out, call, from_left=False)
    if key is not None and key in plans:
        return plans[key](b, out)
    with _foreign.stream_of(b):
        matrix, restore = _foreign.take(b, argument="b")
        if matrix.ndim == 0:
            raise ShapeError("b must have at least one axis, got a scalar")
        vector = matrix.ndim == 1
        matrix = matrix[:, None] if vector else matrix
        _check_inner(a.shape, tuple(b.shape), a.shape[-1], matrix.shape[-2])
        shape = (*_batch(a, matrix), a.shape[-2], matrix.shape[-1])
        result = _Result.plan(a, matrix, out, call, shape)
        squeeze = (..., 0) if vector else ...
        target = result.allocate(squeeze)
        epilogue = _fuse.fuse(call, a.shape, matrix.shape, *_vectors(a))
        launched = _dispatch.fill(a, matrix, target, epilogue, call, result)
        product = restore(target[squeeze]) if out is None else out
    if key is not None and launched is not None:
        _replay.remember(plans, key, launched, b, product, call)
    return product


def multiply_from_left(
    x, a: Operand24, out=None, call: Call = _fuse.PLAIN, plans: Plans | None = None
):
    """``x @ a``: the transposed product of transposed operands."""
    key = None if plans is None else _replay.signature(x, out, call, from_left=True)
    if key is not None and key in plans:
        return plans[key](x, out)
    with _foreign.stream_of(x):
        matrix, restore = _foreign.take(x, argument="a")
        if matrix.ndim == 0:
            raise ShapeError("a must have at least one axis, got a scalar")
        _check_inner(tuple(x.shape), a.shape, matrix.shape[-1], a.shape[-2])
        vector = matrix.ndim == 1
        matrix = matrix[None] if vector else matrix
        shape = (*_batch(a, matrix), matrix.shape[-2], a.shape[-1])
        result = _Result.plan(a, matrix, out, call, shape)
        squeeze = (..., 0, slice(None)) if vector else ...
        target = result.allocate(squeeze)
        epilogue = _fuse.fuse(call, matrix.shape, a.shape, *_vectors(a))
        folded, folded_target = _fold(matrix, target, a, epilogue)
        launched = _dispatch.fill(
            a.transposed(), folded.swapaxes(-1, -2), folded_target.swapaxes(-1, -2),
            epilogue.transposed(), call, result,
        )  # fmt: skip
        product = restore(target[squeeze]) if out is None else out
    if key is not None and launched is not None:
        _replay.remember(plans, key, launched, x, product, call)
    return product


def _vectors(a: Operand24):
    """Library and type of the epilogue's vectors: float64 only beside float64 operands."""
    xp = _arrays.namespace(a.stored.values)
    return xp, np.float64 if a.dtype.name == "float64" else np.float32


@dataclass(frozen=True)
class _Result:
    """Where a product goes, and in which types it is computed."""

    shape: tuple[int, ...]
    row_a: DType  # types of the operands after promotion
    row_b: DType
    name: str  # of the result's type
    out: Any
    on_gpu: bool

    @classmethod
    def plan(cls, a: Operand24, other, out, call: Call, shape: tuple[int, ...]) -> _Result:
        values = a.stored.values
        if _arrays.is_cupy(other) != _arrays.is_cupy(values):
            raise DeviceError(
                f"the sparse operand is on {_arrays.device_of(values)}, the other on "
                f"{_arrays.device_of(other)}; move one with .to_device(...) or cupy.asarray"
            )
        row_a, row_b = promote(
            a.dtype, _arrays.logical_dtype(other, call.other_dtype, argument="b")
        )
        name = row_a.result if call.dtype is None else _result_name(call.dtype)
        out = None if out is None else _foreign.take(out, argument="out")[0]
        return cls(shape, row_a, row_b, name, out, _arrays.is_cupy(values))

    @property
    def dtype(self) -> np.dtype:
        """The array type that carries the result."""
        logical = _dtypes.numpy_dtype(self.name)
        carried = self.on_gpu and self.name.startswith("float8")
        return np.dtype(np.uint8) if carried else logical

    def allocate(self, squeeze):
        """The array to fill, always with both matrix axes."""
        if self.out is None:
            return (_arrays.cupy_module() if self.on_gpu else np).empty(self.shape, self.dtype)
        if _arrays.is_cupy(self.out) != self.on_gpu:
            raise DeviceError(f"out is on {_arrays.device_of(self.out)}, the operands are not")
        wanted = np.empty(self.shape, np.bool_)[squeeze].shape if squeeze is not ... else self.shape
        if tuple(self.out.shape) != tuple(wanted):
            raise ShapeError(f"out must have shape {tuple(wanted)}, got {tuple(self.out.shape)}")
        if self.out.dtype != self.dtype:
            raise DTypeError(f"out must have dtype {self.dtype}, got {self.out.dtype}")
        if isinstance(self.out, np.ndarray) and not self.out.flags.writeable:
            raise ArgumentError("out is read-only; pass a writable array, for example a copy")
        if squeeze is ...:
            return self.out
        return self.out[..., None] if squeeze == (..., 0) else self.out[..., None, :]


def _result_name(dtype) -> str:
    if dtype == "int32" or (not isinstance(dtype, str) and np.dtype(dtype) == np.int32):
        return "int32"
    return _dtypes.lookup(dtype).name


def promote(a: DType, b: DType) -> tuple[DType, DType]:
    """Types in which the operands meet; nothing is narrowed."""
    if a is b or (a.is_float8 and b.is_float8):
        return a, b
    try:
        common = np.promote_types(a.logical, b.logical)
    except TypeError:
        common = np.dtype(np.float32)  # fp8 with a 16-bit float: both fit
    row = _dtypes.lookup(common, argument="the common dtype of the operands")
    return row, row


def _check_inner(left: tuple, right: tuple, k_left: int, k_right: int) -> None:
    if k_left != k_right:
        raise ShapeError(
            f"matmul: shapes {tuple(left)} @ {tuple(right)} do not fit: inner dimensions "
            f"{k_left} and {k_right} differ"
        )


def _batch(a: Operand24, other) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a.shape[:-2], other.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul: batch axes {a.shape[:-2]} and {tuple(other.shape[:-2])} do not broadcast"
        ) from None


def _fold(x, target, a: Operand24, epilogue: Epilogue):
    """Token axes of ``x`` (..., t, k) folded into one, where a single matrix serves them all."""
    e = epilogue
    by_row = any(part is not None for part in (e.c, e.aux, e.row_scale, e.row_bias))
    if by_row or x.ndim <= 2 or len(a.shape) > 2 or not target.flags.c_contiguous:
        return x, target
    tokens = math.prod(x.shape[:-1])
    return x.reshape(tokens, x.shape[-1]), target.reshape(tokens, target.shape[-1])
