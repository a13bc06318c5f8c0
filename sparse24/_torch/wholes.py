"""Packed tensors that are views of others: what is written to the whole, is written to them.

Below its dispatch, where a `Sparse24Tensor` makes them, torch counts the writes of a view apart.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_wholes = WeakIdKeyDictionary()  # of views


def note(view: Tensor, of: Tensor) -> None:
    """Have it known that `view` shares the memory of a tensor."""
    _wholes[view] = whole_of(of)


def whole_of(x: Tensor) -> Tensor:
    """The tensor that `x` is a view of, or else `x` itself."""
    return _wholes.get(x, x)


def version(x: Tensor) -> int | None:
    """How often `x` was written; None of inference tensors, for which torch does not count."""
    whole = whole_of(x)
    return None if whole.is_inference() else whole._version
