"""The products of single experts on the CPU, each prepared for the next one of its layout.

An expert with a few tokens takes less time than planning its product, and less than to wake the
threads for it, so these multiply several such experts side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse24 import _dispatch, _ready_cpu, _tuning_cache
from sparse24._bounded import remember
from sparse24._options import Call
from sparse24._records import Fused, Multiply, Operand24
from sparse24._target import Result

MOST_PREPARED = 4096  # of a stack: as many experts and numbers of tokens


class Prepared:
    """Products of the experts of a stack, by number and layout of the tokens."""

    def __init__(self) -> None:
        self._known: dict[tuple, Multiply] = {}

    def fill(
        self, number: int, a: Callable[[], Operand24], b: np.ndarray, out: np.ndarray,
        epilogue: Fused, call: Call, types: Result,
    ) -> None:  # fmt: skip
        """`_dispatch.fill` for the expert of a number, whose matrix `a` makes."""
        kinds = b.dtype, types.type_a.name, types.type_b.name, types.name
        key = (number, b.shape[1], b.strides, out.strides, *kinds, _tuning_cache.generation())
        known = self._known.get(key)
        if known is not None:
            known(b, out, epilogue)
            return
        launched = _dispatch.fill(a(), b, out, epilogue, call, types)
        if launched is not None:
            remember(self._known, key, _ready_cpu.prepared(launched), MOST_PREPARED)
