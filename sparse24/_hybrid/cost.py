"""What a tile of a hybrid matrix costs, and which kind it should therefore have.

A model of one GPU (or CPU) gives the seconds that one 64x64 tile takes in a product
with `n` columns, for each kind, as the longer of moving its bytes and doing its
arithmetic.  Tiles fall into three bands by their density:

* **dense**: no coded kind comes within `MARGIN` of the dense one;
* **sparse**: the dense kind costs at least `MARGIN` more than the best coded one;
* **swing**: both are about equal, so the choice may follow the load; of kinds that are about equal
  a tile has the one of the fewest bytes.

Whole products on the GPU are predicted by the lines of `sparse24._hybrid.lines`; here is how the
dense product of cuBLAS is counted for them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import hybrid_kinds

ELEMENTS = 4096
CODE_BYTES = 512  # of the bitmap, or the 2:4 codes, of a tile
PLACE_BYTES = 2  # of an element that is stored with its place
MARGIN = 1.10
DEFAULT_N = 16  # columns assumed where the caller says nothing
# Share of non-zeros below which a sparse matrix is stored by rows, not in tiles, and on a GPU the
# path csr alone is considered, so that nothing becomes dense.
NEARLY_EMPTY = 0.001
# The share below which a matrix of LARGE elements or more is stored by rows; other paths than csr
# are still considered.  Its tiles, mostly scattered ones, would hardly take less memory, and csr
# would need a copy of the rows beside them.
SPARSE, LARGE = 0.05, 1 << 30


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
    """

    name: str
    bandwidth: float
    dense: float
    two_four: float
    bitmap: float
    scattered: float


# Sources: docs/benchmarks; 16-bit tensor-core rates of an H200.  Tiles of other types are all
# spread in shared memory first and multiplied there at one rate, that of "tiles" in `lines`.
H200_TENSOR = Rates("NVIDIA H200", 4.0e12, 330e12, 450e12, 200e12, 8e12)
H200_PLAIN = Rates("NVIDIA H200, FP32", 4.0e12, 5e12, 5e12, 5e12, 8e12)
CPU = Rates("CPU", 10e9, 8e9, 8e9, 1e12, 6e9)
# Seconds of a product on the CPU: of a call, to read a non-zero, and to multiply it by a column in
# float32.  Fitted by eye to 256 x 256 to 2048 x 2048 with 50 to 95 % zeros and 1 to 256 columns, by
# one thread with AVX-512; the prediction is 0.6 to 1.2 times the measured time, of 256 x 256 from
# 0.4 times on.
CPU_CALL, CPU_READ, CPU_MULTIPLY = 5e-6, 2.5e-10, 2.7e-11


def bucket(n: int) -> int:
    """The number of columns that stands for `n` where a choice is remembered.

    A power of two, but finer steps from 65 to 512 columns, where times depend on how `n` fits into
    lines and tiles.
    """
    if n <= 4:
        return n
    step = 8 if 64 < n <= 128 else 64 if 128 < n <= 512 else 1 << (n - 1).bit_length()
    return -(-n // step) * step


def rows_below(size: int) -> float:
    """Share of non-zeros below which a sparse matrix of `size` elements is stored by rows."""
    return SPARSE if size >= LARGE else NEARLY_EMPTY


def rates_for(dtype: DType, on_gpu: bool) -> Rates:
    """The shipped figures for a dtype on the GPU or the CPU."""
    if not on_gpu:
        return CPU
    return H200_TENSOR if dtype.itemsize == 2 else H200_PLAIN


def tile_bytes(nonzeros, overflow, itemsize: int) -> np.ndarray:
    """Bytes of each tile as DENSE, TWO_FOUR, BITMAP and SCATTERED: shape (4, tiles)."""
    nonzeros = np.asarray(nonzeros, np.float64)
    overflow = np.asarray(overflow, np.float64)
    placed = itemsize + PLACE_BYTES
    dense = np.broadcast_to(float(ELEMENTS * itemsize), nonzeros.shape)
    two_four = ELEMENTS * itemsize / 2 + CODE_BYTES + overflow * placed
    return np.stack([dense, two_four, CODE_BYTES + nonzeros * itemsize, nonzeros * placed])


def tile_seconds(nonzeros, overflow, itemsize: int, n: int, rates: Rates) -> np.ndarray:
    """Seconds of each tile as DENSE, TWO_FOUR, BITMAP and SCATTERED: shape (4, tiles).

    Scattered elements are multiplied as those of a bitmap are.
    """
    nonzeros = np.asarray(nonzeros, np.float64)
    multiply_adds = ELEMENTS * float(n)
    element = n / rates.scattered
    multiply = np.empty((4, *nonzeros.shape))
    multiply[0] = multiply_adds / rates.dense
    multiply[1] = multiply_adds / rates.two_four + np.asarray(overflow) * element
    multiply[2:] = multiply_adds / rates.bitmap + (nonzeros * element if rates is CPU else 0)
    return np.maximum(tile_bytes(nonzeros, overflow, itemsize) / rates.bandwidth, multiply)


def choose(nonzeros, overflow, dtype: DType, n: int, rates: Rates) -> np.ndarray:
    """The kind of every tile: of those about as fast as the fastest the one of the fewest bytes.

    A tile without non-zeros is EMPTY.
    """
    kinds = np.full(np.shape(nonzeros), hybrid_kinds.EMPTY, np.uint8)
    filled = np.asarray(nonzeros) != 0  # of large matrices that hold little, few tiles are
    held, spill = (np.asarray(counts)[filled] for counts in (nonzeros, overflow))
    span = int(spill.max(initial=0)) + 1
    if (int(held.max(initial=0)) + 1) * span < held.size:  # many tiles are alike
        pairs = held * span + spill
        table = np.zeros(int(pairs.max()) + 1, np.uint8)
        table[pairs] = 1
        found = np.flatnonzero(table)
        table[found] = _of_filled(found // span, found % span, dtype, n, rates)
        kinds[filled] = table[pairs]
    else:
        kinds[filled] = _of_filled(held, spill, dtype, n, rates)
    return kinds


def _of_filled(held, spill, dtype: DType, n: int, rates: Rates) -> np.ndarray:
    """The kinds of tiles with these numbers of non-zeros, and of elements that break 2:4."""
    seconds = tile_seconds(held, spill, dtype.itemsize, n, rates)
    about_equal = seconds <= MARGIN * seconds.min(0)
    sizes = tile_bytes(held, spill, dtype.itemsize)
    return hybrid_kinds.DENSE + np.where(about_equal, sizes, np.inf).argmin(0)


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
    """The time of a dense product with many columns, in multiply-adds at the full rate.

    These are more than the product has where its tiles do not fill whole waves of blocks, and fewer
    where most elements are zeros, which save power.
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
