"""Launch ``cuda/hybrid_scatter.cu``: unstructured 16-bit matrices times up to 128 columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import block_sums, hybrid_scatter_pack, loader, tensor_map
from sparse24.kernels.block_sums import Sharing
from sparse24.kernels.chip import multiprocessors
from sparse24.kernels.clusters import most_clusters
from sparse24.kernels.hybrid_launch import (
    BoundProduct,
    matrix_map,
    readable,
    right,
    rows_contiguous,
    settle,
)
from sparse24.kernels.hybrid_scatter_plan import (
    SPAN,
    Config,
    Deal,
    deal,
    tiles_of,
)
from sparse24.kernels.hybrid_scatter_schedule import LEADS, leads, schedule
from sparse24.kernels.hybrid_scatter_units import TILE_COLUMNS, Units
from sparse24.kernels.launch import Launch

NAME = "hybrid_scatter"
DTYPES = ("float16", "bfloat16")
MOST_COLUMNS = 128
BY_WARPS = 8  # up to that many columns of b, writer warps load it if the TMA cannot
LEFT = np.dtype(
    [
        ("units", "u8"), ("steps", "u8"), ("parts", "u8"), ("counts", "u8"),
        ("pitch", "i4"), ("parts_pitch", "i4"), ("m", "i4"), ("rows", "i4"),
    ]
)  # fmt: skip
OUT = np.dtype([("to", "u8"), ("row", "i8"), ("column", "i8"), ("n", "i8")])


class ScatterLayout:
    """A matrix in the order in which the kernel reads it; see the kernel's header.

    Attributes
    ----------
    data : cupy.ndarray of uint8
        The units, one after the other.
    units : Units
    """

    def __init__(self, shape, dtype: DType, data, units: Units):
        self.shape, self.dtype, self.data, self.units = shape, dtype, data, units
        self._launches: dict[tuple, Ready] = {}

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def copy(self) -> ScatterLayout:
        """The same layout elsewhere in memory."""
        data = self.data.copy()
        settle()
        return ScatterLayout(self.shape, self.dtype, data, self.units)

    def launch(self, n: int, balance: bool, blocks: int | None) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, balance, blocks)
        found = self._launches.get(key)
        if found is None:
            blocks = blocks or multiprocessors(self.data.device.id)
            found = self._launches[key] = Ready(self, n, balance, blocks)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    per_stream = True

    def __init__(self, layout: ScatterLayout, n: int, balance: bool, blocks: int):
        import cupy

        super().__init__()
        dealt = deal(layout.units, blocks, tiles_of(n), balance=balance)
        name, config = layout.dtype.name, _config(layout, dealt, n)
        if dealt.cluster > 1 and not _at_once(name, config, len(dealt.bands) - 1):
            dealt = deal(layout.units, blocks, tiles_of(n), balance=balance, clusters=False)
            config = _config(layout, dealt, n)
        steps, parts, counts = schedule(layout.units, dealt)
        if dealt.cluster == 1:
            most_waiting = block_sums.most_waiting(layout.data.device.id)
            sharing = block_sums.sharing(int(parts["blocks"].max()), most_waiting)
            config = dataclasses.replace(config, sharing=sharing)
        self._config = config
        ways = {n < BY_WARPS, n <= BY_WARPS}  # both for 8 columns
        self._kernels = {
            by_warps: _kernel(name, dataclasses.replace(config, by_warps=by_warps))
            for by_warps in ways
        }
        apart = config.sharing is Sharing.APART
        self._add = loader.function(NAME, "add", defines(name, config)) if apart else None
        pitches = steps.shape[1], parts.shape[1]
        self._tables = [cupy.asarray(x.view(np.int32)) for x in (steps, parts, counts)]
        self._sizes = (len(counts), config.threads, config.shared_memory)
        addresses = (x.data.ptr for x in (layout.data, *self._tables))
        self._left = np.array(
            [(*addresses, *pitches, layout.shape[0], layout.units.rows)], LEFT
        )  # fmt: skip
        # 2:4 tiles are asked for by the TMA, ahead of all else.
        none = np.zeros(1, LEADS)
        self._leads = none if config.base else leads(layout.units, dealt, config.stages)
        if not cupy.cuda.get_current_stream().is_capturing():
            block_sums.rooms.reserve()
            settle()

    def bind(self, b, out, stream: int) -> Any:  # a `Launch`, or two `InTurn`
        view = np.array([(out.data.ptr, *(s // 2 for s in out.strides), out.shape[1])], OUT)
        room = block_sums.rooms.of_stream(stream)
        by_warps = out.shape[1] < BY_WARPS or not readable(b)
        maps = (tensor_map.empty(),) * 2 if by_warps else self._maps(b)
        arguments = (self._left, self._leads, *maps, right(b), view, room)
        launch = Launch(self._kernels[by_warps], *self._sizes, arguments, early=True)
        if self._add is None:
            return launch
        add = Launch(self._add, *self._sizes[:2], 0, (self._left, view, room), early=True)
        return block_sums.InTurn((launch, add))

    def _maps(self, b) -> tuple[np.ndarray, np.ndarray]:
        """How the TMA reads b, and rows 2 and 3 of every group of four of it."""
        columns = min(8 * self._config.tiles, SPAN)
        spill = _spill_map(b, columns) if self._config.base else tensor_map.empty()
        return _b_map(b, columns), spill


def _config(layout: ScatterLayout, dealt: Deal, n: int) -> Config:
    form = layout.units.base, dealt.cluster, layout.units.columns
    return Config(tiles_of(n), *form, by_warps=n < BY_WARPS)


def _kernel(name: str, config: Config) -> Any:
    """The compiled product of such elements."""
    macros = defines(name, config)
    return loader.function(NAME, "product", macros, shared_memory=config.shared_memory)


def _at_once(name: str, config: Config, clusters: int) -> bool:
    """Whether the device runs so many clusters at a time; the plan only guesses."""
    kernel = _kernel(name, config)
    return clusters <= most_clusters(kernel, config.cluster, config.threads, config.shared_memory)


def _b_map(b, columns: int) -> np.ndarray:
    """64 rows and up to 64 columns of b at a time.

    Rows of 16 bytes that lie close together come as one line.  Such lines begin with every row, so
    they overlap, and the last ends where b does.
    """
    k = b.shape[0]
    if columns > 8 or b.strides[0] > 16 or k % TILE_COLUMNS:
        return matrix_map(b, 1, 0, (columns, TILE_COLUMNS))
    words, lines = 4 * TILE_COLUMNS, k - TILE_COLUMNS + 1
    return tensor_map.tiled(
        b.data.ptr, (words, lines, 1), (16, 16 * lines), (words, 1), 4, tensor_float=False
    )


def _spill_map(b, columns: int) -> np.ndarray:
    """Rows 2 and 3 of every group of four of b, 16 groups at a time."""
    pitch, (k, n) = b.strides[0], b.shape
    start = b.data.ptr + 2 * pitch
    return tensor_map.tiled(start, (n, k // 4, 2), (4 * pitch, pitch), (columns, 16), 2)


def refuses(dtype: DType, n: int, compute_capability: str) -> str | None:
    """Why this kernel cannot multiply, as a sentence; None if it can."""
    if compute_capability != "90":
        return f"wgmma needs compute capability 9.0, the device has {compute_capability}"
    if dtype.name not in DTYPES:
        return f"the kernel multiplies {', '.join(DTYPES)}, not {dtype.name}"
    if n > MOST_COLUMNS:
        return f"the scatter kernel takes up to {MOST_COLUMNS} columns, not {n}"
    return None


def survey(bits: Any) -> Units:
    """How much the units of a CuPy matrix would hold; waits for it."""
    return hybrid_scatter_pack.measure(bits)[0]


def prepare(bits: Any, dtype: DType, **form: Any) -> ScatterLayout:
    """Pack a CuPy matrix (m, k) of uint16 with contiguous rows; waits for the counts.

    `form`: `base`, `columns`, and without `base` `rows`, as in `Units`; by default as suits the
    matrix.
    """
    units, sizes = hybrid_scatter_pack.measure(bits, **form)
    data = hybrid_scatter_pack.pack(bits, units, sizes)
    settle()
    return ScatterLayout(bits.shape, dtype, data, units)


def bound(
    layout: ScatterLayout, b, out, *, balance: bool = True, blocks: int | None = None
) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it.

    `blocks` is at most the number of multiprocessors, its default.
    """
    n = b.shape[1]
    return layout.launch(n, balance, blocks), b if takes_any(n) else rows_contiguous(b)


def takes_any(n: int) -> bool:
    """Whether b may have any strides; else its rows are contiguous and begin on 16 bytes."""
    return n <= BY_WARPS


def product(layout: ScatterLayout, b, out, **how: Any) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n), up to 128 columns; see `bound`."""
    run, b = bound(layout, b, out, **how)
    run(b, out)


def defines(name: str, config: Config) -> loader.Defines:
    """The macros of one specialisation."""
    return (
        ("ELEMENT", name), ("TILES", config.tiles), ("STAGES", config.stages),
        ("BATCH", config.batch), ("EARLY", config.early),
        ("BASE", int(config.base)), ("CLUSTER", config.cluster),
        ("UNIT_COLUMNS", config.columns), ("BY_WARPS", int(config.by_warps)),
        ("SHARING", int(config.sharing)),
    )  # fmt: skip


COMPILE_CHECKS = [
    (defines(name, config), "sm_90a", f"HGMMA.64x{config.width}x16")
    for name, config in (
        ("float16", Config(1)),
        ("bfloat16", Config(1, cluster=2)),
        ("float16", Config(1, cluster=2, by_warps=True)),
        ("bfloat16", Config(1, columns=128, by_warps=True)),
        ("bfloat16", Config(2)),
        ("float16", Config(4)),
        ("bfloat16", Config(8)),
        ("float16", Config(8)),
        ("bfloat16", Config(8, cluster=2)),
        ("float16", Config(4, cluster=4)),
        ("float16", Config(2, cluster=4)),
        ("float16", Config(2, cluster=2, columns=128)),
        ("bfloat16", Config(8, cluster=2, columns=128)),
        ("bfloat16", Config(16, columns=128)),
        ("bfloat16", Config(12)),
        ("float16", Config(12, cluster=2)),
        ("float16", Config(16)),
        ("bfloat16", Config(16, cluster=2)),
        ("bfloat16", Config(2, sharing=Sharing.MANY)),
        ("float16", Config(8, sharing=Sharing.MANY)),
        ("bfloat16", Config(2, sharing=Sharing.APART)),
        ("float16", Config(16, sharing=Sharing.APART)),
    )
] + [
    (defines(name, config), "sm_90a", f"HGMMA.SP.64x{8 * config.tiles}x32")
    for name, config in (
        ("bfloat16", Config(1, True)),
        ("float16", Config(1, True, cluster=2)),
        ("bfloat16", Config(1, True, columns=128, by_warps=True)),
        ("float16", Config(2, True)),
        ("bfloat16", Config(4, True, cluster=2)),
        ("float16", Config(8, True)),
        ("float16", Config(8, True, cluster=4)),
        ("float16", Config(4, True, cluster=2, columns=128)),
        ("float16", Config(8, True, cluster=2, columns=128)),
        ("float16", Config(12, True)),
        ("float16", Config(16, True)),
        ("bfloat16", Config(16, True, cluster=2)),
        ("float16", Config(16, True, sharing=Sharing.MANY)),
        ("float16", Config(8, True, columns=128, sharing=Sharing.APART)),
    )
]
