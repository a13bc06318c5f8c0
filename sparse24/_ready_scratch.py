"""Prepared products that need scratch memory, which is allocated for each call."""

from __future__ import annotations

from sparse24 import _arrays, _foreign_streams
from sparse24._moved_layout import Last
from sparse24._ready import Ready


class ReadyInScratch(Ready):
    """A `Ready` whose launches take the address of scratch memory after all others.

    For tensors it is torch's memory: a pool of CuPy's beside torch's would find no room on a GPU
    that torch has filled, also where torch's has some.  No graph would keep it.

    Attributes
    ----------
    scratch_bytes : int
    """

    scratch_bytes: int

    def _asks_cupy(self) -> bool:
        return False  # kernels are told the stream

    def _enqueue(self, given: tuple[int, ...], stream: int, last: Last | None) -> None:
        scratch = _arrays.cupy_module().cuda.alloc(self.scratch_bytes)  # freed in stream order
        super()._enqueue((*given, scratch.ptr), stream, last)

    def _enqueue_for_torch(self, given: tuple[int, ...], stream: int, last: Last | None, x) -> None:
        scratch = _foreign_streams.torch_memory(x.device, self.scratch_bytes)  # freed so, too
        super()._enqueue_for_torch((*given, scratch.data_ptr()), stream, last, x)
