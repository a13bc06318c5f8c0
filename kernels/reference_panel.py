"""Reference in NumPy for the layout of the panel kernel: slow, and the same to the last bit.

See `hybrid_panel_layout`, whose arrays these are, `hybrid_panel_mix` and `hybrid_panel_order`.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels import hybrid_panel_mix
from sparse24.kernels.hybrid_panel_layout import BANKS, PADDING, STEP, Words, begins_of
from sparse24.kernels.hybrid_panel_plan import Form, form_of
from sparse24.kernels.hybrid_units import Units


def lay_out(bits: np.ndarray, units: Units, lines: int) -> Words:
    """The units of a dense (m, k) matrix of bits."""
    (m, k), form = bits.shape, form_of(bits.dtype.itemsize)
    panels = -(-k // lines)
    row, column = np.nonzero(bits)
    panel, place = column // lines, column % lines
    segment, bank = row * panels + panel, place % BANKS
    needs = np.bincount(segment * BANKS + bank, minlength=m * panels * BANKS)
    needs = needs.reshape(m, panels, BANKS)
    order = row_order(needs, units)
    unit_of_rank, line_of_rank = units.places()
    slot = unit_of_rank * form.height + line_of_rank  # of a row, by its rank
    rows = np.full(len(units) * form.height, -1, np.int32)
    rows[slot] = order
    rank = np.empty(m, np.int64)
    rank[order] = np.arange(m)
    begins = begins_of(needs.sum(2)[order], slot, units.heights, form)
    groups = Groups(np.tile(units.heights, panels), begins, form)
    part, line = panel * len(units) + unit_of_rank[rank[row]], line_of_rank[rank[row]]
    key = groups.lane(part, line, _within(segment, bank)) * BANKS + bank
    banks, group, turn, lane = groups.turns_of(key)
    place_at, value_at = groups.addresses(group, turn, lane)
    size = int(begins[-1]) * 32
    values, places = np.zeros(size, bits.dtype), np.full(size, lines, np.uint16)
    real = banks < PADDING
    taken = np.flatnonzero(real)
    taken = taken[np.argsort(((group * BANKS + lane) * BANKS + banks)[taken], kind="stable")]
    element = np.argsort(key, kind="stable")
    values[value_at[taken]] = bits[row, column][element]
    places[place_at[taken]] = place[element]
    places[place_at[~real]] = lines + banks[~real].astype(np.uint16) - PADDING
    return Words(values, places, begins.astype(np.int32), units.heights.astype(np.int32), rows)


def row_order(needs: np.ndarray, units: Units) -> np.ndarray:
    """The rows, the longest first, in sets of eight that need all banks about alike."""
    order = np.argsort(-needs.sum((1, 2)), kind="stable")
    unit, line = units.places()
    sets = np.cumsum(line % BANKS == 0) - 1
    return order[mix_rows(needs[order], sets, units.heights[unit])]


class Groups:
    """Groups of eight lanes, by part: how many, and where in memory their elements lie."""

    def __init__(self, heights: np.ndarray, begins: np.ndarray, form: Form):
        self.form, self.heights, self.steps = form, heights, begins // STEP
        self.tall = np.maximum(heights, BANKS)  # lanes from one turn of a group to the next
        ends = np.cumsum(self.tall // BANKS)
        self.firsts, self.count = ends - self.tall // BANKS, int(ends[-1])
        self.part = np.searchsorted(ends, np.arange(self.count), side="right")
        turns = STEP * np.diff(self.steps) - -begins[:-1] % STEP  # of a warp
        self.turns = (turns * 32 // self.tall)[self.part]

    def lane(self, part, line, within):
        """The lane, counted over all groups, that takes element number `within` of its row."""
        here = np.minimum(self.heights[part], BANKS)  # rows of a group
        group = self.firsts[part] + line // BANKS
        return group * BANKS + line % BANKS + within % (BANKS // here) * here

    def turns_of(self, key):
        """The bank, group, turn and lane of all that is taken; `key` is by lane and bank."""
        counts = np.bincount(key, minlength=self.count * BANKS * BANKS)
        banks = bank_order(counts.reshape(-1, BANKS, BANKS), self.turns)
        ends = np.cumsum(self.turns * BANKS)
        flat = np.arange(banks.size)
        group = np.searchsorted(ends, flat, side="right")
        return banks, group, *np.divmod(flat - (ends - self.turns * BANKS)[group], BANKS)

    def addresses(self, group, turn, lane):
        """Where the place of what is taken goes, and where its value."""
        part = self.part[group]
        tall = self.tall[part]
        number, other = np.divmod(turn, 32 // tall)  # turn of the warp; lanes further on
        lane_of_warp = (group - self.firsts[part]) * BANKS + lane + other * tall
        first, turn = (self.steps[part] + number // STEP) * STEP * 32, number % STEP
        if not self.form.tensor:
            return first + lane_of_warp * STEP + turn, first + lane_of_warp * STEP + turn
        eight, upper, row = lane_of_warp // 16, lane_of_warp // 8 % 2, lane_of_warp % 8
        second = eight ^ (row // 2 ^ turn) // 2
        four = row // 2 ^ turn ^ 2 * second
        line = 16 * upper + 4 * four + 2 * (row % 2) + second
        return first + line * STEP + turn, first + (row * 4 + four) * STEP + 2 * upper + second


def _within(segment: np.ndarray, bank: np.ndarray) -> np.ndarray:
    """Number of every element in its segment, sorted by banks."""
    order = np.argsort(segment * BANKS + bank, kind="stable")
    ordered = segment[order]
    number = np.empty(segment.size, np.int64)
    number[order] = np.arange(segment.size) - np.searchsorted(ordered, ordered)
    return number


def mix_rows(counts: np.ndarray, sets: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Exchange rows of about the same length, such that the rows of a set need all banks alike."""
    order, lengths = np.arange(len(sets)), counts.sum((1, 2))
    loads = np.add.reduceat(counts, np.flatnonzero(np.diff(sets, prepend=-1)))
    changes = np.diff(heights, prepend=heights[:1]) != 0
    windows = sets // hybrid_panel_mix.WINDOW + np.cumsum(changes)
    firsts = np.flatnonzero(np.diff(windows, prepend=-1))
    sizes = np.diff(firsts, append=len(sets))
    rng = np.random.default_rng(0)
    for _ in range(hybrid_panel_mix.TRIES):
        one, other = (firsts + (rng.random(sizes.size) * sizes).astype(int) for _ in range(2))
        mine, yours = order[one], order[other]
        like = np.abs(lengths[mine] - lengths[yours]) <= hybrid_panel_mix.LIKE * lengths[mine]
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
    """By group of eight lanes, turn and lane: the bank, or PADDING + one that no other lane reads.

    `counts` (groups, 8, 8) are the elements by lane and bank, `turns` (groups,) those of a lane
    at most.
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
