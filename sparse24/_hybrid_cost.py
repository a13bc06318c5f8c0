"""What a tile of a hybrid matrix costs, and which kind it should therefore have.

A model of one GPU (or CPU) gives the seconds that one 64x64 tile takes in a product
with `n` columns, for each kind, as the longer of moving its bytes and doing its
arithmetic.  Tiles fall into three bands by their density:

* **dense**: no coded kind comes within `MARGIN` of the dense one;
* **sparse**: the dense kind costs at least `MARGIN` more than the best coded one;
* **swing**: both are about equal, so the choice may follow the load.

Whole products on the GPU are predicted by `Line`: three measured numbers a path and class of
columns.  Shipped for the H200; `sparse24._hybrid_fit.fit` measures them on the GPU in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import DType

ELEMENTS = 4096
CODE_BYTES = 512
EMPTY, DENSE, TWO_FOUR, BITMAP = range(4)
MARGIN = 1.10
DEFAULT_N = 16  # columns assumed where the caller says nothing


@dataclass(frozen=True)
class Rates:
    """Throughput of a device, all its units together.

    Attributes
    ----------
    name : str
        The device that the figures describe.
    bandwidth : float
        Bytes a second from memory.
    dense, two_four, bitmap : float
        Multiply-adds a second on tiles of that kind, counting the zeros.
    scattered : float
        Multiply-adds a second on single elements.
    tiles : float
        Multiply-adds a second of the plain tile-by-tile product, zeros of stored tiles counted.
    """

    name: str
    bandwidth: float
    dense: float
    two_four: float
    bitmap: float
    scattered: float
    tiles: float


# Sources: docs/benchmarks; 16-bit tensor-core rates of an H200 and its FP32 rate.
H200_TENSOR = Rates("NVIDIA H200", 4.0e12, 330e12, 450e12, 200e12, 8e12, 5e12)
H200_PLAIN = Rates("NVIDIA H200, FP32", 4.0e12, 25e12, 25e12, 12e12, 8e12, 5e12)
CPU = Rates("CPU", 10e9, 8e9, 8e9, 1e12, 6e9, 8e9)


def bucket(n: int) -> int:
    """The number of columns that stands for `n` where a choice is remembered.

    From 65 to 512 times hang on how `n` fits into lines and tiles; else a power of two will do.
    """
    if n <= 4:
        return n
    step = 8 if 64 < n <= 128 else 64 if 128 < n <= 512 else 1 << (n - 1).bit_length()
    return -(-n // step) * step


def rates_for(dtype: DType, on_gpu: bool) -> Rates:
    """The shipped figures for a dtype on the GPU or the CPU."""
    if not on_gpu:
        return CPU
    return H200_TENSOR if dtype.itemsize == 2 else H200_PLAIN


def tile_seconds(nonzeros, overflow, itemsize: int, n: int, rates: Rates) -> np.ndarray:
    """Seconds of each tile as DENSE, TWO_FOUR and BITMAP: shape (3, tiles)."""
    nonzeros = np.asarray(nonzeros, np.float64)
    overflow = np.asarray(overflow, np.float64)
    multiply_adds = ELEMENTS * float(n)
    move = 1 / rates.bandwidth
    scattered = nonzeros * n / rates.scattered if rates is CPU else 0
    dense = np.maximum(ELEMENTS * itemsize * move, multiply_adds / rates.dense)
    two_four = np.maximum(
        (ELEMENTS * itemsize / 2 + CODE_BYTES + overflow * (itemsize + 2)) * move,
        multiply_adds / rates.two_four + overflow * n / rates.scattered,
    )
    bitmap = np.maximum(
        (CODE_BYTES + nonzeros * itemsize) * move, multiply_adds / rates.bitmap + scattered
    )
    return np.stack([np.broadcast_to(dense, nonzeros.shape), two_four, bitmap])


def choose(nonzeros, overflow, dtype: DType, n: int, rates: Rates) -> np.ndarray:
    """The cheapest kind of every tile; a tile without non-zeros is EMPTY."""
    seconds = tile_seconds(nonzeros, overflow, dtype.itemsize, n, rates)
    return np.where(np.asarray(nonzeros) == 0, EMPTY, 1 + seconds.argmin(0))


def expected_overflow(density: np.ndarray) -> np.ndarray:
    """Elements of a tile beyond two in a group of four, if zeros fall by chance."""
    d = np.asarray(density, np.float64)
    return ELEMENTS / 4 * (4 * d**3 * (1 - d) + 2 * d**4)


def bands(dtype: DType, n: int, rates: Rates) -> tuple[float, float]:
    """Densities (low, high): sparse below `low`, dense above `high`, swing between them."""
    density = np.linspace(0.0, 1.0, 1001)
    seconds = tile_seconds(density * ELEMENTS, expected_overflow(density), dtype.itemsize, n, rates)
    coded = seconds[1:].min(0)
    sparse = seconds[0] >= MARGIN * coded
    dense = coded >= MARGIN * seconds[0]
    low = float(density[sparse].max()) if sparse.any() else 0.0
    high = float(density[dense].min()) if dense.any() else 1.0
    return low, max(low, high)


@dataclass(frozen=True)
class Line:
    """Seconds of a product: ``fixed + element * (elements) + byte * (bytes read)``."""

    fixed: float
    element: float
    byte: float

    def seconds(self, elements: float, nbytes: float) -> float:
        return self.fixed + self.element * elements + self.byte * nbytes


# "path/columns": the line of a path for products with up to so many columns, of 16-bit elements;
# "panel" is for float32, "panel16" for 16 bits, "panel64" for float64, and "base" is scatter with
# 2:4 tiles.  Measured on one H200, see docs/benchmarks, but for "panel16/8" and "panel64/8", which
# are 1.6 times what `hybrid_panel_plan` expects.  What counts as elements and bytes differs:
#
# path                  elements                                      bytes
# stream, cublas        of the matrix, zeros too                      read of the matrix
# rows, gather          non-zeros and padding                         read of the matrix
# scatter, base         cycles of shared memory                       read of the matrix
# panels                multiply-adds                                 all that are read
# dense                 multiply-adds, as `dense_work` counts them    none
# slots, regrouped      multiply-adds                                 gathered of b
# overflow              elements left out, times columns              of the result
H200_LINES = {
    "stream/8": Line(4.95e-6, 1.38e-13, 1.535e-13),
    "stream/16": Line(6.03e-6, 1.783e-13, 1.273e-13),
    "stream/32": Line(7.77e-6, 1.71e-13, 1.409e-13),
    "stream/64": Line(8.35e-6, 3.107e-13, 1.192e-13),
    "scatter/8": Line(2.85e-6, 5.83e-10, 2.07e-14),
    "scatter/16": Line(3.06e-6, 5.24e-10, 3.03e-14),
    "scatter/32": Line(3.03e-6, 4.72e-10, 5.01e-14),
    "scatter/64": Line(2.18e-6, 4.31e-10, 9.46e-14),
    "scatter/96": Line(1.01e-6, 5.77e-10, 5.71e-14),
    "scatter/128": Line(1.27e-6, 5.3e-10, 5.79e-14),
    "base/8": Line(2.94e-6, 5.53e-11, 2.08e-13),
    "base/16": Line(3.61e-6, 0.0, 2.28e-13),
    "base/32": Line(3.19e-6, 3.65e-10, 1.21e-13),
    "base/64": Line(1.66e-6, 6e-10, 0.0),
    "base/128": Line(1.79e-6, 4.82e-10, 3.56e-14),
    "gather/1": Line(1.63e-6, 0.0, 2.7e-13),
    "gather/2": Line(1.86e-6, 0.0, 2.73e-13),
    "gather/4": Line(2.13e-6, 0.0, 2.76e-13),
    "gather/8": Line(3.3e-6, 0.0, 2.73e-13),
    "gather/16": Line(1.23e-5, 0.0, 4.1e-13),
    "panel/8": Line(4.29e-6, 0.0, 3.2e-13),
    "panel/64": Line(4.44e-6, 0.0, 2.44e-13),
    "panel/512": Line(0.0, 2.37e-14, 2.94e-13),
    "panel64/8": Line(8.4e-6, 1.23e-13, 2.69e-13),
    "panel64/64": Line(5e-6, 0.0, 2.52e-13),
    "panel64/512": Line(0.0, 0.0, 2.41e-13),
    "panel16/8": Line(8.4e-6, 3.15e-14, 2.7e-13),
    "panel16/64": Line(8.14e-6, 8.29e-14, 6.46e-14),
    "panel16/512": Line(4.83e-6, 8.6e-14, 1.25e-13),
    "rows/1": Line(2.93e-6, 0.0, 3.5e-13),
    "rows/2": Line(3.74e-6, 0.0, 3.46e-13),
    "rows/4": Line(4.32e-6, 0.0, 5.27e-13),
    "cublas/8": Line(5.4e-6, 0.0, 2.54e-13),
    "cublas/32": Line(5.7e-6, 0.0, 2.48e-13),
    "cublas/64": Line(4.15e-6, 0.0, 2.49e-13),
    "cublas/120": Line(6.5e-6, 0.0, 2.45e-13),
    "cublas/128": Line(4.15e-6, 0.0, 2.49e-13),
    "dense/512": Line(0.0, 2.82e-15, 0.0),
    "overflow/512": Line(2.27e-6, 2.38e-13, 2.02e-13),
    "slots/512": Line(0.0, 1.79e-15, 2.2e-14),
    "regrouped/512": Line(0.0, 1.99e-15, 0.0),
}
COLUMN_CLASSES = {
    "stream": (8, 16, 32, 64),
    "scatter": (8, 16, 32, 64, 96, 128), "base": (8, 16, 32, 64, 128),
    "gather": (1, 2, 4, 8, 16),
    "panel16": (8, 64, 512), "panel": (8, 64, 512), "panel64": (8, 64, 512),
    "rows": (1, 2, 4),
    "cublas": (8, 32, 64, 120, 128), "dense": (512,), "overflow": (512,), "slots": (512,),
    "regrouped": (512,),
}  # fmt: skip


# Tiles of cuBLAS, and their speed relative to the first.
DENSE_TILES = (
    (128, 256, 1.0), (256, 128, 1.0), (128, 192, 1.0), (128, 160, 0.93), (128, 128, 1.0),
    (128, 64, 0.8), (64, 192, 0.86), (64, 160, 0.8), (64, 64, 0.6),
)  # fmt: skip
DENSE_PARTS = (1, 2, 4, 8)  # into which cuBLAS may cut k, where there are few tiles
# Fitted to 660 random products of float16 on an H200: starting and ending a tile takes as long as
# TILE_K columns of k, and adding up the parts of a tile as long as PARTS_WORK multiply-adds.
TILE_K, PARTS_WORK = 91, 2e9
IDLE = 0.7  # what a missing tile of the last wave takes, relative to a tile
# Zeros save power, so dense products of sparser matrices are faster: relative time by share of
# zeros, with 4096 columns on an H200.
POWER_ZEROS, POWER_TIME = (0.8, 0.9, 0.95, 0.99), (1.0, 0.96, 0.94, 0.9)


def dense_work(m: int, k: int, n: int, multiprocessors: int, density: float) -> float:
    """The time of a dense product with many columns, as multiply-adds at the full rate.

    More than the product has where tiles do not fill whole waves of blocks; fewer where most
    elements are zeros.
    """

    def work(rows: int, columns: int, rate: float, parts: int) -> float:
        blocks = -(-m // rows) * -(-n // columns) * parts
        waves = -(-blocks // multiprocessors)
        missing = waves - blocks / multiprocessors
        taken = waves - (1 - IDLE) * missing if waves > 1 else 1
        of_block = rows * columns * (k / parts + TILE_K) / rate
        return taken * multiprocessors * of_block + (PARTS_WORK if parts > 1 else 0)

    tiles = [(*tile, parts) for tile in DENSE_TILES for parts in DENSE_PARTS]
    least = min(work(*tile) for tile in tiles)
    return least * float(np.interp(1 - density, POWER_ZEROS, POWER_TIME))


PANEL_LINES = {2: "panel16", 4: "panel", 8: "panel64"}  # by bytes of an element


def class_of(path: str, n: int) -> str:
    """The name of the smallest class that holds `n` columns, or of the largest there is."""
    sizes = COLUMN_CLASSES[path]
    return f"{path}/{next((size for size in sizes if size >= n), sizes[-1])}"


def line_of(lines: dict[str, Line], path: str, n: int) -> Line:
    """The line of a path and class of columns."""
    return lines[class_of(path, n)]
