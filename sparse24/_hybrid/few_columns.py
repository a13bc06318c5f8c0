"""How long the paths that read the non-zeros once, for few columns, are expected to take."""

from __future__ import annotations

from sparse24._dtypes import DType
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid.layouts import MOST_BLOCKS, gather_units, rows_plan, scatter_units
from sparse24._hybrid.lines import line_of
from sparse24.kernels.chip import Chip

ITEMSIZE = 2  # bytes of the elements of all of them but rows
GATHER_COLUMNS = 16
STREAM_ROWS = 16  # of a block that packs them
SCATTER_ROWS = 64  # the same of the bands of scatter, or more
# Where scatter takes longer than its line predicts (docs/benchmarks/log_hybrid.rst), as factors:
WIDE_SMALL = 1.2  # small matrices by more than SPAN columns: many sums meet
ACROSS_LINES = 1.3  # much of b is read, and its rows begin within lines of memory
FLAT_FEW = 1.12  # units of 128 columns, up to 8 columns of b: sums go through global memory
FLAT_BASE, FLAT_BASE_FROM = 1.13, 33  # units of 128 columns with 2:4 tiles, from 33 columns on
# Seconds by which paths take longer that copy parts of b to shared memory, where they have little
# to multiply it by ("Nearly empty matrices"):
STAGED_BYTE = 1.5e-13  # rows: for each byte that a block copies
GATHER_FREE, GATHER_BYTE = 16384, 1.75e-15  # gather, if b has more rows: for each row and byte of b
GATHER_STEP = 2e-11  # and for each byte of b
# Gather by more than 8 columns: seconds for a second panel of b, which another block has.  With
# more the blocks that share a row do not all run at once; it took twice as long as by its line.
GATHER_SECOND, GATHER_MOST = 2.5e-6, 2


def times(h, n: int, lines, device: Chip) -> dict[str, float]:
    """Seconds by path, of those that read every non-zero once."""
    from sparse24.kernels import (
        hybrid_gather,
        hybrid_rows,
        hybrid_rows_plan,
        hybrid_scatter,
        hybrid_scatter_plan,
        hybrid_stream,
    )

    dtype, k = h._dtype, h.shape[1]
    found: dict[str, float] = {}
    if hybrid_stream.refuses(dtype, n) is None and h.shape[0] <= MOST_BLOCKS * STREAM_ROWS:
        nbytes = hybrid_stream.expected_bytes(h.shape, h.density)
        found["stream"] = line_of(lines, "stream", n).seconds(h.size, nbytes)
    fits = h.shape[0] <= MOST_BLOCKS * SCATTER_ROWS
    if fits and hybrid_scatter.refuses(dtype, n, device.compute_capability) is None:
        units = scatter_units(h)
        effort = hybrid_scatter_plan.effort(units, n, device.multiprocessors)
        line = line_of(lines, "base" if units.base else "scatter", n)
        found["scatter"] = _longer(units, n) * line.seconds(*effort)
    if rows_fit(k, dtype, n, device) and hybrid_rows.refuses(k, dtype, n) is None:
        plan = rows_plan(h)
        effort = hybrid_rows_plan.effort(plan, dtype, device.multiprocessors)
        line = line_of(lines, hybrid_lines.ROWS_LINES[dtype.itemsize], n)
        copied = plan.of_blocks.size * hybrid_rows.shared_memory(k, dtype, n, plan.warps)
        found["rows"] = line.seconds(*effort) + STAGED_BYTE * copied
    if n <= GATHER_COLUMNS and gather_fits(device) and hybrid_gather.refuses(k, dtype) is None:
        found |= _gather_time(h, n, lines, device)
    return found


def rows_fit(k: int, dtype: DType, n: int, device: Chip) -> bool:
    """Whether shared memory holds k rows of `b`, with n columns, for the path rows."""
    from sparse24.kernels import hybrid_rows, hybrid_rows_plan

    return hybrid_rows.shared_memory(k, dtype, n, hybrid_rows_plan.WARPS) <= device.most_shared


def gather_fits(device: Chip) -> bool:
    """Whether shared memory holds the panels of the path gather, beside the sums.

    Only chips with clusters of blocks have so much.
    """
    from sparse24.kernels.hybrid_gather_plan import MOST_HELD, PANEL_BYTES

    return device.most_shared >= PANEL_BYTES * (1 + MOST_HELD)


def _gather_time(h, n: int, lines, device: Chip) -> dict[str, float]:
    """The path that reads `b` from shared memory for every non-zero, in panels."""
    from sparse24.kernels import hybrid_gather_plan as plan

    (m, k), units = h.shape, gather_units(h)
    panels = -(-k // plan.PANEL)
    held = plan.configure(units, panels, n, device).held
    wide = n > hybrid_lines.COLUMN_CLASSES["gather"][-2]
    if wide and panels > GATHER_MOST:
        return {}
    fullest = min(held * plan.PANEL, k) * -(-panels // held) / k  # block, relative to an even share
    seconds = line_of(lines, "gather", n).seconds(
        *(fullest * x for x in plan.effort(units, k, n, device))
    )
    if wide and panels > held:
        seconds += GATHER_SECOND
    if k > GATHER_FREE:
        seconds += k * n * ITEMSIZE * (GATHER_BYTE * m + GATHER_STEP)
    return {"gather": seconds}


def _longer(units, n: int) -> float:
    """The factor by which scatter takes longer with these units than its line predicts."""
    from sparse24.kernels.hybrid_scatter_plan import SPAN
    from sparse24.kernels.hybrid_scatter_units import TILE_COLUMNS

    flat = units.columns > TILE_COLUMNS
    bands, across = units.lines.shape
    if n > SPAN and bands * units.rows * across * units.columns < hybrid_lines.SMALL:
        return WIDE_SMALL
    if n > SPAN and n % SPAN:
        return ACROSS_LINES ** (flat + units.base)
    if flat and units.base:
        return FLAT_BASE if n >= FLAT_BASE_FROM else 1.0
    return FLAT_FEW if flat and scatter_takes_any(n) else 1.0


def scatter_takes_any(n: int) -> bool:
    """Whether scatter reads a `b` of any strides."""
    from sparse24.kernels import hybrid_scatter

    return hybrid_scatter.takes_any(n)
