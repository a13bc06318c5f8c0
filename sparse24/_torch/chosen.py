"""Which matrices of a stack were chosen, as experts that gather a matrix for each token do.

A product with the stack itself, of tokens in the order of its matrices, launches what earlier calls
have prepared, which one with new copies of matrices cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24._torch import wholes


class Chosen(NamedTuple):
    """Where the matrices are copies of."""

    part: Tensor  # of the stack
    version: int  # of `part` at that time
    numbers: Tensor


_NUMBERS = (torch.int32, torch.int64)  # others are masks
_chosen = WeakIdKeyDictionary()  # by the copy


def note(copied: Tensor, part: Tensor, places: Tensor) -> None:
    """Have it known that `copied` is ``part[places]``, if writes of the latter are counted."""
    version = wholes.version(part)
    if version is not None and len(part) and places.dtype in _NUMBERS:
        _chosen[copied] = Chosen(part, version, places % len(part))


def forget(written: Tensor) -> None:
    """Of a copy that is no longer what it was."""
    _chosen.pop(written, None)


def find(copied: list[Tensor]) -> list[Chosen] | None:
    """Of what each of some tensors is a copy, where all are as they were."""
    found = [_chosen.get(part) for part in copied]
    known = [one for one in found if one and wholes.version(one.part) == one.version]
    return known if len(known) == len(copied) else None
