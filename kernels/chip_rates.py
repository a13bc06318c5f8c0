"""Multiply-adds a clock and multiprocessor, by compute capability: for chips that nobody timed.

Sources: "Throughput of Native Arithmetic Instructions" in NVIDIA's CUDA programming guide for the
FP32 units; for the tensor cores NVIDIA's white papers on A100, H100, GA102, Ada and RTX Blackwell,
which give the rate of a whole GPU, its clock and its multiprocessors.
"""

from __future__ import annotations

FP32 = {80: 64}  # else 128

# bfloat16 with float32 sums, dense, by instructions of a warp; at 2:4 twice as many.  Hopper has
# 2048, of which these instructions reach about 60 % (Luo et al., "Benchmarking and Dissecting the
# Nvidia Hopper GPU Architecture", 2024).  For 100 and 103 no such rate is published: they are taken
# to be no slower than an A100.
BFLOAT16 = {80: 1024, 90: 1229, 100: 1024, 103: 1024}
GEFORCE = 256  # of GA10x, Ada and RTX Blackwell; their workstation cards have twice as many

# At 2:4 an H100 reaches 2040 by instructions of a warp, with operands in registers:
# docs/benchmarks/log_gemm.rst.
SPARSE_BFLOAT16 = {90: 2040}

# cuBLAS takes the warpgroup instructions of Hopper, 2 times 1350 flops a clock (650 TFLOP/s on an
# H200), and those of Blackwell, which are taken to be faster as their peak is.
DENSE_BFLOAT16 = {90: 1350, 100: 2700, 103: 2700}
DENSE_OF_PEAK = 0.85  # that cuBLAS reaches elsewhere


def fp32(compute_capability: int) -> int:
    """Multiply-adds a clock and multiprocessor of the FP32 units."""
    return FP32.get(compute_capability, 128)


def bfloat16(compute_capability: int) -> int:
    """Dense multiply-adds a clock and multiprocessor of tensor cores, by instructions of a warp."""
    return BFLOAT16.get(compute_capability, GEFORCE)


def sparse_bfloat16(compute_capability: int) -> int:
    """By instructions of a warp at 2:4."""
    return SPARSE_BFLOAT16.get(compute_capability, 2 * bfloat16(compute_capability))


def dense_bfloat16(compute_capability: int) -> float:
    """Multiply-adds a clock and multiprocessor that a dense product of cuBLAS reaches."""
    return DENSE_BFLOAT16.get(compute_capability, DENSE_OF_PEAK * bfloat16(compute_capability))
