"""Memory of captured CUDA graphs, which must outlive the call that was captured.

A product may need memory of its own: an aligned copy of an operand, partial sums.  CuPy's pool
would give it to the next array, into which every replay of the graph would then write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from sparse24 import _arrays, _foreign
from sparse24._records import Compressed24
from sparse24.kernels import pieces


@contextlib.contextmanager
def keeping(record: Compressed24 | None, out: Any) -> Iterator[None]:
    """While a graph is captured, keep what CuPy allocates for as long as the sparse operand lives.

    The graph reads that operand, too.  Memory that torch allocates, such as that of results for
    its tensors, is left to torch, whose graphs have pools of their own.
    """
    cuda = _arrays.cupy_module().cuda
    if record is None or not cuda.get_current_stream().is_capturing() or _foreign.is_torchs(out):
        yield
        return

    allocate = cuda.get_allocator()

    def keep(size: int) -> Any:
        memory = allocate(size)
        pieces.keep_for_graph(record, memory)
        return memory

    with cuda.using_allocator(keep):
        yield
