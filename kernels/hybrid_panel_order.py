"""In which order eight lanes take their elements, such that they mostly read eight different banks.

Shared memory serves eight lanes at a time, one line of each bank at once.  So rows are combined
that together need all banks about equally often (`hybrid_panel_mix`), and at each step lanes are
matched with banks: those with the most elements left come first.

In Numba; `reference_panel` gives the same in NumPy.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.hybrid_panel_layout import BANKS, PADDING, STEP
from sparse24.kernels.hybrid_panel_plan import Form

ELEMENT_WORK = 64  # multiplications that take as long as to put one element into its place


def order_parts(
    heights: np.ndarray, rows: np.ndarray, begins: np.ndarray, starts: np.ndarray,
    place: np.ndarray, lines: int, form: Form,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Put the elements of every unit's part in a panel into the order in which lanes read them.

    Parameters
    ----------
    heights, rows, begins : ndarray
        Of the layout.
    starts : ndarray of int64, shape (m * panels + 1,)
        First element of every row's part in a panel, row by row.
    place : ndarray of uint16, shape (elements,)
        The line of `b` that an element needs, in its panel.
    lines : int
        Of a panel.
    form : Form
        How the kernel takes elements of this size.

    Returns
    -------
    at : ndarray of int64, shape (elements,)
        Where each element goes.
    places : ndarray of uint16
        Those of the layout, padding included.
    """
    at = np.empty(place.size, np.int64)
    places = np.full(int(begins[-1]) * 32, lines, np.uint16)
    work = ELEMENT_WORK * float(places.size)
    pieces = slices(begins.size - 1, 16, work=work)
    most = int(np.diff(begins).max(initial=0) + STEP) * 32  # of a part

    def task(number: int) -> None:
        here = pieces[number]
        _order_parts(
            here.start, here.stop, heights, rows, begins, starts, place, lines, most, form.height,
            form.tensor, at, places,
        )  # fmt: skip

    parallel(task, len(pieces), work)
    return at, places


@njit
def _order_parts(
    first, last, heights, rows, begins, starts, place, lines, most, height, tensor, at, places
):
    units = heights.size
    panels = (begins.size - 1) // units
    counts, heads = np.empty((BANKS, BANKS), np.int64), np.empty((BANKS, BANKS), np.int64)
    elements = np.empty(most, np.int64)
    banks = np.empty((most // BANKS, BANKS), np.uint8)
    for part in range(first, last):
        panel, unit = part // units, part % units
        here = min(heights[unit], BANKS)  # rows of a group
        tall = max(heights[unit], BANKS)  # lanes from one turn of a group to the next
        turns = _turns(begins[part], begins[part + 1]) * 32 // tall
        for group in range(tall // BANKS):
            line = unit * height + group * BANKS
            _collect(rows, line, here, panel, panels, starts, place, counts, heads, elements)
            bank_order(counts, turns, banks)
            for turn in range(turns):
                number, other = turn // (32 // tall), turn % (32 // tall)
                first_of_step = (begins[part] // STEP + number // STEP) * STEP * 32
                for lane in range(BANKS):
                    lane_of_warp = group * BANKS + lane + other * tall
                    to, value_to = _address(lane_of_warp, number % STEP, tensor)
                    bank = banks[turn, lane]
                    if bank < PADDING:
                        element = elements[heads[lane, bank]]
                        heads[lane, bank] += BANKS // here
                        at[element] = first_of_step + value_to
                        places[first_of_step + to] = place[element]
                    else:
                        places[first_of_step + to] = lines + bank - PADDING


@njit
def _turns(begin, end):
    """Turns of a warp in a part: the low bits of its beginning are those of its last step."""
    return (end // STEP - begin // STEP) * STEP - -begin % STEP


@njit
def _address(lane, turn, tensor):
    """Where in its step the place of an element goes, and where its value.

    Tensor cores take them as fragments: see ``panel_mma.cuh``.
    """
    if not tensor:
        return lane * STEP + turn, lane * STEP + turn
    upper, row, eight = lane // 8 % 2, lane % 8, lane // 16
    four = row // 2 ^ turn
    second = eight ^ four // 2
    four ^= 2 * second
    line = 16 * upper + 4 * four + 2 * (row % 2) + second
    return line * STEP + turn, (row * 4 + four) * STEP + 2 * upper + second


@njit
def _collect(rows, line, lanes, panel, panels, starts, place, counts, heads, elements):
    """Deal the elements of each row to the lanes that share it, bank by bank.

    `elements` become those of the group, sorted by row and bank; `counts` and `heads`, by lane
    and bank, how many there are and which is the first.  Those of a row's other lanes lie between.
    """
    shares, number = BANKS // lanes, 0
    held = np.zeros(BANKS, np.int64)
    for i in range(lanes):
        row = rows[line + i]
        begin = starts[row * panels + panel] if row >= 0 else 0
        end = starts[row * panels + panel + 1] if row >= 0 else 0
        for bank in range(BANKS):
            held[bank] = 0
        for element in range(begin, end):
            held[place[element] % BANKS] += 1
        first = number
        for bank in range(BANKS):
            of_bank, held[bank] = held[bank], number
            for share in range(shares):
                ahead = (share + first - number) % shares
                counts[i + share * lanes, bank] = (of_bank - ahead + shares - 1) // shares
                heads[i + share * lanes, bank] = number + ahead
            number += of_bank
        for element in range(begin, end):
            bank = place[element] % BANKS
            elements[held[bank]] = element
            held[bank] += 1


@njit
def bank_order(counts, turns, banks):
    """The banks that eight lanes read, one after the other.

    Parameters
    ----------
    counts : ndarray of int64, shape (8, 8)
        Elements by lane and bank; used up.
    turns : int
        Elements of a lane at most.
    banks : ndarray of uint8, shape (turns or more, 8)
        Written: by turn and lane the bank, or PADDING + a bank that the other lanes do not read.
    """
    even = counts[0, 0]
    for i in range(BANKS * BANKS):
        even = min(even, counts[i // BANKS, i % BANKS])
    for i in range(BANKS * BANKS):
        counts[i // BANKS, i % BANKS] -= even
    for turn in range(turns):
        for lane in range(BANKS):
            banks[turn, lane] = (turn + lane) % BANKS if turn < BANKS * even else PADDING
    _match(counts, BANKS * even, turns, banks)
    _fill(counts, turns, banks)
    _pad(turns, banks)


@njit
def _match(left, turn, turns, banks):
    """Turn for turn, take elements of different banks from `left`, as many as there are."""
    of_lane, of_bank = np.zeros(BANKS, np.int64), np.zeros(BANKS, np.int64)
    for lane in range(BANKS):
        for bank in range(BANKS):
            of_lane[lane] += left[lane, bank]
            of_bank[bank] += left[lane, bank]
    weight = np.empty((BANKS, BANKS), np.int64)
    taken = True
    while turn < turns and taken:
        taken = False
        for lane in range(BANKS):
            for bank in range(BANKS):
                here = left[lane, bank]
                most = max(of_lane[lane], of_bank[bank])
                weight[lane, bank] = (most << 16) + here if here else 0
        for _ in range(BANKS):
            lane, bank = _heaviest(weight)
            if not weight[lane, bank]:
                break
            taken = True
            left[lane, bank] -= 1
            of_lane[lane] -= 1
            of_bank[bank] -= 1
            banks[turn, lane] = bank
            for i in range(BANKS):
                weight[lane, i] = weight[i, bank] = 0
        turn += 1


@njit
def _heaviest(weight):
    """Lane and bank of the largest weight, the first of several."""
    best, lane, bank = -1, 0, 0
    for i in range(weight.shape[0]):
        for j in range(weight.shape[1]):
            if weight[i, j] > best:
                best, lane, bank = weight[i, j], i, j
    return lane, bank


@njit
def _fill(left, turns, banks):
    """Put what is left into free turns of its lane, the last ones first; lanes meet in banks."""
    for lane in range(BANKS):
        turn = turns - 1
        for bank in range(BANKS):
            for _ in range(left[lane, bank]):
                while banks[turn, lane] < PADDING:
                    turn -= 1
                banks[turn, lane] = bank


@njit
def _pad(turns, banks):
    """Let lanes without an element read a bank that the others do not."""
    for turn in range(turns):
        read, idle = 0, 0
        for lane in range(BANKS):
            read |= 1 << banks[turn, lane]
        while read >> idle & 1:
            idle += 1
        for lane in range(BANKS):
            if banks[turn, lane] >= PADDING:
                banks[turn, lane] = PADDING + idle
