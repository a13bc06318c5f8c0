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


def fp32(compute_capability: int) -> int:
    return FP32.get(compute_capability, 128)


def bfloat16(compute_capability: int) -> int:
    return BFLOAT16.get(compute_capability, GEFORCE)
