"""The words of the gather kernel, in order; on the CPU.

The rules are those of ``cuda/hybrid_gather_order.cu``, which gives the same words.
"""

from __future__ import annotations

import numpy as np

from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.hybrid_gather_order import BANKS, LANES, PANEL, STEP

EIGHT = 8  # lanes that read lines of 16 bytes at once
ELEMENT_WORK = 200  # multiplications that take as long as to place an element


def order(
    bits: np.ndarray, rows: np.ndarray, heights: np.ndarray, begins: np.ndarray
) -> np.ndarray:
    """The words of a dense (m, k) matrix of bits, for units as in the kernel's header."""
    words = np.empty(int(begins[-1]) * LANES * STEP, np.uint32)
    work = ELEMENT_WORK * float(words.size)
    pieces = slices(begins.size - 1, 1, work=work)
    of_units = rows.reshape(heights.size, -1)

    def task(number: int) -> None:
        here = pieces[number]
        _order_parts(here.start, here.stop, bits, of_units, heights, begins, words)

    parallel(task, len(pieces), work)
    return words


@njit
def _order_parts(first, last, bits, rows, heights, begins, words):
    most = rows.shape[1]
    columns = np.empty((most, PANEL), np.int64)  # of a row's elements, bank by bank
    heads = np.empty((most, BANKS), np.int64)  # the next of a bank
    left = np.empty((most, BANKS), np.int64)  # of a bank
    spare = np.empty(most, np.int64)  # slots of a row that stay empty
    taken = np.empty(LANES, np.int64)
    for part in range(first, last):
        panel, unit = part // heights.size, part % heights.size
        height, slots = heights[unit], (begins[part + 1] - begins[part]) * STEP
        for line in range(height):
            row = rows[unit, line]
            count = _collect(bits, row, panel, columns[line], heads[line], left[line])
            spare[line] = slots * LANES // height - count
        for slot in range(slots):
            _fill_slot(slot, height, columns, heads, left, spare, taken)
            at = (begins[part] + slot // STEP) * LANES * STEP + slot % STEP
            for lane in range(LANES):
                value = 0
                if taken[lane] >= 0:
                    value = bits[rows[unit, lane % height], panel * PANEL + taken[lane]]
                words[at + lane * STEP] = value << 16 | _seen(taken, lane) * 16


@njit
def _collect(bits, row, panel, columns, heads, left):
    """Columns of a row's elements in a panel, by banks; returns how many there are."""
    count = 0
    width = min(PANEL, bits.shape[1] - panel * PANEL)
    for bank in range(BANKS):
        heads[bank] = count
        if row >= 0:
            for column in range(bank, width, BANKS):
                if bits[row, panel * PANEL + column]:
                    columns[count] = column
                    count += 1
        left[bank] = count - heads[bank]
    return count


@njit
def _fill_slot(slot, height, columns, heads, left, spare, taken):
    """The column that every lane takes, -1 for none."""
    used = np.zeros(BANKS, np.bool_)  # of 4 bytes
    of_halves = np.zeros((2, BANKS // 2), np.bool_)  # of 8 bytes, by lanes of half a warp
    of_eight = np.zeros(EIGHT, np.bool_)  # of 16 bytes
    for i in range(LANES):
        if i % EIGHT == 0:
            of_eight[:] = False
        lane = (i // EIGHT + slot) % 4 * EIGHT + (i + 3 * slot) % EIGHT
        line, of_half = lane % height, of_halves[lane // 16]
        bank = _choose(left[line], used, of_half, of_eight, spare[line] == 0)
        if bank < 0:
            taken[lane] = -1
            spare[line] -= 1
            continue
        taken[lane] = columns[line, heads[line, bank]]
        heads[line, bank] += 1
        left[line, bank] -= 1
        used[bank] = of_half[bank % 16] = of_eight[bank % EIGHT] = True


@njit
def _choose(left, used, of_half, of_eight, must):
    """The bank of which a lane takes one of the elements `left`; -1 if it passes."""
    best, most = -1, 0
    for bank in range(BANKS):
        apart = not of_eight[bank % EIGHT]
        if left[bank] and (apart or must):
            free = 4 * apart + (not used[bank]) + (not of_half[bank % 16])
            score = free * (PANEL // BANKS + 1) + left[bank]
            if score > most:
                best, most = bank, score
    return best


@njit
def _seen(taken, lane):
    """The column that a lane reads: if it passes, one that another of its eight reads."""
    if taken[lane] >= 0:
        return taken[lane]
    first = lane // EIGHT * EIGHT
    for other in range(first, first + EIGHT):
        if taken[other] >= 0:
            return taken[other]
    return 0
