"""Which exchange of two columns of two large groups lets an n:m mask keep most, on the CPU.

What an exchange gains follows from the n-th and the (n + 1)-th largest elements of the groups:
without an element among the n largest, the newcomer stands against the (n + 1)-th, and
otherwise against the n-th.  So a group of m columns is not sorted for each of its m * m
exchanges, but once.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit
from sparse24.kernels._simd_copy import copy_run
from sparse24.kernels._simd_deals import LANES, add_exchange, insert, write_bars
from sparse24.kernels.cpu_deals import RUNS, Columns, best_of


@njit
def _gather(lines, columns, run, runs, x):
    """Copy runs of some columns, from the `run`-th on, side by side."""
    for place in range(len(columns)):
        for t in range(runs):
            copy_run(lines, columns[place], (run + t) * LANES, x[place], t * LANES)


@njit
def _write_bars_of_group(x, n, runs, largest, bars):
    largest[:] = 0
    for column in range(len(x)):
        insert(x, column, runs, largest, n + 1)
    for column in range(len(x)):
        write_bars(x, column, runs, largest, n, bars)


@njit
def _add_gains(x, n, runs, largest, bars, gains):
    """Add what all exchanges gain in some rows."""
    m = len(x) // 2
    _write_bars_of_group(x[:m], n, runs, largest, bars[: 2 * m])
    _write_bars_of_group(x[m:], n, runs, largest, bars[2 * m :])
    for i in range(m):
        for j in range(m):
            add_exchange(x, i, m + j, runs, bars, gains, 1 + m * i + j)


@njit
def _best_exchanges(lines, usable, pairs, n, best):
    width, m, total = RUNS * LANES, pairs.shape[1] // 2, lines.shape[1] // LANES
    x = np.zeros((2 * m, width), np.float32)
    largest = np.empty((n + 1, width), np.float32)
    bars = np.empty((4 * m, width), np.float32)
    gains = np.empty((1 + m * m, LANES))
    for number in range(len(pairs)):
        gains[:] = 0
        if usable[pairs[number]].all():
            for run in range(0, total, RUNS):
                runs = min(RUNS, total - run)
                _gather(lines, pairs[number], run, runs, x)
                _add_gains(x, n, runs, largest, bars, gains)
        best[number] = best_of(gains)


class Exchanges:
    """Judges every exchange of a column of one group for one of another.

    Parameters
    ----------
    scores : ndarray of float32 (k, rows)
        None negative.
    n : int
        How many of a group the mask keeps.
    """

    def __init__(self, scores: np.ndarray, n: int):
        self._columns, self._n = Columns(scores), n

    def best(self, pairs: np.ndarray) -> np.ndarray:
        """Numbers of the best deals of pairs of groups (pairs, 2 * m): 0 to leave them as they are.

        Deal ``1 + m * i + j`` exchanges column i of the first group for column j of the second.
        """
        best = np.empty(len(pairs), np.int64)
        _best_exchanges(self._columns.lines, self._columns.usable, pairs, self._n, best)
        return best
