"""Launch ``cuda/hybrid_scatter.cu``: unstructured 16-bit matrices times up to 64 columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from scipy import special

from sparse24._dtypes import DType
from sparse24.kernels import loader, partial_sums
from sparse24.kernels.hybrid_launch import BoundProduct, matrix_map, rows_contiguous, settle
from sparse24.kernels.hybrid_scatter_plan import (
    HELD_WHOLE,
    ROW_WORDS,
    UNIT_COLUMNS,
    UNIT_ROWS,
    Config,
    configs,
    schedule,
)
from sparse24.kernels.launch import Launch

NAME = "hybrid_scatter"
DTYPES = ("float16", "bfloat16")
MOST_COLUMNS = 64
LEFT = np.dtype(
    [("words", "u8"), ("units", "u8"), ("counts", "u8"), ("pitch", "i4"), ("m", "i4")]
)  # fmt: skip
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("n", "i8")])


class ScatterLayout:
    """A matrix in the order in which the kernel reads it; see the kernel's header.

    Attributes
    ----------
    words : cupy.ndarray of uint32, shape (rows, 128)
    rows : numpy.ndarray of int32, shape (units down, units across)
        Rows of words of each unit; they lie one after the other.
    """

    def __init__(self, shape, dtype: DType, words, rows: np.ndarray):
        self.shape, self.dtype, self.words, self.rows = shape, dtype, words, rows
        self._launches: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        return self.words.nbytes

    def copy(self) -> ScatterLayout:
        """The same layout elsewhere in memory."""
        words = self.words.copy()
        settle()
        return ScatterLayout(self.shape, self.dtype, words, self.rows)

    def launch(self, n: int, balance: bool, config: Config | None) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, balance, config)
        found = self._launches.get(key)
        if found is None:
            config = config or configs(self.rows, n, _multiprocessors(self.words.device.id))[0]
            found = self._launches[key] = Ready(self, balance, config)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: ScatterLayout, balance: bool, config: Config):
        import cupy

        super().__init__()
        units, counts = schedule(layout.rows, config, balance=balance)
        self._tables = [cupy.asarray(x.view(np.int32)) for x in (units, counts)]
        size = config.shared_memory
        kernel = loader.function(
            NAME, "product", defines(layout.dtype.name, config), shared_memory=size
        )
        self._sizes = (kernel, len(counts), config.threads, size)
        self._box = (8 * config.tiles, UNIT_COLUMNS)
        self.per_stream = config.splits > 1
        addresses = (x.data.ptr for x in (layout.words, *self._tables))
        self._left = np.array([(*addresses, units.shape[1], layout.shape[0])], LEFT)
        if not cupy.cuda.get_current_stream().is_capturing():
            if self.per_stream:
                partial_sums.reserve()
            settle()

    def bind(self, b, out, stream: int) -> Launch:
        room = partial_sums.of_stream(stream) if self.per_stream else partial_sums.NONE
        view = (out.data.ptr, *(s // 2 for s in out.strides), out.shape[1])
        arguments = (
            self._left, matrix_map(b, 1, 0, self._box), np.array([view], OUT), room,
        )  # fmt: skip
        return Launch(*self._sizes, arguments, early=True)


def refuses(dtype: DType, n: int, compute_capability: str) -> str | None:
    """Why this kernel cannot multiply, as a sentence; None if it can."""
    if compute_capability != "90":
        return f"wgmma needs compute capability 9.0, the device has {compute_capability}"
    if dtype.name not in DTYPES:
        return f"the kernel multiplies {', '.join(DTYPES)}, not {dtype.name}"
    if n > MOST_COLUMNS:
        return f"the scatter kernel takes up to {MOST_COLUMNS} columns, not {n}"
    return None


ERASED = 0.6  # time of a tile that is cleared element by element, of one overwritten


def effort(shape, density: float) -> tuple[float, float]:
    """Places of tiles to be written, and bytes to be read, if zeros fall by chance."""
    words = density * UNIT_ROWS * UNIT_COLUMNS
    erases = words + 3 * words**0.5 <= HELD_WHOLE * ROW_WORDS
    return shape[0] * shape[1] * (ERASED if erases else 1.0), expected_bytes(shape, density)


def expected_bytes(shape, density: float) -> float:
    """Size of the layout of a matrix whose zeros fall by chance."""
    size = UNIT_ROWS * UNIT_COLUMNS
    mean, deviation = density * size, max(1e-9, (density * (1 - density) * size) ** 0.5)
    # Expected rows of words: the sum over r of the chance that a unit needs more than r of them.
    row = np.arange(size // ROW_WORDS) * ROW_WORDS + 0.5
    rows = special.ndtr((mean - row) / deviation).sum()
    return shape[0] * shape[1] / size * rows * ROW_WORDS * 4


def prepare(bits: Any, dtype: DType) -> ScatterLayout:
    """Pack a CuPy matrix (m, k) of uint16 with contiguous rows; waits for the counts."""
    import cupy

    m, k = bits.shape
    grid = (-(-k // UNIT_COLUMNS), -(-m // UNIT_ROWS))
    rows = cupy.empty(grid[::-1], np.int32)
    source = (bits, np.int64(m), np.int64(k), np.int64(bits.strides[0] // 2))
    loader.function(NAME, "measure")(grid, (32,), (*source, rows))
    starts = cupy.cumsum(rows, dtype=np.int64) - rows.ravel()
    words = cupy.empty((int(rows.sum()), ROW_WORDS), np.uint32)
    loader.function(NAME, "pack")(grid, (32,), (*source, starts, words))
    settle()
    return ScatterLayout((m, k), dtype, words, rows.get())


def product(
    layout: ScatterLayout, b, out, *, balance: bool = True, config: Config | None = None
) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, n up to 64."""
    layout.launch(b.shape[1], balance, config)(rows_contiguous(b), out)


def defines(name: str, config: Config) -> loader.Defines:
    return (
        ("ELEMENT", name), ("TALL", config.tall), ("TILES", config.tiles),
        ("SPLITS", config.splits), ("STAGES", config.stages), ("HELD", config.held),
        ("ERASE", int(config.erase)),
    )  # fmt: skip


@functools.cache
def _multiprocessors(device: int) -> int:
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


COMPILE_CHECKS = [
    (defines(name, config), "sm_90a", f"HGMMA.64x{8 * config.tiles}x16")
    for name, config in (
        ("bfloat16", Config(1, 2, 4, True)),
        ("float16", Config(1, 4, 2, False)),
        ("bfloat16", Config(2, 8, 4, True)),
        ("float16", Config(2, 8, 1, False)),
    )
]
