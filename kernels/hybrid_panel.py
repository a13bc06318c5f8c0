"""Lay out very sparse matrices and launch ``cuda/hybrid_panel.cu``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import DType
from sparse24.kernels import loader
from sparse24.kernels.chip import H200, Chip, chip
from sparse24.kernels.hybrid_launch import (
    OUT,
    RIGHT,
    BoundProduct,
    CutLayout,
    rows_contiguous,
    settle,
)
from sparse24.kernels.hybrid_panel_layout import Words, lay_out, row_counts
from sparse24.kernels.hybrid_panel_plan import Config, configure, lines_of, most_columns, plan
from sparse24.kernels.hybrid_units import Units
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

    def __init__(self, shape, dtype: DType, lines: int, units: Units, arrays: Words):
        super().__init__(shape, arrays)
        self.dtype, self.lines, self.units = dtype, lines, units

    @property
    def panels(self) -> int:
        return -(-self.shape[1] // self.lines)

    def copy(self) -> PanelLayout:
        """The same layout elsewhere in memory."""
        return PanelLayout(self.shape, self.dtype, self.lines, self.units, self.copied())

    def cut(self, n: int) -> Config:
        return configure(self.units, self.shape[1], n, chip(), self.dtype.itemsize)

    def compiled(self, n: int, load: int, config: Config) -> Ready:
        return Ready(self, n, load, config)


class Ready(BoundProduct):
    """One way of running a product: kernel, grid, and the matrix's part of the arguments."""

    def __init__(self, layout: PanelLayout, n: int, load: int, config: Config):
        super().__init__()
        macros = defines(layout.dtype.name, layout.lines, config, load)
        shared = config.shared_memory(layout.lines)
        kernel = loader.function(NAME, "product", macros, shared_memory=shared)
        threads = 32 * config.warps(len(layout.units))
        self._sizes = (kernel, config.groups(n) * config.shares, threads, shared)
        self._early = chip().launches_early
        addresses = (x.data.ptr for x in layout.arrays)
        self._left = np.array([(*addresses, len(layout.units), layout.panels)], LEFT)
        self._shares = np.array([config.shares], np.int32)

    def bind(self, b, out, stream: int) -> Launch:
        right, result = _operand(b), _operand(out)
        wide = np.array([_in_runs(out, 4 if out.itemsize == 2 else 16)], np.int32)
        arguments = (
            self._left,
            np.array([(b.data.ptr, *b.shape, *right)], RIGHT),
            np.array([(out.data.ptr, *result)], OUT),
            self._shares,
            wide,
        )
        return Launch(*self._sizes, arguments, early=self._early)


def _operand(x) -> tuple[int, int]:
    """Strides in elements."""
    row, column = (s // x.itemsize for s in x.strides)
    return row, column


def _in_runs(x, nbytes: int) -> bool:
    """Whether the columns of a row lie in aligned runs of so many bytes."""
    aligned = x.data.ptr % nbytes == 0 and (x.strides[0] % nbytes == 0 or x.shape[0] == 1)
    return aligned and (x.strides[1] == x.itemsize or x.shape[1] == 1)


def refuses(k: int, dtype: DType, most_shared: int) -> str | None:
    """None if the kernel can run where a block has so much shared memory, else why not."""
    if dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        return f"the panel kernel takes float16, bfloat16, float32 and float64, not {dtype.name}"
    if dtype.itemsize == 2 and k > most_columns(most_shared):
        most = most_columns(most_shared)
        return f"the panel kernel takes up to {most} columns of {dtype.name} here, not {k}"
    return None


def prepare(bits: Any, dtype: DType, xp=np, *, where: Chip | None = None) -> PanelLayout:
    """Lay out a dense (m, k) matrix of bits; `xp` is its array library.

    Waits for the sizes.  `where` is the GPU; by default the current one, or an H200 for NumPy.
    """
    where = where or (H200 if xp is np else chip())
    lines = lines_of(bits.shape[1], where, dtype.itemsize)
    counts = _arrays.to_numpy(row_counts(bits, lines, xp))
    units = plan(-np.sort(-counts.sum(1)), dtype.itemsize, where.multiprocessors)
    arrays = lay_out(bits, counts, units, lines, xp)
    if xp is not np:
        settle()
    return PanelLayout(bits.shape, dtype, lines, units, arrays)


def defines(name: str, lines: int, config: Config, load: int) -> loader.Defines:
    """The macros of one specialisation; `load` is B_LOAD of the kernel's header."""
    return (
        ("ELEMENT", name), ("LINES", lines), ("PLANES", config.planes),
        ("WARPS", config.most_warps), ("B_LOAD", load),
    )  # fmt: skip


def bound(layout: PanelLayout, b, out, *, config: Config | None = None) -> tuple[Ready, Any]:
    """The compiled product for such operands, and `b` as it reads it.

    That is `b` as it is, but 16-bit elements come in runs of 16 bytes alone.
    """
    b = rows_contiguous(b) if layout.dtype.itemsize == 2 else b
    n = b.shape[1]
    return layout.launch(n, int(_in_runs(b, 16)), config or layout.config(n)), b


def product(layout: PanelLayout, b, out, *, config: Config | None = None) -> None:
    """out = A @ b, for CuPy matrices (k, n) and (m, n) of any strides."""
    run, b = bound(layout, b, out, config=config)
    run(b, out)


COMPILE_CHECKS = [
    (defines("float32", 4096, Config(3, 1), 1), "sm_90a", "LDS.128"),
    (defines("float32", 4096, Config(2, 1), 0), "sm_90a", "FFMA"),
    (defines("float32", 4096, Config(1, 1), 1), "sm_90a", "FFMA"),
    (defines("float32", 2048, Config(3, 1), 0), "sm_80", "FFMA"),
    (defines("float32", 2048, Config(2, 1), 1), "sm_120", "FFMA"),
    (defines("float32", 512, Config(1, 1), 0), "sm_120", "FFMA"),
    (defines("float16", 4096, Config(3, 1, 2), 1), "sm_90a", "HMMA.SP.16832.F32"),
    (defines("bfloat16", 4608, Config(2, 1, 2), 1), "sm_90a", "HMMA.SP.16832.F32.BF16"),
    (defines("float16", 14336, Config(1, 1, 2), 1), "sm_90a", "LDSM.16.MT88.4"),
    (defines("bfloat16", 8192, Config(1, 1, 2), 1), "sm_80", "HMMA.SP"),
    (defines("float16", 2048, Config(3, 1, 2), 1), "sm_120", "HMMA.SP"),
    (defines("float64", 4096, Config(3, 1, 8), 1), "sm_90a", "DFMA"),
    (defines("float64", 4096, Config(2, 1, 8), 0), "sm_90a", "DFMA"),
    (defines("float64", 4096, Config(1, 1, 8), 1), "sm_90a", "DFMA"),
    (defines("float64", 2048, Config(3, 1, 8), 1), "sm_80", "DFMA"),
    (defines("float64", 2048, Config(1, 1, 8), 0), "sm_120", "DFMA"),
]
