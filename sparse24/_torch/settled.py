"""Packed tensors that nothing writes any more, as `sparse24._settled` knows it of arrays.

Unlike arrays they may be written in place, which torch counts.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from sparse24 import _foreign
from sparse24._settled import Making

_makings = WeakIdKeyDictionary()  # values: versions when they were multiplied first, and a `Making`


def are_settled(values: Tensor, codes: Tensor) -> bool:
    """Whether the making of a packed matrix is known to have ended."""
    found = _makings.get(values)
    return found is not None and found[0] == _versions(values, codes) and found[1].has_ended()


def note(values: Tensor, codes: Tensor, dense: Tensor) -> None:
    """Have it known some time of a matrix that is multiplied next, on the stream of `dense`."""
    versions, found = _versions(values, codes), _makings.get(values)
    if versions is not None and (found is None or found[0] != versions):
        with _foreign.stream_of(dense):
            _makings[values] = versions, Making.before_now()


def _versions(values: Tensor, codes: Tensor) -> tuple[int, int] | None:
    """How often each was written; None of inference tensors, for which torch does not count."""
    if values.is_inference() or codes.is_inference():
        return None
    return values._version, codes._version
