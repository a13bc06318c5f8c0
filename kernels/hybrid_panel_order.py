"""In which order eight lanes take their elements, such that they mostly read eight different banks.

Shared memory serves eight lanes at a time, and once for every line that they read of the same
bank.  So lanes whose rows together need all banks about alike come together, and at each turn
lanes and banks are matched anew: those that have the most left come first.
"""

from __future__ import annotations

import numpy as np

BANKS = 8  # of 16 bytes; as many lanes are served together
PADDING = 8  # beside a bank: a lane has no element
WINDOW = 8  # sets of rows between which rows are exchanged
TRIES = 600  # of an exchange in each window
LIKE = 0.05  # difference in length, relative, up to which rows are exchanged


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
    order, lengths = np.arange(len(sets)), counts.sum((1, 2))
    loads = np.add.reduceat(counts, np.flatnonzero(np.diff(sets, prepend=-1)))
    windows = sets // WINDOW + np.cumsum(np.diff(heights, prepend=heights[:1]) != 0)
    firsts = np.flatnonzero(np.diff(windows, prepend=-1))
    sizes = np.diff(firsts, append=len(sets))
    rng = np.random.default_rng(0)
    for _ in range(TRIES):
        one, other = (firsts + (rng.random(sizes.size) * sizes).astype(int) for _ in range(2))
        mine, yours = order[one], order[other]
        like = np.abs(lengths[mine] - lengths[yours]) <= LIKE * lengths[mine]
        near = np.flatnonzero(like & (sets[one] != sets[other]))
        one, other, mine, yours = (x[near] for x in (one, other, mine, yours))
        moved = counts[yours] - counts[mine]
        old = loads[sets[one]], loads[sets[other]]
        new = old[0] + moved, old[1] - moved
        gain = np.flatnonzero(sum(_worth(x) for x in new) < sum(_worth(x) for x in old))
        one, other = one[gain], other[gain]
        order[one], order[other] = yours[gain], mine[gain]
        loads[sets[one]], loads[sets[other]] = new[0][gain], new[1][gain]
    return order


def _worth(loads) -> np.ndarray:
    """What sets cost: first their fullest bank of every panel, then how uneven they are."""
    return loads.max(2).sum(1) + 1e-4 * (loads * loads).sum((1, 2))


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
