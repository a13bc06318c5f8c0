"""A launch of a kernel whose grid has one dimension, with its arguments."""

from __future__ import annotations

from typing import Any, NamedTuple


class KernelCall(NamedTuple):
    """A kernel with arguments of eight bytes each: arrays, by their address, and numbers."""

    kernel: Any  # cupy.RawKernel
    blocks: int
    threads: int
    arguments: tuple

    def enqueue(self) -> None:
        """Launch on CuPy's current stream, without waiting."""
        self.kernel((self.blocks,), (self.threads,), self.arguments)
