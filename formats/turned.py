"""The two views of a matrix, itself and its transpose, that know each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Turned:
    """A format whose transpose is a view of the same arrays, made at the first need and kept.

    The view refers back weakly.  Two strong references would be a cycle, and memory of a GPU would
    be free only when Python next looks for those.
    """

    __slots__ = ()

    _turned: Any  # the transposed view, a weak reference to the array that it is of, or None

    def _other_way(self) -> Any:
        """The transposed view, or the array whose view this is; None if there is none."""
        turned = self._turned
        return turned() if type(turned) is weakref.ref else turned

    def _turn(self, make: Callable[[], Any]) -> Any:
        """The same, made by `make` if there is none."""
        turned = self._other_way()
        if turned is None:
            turned = make()
            object.__setattr__(turned, "_turned", weakref.ref(self))
            object.__setattr__(self, "_turned", turned)
        return turned
