"""One product of a 2:4 or dense operand: replay it, or check shapes and types and run it.

Everything becomes ``out (m, n) = A (m, k) @ b (k, n)`` with A's groups along k.  ``x @ A`` is
computed as its transpose, ``A.T @ x.T``, which only exchanges views.  `_dispatch` takes the
checked product to a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _cuda_graphs,
    _dispatch,
    _foreign,
    _foreign_streams,
    _replay,
    _settled,
    _shared_plans,
)
from sparse24._errors import ShapeError
from sparse24._fuse import fuse
from sparse24._options import NO_OPTIONS, Call, Epilogue
from sparse24._promotion import promoted_integers
from sparse24._ready import ReadyProduct
from sparse24._records import Compressed24, Fused, Operand24
from sparse24._target import Result, given, restored, vector_type

Plans = dict[tuple, Callable[[Any, Any], Any]]  # prepared products, by the signature of a call


def multiply(
    a: Operand24, x, out=None, call: Call = NO_OPTIONS, plans: Plans | None = None,
    *, from_left: bool = False,
):  # fmt: skip
    """``a @ x`` or, with `from_left`, ``x @ a``, with NumPy's rules for shapes.

    `plans` holds the prepared launches of earlier calls.  A call with the same signature is
    launched at once; others are checked, computed by `_dispatch.fill`, and remembered.
    """
    key = None if plans is None else _replay.signature(x, out, call, from_left=from_left)
    known = None if plans is None else _replay.find(plans, key, x)
    if known is not None:
        return known(x, out) if call is NO_OPTIONS else _replay.repeat(known, x, out, call)
    if key is None and _foreign.goes_by_view(x):
        return _multiply_view(a, x, out, call, plans, from_left=from_left)
    if from_left and _is_stack(x) and _treats_rows_alike(a, call) and _folds(x, out, a):
        return _multiply_rows(a, x, out, call, plans)
    if not from_left and out is None and puts_together(a, x, call):
        return _multiply_columns(a, x, plans)
    return _anew(a, x, out, call, plans, key, from_left=from_left)


def _multiply_view(a: Operand24, x, out, call: Call, plans: Plans | None, *, from_left: bool):
    """`multiply` with an array of another library, whose view is remembered."""
    named = with_own_type(call, x)
    view, restore = _foreign.take(x, argument="a" if from_left else "b")
    product = multiply(a, view, given(out), named, plans, from_left=from_left)
    return restored(product, restore, call) if out is None else out


def _multiply_rows(a: Operand24, x, out, call: Call, plans: Plans | None):
    """``x @ a`` of a stack as of one matrix, which is remembered with its options.

    Those of stacks with options are not.
    """
    check_inner(x.shape, a.shape)
    tokens, n = math.prod(x.shape[:-1]), a.shape[-1]
    rows, target = x.reshape(tokens, x.shape[-1]), None if out is None else out.reshape(tokens, n)
    product = multiply(a, rows, target, call, plans, from_left=True)
    return product.reshape(*x.shape[:-1], n) if out is None else out


def _multiply_columns(a: Operand24, x, plans: Plans | None):
    """``a @ x`` of a stack with few columns as of one matrix."""
    check_inner(a.shape, x.shape)
    m, (*lead, _, n) = a.shape[0], x.shape
    product = multiply(a, put_together(x), None, NO_OPTIONS, plans)
    return np.ascontiguousarray(np.moveaxis(product.reshape(m, *lead, n), 0, -2))


def puts_together(a: Operand24, x, call: Call) -> bool:
    """Whether x is a stack on the CPU, beside one matrix, whose few columns are copied quickly."""
    if call is not NO_OPTIONS or type(x) is not np.ndarray or x.ndim < 3 or len(a.shape) > 2:
        return False
    from sparse24.kernels.cpu_batch import FOLD_UP_TO, MOST_FOLDED

    return x.shape[-1] <= FOLD_UP_TO and math.prod((*x.shape[:-2], x.shape[-1])) <= MOST_FOLDED


def put_together(x: np.ndarray) -> np.ndarray:
    """The columns of a stack beside one another."""
    *lead, k, n = x.shape
    return np.moveaxis(x, -2, 0).reshape(k, math.prod(lead) * n)


def _anew(
    a: Operand24, x, out, call: Call, plans: Plans | None, key: tuple | None, *, from_left: bool
):
    """A product without a remembered launch: check it, compute it by `_dispatch`, remember it."""
    call, alike, record = with_own_type(call, x), None, a.multiplied(from_left=from_left)
    settled = record is not None and _settled.is_settled(record)
    if plans is not None and key is not None:
        alike = _shared_plans.key_of(a, x, out, call, key, from_left=from_left, settled=settled)
        ready = _shared_plans.find(alike, a, x, out, call, from_left=from_left)
        if ready is not None:
            if not _may_improve(ready, record, x):
                _replay.keep(plans, key, ready)
            if _replay.can_repeat(ready, x):
                return _replay.repeat(ready, x, out, call)
    with _foreign_streams.stream_of(x):
        with _cuda_graphs.keeping(record, x):  # it may be converted
            matrix, restore, as_given = taken(x, a, call, "a" if from_left else "b")
        laid = laid_out(a, matrix, out, call, from_left=from_left)
        launched = _dispatch.fill(laid.a, laid.b, laid.out, laid.epilogue, call, laid.types)
        made = _without(laid.target, laid.dropped)
        product = restored(made, restore, call) if out is None else out
    if plans is not None and key is not None and launched is not None and as_given:
        launched = launched._replace(settled=settled)
        types = replace(laid.types, out=None)
        make_epilogue = EpilogueMaker(types, laid.dropped, *laid.shapes, *laid.vectors)
        plan = _replay.remember(
            plans, key, launched, x, product, call, make_epilogue, from_left=from_left
        )
        if (
            plan is not None
            and _shared_plans.share(alike, plan, launched, make_epilogue)
            and _may_improve(plan, record, x)
        ):
            plans.pop(key, None)  # until then the shared one serves this array, too
    return product


def _may_improve(plan: ReadyProduct, record: Compressed24 | None, x) -> bool:
    """Whether a product can be planned better once its sparse operand is settled, if it will be."""
    if not plan.waits or record is None:
        return False
    with _foreign_streams.stream_of(x):
        return _settled.will_settle(record)


def _is_stack(x) -> bool:
    """Whether x has more axes than a matrix, and can be made one; on a GPU, without a copy."""
    if type(x) is np.ndarray:
        return x.ndim > 2
    return _arrays.is_cupy(x) and x.ndim > 2 and x.flags.c_contiguous


def _folds(x, out, a: Operand24) -> bool:
    """Whether the result of a stack can be written as that of one matrix."""
    if out is None:
        return True
    fits = type(out) is type(x) and out.shape == (*x.shape[:-1], a.shape[-1])
    return fits and out.flags.c_contiguous and x.flags.c_contiguous


def _treats_rows_alike(a: Operand24, call: Call) -> bool:
    """Whether a product from the left is the same for each row of x, whatever stack it is in."""
    if len(a.shape) > 2 or call is NO_OPTIONS:
        return len(a.shape) == 2
    if call.c is not None or not _is_one_factor(call.scales):
        return False
    e = call.epilogue
    if not isinstance(e, Epilogue) or e.aux is not None or e.alpha_vector is not None:
        return e is None
    columns = a.shape[-1]
    by_column = getattr(e.bias, "shape", None) in ((columns,), (1, columns))
    return e.bias is None or by_column or _check.is_scalar(e.bias)


def _is_one_factor(scales) -> bool:
    """Whether scales have no more than a number for all rows of the left operand."""
    if scales is None:
        return True
    is_pair = isinstance(scales, tuple | list) and len(scales) == 2
    return is_pair and (scales[0] is None or _check.is_scalar(scales[0]))


class LaidOut(NamedTuple):
    """A call as `_dispatch.fill` takes it: sparse operand times dense one.

    A vector has become a matrix with one row or column, and ``x @ A`` the product of transposes.
    """

    a: Operand24
    b: Any
    out: Any
    epilogue: Fused
    types: Result
    target: Any  # the result before it loses the axis `dropped`, which a vector had gained
    dropped: int | None
    shapes: tuple[tuple[int, ...], tuple[int, ...]]  # of the operands as the caller gave them
    vectors: tuple[Any, type[np.floating]]  # array library and type of the epilogue's vectors
    named: Any  # type of the dense operand, where the call names it (`b_dtype`)


def laid_out(a: Operand24, matrix, out, call: Call, *, from_left: bool) -> LaidOut:
    """Check a call and make its result; `matrix` may be a vector.

    With `from_left` it is ``matrix @ a``, and everything is transposed, so that the sparse
    operand is the left one.
    """
    check_inner(*((matrix.shape, a.shape) if from_left else (a.shape, matrix.shape)))
    dropped = None
    if matrix.ndim == 1:
        matrix, dropped = (matrix[None], -2) if from_left else (matrix[:, None], -1)
    left, right = (matrix, a) if from_left else (a, matrix)
    shape = (*batch_of(left, right), left.shape[-2], right.shape[-1])
    types = Result.of(a, matrix, out, call, shape)
    target = types.allocate(dropped)
    vectors = vectors_of(a, types.name)
    record = a.multiplied(from_left=from_left)
    with _cuda_graphs.keeping(record, target):  # vectors may be converted
        epilogue = types.fitted(fuse(call, left.shape, right.shape, *vectors), dropped)
    also = types, target, dropped, (left.shape, right.shape), vectors, call.other_dtype
    if not from_left:
        return LaidOut(a, matrix, target, epilogue, *also)
    x, y = (part.swapaxes(-1, -2) for part in _fold(matrix, target, a, epilogue))
    return LaidOut(a.transposed(), x, y, epilogue.transposed(), *also)


def with_own_type(call: Call, x) -> Call:
    """The call with the type of `x` named, where the array that stands for it carries bits."""
    named = _foreign.with_float8(x, call.other_dtype)
    return call if named is call.other_dtype else call._replace(other_dtype=named)


def taken(x, a: Operand24, call: Call, argument: str):
    """The dense operand as a NumPy or CuPy array, how to convert back, and whether it is `x`."""
    array, restore = _foreign.take(x, argument=argument)
    _check.not_scalar(array.shape, argument=argument)
    known = promoted_integers(array, a.dtype, call.other_dtype, argument=argument)
    _arrays.logical_dtype(known, call.other_dtype, argument=argument)
    return known, restore, known is array


def vectors_of(a: Operand24, result: str):
    """Array library, and element type, of the epilogue's vectors for this type of result."""
    xp = _arrays.namespace(a.elements)
    return xp, vector_type(result, xp)


@dataclass(frozen=True)
class EpilogueMaker:
    """Makes the epilogue of a repeated call from its options; holds what does not change."""

    types: Result  # but for its `out`, which each call brings
    dropped: int | None
    left: tuple[int, ...]  # shapes of the operands
    right: tuple[int, ...]
    xp: Any
    real: type[np.floating]

    def __call__(self, call: Call, out) -> Fused:
        epilogue = fuse(call, self.left, self.right, self.xp, self.real)
        if out is None and epilogue.c is None and epilogue.aux is None:
            return epilogue
        return replace(self.types, out=given(out)).fitted(epilogue, self.dropped)


def _without(array, dropped: int | None):
    return array if dropped is None else array.squeeze(dropped)


def check_inner(left: tuple, right: tuple) -> None:
    """Refuse shapes whose product does not exist."""
    k_left, k_right = left[-1], right[-2 if len(right) > 1 else 0]
    if k_left != k_right:
        raise ShapeError(
            f"matmul: shapes {tuple(left)} @ {tuple(right)} do not fit: inner dimensions "
            f"{k_left} and {k_right} differ{if_transposed(left, right)}"
        )


def if_transposed(left: tuple, right: tuple) -> str:
    """The way out where one of the operands, transposed, would fit."""
    if len(right) > 1 and right[-1] == left[-1]:
        return "; the second one fits transposed, as in x @ A.T"
    if len(left) > 1 and left[-2] == right[-2 if len(right) > 1 else 0]:
        return "; the first one fits transposed, as in A.T @ x"
    return ""


def batch_of(left, right) -> tuple[int, ...]:
    """The batch axes of the product of two operands with shapes."""
    try:
        return np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ShapeError(
            f"matmul: batch axes {tuple(left.shape[:-2])} and {tuple(right.shape[:-2])} do not "
            "broadcast"
        ) from None


def _fold(x, target, a: Operand24, epilogue: Fused):
    """Token axes of ``x`` (..., t, k) folded into one, where a single matrix serves them all."""
    folds = epilogue.treats_rows_alike and x.ndim > 2 and len(a.shape) <= 2
    if not folds or not target.flags.c_contiguous:
        return x, target
    tokens = math.prod(x.shape[:-1])
    return x.reshape(tokens, x.shape[-1]), target.reshape(tokens, target.shape[-1])
