"""Compile what a suite will ask for in many processes, into CuPy's cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable

from sparse24 import _autotune, _planner
from sparse24._records import PLAIN, Problem


def add_argument(parser) -> None:
    """The option by which a suite runs itself to compile a part."""
    parser.add_argument(
        "--compile",
        nargs=2,
        type=int,
        metavar=("PART", "PARTS"),
        help="compile a part, time nothing",
    )


def part(number: int, parts: int, asked: Iterable[Problem]) -> None:
    """Every `parts`-th candidate that `autotune` would measure, from `number` on."""
    wanted = {}
    for problem in asked:
        ranked = [c for c in _planner.candidates(problem, 0, dense=False) if c.refusal is None]
        limit = _autotune.MEASURE_WITHIN * ranked[0].seconds
        reference = [c for c in ranked if c.kernel == "sparse_fma"]
        for candidate in [c for c in ranked if c.seconds <= limit] + reference:
            wanted[candidate.name, problem.dtype] = candidate
    for key in sorted(wanted)[number::parts]:
        _planner.prepare(wanted[key], PLAIN)


def in_parallel() -> None:
    """Run this suite with the same arguments in all but two cores, each compiling a part."""
    parts = max(1, (os.cpu_count() or 1) - 2)
    command = [sys.executable, *sys.argv, "--compile"]
    children = [subprocess.Popen([*command, str(i), str(parts)]) for i in range(parts)]
    for child in children:
        if child.wait():
            sys.exit("a process that compiles kernels has failed")
