"""What the cost models ask of a GPU: multiprocessors, clock, and how fast its memory is."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from sparse24 import _tuning_cache

# What a copy reaches of the rate of the memory's pins where none was measured: 4.2 TB/s of 4.92 on
# an H200, 3.02 of 3.35 on an H100 (`_planner_fit.copy_bandwidth`).
COPY_SHARE = 0.87
EDGES = 2  # transfers a clock of every memory that GPUs have: it is of double data rate
# An H200, as its driver and a copy tell.
H200 = {"sms": 132.0, "clock_hz": 1.98e9, "bandwidth": 4.2e12}


def facts(device: int) -> dict[str, float]:
    """Multiprocessors, clock in Hz and copy bandwidth in bytes a second of a device.

    The bandwidth is the measured one where the tuning cache knows it; the clock is that of an H200
    where the driver does not tell.
    """
    told = attributes(device)
    return {
        "sms": told["MultiProcessorCount"],
        "clock_hz": 1e3 * told.get("ClockRate", 0) or H200["clock_hz"],
        "bandwidth": _tuning_cache.bandwidth(device) or copy_bandwidth(told),
    }


@functools.cache
def attributes(device: int) -> Mapping[str, int]:
    """What the driver says of a device."""
    import cupy

    return dict(cupy.cuda.Device(device).attributes)


def copy_bandwidth(told: Mapping[str, int]) -> float:
    """Bytes a second that a copy is expected to read and write, by a device's attributes.

    Parameters
    ----------
    told : mapping of str to int
        ``MemoryClockRate`` in kHz and ``GlobalMemoryBusWidth`` in bits, either of which a driver
        may leave out or give as 0, and ``MultiProcessorCount``, by which an H200's is then scaled.
    """
    clock_khz, bits = told.get("MemoryClockRate", 0), told.get("GlobalMemoryBusWidth", 0)
    if clock_khz <= 0 or bits <= 0:
        return H200["bandwidth"] * told["MultiProcessorCount"] / H200["sms"]
    return COPY_SHARE * EDGES * 1e3 * clock_khz * bits / 8
