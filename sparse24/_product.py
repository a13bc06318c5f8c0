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

from sparse24 import _arrays, _dispatch, _dtypes, _foreign
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError
from sparse24._records import PLAIN, Epilogue, Operand24


@dataclass(frozen=True)
class Options:
    """Everything that a product may be asked beside its operands."""

    out: Any = None
    epilogue: Epilogue = PLAIN
    out_dtype: Any = None
    b_dtype: Any = None
    algorithm: str = "auto"
    fast_accumulation: bool = True

    @property
    def is_default(self) -> bool:
        return self == DEFAULT


DEFAULT = Options()
Plans = dict[tuple, Callable[[Any], Any]]


def multiply(a: Operand24, b, options: Options = DEFAULT, plans: Plans | None = None):
    """``a @ b`` with NumPy's rules for shapes."""
    with _foreign.stream_of(b):
        b, restore = _foreign.take(b, argument="b")
        if b.ndim == 0:
            raise ShapeError("b must have at least one axis, got a scalar")
        _check_inner(a.shape, b.shape, a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[0])
        matrix = b[:, None] if b.ndim == 1 else b
        result = _Result.plan(
            a, matrix, options, (*_batch(a, matrix), a.shape[-2], matrix.shape[-1])
        )
        squeeze = (..., 0) if b.ndim == 1 else ...
        target = result.allocate(squeeze)
        launch = _dispatch.fill(a, matrix, target, options, result, plans)
        _remember(plans, a.rows, b, options, from_left=False, launch=launch, result=result)
        return result.deliver(target[squeeze], restore)


def multiply_from_left(x, a: Operand24, options: Options = DEFAULT, plans: Plans | None = None):
    """``x @ a``: the transposed product of transposed operands."""
    with _foreign.stream_of(x):
        x, restore = _foreign.take(x, argument="a")
        if x.ndim == 0:
            raise ShapeError("a must have at least one axis, got a scalar")
        _check_inner(x.shape, a.shape, x.shape[-1], a.shape[-2])
        matrix = x[None] if x.ndim == 1 else x
        result = _Result.plan(
            a, matrix, options, (*_batch(a, matrix), matrix.shape[-2], a.shape[-1])
        )
        squeeze = (..., 0, slice(None)) if x.ndim == 1 else ...
        target = result.allocate(squeeze)
        folded, folded_target = _fold(matrix, target, a, options)
        launch = _dispatch.fill(
            a.transposed(), folded.swapaxes(-1, -2), folded_target.swapaxes(-1, -2),
            _transposed(options), result, plans,
        )  # fmt: skip
        _remember(plans, a.columns, x, options, from_left=True, launch=launch, result=result)
        return result.deliver(target[squeeze], restore)


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
    def plan(cls, a: Operand24, other, options: Options, shape: tuple[int, ...]) -> _Result:
        values = a.stored.values
        if _arrays.is_cupy(other) != _arrays.is_cupy(values):
            raise DeviceError(
                f"the sparse operand is on {_arrays.device_of(values)}, the other on "
                f"{_arrays.device_of(other)}; move one with .to_device(...) or cupy.asarray"
            )
        row_a, row_b = promote(
            a.dtype, _arrays.logical_dtype(other, options.b_dtype, argument="b")
        )
        name = row_a.result if options.out_dtype is None else _result_name(options.out_dtype)
        return cls(shape, row_a, row_b, name, options.out, _arrays.is_cupy(values))

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

    def deliver(self, array, restore):
        return restore(array) if self.out is None else self.out


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


def _fold(x, target, a: Operand24, options: Options):
    """Token axes of ``x`` (..., t, k) folded into one, where a single matrix serves them all."""
    foldable = x.ndim > 2 and len(a.shape) == 2 and target.flags.c_contiguous
    if not foldable or options.epilogue.c is not None or options.epilogue.aux is not None:
        return x, target
    tokens = math.prod(x.shape[:-1])
    return x.reshape(tokens, x.shape[-1]), target.reshape(tokens, target.shape[-1])


def _transposed(options: Options) -> Options:
    if options.epilogue is PLAIN:
        return options
    return Options(
        options.out, options.epilogue.transposed(), options.out_dtype, options.b_dtype,
        options.algorithm, options.fast_accumulation,
    )  # fmt: skip


# --- prepared launches: a call on a known signature goes straight to the kernel -----------


def _signature(record, x, from_left: bool) -> tuple:
    return (id(record), from_left, x.shape, x.strides, x.dtype, x.data.ptr & 15)


def replay(plans: Plans, record, x, *, from_left: bool):
    """The product by a launch that is ready, or None if this signature is new."""
    if not plans or not hasattr(x, "__cuda_array_interface__") or not _arrays.is_cupy(x):
        return None
    planned = plans.get(_signature(record, x, from_left))
    return None if planned is None else planned(x)


def _remember(plans, record, x, options, *, from_left: bool, launch, result: _Result) -> None:
    """Keep the launch of a plain product of matrices for the next call like this one."""
    if plans is None or launch is None or options is not DEFAULT or x.ndim != 2:
        return
    empty, shape, dtype = _arrays.cupy_module().empty, result.shape, result.dtype

    def left_operand(b):
        out = empty(shape, dtype)
        launch(b, out, PLAIN)
        return out

    def right_operand(x):
        out = empty(shape, dtype)
        launch(x.T, out.T, PLAIN)
        return out

    if len(plans) >= _dispatch.MOST_PLANS:
        plans.clear()
    plans[_signature(record, x, from_left)] = right_operand if from_left else left_operand
