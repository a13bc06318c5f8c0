"""Copies of a `Sparse24Tensor`, and what may be copied into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24._errors import UnsupportedError
from sparse24._torch import chosen
from sparse24._torch.matrix import PackedMatrix

_aten = torch.ops.aten


def clone(a: PackedMatrix, **_: Any) -> PackedMatrix:
    return a.like([part.clone() for part in a.parts], a.shape, a.turned)


def to_copy(a: PackedMatrix, *, dtype=None, device=None, **_: Any) -> PackedMatrix:
    return a.converted(dtype, device)


def is_pinned(a: PackedMatrix, *_: Any) -> bool:
    return all(part.is_pinned() for part in a.parts)


def pin(a: PackedMatrix, *_: Any) -> PackedMatrix:
    return a.like([part.pin_memory() for part in a.parts], a.shape, a.turned)


def refuse_lent(to: PackedMatrix) -> None:
    """Refuse to write to a matrix whose memory is that of others, too."""
    if to.lent or (to.ndim > 2 and not to.stacked):
        raise UnsupportedError(
            "nothing is copied into a part or an expansion of a Sparse24Tensor, or into what was "
            "made of an array, which have no memory of their own to write; copy into the whole "
            "matrix, or into a .clone(), or pass assign=True to load_state_dict"
        )


def copy_into(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """``to.copy_(source)`` of two packed matrices, whose places are copied with their elements."""
    if not isinstance(to, PackedMatrix) or not isinstance(source, PackedMatrix):
        raise UnsupportedError(
            "elements are not copied between a Sparse24Tensor and a dense one; pass assign=True to "
            "load_state_dict, or copy x.to_dense(), or to_sparse_semi_structured(x) of a dense x"
        )
    refuse_lent(to)
    if to.shape != source.shape or to.bits != source.bits or not _axes(to) <= _axes(source):
        raise UnsupportedError(
            f"into a Sparse24Tensor {_shown(to)} goes one like it, got one {_shown(source)}; pass "
            "assign=True to load_state_dict, or use that one in its place"
        )
    if source.dtype != to.dtype or source.device != to.device:
        source = source.converted(to.dtype, to.device)
    given = source.parts
    if source.turned != to.turned:
        given = [part.clone() for part in (*given[2:], *given[:2])]  # it may be `to` itself, turned
    for part, new in zip(to.parts, given, strict=False):  # `to` may have one orientation
        part.copy_(new, non_blocking)
        chosen.forget(part)
        torch.autograd.graph.increment_version(part)  # which torch does not do below its dispatch
    return to


def _axes(a: PackedMatrix) -> set[int]:
    """Along which a matrix is packed, or those of a stack."""
    rows, columns = a.ndim - 2, a.ndim - 1
    return {rows, columns} if len(a.parts) == 4 else {rows if a.turned else columns}


def _shown(a: PackedMatrix) -> str:
    axes = " and ".join(map(str, sorted(_axes(a))))
    bits = f" as integers of {a.bits} bits" if a.bits else ""
    return f"of shape {tuple(a.shape)} that is packed along axis {axes}{bits}"


RULES: dict[Any, Callable[..., Any]] = {
    _aten.clone.default: clone,
    _aten._to_copy.default: to_copy,
    _aten.copy_.default: copy_into,
    _aten.is_pinned.default: is_pinned,
    _aten._pin_memory.default: pin,
}
