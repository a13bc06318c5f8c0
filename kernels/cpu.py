"""The CPU backend in one place: every entry point that the floors above call."""

from sparse24.kernels.cpu_compress import compress, decompress, like, prune
from sparse24.kernels.cpu_matmul import decompress_matmul, matmul

__all__ = ["compress", "decompress", "decompress_matmul", "like", "matmul", "prune"]
