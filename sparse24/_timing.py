"""How long a call takes, for the demo and the command line.

The recorded benchmarks use the harness in ``tests/bench``, which is stricter.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 5
SECONDS_PER_ROUND = 0.02
# OpenBLAS's threads wait actively for their next product, some 0.1 s in yielded turns, and
# would take the cores from a call that does not need them.
BLAS_SETTLES = 0.15


def seconds_each(calls: list[Callable[[], Any]], *, on_gpu: bool) -> list[float]:
    """Time of each call; the calls take turns, so that a slow spell hits all.

    On a GPU the median of the rounds.  On the CPU the fastest call: whatever else runs on the
    machine makes a call longer, and a product on several threads waits for the slowest of them.
    There every turn begins with a pause, so that no call meets the threads of another, and with a
    call that is not timed and wakes its own.
    """
    clock, typical = (_gpu_round, statistics.median) if on_gpu else (_cpu_round, min)
    repeats, last = [], None
    for call in calls:
        call()  # compiles, loads, warms up
        once = clock(call, 1)
        repeats.append(max(1, min(1000, int(SECONDS_PER_ROUND / max(once, 1e-7)))))
    samples: list[list[float]] = [[] for _ in calls]
    turns = list(zip(calls, repeats, samples, strict=True))
    for _ in range(ROUNDS):
        for call, repeat, sample in turns:
            if call is not last and not on_gpu:
                time.sleep(BLAS_SETTLES)
                call()
            last = call
            sample.append(clock(call, repeat))
        turns.reverse()  # who ends a round begins the next: one pause less
    return [typical(sample) for sample in samples]


def _cpu_round(call: Callable[[], Any], repeat: int) -> float:
    """Of the fastest of `repeat` calls."""
    fastest = math.inf
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest


def _gpu_round(call: Callable[[], Any], repeat: int) -> float:
    import cupy

    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(repeat):
        call()
    stop.record()
    stop.synchronize()
    return 1e-3 * cupy.cuda.get_elapsed_time(start, stop) / repeat
