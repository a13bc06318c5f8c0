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
from sparse24._hybrid_lines import SMALL
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

# Products below LEAST_SECONDS are ranked by their model, which does not know how long blocks take
# to set up: by up to 8 columns `sparse_skinny` takes 1.7 to 2.3 µs on an H100 where this kernel,
# with tiles of 32 columns, takes 2.2 to 2.8.
SETUP, SETUP_COLUMNS = {"sparse_wgmma": 5e-7}, 8

# cuBLAS multiplies a `SMALL` matrix of 16 bits by blocks that walk along all of k.  It takes a
# launch, a time for each element of k, and some of the time in which a copy moves the operands: 90
# products of 384 x 384 to 2048 x 2048 by 1 to 2048 columns, on an H100, differ from that by 9 %.
# It is the line "small" of `H100_LINES`, told by the facts of a chip.
WALK_LAUNCH, WALK_CLOCKS, WALK_READING = 2.7e-6, 2.3, 0.67

# Times for fewer columns tell which configurations cannot be fast enough for more of them.
CELLS = 8  # how many numbers of columns up to a power of two are timed for that
ROUNDED = 1 - 1e-9  # and how much of such a time is certain
REMEMBERED = 4096

Scale = Callable[[str], float]  # measured over predicted time of a kernel
Times = tuple[float, float]  # predicted seconds, and what ranks those of `LEAST_SECONDS`
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
        self._floor = _floor(name, variant.problem, facts)
        self._setup = SETUP.get(name, 0.0) if problem.n <= SETUP_COLUMNS else 0.0

    def times(self, config) -> Times:
        name, problem, facts = self.name, self.variant.problem, self._facts
        running = max(self._scale * self._predict(problem, config, facts), self._floor)
        running += _staging.reading(name, problem, config, facts["sms"])
        setup = self._staging + running + self._setup
        return self._staging + max(LEAST_SECONDS, running), setup

    @functools.cached_property
    def bounds(self) -> Bounds:
        """Configurations with what each is predicted to take for fewer columns, the least first."""
        return _bounds(self.name, with_fewer_columns(self.variant.problem), *self._facts.items())

    def least(self, bound: float) -> float:
        """Seconds that a configuration of this bound takes at least."""
        return self._staging + max(LEAST_SECONDS, self._floor, self._scale * bound * ROUNDED)

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


def _floor(kernel: str, problem: Problem, facts: dict[str, float]) -> float:
    """Seconds that a kernel takes at least, which its model does not tell."""
    if kernel == "dense":
        return walking(problem, facts)
    if kernel not in READING:
        return 0.0
    rate = READING[kernel] * facts["bandwidth"]
    return READING_LAUNCH + sparse_tile.bytes_moved(problem) / rate


def walking(problem: Problem, facts: dict[str, float]) -> float:
    """Seconds of a small dense product, at least; 0 if the matrix is large, or not of 16 bits."""
    m, n, k = problem.m, problem.n, problem.k
    if problem.dtype not in ("float16", "bfloat16") or problem.batch > 1 or m * k >= SMALL:
        return 0.0
    reading = 2 * (m * k + k * n + m * n) / facts["bandwidth"]
    return WALK_LAUNCH + WALK_CLOCKS * k / facts["clock_hz"] + WALK_READING * reading
