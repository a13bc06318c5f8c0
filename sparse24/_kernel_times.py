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

from sparse24 import _kernel_corrections, _staging
from sparse24._records import Problem
from sparse24._staging import Variant

ASKS_FOR_TILES = ("sparse_mma",)  # kernels whose configurations depend on how many tiles there are

# The time of the smallest product: a launch, and a few times the latency of memory.
LEAST_SECONDS = 3e-6

# Products below LEAST_SECONDS are ranked by their model, which does not know how long blocks take
# to set up: seconds, and up to how many columns.  On an H100 `sparse_skinny` takes 1.7 to 2.3 µs
# for up to 8 columns where `sparse_wgmma`, with tiles of 32 columns, takes 2.2 to 2.8; on an H200
# `sparse_decode` takes 1.9 to 2.4 for 9 columns of 8-bit elements, and `sparse_mixed` 2.3 to 3.6.
SETUP = {"sparse_wgmma": (5e-7, 8), "sparse_mixed": (1e-6, 16)}

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
        self._scale = scale(name)
        self._staging = _staging.seconds(variant, problem, facts["bandwidth"])
        setup, columns = SETUP.get(name, (0.0, 0))
        self._setup = setup if problem.n <= columns else 0.0

    def times(self, config) -> Times:
        name, problem, facts = self.name, self.variant.problem, self._facts
        running = self._scale * modelled(name, problem, config, facts)
        running = max(running, _kernel_corrections.least(name, problem, config, facts))
        running += _staging.reading(name, problem, config, facts["sms"])
        setup = self._staging + running + self._setup
        return self._staging + max(LEAST_SECONDS, running), setup

    @functools.cached_property
    def bounds(self) -> Bounds:
        """Configurations with what each is predicted to take for fewer columns, the least first."""
        return _bounds(self.name, with_fewer_columns(self.variant.problem), *self._facts.items())

    def least(self, bound: float) -> float:
        """Seconds that a configuration of this bound takes at least."""
        return self._staging + max(LEAST_SECONDS, self._scale * bound * ROUNDED)

    def configs(self) -> Bounds:
        """Bounds of the configurations for just this many columns."""
        if self.name not in ASKS_FOR_TILES:
            return self.bounds
        least, _ = self.bounds[0]
        return [(least, x) for x in kernel_module(self.name).configs(self.variant.problem)]


@functools.lru_cache(REMEMBERED)
def _bounds(name: str, problem: Problem, *facts: tuple[str, float]) -> Bounds:
    chip = dict(facts)
    configs = kernel_module(name).configs(problem)
    return sorted(
        ((modelled(name, problem, x, chip), x) for x in configs), key=lambda pair: pair[0]
    )


def modelled(name: str, problem: Problem, config: Any, facts: dict[str, float]) -> float:
    """Seconds that a configuration of a kernel is expected to take, before any scale."""
    seconds = kernel_module(name).predict(problem, config, facts)
    return seconds + _kernel_corrections.beside(name, problem, config, facts)


@functools.lru_cache(4)  # that of the latest problems, for one kernel after the other
def with_fewer_columns(problem: Problem) -> Problem:
    """A problem of fewer columns with the same configurations, none of which takes longer for it.

    It lies between the same powers of two, on which configurations depend.  A kernel of
    `ASKS_FOR_TILES` may have more of them for fewer columns.
    """
    step = max(1, (1 << (problem.n - 1).bit_length()) // CELLS)
    return dataclasses.replace(problem, n=(problem.n - 1) // step * step + 1)
