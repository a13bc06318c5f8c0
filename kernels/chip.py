"""The properties of a GPU that decide how products are divided among its blocks."""

from __future__ import annotations

import functools
from typing import NamedTuple

from sparse24 import _arrays


class Chip(NamedTuple):
    """A GPU."""

    multiprocessors: int
    most_shared: int  # bytes of shared memory of a block
    compute_capability: str

    @property
    def launches_early(self) -> bool:
        """Whether a launch may begin before the one before it in the stream has ended."""
        return int(self.compute_capability) >= 90

    @property
    def has_wgmma(self) -> bool:
        """Whether it has the warpgroup instructions of Hopper."""
        return self.compute_capability == "90"


H200 = Chip(132, 227 << 10, "90")


def chip(device: int | None = None) -> Chip:
    """The device of this number, by default the one in use."""
    if device is None:
        device = _arrays.cupy_module().cuda.Device().id
    return _of(device)


@functools.cache
def _of(device: int) -> Chip:
    found = _arrays.cupy_module().cuda.Device(device)
    attributes = found.attributes
    return Chip(
        attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"],
        found.compute_capability,
    )  # fmt: skip


def multiprocessors(device: int | None = None) -> int:
    """Multiprocessors of the device of this number, by default of the one in use."""
    return chip(device).multiprocessors
