"""Divide the columns of pairs of groups between these in the best way for an n:m mask.

The CPU has kernels for it; on the GPU the sums of all deals are made with CuPy.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

import numpy as np

from sparse24 import _arrays

EVERY_DEAL = 4  # up to this m all ways to deal two groups are tried, beyond it single exchanges
# Scores of one place of the pairs that are looked at together.
CPU_AT_ONCE = 1 << 14  # some 0.2 ms at 2:4, beside which to give it out takes little
GPU_AT_ONCE = 1 << 24


class Search:
    """Finds the best deals of pairs of groups, on the device of the scores.

    Parameters
    ----------
    columns : array of float32 (k, rows)
        Scores of all columns, none negative.
    n, m : int
    """

    def __init__(self, columns, n: int, m: int):
        self._deals = ways(m)
        self._rows = max(1, columns.shape[1])
        self._on_cpu = _arrays.namespace(columns) is np
        self._best: Callable[[np.ndarray], np.ndarray]
        if not self._on_cpu:
            self._best = functools.partial(best_by_sums, columns, self._deals, n)
            return
        from sparse24.kernels import cpu

        every = m <= EVERY_DEAL
        judge = cpu.EveryDeal(columns, n, self._deals) if every else cpu.Exchanges(columns, n)
        self._best = judge.best

    def dealt_anew(self, pairs: np.ndarray, stop: float) -> np.ndarray:
        """Columns of pairs of groups (pairs, 2m) in the order of the best deals.

        Those that the time `stop` comes before stay as they are.
        """
        best = np.zeros(len(pairs), np.int64)  # the first deal changes nothing
        step = max(1, (CPU_AT_ONCE if self._on_cpu else GPU_AT_ONCE) // self._rows)

        def task(number: int):
            if time.monotonic() < stop:
                some = slice(number * step, (number + 1) * step)
                best[some] = self._best(pairs[some])

        count = -(-len(pairs) // step)
        if self._on_cpu:
            from sparse24.kernels._numba import parallel

            parallel(task, count, pairs.size * self._rows * len(self._deals))
        else:
            for number in range(count):
                task(number)
        return np.take_along_axis(pairs, self._deals[best], axis=1)


def ways(m: int) -> np.ndarray:
    """Ways to deal 2m columns to two groups, (ways, 2m); the first leaves them as they are."""
    everyone = range(2 * m)
    if m <= EVERY_DEAL:
        # The first column stays, as exchanging both groups changes nothing.
        firsts = [(0, *rest) for rest in itertools.combinations(range(1, 2 * m), m - 1)]
        return np.array([[*first, *(i for i in everyone if i not in first)] for first in firsts])
    deals = [list(everyone)]
    for i, j in itertools.product(range(m), range(m, 2 * m)):
        exchanged = list(everyone)
        exchanged[i], exchanged[j] = j, i
        deals.append(exchanged)
    return np.array(deals)


def best_by_sums(columns, deals: np.ndarray, n: int, pairs: np.ndarray) -> np.ndarray:
    """The best deal of each pair of groups (pairs, 2m), by all that the mask keeps of each deal."""
    xp = _arrays.namespace(columns)
    with np.errstate(invalid="ignore"):
        totals = _kept(xp, columns[xp.asarray(pairs.T)], deals, n)
    totals[xp.isnan(totals)] = -np.inf  # inf less inf, which argmax would take
    return _arrays.to_numpy(xp.argmax(totals, axis=0))


def _kept(xp, x, deals: np.ndarray, n: int):
    """What the mask keeps of each pair of groups (2m, pairs, rows) under each deal."""
    m = len(x) // 2
    known: dict[tuple[int, ...], object] = {}

    def kept(group: tuple[int, ...]):
        if group not in known:
            known[group] = _top_sum(xp, x, group, n).sum(-1, dtype=np.float64)
        return known[group]

    halves = [(tuple(sorted(deal[:m])), tuple(sorted(deal[m:]))) for deal in deals.tolist()]
    return xp.stack([kept(first) + kept(second) for first, second in halves])


def _top_sum(xp, x, group: tuple[int, ...], n: int):
    """Sum of the `n` largest of the columns of a group, (pairs, rows)."""
    if (n, len(group)) == (2, 4):
        a, b, c, d = (x[i] for i in group)
        left, right = a + b, c + d
        across = xp.maximum(a, b)
        across += xp.maximum(c, d)
        return xp.maximum(across, xp.maximum(left, right))
    columns = [x[i] for i in group]
    if n == 1:
        return functools.reduce(xp.maximum, columns)
    if n == len(group) - 1:
        return sum(columns) - functools.reduce(xp.minimum, columns)
    return xp.sort(x[list(group)], axis=0)[len(group) - n :].sum(0)
