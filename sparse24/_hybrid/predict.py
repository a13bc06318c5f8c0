"""How long each path of a hybrid product is expected to take."""

from __future__ import annotations

import functools
import math

import numpy as np

from sparse24 import _chip_facts, _dtypes, _planner, _tuning_cache
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import few_columns, room
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid.few_columns import ITEMSIZE
from sparse24._hybrid.layouts import (
    MOST_BLOCKS,
    excess,
    filled_tiles,
    live_columns,
    panel_units,
    row_lengths,
    scatter_units,
    strips_work,
)
from sparse24._hybrid.lines import line_of
from sparse24._hybrid.on_cpu import even_shares
from sparse24._records import Problem
from sparse24.kernels.chip import Chip, chip

MANY = 256  # columns from which a gather of the dense operand can pay
SHORT_FROM = {False: 64, True: 256}  # columns beyond which all operands count, of small matrices
WORTH_COMPACTING = 0.9  # share of live columns below which the empty ones are left out
# Speed-up of a 2:4 product over the dense one on Hopper, by the largest number of columns.
TWO_FOUR_GAIN = ((128, 1.05), (256, 1.0), (512, 1.4), (1 << 62, 1.5))
TWO_FOUR_LEAST = 1e10  # multiply-adds; with fewer, launches and tiles take what 2:4 gains
STRIPS_LEAST = 6e-6  # seconds of any product of 2:4 strips
STRIP_ROWS, STRIP_COLUMNS = 128, 1 << 28  # of the lower strips; columns that their numbers can tell
STREAM_COLUMNS = 64  # up to here the 2:4 product gains less than the second launch costs
PIECES_FROM = 5  # columns of float32; by fewer, paths that read the non-zeros take less time
# Seconds more where warps load b instead of the copy engine, with and without 2:4 tiles.
BY_WARPS = {True: 0.8e-6, False: 1.9e-6}
SKINNY, SKINNY_LONGER = 8, 1.2  # columns, up to which they take longer than the planner expects
# Of float32, relative to 16 bits: the time for an element that is left out, times a column.
OVERFLOW_ELEMENT = 1.57
# cuBLAS in float32 by up to 64 columns, whose tiles have at least 32: seconds as of so many more.
NARROW, NARROW_TILE, NARROW_MORE = 64, 32, 24
OVERFLOW_STEP = 1.3e-7  # seconds for each element left out of a row: one warp adds them in turn
COLUMNS, ODD_ROWS = "columns", "odd rows"  # how b lies where it may have to be copied
# Paths of 16-bit elements that copy a b whose rows do not begin on 16-byte boundaries.
COPYING = ("scatter", "slots", "regrouped", "panel")
# Seconds by which the panel takes longer, which copies b to shared memory, where it has little to
# multiply it by (docs/benchmarks/log_hybrid.rst, "Nearly empty matrices"):
PANEL_BYTE = 4.5e-16  # panel: for each row of the matrix, and byte of b
PANEL_STEP, PANEL_FREE = 1.3e-9, 8192  # panel: for each row of b beyond so many
# csr: each time that a thread waits for elements and then for rows of b ("Rows of unlike length").
CSR_ROUND = 1.4e-7
CSR_SHORT = 1.35  # csr: the factor by which elements of 16 bits take longer than its line
TILE_SECONDS = 1e-6  # the least that a block of the path tiles takes for a tile
# Bytes a second of results that the panel stores, a few columns of a row at a time: 13539 x 432
# with 99 % zeros by 1160 columns took 46.6 µs on an H200.
PANEL_STORES = 7e11


def predictions(h, n: int, copied: str | None = None) -> dict[str, float]:
    """Seconds by path, for every path that the device of `h` can take, and for which it has room.

    `copied`: what `copied_by` says of `b`; by default as if its rows are contiguous.
    """
    if h.device == "cpu":
        seconds, shares = _time_on_cpu(h, n), even_shares(h, n) if h.nnz else {}
        others = {path: seconds * even / h.density for path, even in shares.items()}
        return {"cpu": seconds} | others
    dtype, number = h._dtype, int(h.device.partition(":")[2])
    lines, device = hybrid_fit.lines(number), chip(number)
    times, dense = {"tiles": _tile_time(h, n, lines) + 5e-6}, room.for_dense(h)
    if dense:
        times["cublas"] = dense_time(h.shape, dtype, n, lines, device, h.density)
    if not h.size:
        return times
    times |= _csr_time(h, n, lines)
    if dense and h.density >= hybrid_cost.NEARLY_EMPTY:  # else csr wins: make nothing dense
        times |= _of_fuller_matrices(h, n, lines, device)
    copied = copied_by(n) if copied is None else copied
    moved = 2 * h.shape[1] * n * dtype.itemsize
    copying = line_of(lines, "copy", n).seconds(0, moved)
    times |= {path: times[path] + copying for path in copying_paths(h, times, n, copied)}
    if copied and "scatter" in times and few_columns.scatter_takes_any(n):
        times["scatter"] += BY_WARPS[scatter_units(h).base]
    return times


def _of_fuller_matrices(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The paths that copy parts of `b` to shared memory, or gather it, for many non-zeros."""
    times = few_columns.times(h, n, lines, device) | _panel_time(h, n, lines, device)
    if n >= MANY and h.nnz:
        times |= _compact_time(h, n, lines, device)
    if h._dtype.itemsize == ITEMSIZE and n > STREAM_COLUMNS:
        times |= _two_four_times(h, n, lines, device)
    if h._dtype.name == "float32" and n >= PIECES_FROM:
        times |= _times_in_pieces(h, n, lines, device)
    return times


def copying_paths(h, times: dict[str, float], n: int, copied: str) -> list[str]:
    """Which of the paths in `times` copy `b`, for the reason that `copied_by` gives."""
    found = ["csr"] if copied == COLUMNS and n > 1 and "csr" in times else []
    known = [path for path in times if path in COPYING] if copied else []
    if not known or h._dtype.itemsize != ITEMSIZE:  # on the CPU tiles need not be there
        return found
    without = {"scatter"} if few_columns.scatter_takes_any(n) else set()
    return found + [path for path in known if path not in without]


def copied_by(n: int, b_order: str = "row") -> str:
    """Why the copy engine cannot read `b`: its order, or where its rows begin; "" if it can."""
    if b_order != "row":
        return COLUMNS
    return ODD_ROWS if n * ITEMSIZE % 16 != 0 else ""


def _panel_time(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The path that multiplies a panel of `b` by the non-zeros alone."""
    from sparse24.kernels import hybrid_panel, hybrid_panel_plan

    dtype, (m, k) = h._dtype, h.shape
    if hybrid_panel.refuses(k, dtype, device.most_shared) is not None:
        return {}
    effort = hybrid_panel_plan.effort(panel_units(h), k, n, device, dtype.itemsize)
    line = line_of(lines, hybrid_lines.PANEL_LINES[dtype.itemsize], n)
    nbytes = n * dtype.itemsize
    storing = m * nbytes / PANEL_STORES
    copying = PANEL_BYTE * m * k * nbytes
    walking = PANEL_STEP * max(0, k - PANEL_FREE)
    return {"panel": max(line.seconds(*effort), storing, copying, walking)}


def _csr_time(h, n: int, lines) -> dict[str, float]:
    """The path of matrices with hardly any elements, which reads `b` for each of them."""
    from sparse24.kernels import hybrid_csr, hybrid_csr_plan

    if max(h.shape) >= hybrid_csr.MOST:
        return {}
    line = line_of(lines, "csr", n)
    seconds = line.seconds(*hybrid_csr_plan.effort(h.shape, h.nnz, n, h._dtype))
    if h.density < hybrid_cost.NEARLY_EMPTY or not h.nnz:
        return {"csr": seconds}
    if h._dtype.itemsize == ITEMSIZE:
        seconds *= CSR_SHORT
    rounds = hybrid_csr_plan.rounds(h.shape, h.nnz, int(row_lengths(h)[0]), n, h._dtype)
    return {"csr": max(seconds, line.fixed + CSR_ROUND * rounds)}


def _two_four_times(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The paths that multiply 2:4 matrices: what does not fit is added, or columns are moved."""
    from sparse24.kernels import hybrid_wgmma

    dtype = h._dtype
    rest = _overflow_time(h, n, lines)
    gain = next(gain for most, gain in TWO_FOUR_GAIN if n <= most)
    gain = gain if h.size * n >= TWO_FOUR_LEAST else 1.0
    if not device.has_wgmma:
        gain = min(gain, _gain_by_warps(h, n, device))
    dense = dense_time(h.shape, dtype, n, lines, device, h.density)
    times = {"two_four": dense / gain + rest}
    many = h.shape[0] > MOST_BLOCKS * STRIP_ROWS or h.shape[1] >= STRIP_COLUMNS
    if many or hybrid_wgmma.refuses(dtype, n, device.compute_capability):
        return times
    return times | {path: _strips_time(h, path, n, lines) for path in ("slots", "regrouped")}


def _strips_time(h, path: str, n: int, lines) -> float:
    work = strips_work(h, path)
    config = work.choose(n)
    seconds = max(line_of(lines, path, n).seconds(*work.effort(config, n)), STRIPS_LEAST)
    return seconds + work.exchange(config, n)


def _times_in_pieces(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The paths of 2:4 products of float32, in bfloat16 pieces where tensor cores have them."""
    product = _sparse_time(_problem(h, n, device), h) * (SKINNY_LONGER if n <= SKINNY else 1)
    summed = 4 * h.shape[0] * n  # bytes of the first product, which the second one reads
    again = product + line_of(lines, "copy", n).byte * summed
    return {"two_four": product + _overflow_time(h, n, lines), "twice": product + again}


def _overflow_time(h, n: int, lines) -> float:
    """Seconds in which the elements are added that a 2:4 product leaves out."""
    from sparse24.kernels import hybrid_overflow

    of_warp, dtype = hybrid_overflow.columns(h._dtype), h._dtype
    columns = -(-n // of_warp) * of_warp
    element = OVERFLOW_ELEMENT if dtype.itemsize > ITEMSIZE else 1.0
    line = line_of(lines, "overflow", n)
    updated = 2 * dtype.itemsize * h.shape[0] * n
    seconds = line.seconds(element * excess(h) * columns, updated)
    return max(seconds, OVERFLOW_STEP * _excess_of_longest_row(h))


def _gain_by_warps(h, n: int, device: Chip) -> float:
    """Speed-up of a 2:4 product over the dense one where it is by instructions of a warp.

    By the models of the planner: on a B200 cuBLAS is the faster one, by instructions that have no
    sparse form here.
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


def _compact_time(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The path's time, if enough columns are empty for it to be worth a gather of b."""
    live = len(live_columns(h).places)
    if live > WORTH_COMPACTING * h.shape[1]:
        return {}
    gather = line_of(lines, "copy", n).seconds(0, 2 * live * n * h.dtype.itemsize)
    shape, density = (h.shape[0], live), h.nnz / max(h.shape[0] * live, 1)
    dense = dense_time(shape, h._dtype, n, lines, device, density)
    return {"compact": dense + gather}


def dense_time(
    shape: tuple[int, int], dtype: _dtypes.DType, n: int, lines, device: Chip, density: float
) -> float:
    """Seconds of cuBLAS; of int8 those of copies that lie along k, too."""
    size = math.prod(shape)
    line = functools.partial(line_of, lines, n=n)
    if dtype.name == "int8":
        return line("int8").seconds(size * n, 0)
    nbytes = size * dtype.itemsize
    if dtype.itemsize > ITEMSIZE:
        return _plain_time(shape, n, dtype.itemsize, lines)
    small = size < hybrid_lines.SMALL
    few = line("small" if small else "cublas").seconds(shape[1], nbytes)
    work = hybrid_cost.dense_work(*shape, n, device.multiprocessors, density)
    if n > SHORT_FROM[small]:
        moved = nbytes + sum(shape) * n * dtype.itemsize
        few = max(few, line("short").seconds(0, moved))
    return max(few, line("dense").seconds(work, 0))


def _plain_time(shape: tuple[int, int], n: int, itemsize: int, lines) -> float:
    """Seconds of cuBLAS in float32 and float64."""
    bits, size, k = 8 * itemsize, math.prod(shape), shape[1]
    nbytes = size * itemsize
    if n == 1:
        return line_of(lines, f"vector{bits}", n).seconds(0, nbytes)
    walk, plain = line_of(lines, f"walk{bits}", n), line_of(lines, f"plain{bits}", n)
    seconds = walk.seconds(k, 0) + max(walk.byte * nbytes, plain.seconds(size * n, 0))
    if bits == 32 and n <= NARROW:
        columns = max(n, NARROW_TILE) + NARROW_MORE
        seconds = max(seconds, plain.seconds(size * columns, 0))
    return seconds


def _tile_time(h, n: int, lines) -> float:
    """Seconds tile by tile on the GPU: a block walks a band of tiles, 32 columns at a time."""
    work = filled_tiles(h) * hybrid_cost.ELEMENTS * -(-n // 32) * 32
    walk = h.stored.grid[1] * TILE_SECONDS
    return max(walk, line_of(lines, "tiles", n).seconds(work, h.stored.bytes_in_tiles))


def _time_on_cpu(h, n: int) -> float:
    """Seconds of one thread, for all elements that are not zero."""
    wide = np.dtype(h._dtype.accumulator).itemsize / np.dtype(np.float32).itemsize
    each = hybrid_cost.CPU_READ + n * wide * hybrid_cost.CPU_MULTIPLY
    return hybrid_cost.CPU_CALL + h.nnz * each
