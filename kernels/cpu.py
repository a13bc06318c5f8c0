"""The CPU backend in one place: every entry point that the floors above call."""

from sparse24.kernels.cpu_compress import compress, decompress, like, prune
from sparse24.kernels.cpu_matmul import choose, decompress_matmul, matmul
from sparse24.kernels.cpu_transposable import transposable_mask

__all__ = [
    "choose",
    "compress",
    "decompress",
    "decompress_matmul",
    "like",
    "matmul",
    "prune",
    "transposable_mask",
]
