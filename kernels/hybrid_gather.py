"""Cut up products of very sparse 16-bit matrices and launch ``cuda/hybrid_gather.cu``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24._dtypes import DType
from sparse24.kernels import loader
from sparse24.kernels.hybrid_gather_layout import PANEL, lay_out
from sparse24.kernels.hybrid_launch import BoundProduct, result, right, settle
from sparse24.kernels.launch import Launch

NAME = "hybrid_gather"
MOST_HELD = 2  # panels that fit into shared memory beside the sums
MOST_PANELS = 16
MOST_CLUSTER = 8  # blocks
MOST_WARPS = 32
MOST_WIDE_WARPS = 24  # with two planes, which need more registers
PANEL_BYTES = PANEL * 16
START_ROWS = 48  # of the matrix, as dear as to begin a block and read its panel
H200_SMS = 132
H200_SHARED = 227 << 10
LEFT = np.dtype([("words", "u8"), ("begins", "u8"), ("rows", "u8"), ("units", "i4"), ("m", "i4")])


@dataclass(frozen=True)
class Config:
    """How a product with few columns is cut up.

    Attributes
    ----------
    columns : int
        Columns of the result in a plane of a block: 1, 2, 4 or 8.
    units, group : int
        Units of a block, and warps of a unit.
    held : int
        Panels of a block.
    planes : int
        Planes of a panel.
    """

    columns: int
    units: int
    group: int
    held: int = 1
    planes: int = 1

    @property
    def name(self) -> str:
        return f"c{self.columns}u{self.units}g{self.group}h{self.held}p{self.planes}"

    @property
    def width(self) -> int:
        """Columns of the result in a block."""
        return self.columns * self.planes

    @property
    def shared_memory(self) -> int:
        return PANEL_BYTES * (1 + self.held * self.planes)


class GatherLayout:
    """A matrix as words of units; the arrays are those of the kernel's header."""

    def __init__(self, shape, dtype: DType, height: int, words, begins, rows):
        self.shape, self.dtype, self.height = shape, dtype, height
        self.words, self.begins, self.rows = words, begins, rows
        self._launches: dict[tuple, Ready] = {}
        self._configs: dict[int, Config] = {}

    @property
    def panels(self) -> int:
        return -(-self.shape[1] // PANEL)

    @property
    def units(self) -> int:
        return self.rows.size // self.height

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.begins.nbytes + self.rows.nbytes

    def copy(self) -> GatherLayout:
        """The same layout elsewhere in memory."""
        arrays = [x.copy() for x in (self.words, self.begins, self.rows)]
        settle()
        return GatherLayout(self.shape, self.dtype, self.height, *arrays)

    def config(self, n: int) -> Config:
        """The way in which a product with `n` columns is cut up, kept for the next time."""
        found = self._configs.get(n)
        if found is None:
            sms, _, shared = _device()
            found = self._configs[n] = configure(
                self.units, self.panels, n, sms, self.height, shared
            )
        return found

    def launch(self, n: int, load: int, config: Config) -> Ready:
        """The compiled product with `n` columns, made at the first use and kept."""
        key = (n, load, config)
        found = self._launches.get(key)
        if found is None:
            early = _device()[1] >= 9
            found = self._launches[key] = Ready(self, n, load, config, early=early)
        return found


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: GatherLayout, n: int, load: int, config: Config, *, early: bool):
        super().__init__()
        macros = defines(layout, config, load)
        shared = config.shared_memory
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        cluster = -(-layout.panels // config.held)
        sets, groups = -(-layout.units // config.units), -(-n // config.width)
        self._sizes = (kernel, cluster * sets * groups, 32 * config.units * config.group, shared)
        self._early = early
        addresses = (x.data.ptr for x in (layout.words, layout.begins, layout.rows))
        self._left = np.array([(*addresses, layout.units, layout.shape[0])], LEFT)

    def bind(self, b, out, stream: int) -> Launch:
        return Launch(*self._sizes, (self._left, right(b), result(out)), early=self._early)


def _device() -> tuple[int, int, int]:
    """Of the current device: multiprocessors, compute capability, shared memory of a block."""
    import cupy

    device = cupy.cuda.Device()
    found = device.attributes
    shared = found["MaxSharedMemoryPerBlockOptin"]
    return found["MultiProcessorCount"], int(device.compute_capability) // 10, shared


def width(n: int) -> int:
    """Columns of a plane."""
    return next((c for c in (1, 2, 4) if c >= n), 8)


def configure(
    units: int, panels: int, n: int, sms: int, height: int = 32, most_shared: int = H200_SHARED
) -> Config:
    """Units of a block such that blocks fill whole waves."""
    wide = n > 8 and panels <= MOST_CLUSTER and most_shared >= 3 * PANEL_BYTES
    held, planes = (1, 2) if wide else (min(panels, MOST_HELD), 1)
    warps = MOST_WIDE_WARPS if wide else MOST_WARPS
    groups = -(-n // (planes * width(n)))

    def waves(of_block: int) -> float:
        shares = -(-panels // held) * groups
        return _waves(units, shares, of_block, sms, held, START_ROWS / height, warps)

    found = min(range(1, warps // held + 1), key=lambda u: (waves(u), u))
    return Config(width(n), found, warps // found // held * held, held, planes)


def _waves(
    units: int, shares: int, of_block: int, sms: int, held: int,
    start: float = 0.3, warps: int = MOST_WARPS,
) -> float:  # fmt: skip
    """Relative time of a launch with so many units in a block; to begin it costs `start` units."""
    sets = -(-units // of_block)
    idle = warps / (of_block * (warps // of_block // held * held))
    return -(-sets // max(1, sms // shares)) * (of_block * idle + start)


WORD_BYTES = 4


def effort(lengths: np.ndarray, k: int, n: int, sms: int, most_shared: int) -> tuple[float, float]:
    """Words of the busiest SM times `sms`, and their bytes.

    `lengths` are the non-zeros of each row, the longest first.
    """
    panels = -(-k // PANEL)
    height = height_for(len(lengths), panels, sms)
    units = height * lengths[::height]  # as long as their longest row
    config = configure(len(units), panels, n, sms, height, most_shared)
    sets = -(-len(units) // config.units)
    shares = -(-panels // config.held) * -(-n // config.width)
    at_once = max(1, sms // shares)
    waves = -(-sets // at_once)
    busiest = max(waves * config.units * units.mean(), units[: config.units].sum())
    words = float(busiest) * at_once
    return words, WORD_BYTES * words


def height_for(m: int, panels: int, sms: int = H200_SMS) -> int:
    """Rows of a unit: fewer where blocks would otherwise not fill a wave evenly."""
    held = min(panels, MOST_HELD)
    shares = -(-panels // held)

    def waste(height: int) -> float:
        units = -(-m // height)
        sizes = range(1, MOST_WARPS // held + 1)
        best = min(_waves(units, shares, u, sms, held) for u in sizes)
        return best * height * (1.0 + 0.02 * (32 // height))

    return min((32, 16, 8), key=waste)


def refuses(k: int, dtype: DType) -> str | None:
    """None if the kernel can run, else why not."""
    if dtype.name not in ("float16", "bfloat16"):
        return f"the gather kernel takes float16 and bfloat16, not {dtype.name}"
    if k > PANEL * MOST_PANELS:
        return f"the gather kernel takes up to {PANEL * MOST_PANELS} columns, not {k}"
    return None


def prepare(bits: Any, dtype: DType, xp=np, *, height: int | None = None) -> GatherLayout:
    """Lay out a dense (m, k) matrix of bits; `xp` is its array library.  Waits for the sizes."""
    m, k = bits.shape
    panels = -(-k // PANEL)
    height = height or height_for(m, panels)
    words, begins, rows = lay_out(bits, height, xp)
    if xp is not np:
        settle()
    return GatherLayout((m, k), dtype, height, words, begins, rows)


def defines(layout: GatherLayout, config: Config, load: int) -> loader.Defines:
    return _defines(layout.dtype.name, layout.panels, layout.height, config, load)


def _defines(name: str, panels: int, height: int, config: Config, load: int) -> loader.Defines:
    return (
        ("ELEMENT", name), ("PANELS", panels), ("HEIGHT", height), ("COLUMNS", config.columns),
        ("PLANES", config.planes), ("UNITS", config.units), ("GROUP", config.group),
        ("HELD", config.held), ("B_LOAD", load),
    )  # fmt: skip


def _load(b, columns: int) -> int:
    """How b is fetched: 2 as one run of memory, 1 by rows of 16 bytes, 0 by elements."""
    row, column = (s // 2 for s in b.strides)
    if b.data.ptr % 16 or (column != 1 and b.shape[1] > 1):
        return 0
    one_run = b.shape[1] == columns and (row == columns or b.shape[0] == 1)
    # Else the last copy of 16 bytes would reach past the end of b.
    if columns <= 8 and one_run and b.size % 8 == 0:
        return 2
    return int(columns >= 8 and b.shape[1] % 8 == 0 and row % 8 == 0)


def product(layout: GatherLayout, b, out, *, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    n = b.shape[1]
    config = config or layout.config(n)
    layout.launch(n, _load(b, config.width), config)(b, out)


COMPILE_CHECKS = [
    (_defines("float16", 1, 32, Config(8, 1, 24, 1, 2), 1), "sm_90a", "FFMA"),
    (_defines("bfloat16", 2, 16, Config(8, 6, 4, 1, 2), 0), "sm_90a", "FFMA"),
    (_defines("bfloat16", 1, 32, Config(8, 4, 8), 2), "sm_90a", "FFMA"),
    (_defines("float16", 2, 16, Config(8, 7, 4, 2), 1), "sm_90a", "FFMA"),
    (_defines("float16", 3, 16, Config(8, 7, 4, 2), 2), "sm_90a", "FFMA"),
    (_defines("float16", 1, 8, Config(1, 32, 1), 0), "sm_80", "FFMA"),
    (_defines("bfloat16", 1, 32, Config(4, 8, 4), 2), "sm_120", "FFMA"),
]
