"""Launch ``cuda/hybrid_stream.cu``: unstructured 16-bit matrices times up to 64 columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import block_sums, loader
from sparse24.kernels.chip import chip
from sparse24.kernels.hybrid_launch import BoundProduct, result, right, settle
from sparse24.kernels.hybrid_stream_plan import (
    STRIP,
    Config,
    configs,
    schedule,
    smallest,
    warp_starts,
)
from sparse24.kernels.launch import Launch

NAME = "hybrid_stream"
MOST_COLUMNS = 64
LEAST_SPAN = 128  # columns of a chunk
LEFT = np.dtype(
    [("blob", "u8"), ("starts", "u8"), ("order", "u8"), ("cuts", "u8"),
     ("pitch", "i4"), ("stage_bytes", "i4"), ("m", "i8")]
)  # fmt: skip


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
        self._launches: dict[tuple, Ready] = {}

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
        blob = self.blob.copy()
        settle()
        return StreamLayout(self.shape, self.dtype, self.span, blob, self.cost)

    def launch(self, n: int, vector: bool, balance: bool, config: Config | None) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, vector, balance, config)
        found = self._launches.get(key)
        if found is None:
            here = chip(self.blob.device.id)
            if config is None:
                most = block_sums.most_waiting(self.blob.device.id)
                sizes = here.multiprocessors, here.has_wgmma, here.most_shared
                config = configs(self, n, *sizes, most)[0]
            early = here.launches_early
            found = self._launches[key] = Ready(self, vector, balance, config, early=early)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(
        self, layout: StreamLayout, vector: bool, balance: bool, config: Config, *, early: bool
    ):
        import cupy

        super().__init__()
        most = config.panel // layout.span if config.buffers == 1 else None
        order, cuts = schedule(
            layout.cost, config.height, config.splits * config.parts, balance, most
        )
        starts = warp_starts(layout.cost, order, cuts, config)
        # A warp reads the first starts at once, even where it has fewer chunks.
        padded = np.pad(starts.ravel(), (0, config.stages))
        self.tables = [cupy.asarray(x) for x in (padded, order, cuts)]
        shared = config.shared_memory(layout.stage_bytes)
        macros = defines(layout.span, layout.dtype.name, config, vector)
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        self._sizes = (kernel, len(cuts) * config.splits, 32 * config.warps, shared)
        self._early, self.per_stream = early, config.splits > 1
        addresses = (x.data.ptr for x in (layout.blob, *self.tables))
        sizes = (starts.shape[1], layout.stage_bytes, layout.shape[0])
        self._left = np.array([(*addresses, *sizes)], LEFT)
        if not cupy.cuda.get_current_stream().is_capturing():
            if self.per_stream:
                block_sums.rooms.reserve()
            settle()

    def bind(self, b, out, stream: int) -> Launch:
        room = block_sums.rooms.of_stream(stream) if self.per_stream else block_sums.NONE
        arguments = (self._left, right(b), result(out), room)
        return Launch(*self._sizes, arguments, early=self._early)


def span_for(density: float) -> int:
    """Columns of a chunk: twice as many where non-zeros are few, so that padding stays small."""
    return LEAST_SPAN if density > 0.08 else 256


def expected_bytes(shape, density: float) -> float:
    """Size of the layout of a matrix whose zeros fall by chance.

    A chunk of 128 columns and 16 rows has a header of 384 bytes.  It has as many rows of words as
    its fullest lane needs: those of its words, and of the longer of its two lists of halves.  The
    means and variances follow from the chances of 0, 1 and 2 non-zeros in a quad; the largest of
    32 normal variables is expected 2.07 standard deviations above their mean.
    """
    d = density
    counts = [(1 - d) ** 4, 4 * d * (1 - d) ** 3, 6 * d * d * (1 - d) ** 2]
    halves = 0.75 * counts[1]
    one, two = 0.25 * counts[1] + counts[2], max(0.0, 1 - sum(counts))  # words
    quads = span_for(density) / 8  # of a lane, in a chunk
    mean = one + 2 * two + halves / 2
    unequal = quads * halves * (1 - halves)  # variance of low halves less high ones
    variance = quads * (one + 4 * two + halves / 4 - mean**2) + unequal * (0.25 - 0.5 / np.pi)
    fullest = 2.07 * np.sqrt(variance)  # of 32 lanes, above the mean
    rows = quads * mean + np.sqrt(unequal / (2 * np.pi)) + fullest
    return float(shape[0] * shape[1] * (384 / 2048 + rows * 128 / (16 * span_for(density))))


def prepare(dense, dtype: DType, density: float) -> StreamLayout:
    """Pack a dense (m, k) CuPy matrix with contiguous rows; waits for the counts."""
    import cupy

    span = span_for(density)
    costs = _measure(dense, span)
    most = chip(dense.device.id).most_shared
    if smallest(span).shared_memory(16 * int(costs.max(initial=0))) > most:
        span = LEAST_SPAN  # a full chunk of 256 columns and b for it need more than some chips have
        costs = _measure(dense, span)
    offsets = cupy.asarray(np.concatenate([[0], np.cumsum(costs)]).astype(np.uint32))
    blob = cupy.zeros(int(costs.sum()) * 16, np.uint8)
    _over_chunks("pack", dense, span, offsets, blob)
    settle()
    return StreamLayout(dense.shape, dtype, span, blob, costs)


def _measure(dense, span: int) -> np.ndarray:
    """Size of each chunk of that many columns, in units of 16 bytes; waits for it."""
    import cupy

    m, k = dense.shape
    units = cupy.empty(-(-k // span) * -(-m // STRIP), np.uint32)
    _over_chunks("measure", dense, span, units)
    return units.get().astype(np.int64)


def _over_chunks(entry: str, dense, span: int, *arguments: Any) -> None:
    """Run an entry of the kernel with a warp for each chunk."""
    m, k = dense.shape
    grid = (-(-k // span), -(-m // STRIP))
    kernel = loader.function(NAME, entry, (("SPAN", span),))
    kernel(grid, (32,), (dense, m, k, dense.strides[0] // dense.itemsize, *arguments))


def refuses(dtype: DType, n: int) -> str | None:
    """None if the kernel can run, else why not."""
    if dtype.name not in ("float16", "bfloat16"):
        return f"the stream kernel takes float16 and bfloat16, not {dtype.name}"
    if n > MOST_COLUMNS:
        return f"the stream kernel takes up to {MOST_COLUMNS} columns, not {n}"
    return None


def defines(layout_span: int, dtype_name: str, config: Config, vector: bool) -> loader.Defines:
    """The macros of one specialisation; `vector`: rows of b allow 16-byte copies."""
    return (
        ("SPAN", layout_span), ("ELEMENT", dtype_name), ("TEAMS", config.teams),
        ("PARTS", config.parts), ("N_TILES", config.tiles), ("SPLITS", config.splits),
        ("PANEL", config.panel), ("BUFFERS", config.buffers), ("STAGES", config.stages),
        ("B_VECTOR", int(vector)), ("WGMMA", int(config.wgmma)),
    )  # fmt: skip


def bound(
    layout: StreamLayout, b, out, *, balance: bool = True, config: Config | None = None
) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it: as it is."""
    n = b.shape[1]
    row, column = (s // 2 for s in b.strides)
    vector = n % 8 == 0 and column == 1 and row % 8 == 0 and b.data.ptr % 16 == 0
    return layout.launch(n, vector, balance, config), b


def product(layout: StreamLayout, b, out, **how: Any) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n), up to 64 columns; see `bound`."""
    run, b = bound(layout, b, out, **how)
    run(b, out)


def _check(arch: str, instruction: str, span: int, name: str, config: Config, vector: bool = True):
    return defines(span, name, config, vector), arch, instruction


COMPILE_CHECKS = [
    _check("sm_90a", "HGMMA.SP.64x8x32", 256, "bfloat16", Config(2, 4, 1, 2, 1024, 1, 3)),
    _check("sm_90a", "HGMMA.SP.64x16x32", 256, "float16", Config(2, 4, 2, 2, 1024), False),
    _check("sm_90a", "HGMMA.SP.64x16x32", 128, "float16", Config(4, 1, 2, 8, 512, 1, 3)),
    _check("sm_90a", "HGMMA.SP.64x16x32", 128, "bfloat16", Config(7, 1, 2, 4, 1024, 1, 2)),
    _check("sm_90a", "HGMMA.SP.64x32x32", 128, "bfloat16", Config(4, 1, 4, 8, 128, 3, 3)),
    _check("sm_90a", "HGMMA.SP.64x64x32", 128, "bfloat16", Config(4, 1, 8, 4, 128, 4, 3)),
    _check("sm_80", "HMMA.SP.16832", 256, "float16", Config(2, 2, 1, 1, 512, 1, 2, False), False),
    _check("sm_120", "HMMA.SP.16832", 128, "bfloat16", Config(2, 1, 8, 4, 256, 2, 3, False)),
]
