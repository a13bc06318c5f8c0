"""Arrays of packed tensors, kept with what products with them have prepared.

An array is kept with the tensors that it is a view of, until these are written, as torch counts it,
or lie elsewhere, as after ``share_memory_()``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24._torch import wholes


class _Kept(NamedTuple):
    facts: tuple
    states: list[tuple[int, int]]  # of the tensors: where they lie, and how often they were written
    made: Any


# By the first tensor and, of the matrices of a stack, by their places in it: the latest `_Kept`.
_kept = WeakIdKeyDictionary()
_WHOLE = -1  # the place of a tensor that is no part


def kept(parts: list[Tensor], facts: tuple, make: Callable[[], Any]) -> Any:
    """What ``make()`` gives for some tensors, or what it has given for them before.

    `facts` tell apart what else it is made of.  Nothing is kept of inference tensors, whose writes
    torch does not count.
    """
    states = []
    for part in parts:
        version = wholes.version(part)
        if version is None:
            return make()
        states.append((part.data_ptr(), version))
    whole, place = _place_of(parts[0])
    of_whole = _kept.setdefault(whole, {})
    known = of_whole.get(place)
    if known is None or known.facts != facts or known.states != states:
        known = of_whole[place] = _Kept(facts, states, make())
    return known.made


def _place_of(part: Tensor) -> tuple[Tensor, int]:
    """A stack and the place of a matrix in it; any other tensor itself.

    ``a[i]`` makes another tensor each time, of which the stack keeps what was prepared.
    """
    stack = wholes.whole_of(part)
    if stack.shape[1:] != part.shape:
        return part, _WHOLE
    return stack, part.storage_offset()
