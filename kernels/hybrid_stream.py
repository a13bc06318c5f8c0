"""Launch ``cuda/hybrid_stream.cu``: unstructured 16-bit matrices times up to 64 columns."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader

NAME = "hybrid_stream"
STRIP = 16  # rows
MOST_COLUMNS = 64
MOST_SHARED = 227 * 1024
LEFT = np.dtype(
    [("blob", "u8"), ("offsets", "u8"), ("order", "u8"), ("cuts", "u8"),
     ("chunks", "i4"), ("stage_bytes", "i4"), ("m", "i8")]
)  # fmt: skip
RIGHT = np.dtype([("b", "u8"), ("k", "i8"), ("n", "i8"), ("row", "i8"), ("column", "i8")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    warps, strips : int
        Warps of a block, and strips of 16 rows of a warp.
    tiles : int
        Tiles of 8 columns of the result in a block.
    splits : int
        Parts of k, one block of a cluster each.
    panel : int
        Rows of b that are staged at a time.
    stages : int
        Chunks of a strip in shared memory.
    """

    warps: int
    strips: int
    tiles: int
    splits: int
    panel: int
    stages: int = 2

    @property
    def name(self) -> str:
        return f"w{self.warps}r{self.strips}t{self.tiles}s{self.splits}p{self.panel}x{self.stages}"

    def b_bytes(self) -> int:
        return self.panel * (16 * self.tiles + (16 if self.tiles > 1 else 0))

    def shared_memory(self, stage_bytes: int) -> int:
        staging = 2 * self.b_bytes() + self.stages * self.warps * self.strips * stage_bytes
        sums = self.warps * self.strips * STRIP * (8 * self.tiles + 1) * 4
        return max(staging, sums)


class StreamLayout:
    """A matrix in the order in which the kernel reads it; see the kernel's header.

    Attributes
    ----------
    blob : cupy.ndarray of uint8
    offsets : cupy.ndarray of uint32, shape (strips * chunks + 1,)
        Start of each chunk, in units of 16 bytes.
    cost : numpy.ndarray of int64, shape (strips, chunks)
        Size of each chunk in the same units.
    """

    def __init__(self, shape, dtype: DType, span: int, blob, offsets, units):
        self.shape, self.dtype, self.span = shape, dtype, span
        self.blob, self.offsets = blob, offsets
        self.cost = units.reshape(self.strips, self.chunks)
        self._launches: dict[tuple, Launch] = {}

    @property
    def strips(self) -> int:
        return -(-self.shape[0] // STRIP)

    @property
    def chunks(self) -> int:
        return -(-self.shape[1] // self.span)

    @property
    def nbytes(self) -> int:
        return self.blob.nbytes + self.offsets.nbytes

    @property
    def stage_bytes(self) -> int:
        return 16 * int(self.cost.max(initial=0))

    def copy(self) -> StreamLayout:
        """The same layout elsewhere in memory."""
        return StreamLayout(
            self.shape, self.dtype, self.span, self.blob.copy(), self.offsets.copy(), self.cost
        )

    def launch(self, n: int, vector: bool, balance: bool, config: Config | None) -> Launch:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, vector, balance, config)
        found = self._launches.get(key)
        if found is None:
            if config is None:
                sms, major = _device(self.blob.device.id)
                config = configs(self, n, sms, cluster=major >= 9)[0]
            found = self._launches[key] = Launch(self, n, vector, balance, config)
        return found


class Launch:
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: StreamLayout, n: int, vector: bool, balance: bool, config: Config):
        import cupy

        height = config.warps * config.strips
        order, cuts = schedule(layout.cost, height, config.splits, balance)
        self.order, self.cuts = cupy.asarray(order), cupy.asarray(cuts)
        self.shared_memory = config.shared_memory(layout.stage_bytes)
        macros = defines(layout.span, layout.dtype.name, config, vector)
        self.kernel = loader.function(NAME, "product", macros, shared_memory=self.shared_memory)
        self.grid = (len(cuts), config.splits, -(-n // (8 * config.tiles)))
        self.block = (32 * config.warps,)
        addresses = (x.data.ptr for x in (layout.blob, layout.offsets, self.order, self.cuts))
        sizes = (layout.chunks, layout.stage_bytes, layout.shape[0])
        self.left = loader.by_value(np.array([(*addresses, *sizes)], LEFT))


def schedule(cost: np.ndarray, height: int, splits: int, balance: bool):
    """Deal strips to blocks of `height` strips and cut each block's chunks into parts.

    Balanced, strips of like cost share a block, dear blocks start first, and the
    parts of a block cost about the same; else strips stay in order and parts have
    the same number of chunks.

    Returns
    -------
    order : ndarray of int32, shape (blocks * height,)
        Strip numbers; -1 where there is none.
    cuts : ndarray of int32, shape (blocks, splits + 1)
    """
    strips, chunks = cost.shape
    order = np.argsort(-cost.sum(1), kind="stable") if balance else np.arange(strips)
    order = np.pad(order, (0, -strips % height), constant_values=-1).astype(np.int32)
    blocks = order.size // height
    if not balance:
        even = np.arange(splits + 1) * chunks // splits
        return order, np.tile(even, (blocks, 1)).astype(np.int32)
    dealt = np.where(order[:, None] >= 0, cost[order], 0).reshape(blocks, height, chunks)
    running = np.cumsum(dealt.sum(1), axis=1)
    wanted = running[:, -1:] * np.arange(1, splits) / splits
    found = [np.searchsorted(run - run[0] / 2, want) for run, want in zip(running, wanted)]
    inner = np.reshape(np.asarray(found, np.int32), (blocks, splits - 1))
    edges = np.zeros((blocks, 1), np.int32)
    return order, np.concatenate([edges, inner, edges + chunks], axis=1).astype(np.int32)


def span_for(density: float) -> int:
    """Columns of a chunk: longer where non-zeros are few, so that padding stays small."""
    return 128 if density > 0.22 else 256 if density > 0.08 else 512


def expected_bytes(shape, density: float) -> float:
    """Size of the layout of a matrix whose zeros fall by chance."""
    d = density
    counts = [(1 - d) ** 4, 4 * d * (1 - d) ** 3, 6 * d * d * (1 - d) ** 2]
    single = 0.75 * counts[1]
    words = 0.25 * counts[1] + counts[2] + 2 * max(0.0, 1 - sum(counts))
    quads = span_for(density) / 8  # of a lane, in a chunk
    rows = quads * (words + single / 2)
    spread = 2.07 * (quads * (words + single / 4)) ** 0.5  # the fullest of 32 lanes
    return shape[0] * shape[1] * (384 / 2048 + (rows + spread) * 128 / (16 * span_for(density)))


def prepare(dense, dtype: DType, density: float) -> StreamLayout:
    """Pack a dense (m, k) CuPy matrix with contiguous rows; waits for the counts."""
    import cupy

    m, k = dense.shape
    span = span_for(density)
    defines = (("SPAN", span),)
    grid = (-(-k // span), -(-m // STRIP))
    chunks = grid[0] * grid[1]
    units = cupy.empty(chunks, np.uint32)
    source = (dense, m, k, dense.strides[0] // dense.itemsize)
    loader.function(NAME, "measure", defines)(grid, (32,), (*source, units))
    costs = units.get().astype(np.int64)
    offsets = cupy.asarray(np.concatenate([[0], np.cumsum(costs)]).astype(np.uint32))
    blob = cupy.zeros(int(costs.sum()) * 16, np.uint8)
    loader.function(NAME, "pack", defines)(grid, (32,), (*source, offsets, blob))
    return StreamLayout((m, k), dtype, span, blob, offsets, costs)


def configs(layout: StreamLayout, n: int, sms: int, cluster: bool = True) -> list[Config]:
    """Ways to cut up the product with `n` columns, best guess first."""
    tiles = 1 if n <= 8 else 2 if n <= 16 else 4 if n <= 32 else 8
    panel = max(256 if tiles <= 2 else 128, min(layout.span, 512) if tiles == 1 else 128)
    found = []
    for warps in (4, 8) if tiles == 1 else (8, 4):
        trial = Config(warps, 1, tiles, 1, panel)
        shared = trial.shared_memory(layout.stage_bytes)
        if shared > MOST_SHARED:
            continue
        blocks = -(-layout.strips // warps)
        slots = sms * max(1, min(MOST_SHARED // (shared + 1024), 24 // warps))
        most = min(8, layout.chunks) if cluster else 1
        splits = min(range(1, most + 1), key=lambda s: _waves(blocks, s, slots))
        found.append((_waves(blocks, splits, slots), Config(warps, 1, tiles, splits, panel)))
    if not found:  # a very full chunk: two warps always fit
        found.append((0.0, Config(2, 1, tiles, 1, 128)))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


def _waves(blocks: int, splits: int, slots: int) -> float:
    """Relative time of a launch: full waves of blocks, each 1/splits of a block's work long."""
    return -(-blocks * splits // slots) * (1 / splits + 0.04) * slots


def refuses(dtype: DType, n: int) -> str | None:
    """None if the kernel can run, else why not."""
    if dtype.name not in ("float16", "bfloat16"):
        return f"the stream kernel takes float16 and bfloat16, not {dtype.name}"
    if n > MOST_COLUMNS:
        return f"the stream kernel takes up to {MOST_COLUMNS} columns, not {n}"
    return None


def defines(layout_span: int, dtype_name: str, config: Config, vector: bool) -> loader.Defines:
    return (
        ("SPAN", layout_span), ("ELEMENT", dtype_name), ("WARPS", config.warps),
        ("STRIPS", config.strips), ("N_TILES", config.tiles), ("SPLITS", config.splits),
        ("PANEL", config.panel), ("STAGES", config.stages), ("B_VECTOR", int(vector)),
    )  # fmt: skip


@functools.cache
def _device(device: int) -> tuple[int, int]:
    import cupy

    handle = cupy.cuda.Device(device)
    return handle.attributes["MultiProcessorCount"], int(handle.compute_capability) // 10


def product(
    layout: StreamLayout, b, out, *, balance: bool = True, config: Config | None = None
) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides, n up to 64."""
    k, n = b.shape
    row, column = (s // 2 for s in b.strides)
    vector = n % 8 == 0 and column == 1 and row % 8 == 0 and b.data.ptr % 16 == 0
    ready = layout.launch(n, vector, balance, config)
    right = loader.by_value(np.array([(b.data.ptr, k, n, row, column)], RIGHT))
    out_row, out_column = (s // 2 for s in out.strides)
    arguments = (ready.left, right, out, out_row, out_column)
    ready.kernel(ready.grid, ready.block, arguments, shared_mem=ready.shared_memory)


COMPILE_CHECKS = [
    (defines(256, "bfloat16", Config(8, 1, 1, 4, 512), True), "sm_90a", "HMMA.SP.16832"),
    (defines(512, "float16", Config(8, 1, 2, 8, 512), False), "sm_90a", "HMMA.SP.16832"),
    (defines(256, "bfloat16", Config(4, 2, 4, 4, 256), True), "sm_90a", "HMMA.SP.16832"),
    (defines(1024, "bfloat16", Config(8, 2, 8, 3, 256), True), "sm_90a", "HMMA.SP.16832"),
    (defines(256, "float16", Config(8, 1, 1, 1, 512), False), "sm_80", "HMMA.SP.16832"),
    (defines(128, "bfloat16", Config(8, 1, 1, 1, 512, 3), True), "sm_120", "HMMA.SP.16832"),
]
