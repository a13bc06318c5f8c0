"""Problems for the planner, and what drivers say of GPUs."""

from __future__ import annotations

from sparse24._records import Problem

KEY = {"format": 1, "gpu": "test"}  # of a tuning file
# Attributes of devices: clocks in kHz, the width of the memory's bus in bits.
H200 = {
    "MultiProcessorCount": 132, "ClockRate": 1980000,
    "MemoryClockRate": 3201000, "GlobalMemoryBusWidth": 6144,
}  # fmt: skip
H100 = H200 | {"MemoryClockRate": 2619000, "GlobalMemoryBusWidth": 5120}
RTX_4090 = {
    "MultiProcessorCount": 128, "ClockRate": 2520000,
    "MemoryClockRate": 10501000, "GlobalMemoryBusWidth": 384,
}  # fmt: skip


def problem(m=4096, n=4096, k=4096, dtype="bfloat16", **more):
    out = {"int8": "int32", "float8_e4m3fn": "bfloat16"}.get(dtype, dtype)
    return Problem(m, n, k, 1, dtype, dtype, out, **{"b_order": "column", **more})
