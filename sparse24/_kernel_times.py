"""How long each configuration of a kernel is predicted to take, and what it takes at least.

A prediction costs some ten microseconds of Python, and the Hopper kernel has fifty configurations.
Adding columns never shortens a time, so the times for slightly fewer columns, which many problems
share, rule most configurations out.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

from sparse24 import _staging
from sparse24._records import Problem
from sparse24._staging import Variant
from sparse24.kernels import sparse_tile

ASKS_FOR_TILES = ("sparse_mma",)  # kernels whose configurations depend on how many tiles there are

# The time of the smallest product: a launch, and a few times the latency of memory.
LEAST_SECONDS = 3e-6

# The model of this kernel hides a part of reading behind the rest, and so lets it read faster than
# memory can where that is slow.  It reads at about this share of the speed of a copy: 28672 x 8192
# by 1 column at 0.93 of it on an H100, at 1.0 on an H200 (few_tokens.json of both).
READING = {"sparse_wgmma": 0.96}
READING_LAUNCH = 2e-6  # seconds beside it, as in the model of `sparse_skinny`

# Times for fewer columns tell which configurations cannot be fast enough for more of them.
CELLS = 8  # how many numbers of columns up to a power of two are timed for that
ROUNDED = 1 - 1e-9  # and how much of such a time is certain
REMEMBERED = 4096

Scale = Callable[[str], float]  # measured over predicted time of a kernel
Times = tuple[float, float]  # predicted seconds, and the same without `LEAST_SECONDS`
Bounds = list[tuple[float, Any]]  # seconds and configurations


@functools.cache
def kernel_module(name: str):
    return importlib.import_module(f"sparse24.kernels.{name}")


class KernelTimes:
    """Predicted times of a kernel's configurations, for one form of a problem."""

    def __init__(self, name: str, variant: Variant, problem: Problem, facts, scale: Scale):
        self.name, self.variant, self._facts = name, variant, facts
        self._predict, self._scale = kernel_module(name).predict, scale(name)
        self._staging = _staging.seconds(variant, problem, facts["bandwidth"])
        self._reading = _reading(name, variant.problem, facts["bandwidth"])

    def times(self, config) -> Times:
        name, problem, facts = self.name, self.variant.problem, self._facts
        running = max(self._scale * self._predict(problem, config, facts), self._reading)
        running += _staging.reading(name, problem, config, facts["sms"])
        return self._staging + max(LEAST_SECONDS, running), self._staging + running

    @functools.cached_property
    def bounds(self) -> Bounds:
        """Configurations with what each is predicted to take for fewer columns, the least first."""
        return _bounds(self.name, with_fewer_columns(self.variant.problem), *self._facts.items())

    def least(self, bound: float) -> float:
        """Seconds that a configuration of this bound takes at least."""
        return self._staging + max(LEAST_SECONDS, self._reading, self._scale * bound * ROUNDED)

    def configs(self) -> Bounds:
        """Bounds of the configurations for just this many columns."""
        if self.name not in ASKS_FOR_TILES:
            return self.bounds
        least, _ = self.bounds[0]
        return [(least, x) for x in kernel_module(self.name).configs(self.variant.problem)]


@functools.lru_cache(REMEMBERED)
def _bounds(name: str, problem: Problem, *facts: tuple[str, float]) -> Bounds:
    module, chip = kernel_module(name), dict(facts)
    times = [(module.predict(problem, x, chip), x) for x in module.configs(problem)]
    return sorted(times, key=lambda pair: pair[0])


def with_fewer_columns(problem: Problem) -> Problem:
    """One for which kernels have the same configurations, and take no longer with any of them.

    It lies between the same powers of two, on which configurations depend.  A kernel of
    `ASKS_FOR_TILES` may have more of them for fewer columns.
    """
    step = max(1, (1 << (problem.n - 1).bit_length()) // CELLS)
    return dataclasses.replace(problem, n=(problem.n - 1) // step * step + 1)


def _reading(kernel: str, problem: Problem, bandwidth: float) -> float:
    """Seconds that a kernel takes at least, at so many bytes a second of a copy."""
    if kernel not in READING:
        return 0.0
    return READING_LAUNCH + sparse_tile.bytes_moved(problem) / (READING[kernel] * bandwidth)
