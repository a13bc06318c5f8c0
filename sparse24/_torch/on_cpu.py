"""Products of packed tensors on the CPU, by arrays that are kept with what these have prepared.

An array serves until its tensors are written, as torch counts it, or lie elsewhere, as after
``share_memory_()``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24 import _foreign
from sparse24._options import NO_OPTIONS, Epilogue
from sparse24._torch import wholes
from sparse24._torch.parts import added_to, in_type, is_added_later, unpack, vector_type
from sparse24.formats.products_24 import Products24
from sparse24.formats.two_four import Sparse24Array


class _Kept(NamedTuple):
    facts: tuple
    made: Any


# By packed tensor, and by place in it: what was made of the latest facts.
_kept = WeakIdKeyDictionary()
WHOLE = -1  # the place of tensors that are no part


def kept(owner: Tensor, place: Hashable, facts: tuple, make: Callable[[], Any]) -> Any:
    """What ``make()`` gave for these facts at a place of a packed tensor, with which it is freed.

    Other facts of this place have it made anew.
    """
    of_owner = _kept.setdefault(owner, {})
    known = of_owner.get(place)
    if known is None or known.facts != facts:
        known = of_owner[place] = _Kept(facts, make())
    return known.made


def state(x: Tensor) -> tuple[int, int] | None:
    """Where a packed tensor lies, and how often it was written; None where that is not counted."""
    version = wholes.version(x)
    return None if version is None else (x.data_ptr(), version)


class _Matrix:
    """A packed matrix: the forms of its products so far, and its array, if one has come again."""

    def __init__(self) -> None:
        self.forms: set[str] = set()
        self.array: Sparse24Array | None = None


def multiplied(parts: list[Tensor], m: int, k: int, form: str) -> Sparse24Array | None:
    """The array for a product of a packed matrix, from its second one of a form on.

    A training step packs its weights anew, and has one of each.
    """
    states = [state(part) for part in parts]
    if None in states:
        return None
    matrix = kept(parts[0], WHOLE, (m, k, *states), _Matrix)
    if form not in matrix.forms:
        matrix.forms.add(form)
        return None
    if matrix.array is None:
        matrix.array = unpack(parts, m, k)
    return matrix.array


def product(array: Products24, dense: Tensor, bias: Tensor | None, form: str) -> Tensor:
    """`factors.times` of an array, which keeps what it has prepared for tensors of a layout."""
    if is_added_later(bias, dense):
        return added_to(product(array, dense, None, form), bias)
    matrix, call = array.mT if form in ("x@At", "At@b") else array, NO_OPTIONS
    multiply = matrix._multiply_from_left if form.startswith("x") else matrix._multiply
    if bias is not None:
        wanted = vector_type(getattr(torch, array._dtype.name), dense.dtype, on_gpu=False)
        added = _foreign.view_of(in_type(bias, wanted).contiguous())
        call = NO_OPTIONS._replace(epilogue=Epilogue(bias=added))
    return _foreign.to_torch(multiply(_foreign.view_of(dense), None, call))
