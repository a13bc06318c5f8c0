"""Cut up products of very sparse 16-bit matrices and launch ``cuda/hybrid_gather.cu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24.kernels import loader
from sparse24.kernels.chip import H200, chip
from sparse24.kernels.hybrid_gather_layout import Words, lay_out, row_counts
from sparse24.kernels.hybrid_gather_plan import (
    MOST_PANELS,
    PANEL,
    Config,
    configure,
    dealt,
    plan,
)
from sparse24.kernels.hybrid_launch import BoundProduct, CutLayout, result, right, settle
from sparse24.kernels.hybrid_units import Units
from sparse24.kernels.launch import Launch

NAME = "hybrid_gather"
LEFT = np.dtype(
    [
        ("words", "u8"), ("begins", "u8"), ("heights", "u8"), ("rows", "u8"), ("units", "i4"),
        ("unused", "i4"),
    ]
)  # fmt: skip


class GatherLayout(CutLayout):
    """A matrix as words of units; the arrays are those of the kernel's header."""

    def __init__(self, shape, dtype: DType, units: Units, arrays: Words):
        super().__init__(shape, arrays)
        self.dtype, self.units = dtype, units

    @property
    def panels(self) -> int:
        return -(-self.shape[1] // PANEL)

    @property
    def height(self) -> int:
        """Rows of the tallest unit."""
        return self.arrays.rows.size // len(self.units)

    def copy(self) -> GatherLayout:
        """The same layout elsewhere in memory."""
        return GatherLayout(self.shape, self.dtype, self.units, self.copied())

    def cut(self, n: int) -> Config:
        return configure(self.units, self.panels, n, chip())

    def compiled(self, n: int, load: int, config: Config) -> Ready:
        return Ready(self, n, load, config)


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: GatherLayout, n: int, load: int, config: Config):
        super().__init__()
        macros = defines(layout, config, load)
        shared = config.shared_memory
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        cluster = -(-layout.panels // config.held)
        sets, groups = -(-len(layout.units) // config.units), -(-n // config.columns)
        self._sizes = (kernel, cluster * sets * groups, 32 * config.units * config.group, shared)
        self._early = chip().launches_early
        addresses = (x.data.ptr for x in layout.arrays)
        self._left = np.array([(*addresses, len(layout.units), 0)], LEFT)

    def bind(self, b, out, stream: int) -> Launch:
        return Launch(*self._sizes, (self._left, right(b), result(out)), early=self._early)


def refuses(k: int, dtype: DType) -> str | None:
    """None if the kernel can run, else why not."""
    if dtype.name not in ("float16", "bfloat16"):
        return f"the gather kernel takes float16 and bfloat16, not {dtype.name}"
    if k > PANEL * MOST_PANELS:
        return f"the gather kernel takes up to {PANEL * MOST_PANELS} columns, not {k}"
    return None


def prepare(bits: Any, dtype: DType, xp=np, *, most_words: int | None = None) -> GatherLayout:
    """Lay out a dense (m, k) matrix of bits; `xp` is its array library.  Waits for the sizes.

    `most_words` of a unit; by default as suits the matrix.
    """
    counts = row_counts(bits, xp)
    lengths = -np.sort(-_arrays.to_numpy(counts.sum(1)))
    how = counts.shape[1], H200 if xp is np else chip()
    units = plan(lengths, *how) if most_words is None else dealt(lengths, most_words, *how)[0]
    arrays = lay_out(bits, counts, units, xp)
    if xp is not np:
        settle()
    return GatherLayout(bits.shape, dtype, units, arrays)


def defines(layout: GatherLayout, config: Config, load: int) -> loader.Defines:
    """The macros of one specialisation; `load` as from `_load`."""
    return _defines(layout.dtype.name, layout.panels, layout.height, config, load)


def _defines(name: str, panels: int, height: int, config: Config, load: int) -> loader.Defines:
    return (
        ("ELEMENT", name), ("PANELS", panels), ("HEIGHT", height), ("COLUMNS", config.columns),
        ("UNITS", config.units), ("GROUP", config.group), ("HELD", config.held),
        ("EARLY", config.early), ("AHEAD", config.ahead), ("B_LOAD", load),
    )  # fmt: skip


def _load(b, columns: int) -> int:
    """How b is fetched: 2 as one run of memory, 1 by rows of 16 or 32 bytes, 0 by elements."""
    row, column = (s // 2 for s in b.strides)
    if b.data.ptr % 16 or (column != 1 and b.shape[1] > 1):
        return 0
    one_run = b.shape[1] == columns and (row == columns or b.shape[0] == 1)
    # Else the last copy of 16 bytes would reach past the end of b.
    if one_run and b.size % 8 == 0:
        return 2
    return int(columns >= 8 and b.shape[1] % 8 == 0 and row % 8 == 0)


def bound(layout: GatherLayout, b, out, *, config: Config | None = None) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it: as it is."""
    n = b.shape[1]
    config = config or layout.config(n)
    return layout.launch(n, _load(b, config.columns), config), b


def product(layout: GatherLayout, b, out, *, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    run, b = bound(layout, b, out, config=config)
    run(b, out)


COMPILE_CHECKS = [
    (_defines("float16", 1, 32, Config(16, 1, 24), 1), "sm_90a", "FFMA"),
    (_defines("float16", 2, 32, Config(16, 8, 3), 2), "sm_90a", "FFMA"),
    (_defines("bfloat16", 2, 16, Config(16, 6, 4), 0), "sm_90a", "FFMA"),
    (_defines("float16", 2, 32, Config(1, 4, 8, 2), 2), "sm_90a", "FFMA"),
    (_defines("bfloat16", 1, 32, Config(8, 4, 8), 2), "sm_90a", "FFMA"),
    (_defines("float16", 2, 16, Config(8, 7, 4, 2), 1), "sm_90a", "FFMA"),
    (_defines("float16", 3, 16, Config(8, 7, 4, 2), 2), "sm_90a", "FFMA"),
    (_defines("float16", 1, 8, Config(1, 32, 1), 0), "sm_80", "FFMA"),
    (_defines("bfloat16", 1, 32, Config(4, 8, 4), 2), "sm_120", "FFMA"),
]
