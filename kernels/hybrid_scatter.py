"""Launch ``cuda/hybrid_scatter.cu``: unstructured 16-bit matrices times up to 64 columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import block_sums, loader
from sparse24.kernels.hybrid_launch import BoundProduct, matrix_map, rows_contiguous, settle
from sparse24.kernels.hybrid_scatter_plan import (
    LINE_BYTES,
    STAGES,
    THREADS,
    UNIT_COLUMNS,
    UNIT_ROWS,
    Config,
    configure,
    deal,
    lines_of,
    schedule,
)
from sparse24.kernels.launch import Launch

NAME = "hybrid_scatter"
DTYPES = ("float16", "bfloat16")
MOST_COLUMNS = 64
LANES = 32
LEFT = np.dtype(
    [
        ("units", "u8"), ("steps", "u8"), ("parts", "u8"), ("counts", "u8"),
        ("pitch", "i4"), ("parts_pitch", "i4"), ("m", "i4"),
    ],
    align=True,
)  # fmt: skip
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("n", "i8")])


class ScatterLayout:
    """A matrix in the order in which the kernel reads it; see the kernel's header.

    Attributes
    ----------
    units : cupy.ndarray of uint8
    sizes : numpy.ndarray of int32, shape (bands, units across, 2)
        Groups and lines of each unit; they lie one after the other.
    """

    def __init__(self, shape, dtype: DType, units, sizes: np.ndarray):
        self.shape, self.dtype, self.units, self.sizes = shape, dtype, units, sizes
        self._launches: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        return self.units.nbytes

    def copy(self) -> ScatterLayout:
        """The same layout elsewhere in memory."""
        units = self.units.copy()
        settle()
        return ScatterLayout(self.shape, self.dtype, units, self.sizes)

    def launch(self, n: int, balance: bool, blocks: int | None) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, balance, blocks)
        found = self._launches.get(key)
        if found is None:
            blocks = blocks or _multiprocessors(self.units.device.id)
            found = self._launches[key] = Ready(self, n, balance, blocks)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    per_stream = True

    def __init__(self, layout: ScatterLayout, n: int, balance: bool, blocks: int):
        import cupy

        super().__init__()
        config = configure(n)
        dealt = deal(layout.sizes, blocks, config.tiles, balance=balance)
        steps, parts, counts = schedule(layout.sizes, dealt)
        self._tables = [cupy.asarray(x.view(np.int32)) for x in (steps, parts, counts)]
        size = config.shared_memory
        kernel = loader.function(
            NAME, "product", defines(layout.dtype.name, config), shared_memory=size
        )
        self._sizes = (kernel, len(counts), THREADS, size)
        self._box = (8 * config.tiles, UNIT_COLUMNS)
        addresses = (x.data.ptr for x in (layout.units, *self._tables))
        self._left = np.array(
            [(*addresses, steps.shape[1], parts.shape[1], layout.shape[0])], LEFT
        )  # fmt: skip
        if not cupy.cuda.get_current_stream().is_capturing():
            block_sums.rooms.reserve()
            settle()

    def bind(self, b, out, stream: int) -> Launch:
        view = (out.data.ptr, *(s // 2 for s in out.strides), out.shape[1])
        arguments = (
            self._left, matrix_map(b, 1, 0, self._box), np.array([view], OUT),
            block_sums.rooms.of_stream(stream),
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


def survey(bits: Any) -> np.ndarray:
    """Groups and lines of every unit of a CuPy matrix, as in `ScatterLayout`; waits for them."""
    return _measure(bits).get()


def prepare(bits: Any, dtype: DType) -> ScatterLayout:
    """Pack a CuPy matrix (m, k) of uint16 with contiguous rows; waits for the counts."""
    import cupy

    sizes = _measure(bits)
    lines = lines_of(sizes).ravel()
    starts = cupy.cumsum(lines, dtype=np.int64) - lines
    units = cupy.empty(int(lines.sum()) * LINE_BYTES, np.uint8)
    _launch("pack", bits, sizes, starts, units)
    settle()
    return ScatterLayout(bits.shape, dtype, units, sizes.get())


def _measure(bits: Any) -> Any:
    import cupy

    m, k = bits.shape
    sizes = cupy.empty((-(-m // UNIT_ROWS), -(-k // UNIT_COLUMNS), 2), np.int32)
    _launch("measure", bits, sizes)
    return sizes


def _launch(name: str, bits: Any, sizes: Any, *others: Any) -> None:
    """One of the kernels that pack; a warp for each unit."""
    grid = (sizes.shape[1], sizes.shape[0])
    source = (bits, *(np.int64(x) for x in (*bits.shape, bits.strides[0] // 2)))
    loader.function(NAME, name)(grid, (LANES,), (*source, sizes, *others))


def product(
    layout: ScatterLayout, b, out, *, balance: bool = True, blocks: int | None = None
) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, n up to 64.

    `blocks` is at most the number of multiprocessors, its default.
    """
    layout.launch(b.shape[1], balance, blocks)(rows_contiguous(b), out)


def defines(name: str, config: Config) -> loader.Defines:
    return (("ELEMENT", name), ("TILES", config.tiles), ("STAGES", STAGES))


@functools.cache
def _multiprocessors(device: int) -> int:
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


COMPILE_CHECKS = [
    (defines(name, config), "sm_90a", f"HGMMA.64x{config.width}x16")
    for name, config in (
        ("bfloat16", Config(2)),
        ("float16", Config(4)),
        ("bfloat16", Config(8)),
        ("float16", Config(8)),
    )
]
