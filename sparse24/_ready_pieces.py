"""Prepared products of float32 in bfloat16 pieces, which take two launches and scratch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24._dispatch import Launched
from sparse24._moved_layout import MovedLayout
from sparse24._ready import ReadyProduct, out_on_values
from sparse24._ready_scratch import ReadyInScratch
from sparse24._records import Compressed24


class ReadyInPieces(ReadyInScratch, ReadyProduct):
    """A `ReadyProduct` whose launcher is a `kernels.sparse_split.InPieces`.

    One launch makes the pieces of b in scratch memory, and the next one reads them there.

    Parameters
    ----------
    launched, allocate, layout, in_place
        As of `ReadyProduct`.
    pieces : Compressed24
        Those of the stored matrix, settled, so that all streams may read them.
    """

    def __init__(
        self, launched: Launched, pieces: Compressed24, allocate: Callable[[], Any],
        layout: MovedLayout | None = None, *, in_place: bool = False,
    ):  # fmt: skip
        settled = launched._replace(a=pieces, settled=True)
        super().__init__(settled, allocate, layout, in_place=in_place)
        self.captured = False  # a graph would not keep the scratch memory
        self._refusals.append(out_on_values(launched.out, launched.a.values))
        self.scratch_bytes = launched.launcher.scratch_bytes(launched.b)
