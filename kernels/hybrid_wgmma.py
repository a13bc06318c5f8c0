"""Launch ``cuda/hybrid_wgmma.cu``: unstructured matrices on the sparse tensor cores of Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24.kernels import (
    compress,
    hybrid_evict,
    hybrid_row_order,
    loader,
    partial_sums,
    tensor_map,
)
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.hybrid_launch import BoundProduct, matrix_map, rows_contiguous, settle
from sparse24.kernels.hybrid_strips import BLOCK as BLOCK_K
from sparse24.kernels.hybrid_wgmma_configs import SPECIALISATIONS, Config
from sparse24.kernels.hybrid_wgmma_pieces import pieces
from sparse24.kernels.hybrid_wgmma_plan import Work
from sparse24.kernels.launch import Launch

NAME = "hybrid_wgmma"
DTYPES = ("float16", "bfloat16")
LEAST_COLUMNS = 128
LIVE_SHIFT, SOURCES_OF_LANE = 28, 4  # as in the kernel
PIECES_OF_ROW = 4  # of 16 bytes, in a stage
_OUT_VIEW = np.dtype([("data", "u8"), ("row", "i8"), ("column", "i8"), ("batch", "i8")])
_OPERANDS = np.dtype(
    [
        ("values", "u8"), ("packed", "u8"), ("sources", "u8"), ("pieces", "u8"), ("b", "u8"),
        ("b_pitch", "i4"), ("pitch", "i4"), ("m", "i4"), ("n", "i4"), ("k", "i4"), ("unused", "i4"),
        ("rows", "u8"),
    ]
)  # fmt: skip


class Layout:
    """A matrix as 2:4 strips with compressed values; arrays as in the kernel's header.

    `rows` is None where strips are of blocks of 64 rows that follow one another.
    """

    def __init__(self, shape, dtype: DType, values, packed, sources, rows, table, work: Work):
        self.shape, self.dtype, self.table, self.work = shape, dtype, table, work
        self.values, self.packed, self.sources, self.rows = values, packed, sources, rows
        self.configs: dict[int, Config] = {}  # chosen, by the number of columns
        self.products: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        arrays = (self.values, self.packed, self.sources, self.rows)
        return sum(x.nbytes for x in arrays if x is not None)

    @property
    def share(self) -> float:
        """Columns of the strips, relative to those of the matrix."""
        return self.work.stages * BLOCK_K / (len(self.work.lengths) * self.shape[1])

    def copy(self) -> Layout:
        """The same layout elsewhere in memory."""
        values, packed, sources = (x.copy() for x in (self.values, self.packed, self.sources))
        rows = None if self.rows is None else self.rows.copy()
        settle()
        arrays = values, packed, sources, rows
        return Layout(self.shape, self.dtype, *arrays, self.table, self.work)


def refuses(dtype: DType, n: int, compute_capability: str) -> str | None:
    """Why this kernel cannot multiply, as a sentence; None if it can."""
    if compute_capability != "90":
        return f"wgmma needs compute capability 9.0, the device has {compute_capability}"
    if dtype.name not in DTYPES:
        return f"the kernel multiplies {', '.join(DTYPES)}, not {dtype.name}"
    if n < LEAST_COLUMNS:
        return f"below {LEAST_COLUMNS} columns the tiles would mostly be empty"
    return None


def survey(bits: Any, rewrite: Any = hybrid_evict) -> Work:
    """What a product with the matrix will cost, rewritten as `prepare` does; waits."""
    ordered = hybrid_row_order.ordered(bits, rewrite)
    return _work(ordered, rewrite.ROWS)


def prepare(bits: Any, dtype: DType, rewrite: Any = hybrid_evict) -> Layout:
    """Build from a CuPy matrix (m, k) of uint16 whose rows are contiguous; waits.

    Parameters
    ----------
    rewrite : module
        ``hybrid_evict`` or ``hybrid_regroup``: how strips become 2:4 matrices.
    """
    ordered = hybrid_row_order.ordered(bits, rewrite)
    strips = rewrite.fill(ordered.bits, ordered.plan)
    record, _ = compress.launch(strips.dense.view(dtype.logical), dtype, rule="check")
    where = ordered.tables
    work = _work(ordered, rewrite.ROWS)
    live = _arrays.cupy_module().asarray(where.live.astype(np.int32) << LIVE_SHIFT)
    strips.sources[:, ::SOURCES_OF_LANE] |= live[:, None]
    arrays = _by_stages(record.values), record.packed, strips.sources, ordered.rows
    settle()
    return Layout(bits.shape, dtype, *arrays, where.table, work)


def _by_stages(values: Any) -> Any:
    """Stored elements (atoms, rows, 64) of 16 bits as the stages of the kernel hold them.

    A row has 64 bytes of each of the two stages of an atom.  A stage in a piece is whole lines of
    memory, where its rows would be halves.  Pieces of 16 bytes are exchanged within a row of it
    by bits 1 and 2 of the row's number, as swizzles of 64 bytes do.

    Source: PTX ISA, tensor swizzling modes.
    """
    # complex128 stands for any 16 bytes.
    atoms, rows, _ = values.shape
    row, place = np.arange(rows)[:, None], np.arange(PIECES_OF_ROW)
    of_stage = 2 * PIECES_OF_ROW * row + (place ^ row // 2 % PIECES_OF_ROW)
    order = np.concatenate([of_stage.ravel(), of_stage.ravel() + PIECES_OF_ROW])
    pieces_of_16 = values.view(np.complex128).reshape(atoms, -1)
    stages = pieces_of_16.take(_arrays.cupy_module().asarray(order), axis=1)
    return stages.view(values.dtype).reshape(2 * atoms, rows, BLOCK_K // 2)


def _work(ordered: hybrid_row_order.Ordered, rows: int) -> Work:
    where = ordered.tables
    return Work(where.lengths, where.gathered, rows, ordered.rows is not None, where.shares)


def bound(layout: Layout, b: Any, out: Any, config: Config | None = None) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it."""
    b, n = rows_contiguous(b), b.shape[1]
    if config is None:
        config = layout.configs.get(n)
        if config is None:
            config = layout.configs[n] = layout.work.choose(n)
    by_row = layout.rows is not None or out.strides[0] != 2 or out.strides[1] == 2
    key = (n, not by_row and out.shape[0] > 1, config)
    found = layout.products.get(key)
    if found is None:
        found = layout.products[key] = Ready(layout, *key)
    return found, b


def product(layout: Layout, b: Any, out: Any, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, without waiting."""
    run, b = bound(layout, b, out, config)
    run(b, out)


def defines(
    name: str, config: Config, *, column: bool = False, bulk: bool = True, by_number: bool = False
) -> loader.Defines:
    """The macros of one specialisation; `bulk`: the TMA writes the result."""
    return (
        ("ELEMENT", name), ("OUTPUT", name),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n),
        ("CUTS", int(config.cuts)), ("STAGES", config.stages), ("K_PARTS", config.parts),
        ("SKIPS", int(config.skips)),
        ("ROWS_BY_NUMBER", int(by_number)),
        ("OUT_ROW_MAJOR", int(not column)), ("OUT_BULK", int(bulk)), ("STAGING", config.staging),
        ("IN_STAGE", int(config.in_stage)),
    )  # fmt: skip


class Ready(BoundProduct):
    """One way of running a product: a specialisation, its grid, and the matrix's arguments."""

    def __init__(self, layout: Layout, n: int, column: bool, config: Config):
        super().__init__()
        self._column, self._config, self._dtype = column, config, layout.dtype.name
        work = pieces(layout.table, layout.work, config, n)
        self._grid, self._pitch = work.shape
        self._pieces = _arrays.cupy_module().asarray(work.view(np.int32))
        self._by_number = layout.rows is not None
        self._rows = layout.rows.data.ptr if self._by_number else 0
        left = layout.values, layout.packed, layout.sources, self._pieces
        self._left = tuple(x.data.ptr for x in left)
        self.per_stream = bool((work["helpers"] < 0).any())
        if not _arrays.cupy_module().cuda.get_current_stream().is_capturing():
            partial_sums.rooms.reserve()
            settle()

    def bind(self, b: Any, out: Any, stream: int) -> Launch:
        inner, outer = (0, 1) if self._column else (1, 0)
        bulk = out.strides[inner] == 2 and tensor_map.addressable(
            out.data.ptr, (out.strides[outer],)
        )
        bulk = bulk and not self._by_number
        macros = defines(
            self._dtype, self._config, column=self._column, bulk=bulk, by_number=self._by_number
        )
        size = self._config.shared_memory
        kernel = loader.function(NAME, NAME, macros, shared_memory=size)
        view = (out.data.ptr, out.strides[0] // 2, out.strides[1] // 2, 0)
        sizes = (b.strides[0], self._pitch, out.shape[0], b.shape[1], b.shape[0], 0)
        operands = np.array([(*self._left, b.data.ptr, *sizes, self._rows)], _OPERANDS)
        arguments = (
            matrix_map(b, 1, 0, (64, BLOCK_K)),
            matrix_map(out, inner, outer, (64, 64)) if bulk else tensor_map.empty(),
            loader.by_value(np.array([view], _OUT_VIEW)), loader.by_value(operands),
            partial_sums.rooms.of_stream(stream) if self.per_stream else partial_sums.NONE,
            _epilogue.NO_PARAMS,
        )  # fmt: skip
        return Launch(kernel, self._grid, self._config.threads, size, arguments, early=True)


COMPILE_CHECKS = [
    (defines(name, config, **how), "sm_90a", f"HGMMA.SP.64x{config.block_n}x32")
    for config in SPECIALISATIONS
    for name, how in (
        ("bfloat16", {}),
        ("bfloat16", {"bulk": False, "by_number": True}),
        ("float16", {"column": True, "bulk": False}),
    )
]
