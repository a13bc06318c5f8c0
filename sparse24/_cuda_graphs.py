"""Memory of captured CUDA graphs, which must outlive the call that was captured.

A product may need memory of its own: an aligned copy of an operand, partial sums.  CuPy's pool
would give it to the next array, into which every replay of the graph would then write.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from sparse24 import _arrays, _foreign_streams
from sparse24._records import Compressed24
from sparse24.kernels import pieces


@contextlib.contextmanager
def keeping(record: Compressed24 | None, out: Any) -> Iterator[None]:
    """While a graph is captured, keep what CuPy allocates for as long as the sparse operand lives.

    The graph reads that operand, too.  Memory that torch allocates, such as that of results for
    its tensors, is left to torch, whose graphs have pools of their own; `out` is any array of the
    call, in CuPy's form or as the caller gave it.
    """
    if record is None or not _is_captured(out) or _foreign_streams.is_torchs(out):
        yield
        return
    with _each_allocation(functools.partial(pieces.keep_for_graph, record)):
        yield


@contextlib.contextmanager
def keeping_with_hybrid(h: Any, x: Any) -> Iterator[None]:
    """As `keeping`, but for as long as the hybrid matrix `h` lives, which multiplies `x`."""
    if not _is_captured(x):
        yield
        return
    with _each_allocation(h.prepared("memory of graphs", _Memory).pieces.append):
        yield


@contextlib.contextmanager
def keeping_with(owner: Any, x: Any) -> Iterator[None]:
    """As `keeping`, but for as long as `owner` lives, any object that multiplies `x`."""
    if not _is_captured(x):
        yield
        return
    with _each_allocation(lambda memory: weakref.finalize(owner, _no_longer_needed, memory)):
        yield


def _is_captured(x: Any) -> bool:
    """Whether work on a CuPy array goes to a graph; that of other arrays is not looked at."""
    return _arrays.is_cupy(x) and _arrays.is_capturing()


def _no_longer_needed(memory: Any) -> None:
    """Called with the memory, which it thereby kept until now."""


class _Memory:
    """What only captured graphs still use."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    @property
    def nbytes(self) -> int:
        return sum(piece.mem.size for piece in self.pieces)


@contextlib.contextmanager
def _each_allocation(keep: Callable[[Any], object]) -> Iterator[None]:
    """Call `keep` with all memory that CuPy allocates in this context."""
    cuda = _arrays.cupy_module().cuda
    allocate = cuda.get_allocator()

    def allocate_and_keep(size: int) -> Any:
        memory = allocate(size)
        keep(memory)
        return memory

    with cuda.using_allocator(allocate_and_keep):
        yield
