"""How long each path of a hybrid product is expected to take."""

from __future__ import annotations

import numpy as np

from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import few_columns, many_columns, room
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid.cublas import dense_time
from sparse24._hybrid.few_columns import ITEMSIZE
from sparse24._hybrid.layouts import (
    filled_tiles,
    live_columns,
    panel_units,
    row_lengths,
    scatter_units,
)
from sparse24._hybrid.lines import line_of
from sparse24._hybrid.on_cpu import even_shares
from sparse24.kernels.chip import Chip, chip

MANY = 256  # columns from which a gather of the dense operand can pay
WORTH_COMPACTING = 0.9  # share of live columns below which the empty ones are left out
STREAM_COLUMNS = 64  # up to here the 2:4 product gains less than the second launch costs
# Types and columns from which two products can be added up; by fewer, others take less time.
SUMS_OF, SUMS_FROM = ("float32", "int8"), 5
# Seconds more where warps load b instead of the TMA, with and without 2:4 tiles.
BY_WARPS = {True: 0.8e-6, False: 1.9e-6}
COLUMNS, ODD_ROWS = "columns", "odd rows"  # how b lies where it may have to be copied
# Paths of 16-bit elements that copy a b whose rows do not begin on 16-byte boundaries.
COPYING = ("scatter", "slots", "regrouped", "panel")
TRANSPOSING = ("csr", "two_four")  # which copy b where its columns are contiguous
# The panel path copies b to shared memory.  In nearly empty matrices there is little to multiply it
# by, and the copy decides: seconds, at the least (docs/benchmarks/log_hybrid.rst, "Nearly empty
# matrices"),
PANEL_BYTE = 4.5e-16  # for each row of the matrix and byte of b
PANEL_STEP, PANEL_FREE = 1.3e-9, 8192  # for each row of b beyond that many
# Seconds of csr each time that a thread waits for elements, then for rows of b ("Rows of unlike
# length").
CSR_ROUND = 1.4e-7
CSR_SHORT = 1.35  # csr: the factor by which elements of 16 bits take longer than its line
CSR_BYTE, CSR_BYTE_FROM = 2.3, 9  # the same of int8, from that many columns on
TILE_SECONDS = 1e-6  # the least that a block of the path tiles takes for a tile
# Bytes a second of results that the panel stores, a few columns of a row at a time: 13539 x 432
# with 99 % zeros by 1160 columns took 46.6 µs on an H200.
PANEL_STORES = 7e11


def predictions(h, n: int, copied: str | None = None) -> dict[str, float]:
    """Seconds by path, for every path that the device of `h` can take, and for which it has room.

    `copied`: what `copied_by` says of `b`; by default as if its rows are contiguous.
    """
    if h.device == "cpu":
        return _times_on_cpu(h, n)
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
        times |= many_columns.two_four_times(h, n, lines, device)
    if h._dtype.name in SUMS_OF and n >= SUMS_FROM:
        times |= many_columns.times_of_sums(h, n, lines, device)
    return times


def copying_paths(h, times: dict[str, float], n: int, copied: str) -> list[str]:
    """Which of the paths in `times` copy `b`, for the reason that `copied_by` gives."""
    found = [path for path in TRANSPOSING if path in times] if copied == COLUMNS and n > 1 else []
    known = [path for path in times if path in COPYING] if copied else []
    if not known or h._dtype.itemsize != ITEMSIZE:  # on the CPU tiles need not be there
        return found
    without = {"scatter"} if few_columns.scatter_takes_any(n) else set()
    return found + [path for path in known if path not in without]


def copied_by(n: int, b_order: str = "row") -> str:
    """Why the TMA cannot read `b`: its order, or where its rows begin; "" if it can."""
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
    elif h._dtype.itemsize < ITEMSIZE and n >= CSR_BYTE_FROM:
        seconds *= CSR_BYTE
    rounds = hybrid_csr_plan.rounds(h.shape, h.nnz, int(row_lengths(h)[0]), n, h._dtype)
    return {"csr": max(seconds, line.fixed + CSR_ROUND * rounds)}


def _compact_time(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The path's time, if enough columns are empty for it to be worth a gather of b."""
    live = len(live_columns(h).places)
    if live > WORTH_COMPACTING * h.shape[1]:
        return {}
    gather = line_of(lines, "copy", n).seconds(0, 2 * live * n * h.dtype.itemsize)
    shape, density = (h.shape[0], live), h.nnz / max(h.shape[0] * live, 1)
    dense = dense_time(shape, h._dtype, n, lines, device, density)
    return {"compact": dense + gather}


def _tile_time(h, n: int, lines) -> float:
    """Seconds tile by tile on the GPU: a block walks a band of tiles, 32 columns at a time."""
    work = filled_tiles(h) * hybrid_cost.ELEMENTS * -(-n // 32) * 32
    walk = h.stored.grid[1] * TILE_SECONDS
    return max(walk, line_of(lines, "tiles", n).seconds(work, h.stored.bytes_in_tiles))


def _times_on_cpu(h, n: int) -> dict[str, float]:
    """Seconds of one thread: for all elements that are not zero, and for the other candidates."""
    from sparse24.kernels._simd import VECTOR_BYTES

    itemsize = np.dtype(h._dtype.accumulator).itemsize
    columns = n if n == 1 else max(n, VECTOR_BYTES // itemsize)  # part of a vector takes as long
    wide = itemsize / np.dtype(np.float32).itemsize
    each = hybrid_cost.CPU_READ + columns * wide * hybrid_cost.CPU_MULTIPLY
    shares = {"cpu": h.density} | (even_shares(h, n) if h.nnz else {})
    return {path: hybrid_cost.CPU_CALL + share * h.size * each for path, share in shares.items()}
