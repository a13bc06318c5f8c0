"""How long the paths of 2:4 products are expected to take, for many columns."""

from __future__ import annotations

import functools

from sparse24 import _chip_facts, _dtypes, _planner, _tuning_cache
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid.cublas import dense_time
from sparse24._hybrid.layouts import MOST_BLOCKS, excess, row_lengths, strips_work
from sparse24._hybrid.lines import line_of
from sparse24._records import Problem
from sparse24.kernels.chip import Chip

# Speed-up of a 2:4 product over the dense one on Hopper, by the largest number of columns.
TWO_FOUR_GAIN = ((128, 1.05), (256, 1.0), (512, 1.4), (1 << 62, 1.5))
TWO_FOUR_LEAST = 1e10  # multiply-adds; with fewer, launches and tiles take what 2:4 gains
STRIPS_LEAST = 6e-6  # seconds of any product of 2:4 strips
STRIP_ROWS, STRIP_COLUMNS = 128, 1 << 28  # of the lower strips; columns that their numbers can tell
SKINNY, SKINNY_LONGER = 8, 1.2  # columns, up to which they take longer than the planner expects
# By bytes, relative to 16 bits: the time for an element that is left out, times a column.
OVERFLOW_ELEMENT = {1: 1.5, 2: 1.0, 4: 1.57}
MOST_EXCESS = (1 << 31) - 8  # elements left out, which the kernel counts in 32 bits, some ahead
OVERFLOW_STEP = 1.3e-7  # seconds for each element left out of a row: one warp adds them in turn


def two_four_times(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The paths that multiply 2:4 matrices: what does not fit is added, or columns are moved."""
    from sparse24.kernels import hybrid_wgmma

    dtype = h._dtype
    rest = _overflow_time(h, n, lines)
    gain = next(gain for most, gain in TWO_FOUR_GAIN if n <= most)
    gain = gain if h.size * n >= TWO_FOUR_LEAST else 1.0
    if not device.has_wgmma:
        gain = min(gain, _gain_by_warps(h, n, device))
    dense = dense_time(h.shape, dtype, n, lines, device, h.density)
    times = {"two_four": dense / gain + rest} if excess(h) <= MOST_EXCESS else {}
    many = h.shape[0] > MOST_BLOCKS * STRIP_ROWS or h.shape[1] >= STRIP_COLUMNS
    if many or hybrid_wgmma.refuses(dtype, n, device.compute_capability):
        return times
    return times | {path: _strips_time(h, path, n, lines) for path in ("slots", "regrouped")}


def _strips_time(h, path: str, n: int, lines) -> float:
    work = strips_work(h, path)
    config = work.choose(n)
    seconds = max(line_of(lines, path, n).seconds(*work.effort(config, n)), STRIPS_LEAST)
    return seconds + work.exchange(config, n)


def times_of_sums(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The paths of 2:4 products to which something is added, in float32 and int8."""
    product, copy = _sparse_time(_problem(h, n, device), h), line_of(lines, "copy", n)
    summed = _dtypes.numpy_dtype(h._dtype.result).itemsize * h.shape[0] * n
    if h._dtype.name == "int8":  # a launch of its own
        adding = copy.seconds(0, 3 * summed)
    else:
        product *= SKINNY_LONGER if n <= SKINNY else 1
        adding = copy.byte * summed
    times = {"twice": 2 * product + adding}
    if excess(h) <= MOST_EXCESS:
        times["two_four"] = product + _overflow_time(h, n, lines)
    return times


def _overflow_time(h, n: int, lines) -> float:
    """Seconds in which the elements are added that a 2:4 product leaves out."""
    from sparse24.kernels import hybrid_overflow

    of_warp, dtype = hybrid_overflow.columns(h._dtype), h._dtype
    columns = -(-n // of_warp) * of_warp
    line, added = line_of(lines, "overflow", n), excess(h) * columns
    updated = 2 * _dtypes.numpy_dtype(dtype.result).itemsize * h.shape[0] * n
    seconds = line.seconds(OVERFLOW_ELEMENT[dtype.itemsize] * added, updated)
    return max(seconds, OVERFLOW_STEP * _excess_of_longest_row(h))


def _gain_by_warps(h, n: int, device: Chip) -> float:
    """Speed-up of a 2:4 product over the dense one on chips without warpgroup instructions (wgmma).

    By the models of the planner.  On a B200 it is below 1: cuBLAS uses instructions there of which
    the kernels of this library have no sparse form.
    """
    from sparse24.kernels import dense

    number, problem = int(h.device.partition(":")[2]), _problem(h, n, device)
    of_dense = dense.predict(problem, dense.Config(), _chip_facts.facts(number))
    return _tuning_cache.scale(number, dense.NAME) * of_dense / _sparse_time(problem, h)


def _problem(h, n: int, device: Chip) -> Problem:
    """The product of a 2:4 matrix of this shape and type."""
    name, (m, k) = h._dtype.name, h.shape
    capability = int(device.compute_capability)
    return Problem(m, n, k, 1, name, name, h._dtype.result, compute_capability=capability)


def _sparse_time(problem: Problem, h) -> float:
    """Seconds of a 2:4 product by the models of the planner."""
    number = int(h.device.partition(":")[2])
    facts, scale = _chip_facts.facts(number), functools.partial(_tuning_cache.scale, number)
    return _planner.fastest_able(problem, facts, dense=False, scale=scale).seconds


def _excess_of_longest_row(h) -> float:
    """Elements beyond two in a group of four, if the zeros of the row fall by chance."""
    k = h.shape[1]
    density = row_lengths(h)[0] / k
    return k / hybrid_cost.ELEMENTS * float(hybrid_cost.expected_overflow(density))
