"""Compile what a suite will ask for side by side, before it times anything."""

from __future__ import annotations

from collections.abc import Iterable

from sparse24 import _autotune, _planner
from sparse24._records import PLAIN, Problem


def candidates_of(asked: Iterable[Problem]) -> None:
    """All candidates that `autotune` would measure for these problems."""
    wanted = {}
    for problem in asked:
        ranked = [c for c in _planner.candidates(problem, 0, dense=False) if c.refusal is None]
        limit = _autotune.MEASURE_WITHIN * ranked[0].seconds
        reference = [c for c in ranked if c.kernel == _autotune.REFERENCE]
        for candidate in [c for c in ranked if c.seconds <= limit] + reference:
            wanted[candidate.name, problem.dtype] = candidate
    _planner.prepare_all(wanted.values(), PLAIN)
