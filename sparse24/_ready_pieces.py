"""Prepared products of float32 in bfloat16 pieces, which take two launches and scratch memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24 import _arrays, _foreign_streams
from sparse24._dispatch import Launched
from sparse24._moved_layout import Last, MovedLayout
from sparse24._ready import ReadyProduct, out_on_values
from sparse24._records import Compressed24


class ReadyInPieces(ReadyProduct):
    """A `ReadyProduct` whose launcher is a `kernels.sparse_split.InPieces`.

    One launch makes the pieces of b in scratch memory, which is allocated for each call, and the
    next one reads them there.  For tensors it is torch's memory: a pool of CuPy's beside torch's
    would find no room on a GPU that torch has filled, also where torch's has some.

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
        self._scratch = launched.launcher.scratch_bytes(launched.b)

    def _enqueue(self, given: tuple[int, ...], stream: int, last: Last | None) -> None:
        scratch = _arrays.cupy_module().cuda.alloc(self._scratch)  # freed in the stream's order
        super()._enqueue((*given, scratch.ptr), stream, last)

    def _enqueue_for_torch(
        self, given: tuple[int, ...], stream: int, last: Last | None, x: Any
    ) -> None:
        scratch = _foreign_streams.torch_memory(x.device, self._scratch)  # freed so, too
        super()._enqueue_for_torch((*given, scratch.data_ptr()), stream, last, x)
