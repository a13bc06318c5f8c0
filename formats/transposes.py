"""The two views of a matrix, itself and its transpose, that know each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class KeptTranspose:
    """A format whose transpose is a view of the same arrays, made at the first need and kept.

    The view refers back weakly.  Two strong references would be a cycle, and memory of a GPU would
    be free only when Python next looks for those.
    """

    __slots__ = ()

    _transpose: Any  # the transposed view, a weak reference to the array that it is of, or None

    def _known_transpose(self) -> Any:
        """The transposed view, or the array whose view this is; None if there is none."""
        transposed = self._transpose
        return transposed() if type(transposed) is weakref.ref else transposed

    def _kept_transpose(self, make: Callable[[], Any]) -> Any:
        """`_known_transpose` or, if there is none, what ``make()`` returns, kept from now on."""
        transposed = self._known_transpose()
        if transposed is None:
            transposed = make()
            object.__setattr__(transposed, "_transpose", weakref.ref(self))
            object.__setattr__(self, "_transpose", transposed)
        return transposed
