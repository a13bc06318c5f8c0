"""Packed tensors that nothing writes any more, as `sparse24._settled` knows it of arrays.

Unlike arrays they may be written in place, by ``copy_`` of a `Sparse24Tensor`, which counts that.
Writes that torch does not count are not noticed, such as those by a collective.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24 import _foreign_streams
from sparse24._settled import MADE_ANEW, Making
from sparse24._torch import wholes


class _Known(NamedTuple):
    codes: weakref.ref[Tensor]
    versions: tuple[int, int]
    making: Making


_known = WeakIdKeyDictionary()  # values: a `_Known` of the first product since they were written


def are_settled(values: Tensor, codes: Tensor) -> bool:
    """Whether the making of a packed matrix is known to have ended."""
    found = _known.get(values)
    return found is not None and _are_of(found, values, codes) and found.making.has_ended()


def is_made_anew(values: Tensor, codes: Tensor) -> bool:
    """Whether a captured graph makes a packed matrix, or a stack, anew at every replay."""
    found = _known.get(values)
    return found is not None and _are_of(found, values, codes) and not found.making.may_end


def note(values: Tensor, codes: Tensor, dense: Tensor) -> None:
    """Have it known some time of a matrix that is multiplied next, on the stream of `dense`."""
    found = _known.get(values)
    if found is None or not _are_of(found, values, codes):
        with _foreign_streams.stream_of(dense):
            _remember(values, codes, Making.before_now())


def made(parts: list[Tensor]) -> list[Tensor]:
    """Packed tensors as they are made, by a graph if one is captured, anew at every replay."""
    if parts[0].is_cuda and torch.cuda.is_current_stream_capturing():
        for values, codes in zip(parts[::2], parts[1::2], strict=True):
            _remember(values, codes, MADE_ANEW)
    return parts


def _remember(values: Tensor, codes: Tensor, making: Making) -> None:
    versions = _versions(values, codes)
    if versions is not None:
        _known[values] = _Known(weakref.ref(codes), versions, making)


def _are_of(found: _Known, values: Tensor, codes: Tensor) -> bool:
    return found.codes() is codes and found.versions == _versions(values, codes)


def _versions(values: Tensor, codes: Tensor) -> tuple[int, int] | None:
    """How often each was written; None where torch does not count that."""
    of_values, of_codes = wholes.version(values), wholes.version(codes)
    return None if of_values is None or of_codes is None else (of_values, of_codes)
