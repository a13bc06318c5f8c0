"""In which order eight lanes take their elements, such that they mostly read eight different banks.

Shared memory serves eight lanes at a time, and once for every line that they read of the same
bank.  At each turn, rows and banks are matched anew: those that have the most left come first.
"""

from __future__ import annotations

import numpy as np

BANKS = 8  # of 16 bytes; as many lanes are served together
PADDING = 8  # beside a bank: a lane has no element


def bank_order(counts: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """The banks that lanes read, one after the other.

    Parameters
    ----------
    counts : ndarray of int, shape (groups, 8, 8)
        Elements by lane and bank, of each group of eight lanes.
    turns : ndarray of int, shape (groups,)
        Elements of a lane at most.

    Returns
    -------
    ndarray of uint8
        By group, turn and lane: the bank, or PADDING + a bank that the other lanes do not read.
    """
    ends = np.cumsum(turns * BANKS)
    firsts = ends - turns * BANKS
    group = np.repeat(np.arange(len(turns)), turns * BANKS)
    turn, lane = np.divmod(np.arange(group.size) - firsts[group], BANKS)
    even = counts.min((1, 2))
    banks = np.where(turn < BANKS * even[group], (turn + lane) % BANKS, -1).astype(np.int8)
    left = counts - even[:, None, None]
    _match(left, firsts, even * BANKS, turns, banks)
    _fill(left, group * BANKS + lane, banks)
    return _pad(banks)


def _match(left, firsts, turn, turns, banks) -> None:
    """Turn for turn, take elements of different banks from `left`, as many as there are."""
    where = np.flatnonzero((turn < turns) & left.any((1, 2)))
    turn = turn.copy()
    while where.size:
        here = left[where]
        most = np.maximum(here.sum(2)[:, :, None], here.sum(1)[:, None, :])
        weight = np.where(here > 0, most * (1 << 16) + here, 0)
        for _ in range(BANKS):
            best = weight.reshape(-1, BANKS * BANKS).argmax(1)
            lane, bank = np.divmod(best, BANKS)
            found = np.flatnonzero(weight.reshape(-1, BANKS * BANKS)[np.arange(best.size), best])
            if not found.size:
                break
            lane, bank, group = lane[found], bank[found], where[found]
            left[group, lane, bank] -= 1
            banks[firsts[group] + turn[group] * BANKS + lane] = bank
            weight[found, lane] = 0
            weight[found, :, bank] = 0
        turn[where] += 1
        where = where[(turn[where] < turns[where]) & left[where].any((1, 2))]


def _fill(left, lane_of, banks) -> None:
    """Put what is left into free turns of its lane, the last ones first; lanes meet in banks."""
    lane, bank = np.divmod(np.repeat(np.arange(left.size), left.ravel()), BANKS)
    free = np.flatnonzero(banks < 0)[::-1]
    free = free[np.argsort(lane_of[free], kind="stable")]
    begins = np.searchsorted(lane_of[free], lane)
    number = np.arange(lane.size) - np.searchsorted(lane, lane)
    banks[free[begins + number]] = bank


def _pad(banks: np.ndarray) -> np.ndarray:
    """Let lanes without an element read a bank that the others do not."""
    eights = banks.reshape(-1, BANKS)
    read = (eights[:, :, None] == np.arange(BANKS)).any(1)
    idle = np.argmin(read, 1).astype(np.int8)
    return np.where(eights < 0, PADDING + idle[:, None], eights).ravel().astype(np.uint8)
