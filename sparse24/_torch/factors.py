"""Products of a packed matrix, whatever its parts are: planned, and launched again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparse24 import _dispatch, _foreign, _foreign_streams
from sparse24._errors import ArgumentError
from sparse24._options import Call
from sparse24._records import PLAIN, Fused, Operand24
from sparse24._target import Result
from sparse24._torch import replay as torch_replay
from sparse24._torch.parts import (
    added_to,
    dtype_of,
    in_type,
    is_added_later,
    result_type,
    vector_type,
    without_autocast,
)
from sparse24._torch.settled import are_settled, note

FORMS = ("x@At", "x@A", "A@b", "At@b")
TURNED = ("x@A", "At@b")  # those that multiply by the transpose from the left
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Factor(NamedTuple):
    """A packed matrix A (m, k), as a product reads it.

    Attributes
    ----------
    m, k : int
    dtype : torch.dtype
        For which products take its elements.
    stored : list of Tensor
        What a kernel reads as values and codes; empty where the groups do not run along the
        contracted axis.
    operand : callable
        Gives the matrix, or its transpose for the forms `TURNED`.
    whole : callable
        ``whole(dtype)`` gives it with its zeros.
    """

    m: int
    k: int
    dtype: torch.dtype
    stored: list[Tensor]
    operand: Callable[[], Operand24]
    whole: Callable[[torch.dtype], Tensor]


def times(a: Factor, dense: Tensor, bias: Tensor | None, form: str) -> Tensor:
    """The product of a form; a bias is added to the columns of ``x @ A`` or ``x @ A.T``.

    ``x @ A`` is computed as the transpose of ``A.T @ x.T``, which exchanges views only.
    """
    if is_added_later(bias, dense):
        return added_to(times(a, dense, None, form), bias)
    left, stored = form.startswith("x"), a.stored
    if not stored and bias is None and _multiplies_densely(a, dense):
        return _dense_product(a, dense, left=left)
    settled = len(stored) > 0 and are_settled(*stored)
    key = torch_replay.product_key(stored[0], dense, bias, a.m, a.k, form) if stored else None
    key = key and (*key, a.dtype, settled)
    known = torch_replay.find(key)
    added = None if bias is None else _as_added(bias, a, dense)
    if known is not None:
        return known(*stored, dense, added)
    with _foreign_streams.stream_of(dense):
        epilogue = PLAIN if added is None else Fused(row_bias=_foreign.view_of(added))
        operand, b = a.operand(), _foreign.view_of(dense)
        b = b.T if left else b
        call = Call(other_dtype=dtype_of(dense))
        shape = (operand.shape[0], b.shape[1])
        result = Result.of(operand, b, None, call, shape[::-1] if left else shape)
        out = result.allocate(None)
        launched = _dispatch.fill(operand, b, out.T if left else out, epilogue, call, result)
        product = _foreign.to_torch(out)
        if launched is not None:
            launched = launched._replace(settled=settled)
            torch_replay.remember(key, launched, product, left=left)
            if launched.waits:
                note(stored[0], stored[1], dense)
        return product


def _as_added(bias: Tensor, a: Factor, dense: Tensor) -> Tensor:
    """A bias as kernels add it to the products of these operands, whatever its own type."""
    wanted = vector_type(a.dtype, dense.dtype, on_gpu=dense.is_cuda)
    return in_type(bias, wanted).contiguous()


def _multiplies_densely(a: Factor, dense: Tensor) -> bool:
    """Whether a product across the groups is torch's, of the matrix with its zeros.

    On the CPU a kernel of ours does without that matrix.
    """
    return dense.is_cuda and a.dtype in _FLOATS and dense.dtype in _FLOATS


def _dense_product(a: Factor, given: Tensor, *, left: bool) -> Tensor:
    """``x @ A`` or ``A.T @ b`` by torch, in the type that ours would have."""
    common = torch.promote_types(a.dtype, given.dtype)
    matrix, given = a.whole(common), in_type(given, common)
    with without_autocast(given):
        return given @ matrix if left else matrix.t() @ given


def empty_product(dtype: torch.dtype, m: int, k: int, dense: Tensor, form: str) -> Tensor:
    """A tensor like the product with a matrix (m, k) of a type."""
    if form not in FORMS:
        raise ArgumentError(f"form must be one of {FORMS}, got {form!r}")
    rows, columns = {
        "x@At": (dense.shape[0], m),
        "x@A": (dense.shape[0], k),
        "A@b": (m, dense.shape[1]),
        "At@b": (k, dense.shape[1]),
    }[form]
    return dense.new_empty((rows, columns), dtype=result_type(dtype, dense.dtype))
