"""Prepared products whose epilogue reads copies of the caller's vectors, made at each call.

Kernels read biases and scales in float32 (float64 for results of that type).  A bias of 16 bits, as
layers of 16 bits have, a number or the product of two scales becomes such a vector first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24 import _foreign_streams
from sparse24._dispatch import Launched
from sparse24._moved_layout import Last, MovedLayout
from sparse24._options import Call
from sparse24._ready import ReadyProduct
from sparse24._records import Fused
from sparse24.kernels import epilogue as _epilogue


class ReadyConverted(ReadyProduct):
    """A `ReadyProduct` that makes its epilogue anew from the options of each call.

    Parameters
    ----------
    launched, allocate, layout
        As of `ReadyProduct`.
    make_epilogue : callable
        Makes it from a call and its `out`.
    transposed : bool
        Whether the kernel computes the transposed product.
    """

    reads_options = True

    def __init__(
        self, launched: Launched, allocate: Callable[[], Any],
        make_epilogue: Callable[[Call, Any], Fused], *, transposed: bool,
        layout: MovedLayout | None = None,
    ):  # fmt: skip
        super().__init__(launched, allocate, layout)
        self.captured = False  # a graph would not keep the vectors
        self._make_epilogue, self._transposed = make_epilogue, transposed

    def __call__(self, x: Any, out: Any, call: Call) -> Any:  # type: ignore[override]
        with _foreign_streams.stream_of(x):  # in whose order the vectors are made, and freed
            epilogue = self._make_epilogue(call, out)
            epilogue = epilogue.transposed() if self._transposed else epilogue
            return self.launch(x, out, last=Last.of(_epilogue.params(epilogue)))
