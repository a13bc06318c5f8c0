"""Launch the packing kernels of ``cuda/hybrid_scatter.cu``: a matrix as units."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sparse24.kernels import loader
from sparse24.kernels.chip import multiprocessors
from sparse24.kernels.hybrid_scatter_units import (
    LINE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    Units,
    columns_of_units,
    rows_of_bands,
)

LANES = 32
MATRIX = np.dtype(
    [("w", "u8"), ("m", "i8"), ("k", "i8"), ("pitch", "i8"), ("rows", "i4"), ("unused", "i4")]
)
NONE_YET = np.zeros((0, 0, 2), np.int32)
BASE_FROM = 0.27  # density from which 2:4 tiles take less time than scattering all non-zeros


def measure(bits: Any, **form: Any) -> tuple[Units, Any]:
    """How much the units of a CuPy matrix hold, here and on the GPU; waits.

    `form` as in `hybrid_scatter.prepare`.
    """
    import cupy

    (m, k), units = bits.shape, _form(bits, **form)
    sizes = cupy.empty((-(-m // units.rows), -(-k // units.columns), 2), np.int32)
    _launch("measure", units, bits, sizes)
    return dataclasses.replace(units, sizes=sizes.get()), sizes


def pack(bits: Any, units: Units, sizes: Any) -> Any:
    """The units as the product reads them, an array of uint8; does not wait."""
    import cupy

    lines = cupy.asarray(units.lines.ravel())
    starts = cupy.cumsum(lines, dtype=np.int64) - lines
    data = cupy.empty(int(units.lines.sum()) * LINE_BYTES, np.uint8)
    _launch("pack", units, bits, sizes, starts, data)
    return data


def _form(
    bits: Any, base: bool | None = None, rows: int | None = None, columns: int | None = None
) -> Units:
    """What the units are, before their sizes are known."""
    import cupy

    (m, k), sms = bits.shape, multiprocessors(bits.device.id)
    if base is None:  # groups of four rows of b are addressed as a whole
        base = k % 4 == 0 and float(cupy.count_nonzero(bits)) >= BASE_FROM * max(bits.size, 1)
    columns = columns or columns_of_units(m, k, sms)
    if rows is None:  # 2:4 tiles are bound by memory, and whole
        whole = base or columns > TILE_COLUMNS
        rows = TILE_ROWS * TILE_COLUMNS // columns if whole else rows_of_bands(m, sms)
    return Units(NONE_YET, base, rows, columns)


def _launch(name: str, units: Units, bits: Any, sizes: Any, *others: Any) -> None:
    """A warp for each unit."""
    grid = (sizes.shape[1], sizes.shape[0])
    matrix = (bits.data.ptr, *bits.shape, bits.strides[0] // 2, units.rows, 0)
    macros = (("BASE", int(units.base)), ("UNIT_COLUMNS", units.columns))
    kernel = loader.function("hybrid_scatter", name, macros)
    kernel(grid, (LANES,), (np.array([matrix], MATRIX), sizes, *others))
