"""Which eight rows of a unit are combined, such that they read all banks of shared memory evenly.

In Numba; `reference_panel` gives the same in NumPy.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit
from sparse24.kernels.hybrid_panel_layout import BANKS

WINDOW = 32  # sets of rows between which rows are exchanged
TRIES = 9600  # of an exchange in each window
LIKE = 0.05  # difference in length, relative, up to which rows are exchanged


@njit
def bank_needs(starts, place):
    """Elements of every row's part in a panel, by bank: an array (m * panels, 8)."""
    needs = np.zeros((starts.size - 1, BANKS), np.int64)
    for segment in range(starts.size - 1):
        for element in range(starts[segment], starts[segment + 1]):
            needs[segment, place[element] % BANKS] += 1
    return needs


def mix_rows(counts: np.ndarray, sets: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Exchange rows of about the same length, such that the rows of a set need all banks alike.

    Parameters
    ----------
    counts : ndarray of int, shape (m, panels, 8)
        Elements of the sorted rows by panel and bank.
    sets : ndarray of int, shape (m,)
        The set of every row, ascending.
    heights : ndarray of int, shape (m,)
        Rows are exchanged between sets of the same height.

    Returns
    -------
    ndarray of int, shape (m,)
        Which row comes in the place of each.
    """
    loads = np.add.reduceat(counts, np.flatnonzero(np.diff(sets, prepend=-1)))
    windows = sets // WINDOW + np.cumsum(np.diff(heights, prepend=heights[:1]) != 0)
    firsts = np.flatnonzero(np.diff(windows, prepend=-1))
    sizes = np.diff(firsts, append=len(sets))
    draws = np.random.default_rng(0).random((TRIES, 2, sizes.size))
    pairs = firsts + (draws * sizes).astype(np.int64)
    order = np.arange(len(sets))
    _exchange(pairs, sets, counts, counts.sum((1, 2)), loads, order)
    return order


@njit
def _exchange(pairs, sets, counts, lengths, loads, order):
    """Try each pair of places, and exchange their rows where that makes both sets cheaper."""
    for number in range(pairs.shape[0]):
        for window in range(pairs.shape[2]):
            one, other = pairs[number, 0, window], pairs[number, 1, window]
            mine, yours, here, there = order[one], order[other], sets[one], sets[other]
            like = abs(lengths[mine] - lengths[yours]) <= LIKE * lengths[mine]
            if here == there or not like:
                continue
            old = _worth(loads, here, counts, mine, mine) + _worth(loads, there, counts, mine, mine)
            new = _worth(loads, here, counts, yours, mine)
            if new + _worth(loads, there, counts, mine, yours) < old:
                order[one], order[other] = yours, mine
                for panel in range(counts.shape[1]):
                    for bank in range(BANKS):
                        moved = counts[yours, panel, bank] - counts[mine, panel, bank]
                        loads[here, panel, bank] += moved
                        loads[there, panel, bank] -= moved


@njit
def _worth(loads, at, counts, comes, goes):
    """What a set costs once a row comes and another goes.

    First its fullest bank of every panel, then how uneven they are.
    """
    fullest, squares = 0, 0
    for panel in range(counts.shape[1]):
        most = -1
        for bank in range(BANKS):
            count = loads[at, panel, bank] + counts[comes, panel, bank] - counts[goes, panel, bank]
            most = max(most, count)
            squares += count * count
        fullest += most
    return fullest + 1e-4 * squares
