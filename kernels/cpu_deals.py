"""Which deal of the columns of two groups lets an n:m mask keep most, on the CPU.

A deal is judged by what it gains on the present one, row by row: deals of equal worth
gain exactly nothing, and small gains are not lost in large sums.

All deals of groups of up to four columns are tried.  Four columns are two pairs.  With the sums
s, t of the pairs and their larger elements u, v, the largest of a group add up to::

    1:4   max(u, v)
    2:4   max(s, t, u + v)
    3:4   max(s + v, u + t)

The 70 groups of eight columns share 24 pairs.  Smaller groups are filled up with zeros.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _scales
from sparse24.kernels._numba import njit
from sparse24.kernels._simd_deals import LANES, add_gain, write_kept, write_two

RUNS = 4  # of rows that pass the steps together; their pairs take 12 KB of the L1 cache
_FOUR = 4


class Columns:
    """The scores of all columns as the kernels read them: in whole runs, none above 1.

    Parameters
    ----------
    scores : ndarray of float32 (k, rows)
        None negative.
    """

    def __init__(self, scores: np.ndarray):
        k, rows = scores.shape
        # Columns with inf or NaN are left alone: every deal of them keeps as much, inf or NaN.
        self.usable = np.append(np.isfinite(scores).all(1), True)
        self.lines = np.zeros((k + 1, -(-rows // LANES) * LANES), np.float32)  # the last: zeros
        self.lines[:-1, :rows] = scores
        largest = float(self.lines.max(where=self.usable[:, None], initial=0))
        self.lines *= np.float32(min(1, _scales.of_largest(largest)))  # so that no sum overflows


@njit
def best_of(gains):
    """The deal of the largest gain, of `gains` (deals, lanes); of equal ones, the first."""
    best, most = 0, 0.0
    for deal in range(1, len(gains)):
        gain = gains[deal].sum()
        if gain > most:
            best, most = deal, gain
    return best


@njit
def _add_gains(lines, group, run, runs, pairs, deals, n, twos, base, gains):
    """Add what all deals gain in some rows."""
    for p in range(len(pairs)):
        write_two(lines, group[pairs[p, 0]], group[pairs[p, 1]], run, runs, twos, p)
    a, b, c, d = deals[0]
    write_kept(twos, (a, b, c, d), runs, n, base)
    for deal in range(1, len(deals)):
        a, b, c, d = deals[deal]
        add_gain(twos, (a, b, c, d), runs, n, base, gains, deal)


@njit
def _best_deals(lines, usable, groups, pairs, deals, n, best):
    twos = np.empty((2 * len(pairs), RUNS * LANES), np.float32)
    base = np.empty(RUNS * LANES, np.float32)
    gains = np.empty((len(deals), LANES))
    total = lines.shape[1] // LANES
    for number in range(len(groups)):
        gains[:] = 0
        if usable[groups[number]].all():
            for run in range(0, total, RUNS):
                runs = min(RUNS, total - run)
                _add_gains(lines, groups[number], run, runs, pairs, deals, n, twos, base, gains)
        best[number] = best_of(gains)


class EveryDeal:
    """Judges every deal of two groups of up to four columns.

    Parameters
    ----------
    scores : ndarray of float32 (k, rows)
        None negative.
    n : int
        How many of a group the mask keeps.
    deals : ndarray of int (ways, 2 * m)
        Places of the columns of the first group, and those of the second.
    """

    def __init__(self, scores: np.ndarray, n: int, deals: np.ndarray):
        self._columns, self._n = Columns(scores), (0,) * n
        m = deals.shape[1] // 2
        self._places = np.r_[:m, _FOUR : _FOUR + m]
        fillers = [*range(m, _FOUR)], [*range(_FOUR + m, 2 * _FOUR)]
        numbers: dict[tuple[int, int], int] = {}
        self._deals = np.empty((len(deals), _FOUR), np.int64)
        for row, deal in zip(self._deals, self._places[deals].tolist(), strict=True):
            a, b, c, d = sorted(deal[:m] + fillers[0])
            e, f, g, h = sorted(deal[m:] + fillers[1])
            row[:] = [numbers.setdefault(x, len(numbers)) for x in ((a, b), (c, d), (e, f), (g, h))]
        self._pairs = np.array(list(numbers))

    def best(self, pairs: np.ndarray) -> np.ndarray:
        """Numbers of the best deals of pairs of groups (pairs, 2 * m); of equal ones, the first."""
        lines = self._columns.lines
        groups = np.full((len(pairs), 2 * _FOUR), len(lines) - 1)
        groups[:, self._places] = pairs
        best = np.empty(len(pairs), np.int64)
        usable = self._columns.usable
        _best_deals(lines, usable, groups, self._pairs, self._deals, self._n, best)
        return best
