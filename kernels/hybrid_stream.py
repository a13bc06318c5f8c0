"""Launch ``cuda/hybrid_stream.cu``: unstructured 16-bit matrices times up to 64 columns."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader

NAME = "hybrid_stream"
STRIP = 16  # rows
MOST_COLUMNS = 64
MOST_SHARED = 227 * 1024
MANY = (1, 2, 3, 4, 5, 6, 7, 8)  # teams and parts that are tried
WORTH_UNEVEN = 1.08  # gain from which parts of unlike length are taken
LEFT = np.dtype(
    [("blob", "u8"), ("starts", "u8"), ("order", "u8"), ("cuts", "u8"),
     ("pitch", "i4"), ("stage_bytes", "i4"), ("m", "i8")]
)  # fmt: skip
RIGHT = np.dtype([("b", "u8"), ("k", "i8"), ("n", "i8"), ("row", "i8"), ("column", "i8")])


@dataclass(frozen=True)
class Config:
    """How a product is cut up.

    Attributes
    ----------
    teams, parts : int
        Teams of four warps of a block: so many 64 rows, and so many parts of k.
    tiles : int
        Tiles of 8 columns of the result in a block.
    splits : int
        Blocks of a cluster, which share k.
    panel, buffers : int
        Lines of b that are staged at a time for each part, and how many times over.
    stages : int
        Chunks of a warp in shared memory.
    wgmma : bool
        Multiply by warpgroup instructions.
    """

    teams: int
    parts: int
    tiles: int
    splits: int
    panel: int
    buffers: int = 1
    stages: int = 2
    wgmma: bool = True

    @property
    def name(self) -> str:
        shape = f"{self.teams}x{self.parts}x{self.splits}"
        return f"{shape}t{self.tiles}p{self.panel}b{self.buffers}s{self.stages}w{int(self.wgmma)}"

    @property
    def warps(self) -> int:
        return 4 * self.teams * self.parts

    @property
    def height(self) -> int:
        """Strips of a block."""
        return 4 * self.teams

    def shared_memory(self, stage_bytes: int) -> int:
        b_bytes = self.buffers * self.parts * self.panel * 16 * self.tiles
        sums = self.parts * self.teams * 64 * (8 * self.tiles + 1) * 4
        return 1024 + max(b_bytes + self.stages * self.warps * stage_bytes, sums)


class StreamLayout:
    """A matrix in the order in which the kernel reads it; see the kernel's header.

    Attributes
    ----------
    blob : cupy.ndarray of uint8
    cost : numpy.ndarray of int64, shape (strips, chunks)
        Size of each chunk, in units of 16 bytes; they lie one after the other.
    """

    def __init__(self, shape, dtype: DType, span: int, blob, units):
        self.shape, self.dtype, self.span = shape, dtype, span
        self.blob = blob
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
        return self.blob.nbytes

    @property
    def stage_bytes(self) -> int:
        return 16 * int(self.cost.max(initial=0))

    def copy(self) -> StreamLayout:
        """The same layout elsewhere in memory."""
        return StreamLayout(self.shape, self.dtype, self.span, self.blob.copy(), self.cost)

    def launch(self, n: int, vector: bool, balance: bool, config: Config | None) -> Launch:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, vector, balance, config)
        found = self._launches.get(key)
        if found is None:
            if config is None:
                sms, major = _device(self.blob.device.id)
                config = configs(self, n, sms, hopper=major == 9)[0]
            found = self._launches[key] = Launch(self, n, vector, balance, config)
        return found


class Launch:
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: StreamLayout, n: int, vector: bool, balance: bool, config: Config):
        import cupy

        most = config.panel // layout.span if config.buffers == 1 else None
        order, cuts = schedule(
            layout.cost, config.height, config.splits * config.parts, balance, most
        )
        starts = warp_starts(layout.cost, order, cuts, config)
        self.order, self.cuts = cupy.asarray(order), cupy.asarray(cuts)
        self.starts = cupy.asarray(starts)
        self.shared_memory = config.shared_memory(layout.stage_bytes)
        macros = defines(layout.span, layout.dtype.name, config, vector)
        self.kernel = loader.function(NAME, "product", macros, shared_memory=self.shared_memory)
        self.grid = (len(cuts), config.splits, -(-n // (8 * config.tiles)))
        self.block = (32 * config.warps,)
        addresses = (x.data.ptr for x in (layout.blob, self.starts, self.order, self.cuts))
        sizes = (starts.shape[1], layout.stage_bytes, layout.shape[0])
        self.left = loader.by_value(np.array([(*addresses, *sizes)], LEFT))


def schedule(cost: np.ndarray, height: int, parts: int, balance: bool, most: int | None = None):
    """Deal strips to blocks of `height` strips and cut each block's chunks into parts.

    Balanced, four strips of like cost make a team, blocks get dear and cheap teams in turn,
    and the parts of a block cost about the same where that matters; else strips stay in
    order and parts have the same number of chunks.

    Parameters
    ----------
    cost : ndarray, shape (strips, chunks)
    height, parts : int
    balance : bool
    most : int, optional
        Chunks that a part may have at most.

    Returns
    -------
    order : ndarray of int32, shape (blocks * height,)
        Strip numbers; -1 where there is none.
    cuts : ndarray of int32, shape (blocks, parts + 1)
    """
    strips, chunks = cost.shape
    order = np.argsort(-cost.sum(1), kind="stable") if balance else np.arange(strips)
    order = np.pad(order, (0, -strips % height), constant_values=-1).astype(np.int32)
    blocks = order.size // height
    even = np.tile(np.arange(parts + 1) * chunks // parts, (blocks, 1)).astype(np.int32)
    if not balance:
        return order, even
    if height % 4 == 0:
        teams = order.reshape(height // 4, blocks, 4)
        teams[1::2] = teams[1::2, ::-1].copy()
        order = teams.swapaxes(0, 1).ravel().copy()
    dealt = np.where(order[:, None] >= 0, cost[order], 0).reshape(blocks, height, chunks).sum(1)
    cuts = _cuts(dealt, parts)
    fits = most is None or np.diff(cuts, axis=1).max(initial=0) <= most
    gain = _dearest(dealt, even) / max(_dearest(dealt, cuts), 1)
    return order, cuts if fits and gain > WORTH_UNEVEN else even


def warp_starts(cost: np.ndarray, order: np.ndarray, cuts: np.ndarray, config: Config):
    """Where the chunks of every warp begin, and the last one ends, in units of 16 bytes.

    Returns
    -------
    ndarray of uint32, shape (warps of all blocks, most chunks + 1)
        Warps by block, block of the cluster, part, strip; zeros where there is no strip.
    """
    strips, chunks = cost.shape
    ends = np.cumsum(cost, dtype=np.int64)
    offsets = np.concatenate([[0], ends])
    blocks = len(cuts)
    first, last = cuts[:, :-1], cuts[:, 1:]
    pitch = int((last - first).max(initial=0)) + 1
    chunk = np.minimum(first[:, :, None] + np.arange(pitch), last[:, :, None])
    strip = order.reshape(blocks, 1, config.height, 1)
    at = np.maximum(strip, 0) * chunks + chunk[:, :, None]
    return np.where(strip >= 0, offsets[at], 0).astype(np.uint32).reshape(-1, pitch)


def _cuts(dealt: np.ndarray, parts: int) -> np.ndarray:
    """Chunks at which parts of equal cost begin, for every block's costs by chunk."""
    blocks, chunks = dealt.shape
    running = np.cumsum(dealt, axis=1)
    wanted = running[:, -1:] * np.arange(1, parts) / parts
    found = [np.searchsorted(run - run[0] / 2, want) for run, want in zip(running, wanted)]
    inner = np.reshape(np.asarray(found, np.int32), (blocks, parts - 1))
    edges = np.zeros((blocks, 1), np.int32)
    return np.concatenate([edges, inner, edges + chunks], axis=1).astype(np.int32)


def _dearest(dealt: np.ndarray, cuts: np.ndarray) -> int:
    """Cost of the dearest part."""
    running = np.pad(np.cumsum(dealt, axis=1), ((0, 0), (1, 0)))
    return int(np.diff(np.take_along_axis(running, cuts.astype(np.int64), 1), axis=1).max())


def span_for(density: float) -> int:
    """Columns of a chunk: longer where non-zeros are few, so that padding stays small."""
    return 128 if density > 0.08 else 256


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
    return StreamLayout((m, k), dtype, span, blob, costs)


def configs(layout: StreamLayout, n: int, sms: int, hopper: bool = True) -> list[Config]:
    """Ways to cut up the product with `n` columns, best guess first."""
    tiles = 1 if n <= 8 else 2 if n <= 16 else 4 if n <= 32 else 8
    found = []
    for stages, splits, teams, parts in itertools.product((3, 2), (1, 2), MANY, MANY):
        if teams * parts > (8 if tiles <= 2 else 4) or (splits > 1 and not hopper):
            continue
        panel = _panel(layout, tiles, stages, splits, teams, parts)
        if panel is not None:
            config = Config(teams, parts, tiles, splits, *panel, stages, hopper)
            found.append((_time(layout, config, sms), config))
    if not found:  # very full chunks: two teams of many rows always fit
        found.append((0.0, Config(1, 1, tiles, 1, layout.span, 2, 2, hopper)))
    return [config for _, config in sorted(found, key=lambda pair: pair[0])]


def _panel(layout: StreamLayout, tiles: int, stages: int, splits: int, teams: int, parts: int):
    """Lines and buffers of a panel: all lines of a part with some to spare, or two buffers."""
    chunks = -(-layout.chunks // (splits * parts))
    fits = [
        (size * layout.span, 1)
        for size in (chunks + -(-chunks // 8), chunks)
        if Config(teams, parts, tiles, splits, size * layout.span, 1, stages).shared_memory(
            layout.stage_bytes
        )
        <= MOST_SHARED
    ]
    if fits:
        return fits[0]
    for size in (8, 4, 2, 1):
        config = Config(teams, parts, tiles, splits, size * layout.span, 2, stages)
        if config.shared_memory(layout.stage_bytes) <= MOST_SHARED and size <= chunks:
            return config.panel, 2
    return None


def _time(layout: StreamLayout, config: Config, sms: int) -> float:
    """Relative time: waves of blocks, each with its share of the matrix and of b."""
    blocks = -(-layout.strips // config.height) * config.splits
    a_bytes = layout.nbytes / max(layout.strips, 1) * config.height / config.splits
    b_bytes = layout.shape[1] / config.splits * 16 * config.tiles
    phases = 1 if config.buffers == 1 else layout.shape[1] / config.splits / config.parts / config.panel
    idle = 1 + 6 / config.warps + 0.03 * (3 - config.stages)
    return -(-blocks // sms) * ((a_bytes + 0.4 * b_bytes) * idle + 2000 * phases + 3000 * config.splits)


def refuses(dtype: DType, n: int) -> str | None:
    """None if the kernel can run, else why not."""
    if dtype.name not in ("float16", "bfloat16"):
        return f"the stream kernel takes float16 and bfloat16, not {dtype.name}"
    if n > MOST_COLUMNS:
        return f"the stream kernel takes up to {MOST_COLUMNS} columns, not {n}"
    return None


def defines(layout_span: int, dtype_name: str, config: Config, vector: bool) -> loader.Defines:
    return (
        ("SPAN", layout_span), ("ELEMENT", dtype_name), ("TEAMS", config.teams),
        ("PARTS", config.parts), ("N_TILES", config.tiles), ("SPLITS", config.splits),
        ("PANEL", config.panel), ("BUFFERS", config.buffers), ("STAGES", config.stages),
        ("B_VECTOR", int(vector)), ("WGMMA", int(config.wgmma)),
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
    (defines(256, "bfloat16", Config(2, 4, 1, 2, 1024, 1, 3), True), "sm_90a", "HGMMA.SP.64x8x32"),
    (defines(512, "float16", Config(2, 4, 2, 2, 1024), False), "sm_90a", "HGMMA.SP.64x16x32"),
    (defines(256, "bfloat16", Config(2, 2, 4, 2, 256, 2), True), "sm_90a", "HGMMA.SP.64x32x32"),
    (defines(128, "bfloat16", Config(2, 2, 8, 2, 256, 2), True), "sm_90a", "HGMMA.SP.64x64x32"),
    (defines(256, "float16", Config(2, 2, 1, 1, 512, 1, 2, False), False), "sm_80", "HMMA.SP.16832"),
    (defines(128, "bfloat16", Config(2, 1, 8, 1, 256, 2, 3, False), True), "sm_120", "HMMA.SP.16832"),
]
