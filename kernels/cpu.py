"""The CPU backend in one place: every entry point that the floors above call."""

from sparse24.kernels.cpu_compress import compress, decompress, like, prune

__all__ = ["compress", "decompress", "like", "prune"]
