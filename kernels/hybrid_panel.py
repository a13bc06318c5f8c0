"""Lay out very sparse float32 matrices and launch ``cuda/hybrid_panel.cu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24.kernels import loader
from sparse24.kernels.hybrid_gather_plan import H200, Chip, Units
from sparse24.kernels.hybrid_launch import OUT, RIGHT, BoundProduct, CutLayout, settle
from sparse24.kernels.hybrid_panel_layout import Words, lay_out, row_counts
from sparse24.kernels.hybrid_panel_plan import Config, configure, lines_of, plan
from sparse24.kernels.launch import Launch

NAME = "hybrid_panel"
LEFT = np.dtype(
    [
        ("values", "u8"), ("places", "u8"), ("begins", "u8"), ("heights", "u8"), ("rows", "u8"),
        ("units", "i4"), ("panels", "i4"),
    ]
)  # fmt: skip


class PanelLayout(CutLayout):
    """A matrix as words of units; the arrays are those of the kernel's header."""

    def __init__(self, shape, lines: int, units: Units, arrays: Words):
        super().__init__(shape, arrays)
        self.lines, self.units = lines, units

    @property
    def panels(self) -> int:
        return -(-self.shape[1] // self.lines)

    def copy(self) -> PanelLayout:
        """The same layout elsewhere in memory."""
        return PanelLayout(self.shape, self.lines, self.units, self.copied())

    def cut(self, n: int) -> Config:
        return configure(self.units, self.shape[1], n, chip())

    def compiled(self, n: int, load: int, config: Config) -> Ready:
        return Ready(self, n, load, config)


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: PanelLayout, n: int, load: int, config: Config):
        super().__init__()
        macros, shared = defines(layout.lines, config, load), config.shared_memory(layout.lines)
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        self._sizes = (kernel, config.groups(n) * config.shares, 32 * config.warps, shared)
        self._early = _early()
        addresses = (x.data.ptr for x in layout.arrays)
        self._left = np.array([(*addresses, len(layout.units), layout.panels)], LEFT)
        self._shares = np.array([config.shares], np.int32)

    def bind(self, b, out, stream: int) -> Launch:
        right, result = _operand(b), _operand(out)
        by_four = np.array([_by_sixteen_bytes(out)], np.int32)
        arguments = (
            self._left,
            np.array([(b.data.ptr, *b.shape, *right)], RIGHT),
            np.array([(out.data.ptr, *result)], OUT),
            self._shares,
            by_four,
        )
        return Launch(*self._sizes, arguments, early=self._early)


def _operand(x) -> tuple[int, int]:
    """Strides in elements."""
    row, column = (s // x.itemsize for s in x.strides)
    return row, column


def _by_sixteen_bytes(x) -> bool:
    """Whether four columns that begin at a multiple of four lie in 16 bytes of memory."""
    row, column = _operand(x)
    aligned = x.data.ptr % 16 == 0 and (row % 4 == 0 or x.shape[0] == 1)
    return aligned and column == 1


def chip() -> Chip:
    """The current device."""
    import cupy

    found = cupy.cuda.Device().attributes
    return Chip(found["MultiProcessorCount"], found["MaxSharedMemoryPerBlockOptin"])


def _early() -> bool:
    """Whether a launch of the current device may begin before the one before it has ended."""
    import cupy

    return int(cupy.cuda.Device().compute_capability) >= 90


def refuses(dtype: DType) -> str | None:
    """None if the kernel can run, else why not."""
    return None if dtype.name == "float32" else f"the panel kernel takes float32, not {dtype.name}"


def prepare(bits: Any, xp=np, *, where: Chip | None = None) -> PanelLayout:
    """Lay out a dense (m, k) matrix of bits of float32; `xp` is its array library.

    Waits for the sizes.  `where` is the GPU; by default the current one, or an H200 for NumPy.
    """
    where = where or (H200 if xp is np else chip())
    lines = lines_of(bits.shape[1], where)
    counts = _arrays.to_numpy(row_counts(bits, lines, xp))
    units = plan(-np.sort(-counts.sum(1)))
    arrays = lay_out(bits, counts, units, lines, xp)
    if xp is not np:
        settle()
    return PanelLayout(bits.shape, lines, units, arrays)


def defines(lines: int, config: Config, load: int) -> loader.Defines:
    return (
        ("LINES", lines), ("PLANES", config.planes), ("WARPS", config.warps), ("B_LOAD", load),
    )  # fmt: skip


def bound(layout: PanelLayout, b, out, *, config: Config | None = None) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it: as it is."""
    n = b.shape[1]
    load = int(_by_sixteen_bytes(b) and n % 4 == 0)
    return layout.launch(n, load, config or layout.config(n)), b


def product(layout: PanelLayout, b, out, *, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    run, b = bound(layout, b, out, config=config)
    run(b, out)


COMPILE_CHECKS = [
    (defines(4096, Config(3, 1), 1), "sm_90a", "LDS.128"),
    (defines(4096, Config(2, 1), 0), "sm_90a", "FFMA"),
    (defines(4096, Config(1, 1), 1), "sm_90a", "FFMA"),
    (defines(2048, Config(3, 1), 0), "sm_80", "FFMA"),
    (defines(2048, Config(2, 1), 1), "sm_120", "FFMA"),
    (defines(512, Config(1, 1), 0), "sm_120", "FFMA"),
]
