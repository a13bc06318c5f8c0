"""Products of an operand, 2:4 or dense: shapes and types; the planner chooses the kernel.

Everything becomes ``out (m, n) = A (m, k) @ b (k, n)`` with A's groups along k; a
product from the right, ``x @ A``, is the transposed one and only exchanges views.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dispatch, _dtypes, _foreign, _replay
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, DeviceError, DTypeError, ShapeError
from sparse24._fuse import PLAIN, Call, Epilogue, fuse
from sparse24._records import Fused, Operand24

Plans = dict[tuple, Callable[[Any, Any], Any]]  # prepared products, by the signature of a call


def multiply(a: Operand24, b, out=None, call: Call = PLAIN, plans: Plans | None = None):
    """``a @ b`` with NumPy's rules for shapes; `plans` remembers what the call prepared.

    A call like an earlier one is launched at once; all others are checked, filled by `_dispatch`,
    and remembered.
    """
    key = None if plans is None else _replay.signature(b, out, call, from_left=False)
    known = None if plans is None else _replay.find(plans, key, b)
    if known is not None:
        return known(b, out) if call is PLAIN else _replay.again(known, b, out, call)
    if key is None and _foreign.is_on_host(b):
        return on_host(lambda b, out: multiply(a, b, out, call, plans), b, out, argument="b")
    with _foreign.stream_of(b):
        matrix, restore, as_given = _taken(b, a, call, "b")
        check_inner(a.shape, matrix.shape)
        vector = matrix.ndim == 1
        matrix = matrix[:, None] if vector else matrix
        shape = (*batch_of(a, matrix), a.shape[-2], matrix.shape[-1])
        result = Result.plan(a, matrix, out, call, shape)
        dropped = -1 if vector else None
        target = result.allocate(dropped)
        vectors = vectors_of(a, result.name)
        epilogue = result.fitted(fuse(call, a.shape, matrix.shape, *vectors), dropped)
        launched = _dispatch.fill(a, matrix, target, epilogue, call, result)
        product = restore(_without(target, dropped)) if out is None else out
    if plans is not None and key is not None and launched is not None and as_given:
        asked = Asked(replace(result, out=None), dropped, a.shape, matrix.shape, *vectors)
        _replay.remember(plans, key, launched, b, product, call, asked)
    return product


def multiply_from_left(
    x, a: Operand24, out=None, call: Call = PLAIN, plans: Plans | None = None
):
    """``x @ a``: the transposed product of transposed operands."""
    key = None if plans is None else _replay.signature(x, out, call, from_left=True)
    known = None if plans is None else _replay.find(plans, key, x)
    if known is not None:
        return known(x, out) if call is PLAIN else _replay.again(known, x, out, call)
    if key is None and _foreign.is_on_host(x):
        product = lambda x, out: multiply_from_left(x, a, out, call, plans)  # noqa: E731
        return on_host(product, x, out, argument="a")
    if out is None and type(x) is np.ndarray and x.ndim > 2 and _treats_rows_alike(a, call):
        check_inner(x.shape, a.shape)
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # remembered, as stacks are not
        return multiply_from_left(rows, a, None, call, plans).reshape(*x.shape[:-1], a.shape[-1])
    with _foreign.stream_of(x):
        matrix, restore, as_given = _taken(x, a, call, "a")
        check_inner(matrix.shape, a.shape)
        vector = matrix.ndim == 1
        matrix = matrix[None] if vector else matrix
        shape = (*batch_of(a, matrix), matrix.shape[-2], a.shape[-1])
        result = Result.plan(a, matrix, out, call, shape)
        dropped = -2 if vector else None
        target = result.allocate(dropped)
        vectors = vectors_of(a, result.name)
        epilogue = result.fitted(fuse(call, matrix.shape, a.shape, *vectors), dropped)
        folded, folded_target = _fold(matrix, target, a, epilogue)
        launched = _dispatch.fill(
            a.transposed(), folded.swapaxes(-1, -2), folded_target.swapaxes(-1, -2),
            epilogue.transposed(), call, result,
        )  # fmt: skip
        product = restore(_without(target, dropped)) if out is None else out
    if plans is not None and key is not None and launched is not None and as_given:
        asked = Asked(replace(result, out=None), dropped, matrix.shape, a.shape, *vectors)
        _replay.remember(plans, key, launched, x, product, call, asked)
    return product


def _treats_rows_alike(a: Operand24, call: Call) -> bool:
    """Whether a product from the left is the same for each row of x, whatever stack it is in."""
    if len(a.shape) > 2 or call is PLAIN:
        return len(a.shape) == 2
    e = call.epilogue
    by_row = call.c is not None or call.scales is not None
    if by_row or not isinstance(e, Epilogue) or e.aux is not None or e.alpha_vector is not None:
        return False
    return e.bias is None or getattr(e.bias, "ndim", 0) == 1


def on_host(product: Callable[[Any, Any], Any], x, out, *, argument: str):
    """``product(x, out)`` of NumPy's views of another library's arrays, remembered as of those."""
    array, restore = _foreign.take(x, argument=argument)
    made = product(array, given(out))
    return restore(made) if out is None else out


def _taken(x, a: Operand24, call: Call, argument: str):
    """The dense operand as an array that `a` multiplies, the way back, and if it is `x` itself."""
    array, restore = _foreign.take(x, argument=argument)
    if array.ndim == 0:
        raise ShapeError(f"{argument} must have at least one axis, got a scalar")
    known = real(array, a.dtype, call.other_dtype)
    _arrays.logical_dtype(known, call.other_dtype, argument=argument)
    return known, restore, known is array


def real(x, row: DType, named=None):
    """An operand of whole numbers or booleans in NumPy's common type with `row`; others as is.

    ``uint8`` may be the bits of fp8, and is left alone, as is what `named` says the type of.
    """
    if named is not None or x.dtype.kind not in "biu" or x.dtype in (np.int8, np.uint8):
        return x
    of_numpy = row.logical.isbuiltin == 1  # which knows no common type of the others
    common = np.promote_types(row.logical if of_numpy else np.float32, x.dtype)
    return x.astype(common) if common in _dtypes.LOGICAL else x


def vectors_of(a: Operand24, result: str):
    """Library and type of the epilogue's vectors, which is that of the kernels for this result."""
    return _arrays.namespace(a.elements), real_of(result)


def real_of(result: str) -> type[np.floating]:
    """In which type an epilogue works, by the name of the result's."""
    return np.float64 if result == "float64" else np.float32


@dataclass(frozen=True)
class Target:
    """Where a product goes, and of which type it is."""

    shape: tuple[int, ...]
    name: str  # of the result's type
    out: Any
    on_gpu: bool

    @property
    def dtype(self) -> np.dtype:
        """The array type that carries the result."""
        logical = _dtypes.numpy_dtype(self.name)
        carried = self.on_gpu and self.name.startswith("float8")
        return np.dtype(np.uint8) if carried else logical

    def allocate(self, dropped: int | None):
        """The array to fill, always with both matrix axes; the caller's has not the dropped one."""
        if self.out is None:
            return (_arrays.cupy_module() if self.on_gpu else np).empty(self.shape, self.dtype)
        target = self._with_both_axes(self.out, "out", dropped)
        _check.writable(self.out, argument="out")
        return target

    def fitted(self, epilogue: Fused, dropped: int | None) -> Fused:
        """The epilogue with its matrices checked, and with both axes.

        `c` may be `out` itself; `aux` overlaps neither.
        """
        epilogue = self._with_vectors_apart(epilogue)
        c, aux = epilogue.c, epilogue.aux
        if c is None and aux is None:
            return epilogue
        if c is not None:
            if _overlaps(c, self.out) and not _arrays.same_view(c, self.out):
                raise ArgumentError("c overlaps out without being out; pass a copy of c")
            c = self._with_both_axes(c, "c", dropped)
        if aux is not None:
            if _overlaps(aux, self.out) or _overlaps(aux, epilogue.c):
                raise ArgumentError("aux shares memory with out or c; pass another array")
            _check.writable(aux, argument="aux")
            aux = self._with_both_axes(aux, "aux", dropped)
        return replace(epilogue, c=c, aux=aux)

    def _with_vectors_apart(self, epilogue: Fused) -> Fused:
        """The epilogue with copies of its vectors that lie in what the product writes to."""
        written = [x for x in (self.out, epilogue.aux) if x is not None]
        copies = {}
        for name in ("row_scale", "column_scale", "row_bias", "column_bias") if written else ():
            vector = getattr(epilogue, name)
            if any(_overlaps(vector, x) for x in written):
                copies[name] = vector.copy()
        return replace(epilogue, **copies) if copies else epilogue

    def _with_both_axes(self, array, name: str, dropped: int | None):
        """An array of the caller's, checked against the result, as a view with both axes."""
        if _arrays.is_cupy(array) != self.on_gpu:
            raise DeviceError(f"{name} is on {_arrays.device_of(array)}, the operands are not")
        wanted = list(self.shape)
        if dropped is not None:
            del wanted[dropped]
        if tuple(array.shape) != tuple(wanted):
            raise ShapeError(f"{name} must have shape {tuple(wanted)}, got {tuple(array.shape)}")
        if array.dtype != self.dtype:
            raise DTypeError(f"{name} must have dtype {self.dtype}, got {array.dtype}")
        if dropped is None:
            return array
        return array[..., None] if dropped == -1 else array[..., None, :]


@dataclass(frozen=True)
class Result(Target):
    """Where a product goes, and in which types it is computed."""

    row_a: DType  # types of the operands after promotion
    row_b: DType

    @classmethod
    def plan(cls, a: Operand24, other, out, call: Call, shape: tuple[int, ...]) -> Result:
        held = a.elements
        if _arrays.is_cupy(other) != _arrays.is_cupy(held):
            raise DeviceError(
                f"one operand is on {_arrays.device_of(held)}, the other on "
                f"{_arrays.device_of(other)}; move one with .to_device(...) or cupy.asarray"
            )
        row_a, row_b = promote(
            a.dtype, _arrays.logical_dtype(other, call.other_dtype, argument="b")
        )
        name = row_a.result if call.dtype is None else result_name(call.dtype)
        return cls(shape, name, given(out), _arrays.is_cupy(held), row_a, row_b)


@dataclass(frozen=True)
class Asked:
    """Makes an epilogue of the options of a call; keeps what is alike in calls of one signature."""

    types: Result  # whose `out` is that of each call
    dropped: int | None
    left: tuple[int, ...]  # shapes of the operands
    right: tuple[int, ...]
    xp: Any
    real: type[np.floating]

    def __call__(self, call: Call, out) -> Fused:
        epilogue = fuse(call, self.left, self.right, self.xp, self.real)
        if out is None and epilogue.c is None and epilogue.aux is None:
            return epilogue
        return replace(self.types, out=out).fitted(epilogue, self.dropped)


def given(out):
    """The caller's `out` as a NumPy or CuPy array; None if there is none."""
    if out is None:
        return None
    _check.is_array(out, argument="out")
    return _foreign.take(out, argument="out")[0]


def _without(array, dropped: int | None):
    return array if dropped is None else array.squeeze(dropped)


def _overlaps(x, y) -> bool:
    return x is not None and y is not None and _arrays.shares_memory(x, y)


def result_name(dtype) -> str:
    """Name of a result's type, which may be int32 beside those of operands."""
    if dtype in ("int32", np.int32):  # an np.dtype equals its name
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
    if common.itemsize == 1:  # int8 with fp8, which ml_dtypes calls wide enough
        common = np.dtype(np.float32)
    row = _dtypes.lookup(common, argument="the common dtype of the operands")
    return row, row


def check_inner(left: tuple, right: tuple) -> None:
    """Refuse shapes whose product does not exist."""
    k_left, k_right = left[-1], right[-2 if len(right) > 1 else 0]
    if k_left != k_right:
        raise ShapeError(
            f"matmul: shapes {tuple(left)} @ {tuple(right)} do not fit: inner dimensions "
            f"{k_left} and {k_right} differ"
        )


def batch_of(a, other) -> tuple[int, ...]:
    """The batch axes of the product of two operands with shapes."""
    try:
        return np.broadcast_shapes(a.shape[:-2], other.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul: batch axes {a.shape[:-2]} and {tuple(other.shape[:-2])} do not broadcast"
        ) from None


def _fold(x, target, a: Operand24, epilogue: Fused):
    """Token axes of ``x`` (..., t, k) folded into one, where a single matrix serves them all."""
    e = epilogue
    by_row = any(part is not None for part in (e.c, e.aux, e.row_scale, e.row_bias))
    if by_row or x.ndim <= 2 or len(a.shape) > 2 or not target.flags.c_contiguous:
        return x, target
    tokens = math.prod(x.shape[:-1])
    return x.reshape(tokens, x.shape[-1]), target.reshape(tokens, target.shape[-1])
