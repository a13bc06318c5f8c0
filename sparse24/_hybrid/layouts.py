"""The layouts that the paths of a hybrid product derive from the matrix, each at its first use.

Every layout is kept with the matrix and has `nbytes`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays
from sparse24._errors import UnsupportedError

MOST_BLOCKS = 65535  # of a grid along y (CUDA C++ Programming Guide, compute capabilities)


def layout(h, name: str):
    """A path's layout of the matrix, made at the first need."""
    return h.prepared(name, lambda: _LAYOUTS[name](h))


def _stream_layout(h):
    from sparse24.kernels import hybrid_stream

    return hybrid_stream.prepare(h.toarray(), h._dtype, h.density)


def _scatter_layout(h):
    from sparse24.kernels import hybrid_scatter

    return hybrid_scatter.prepare(_bits(h), h._dtype)


def _bits(h):
    return h.toarray().view(h._dtype.storage)


def _csr_layout(h):
    from sparse24.kernels import hybrid_csr
    from sparse24.kernels.csr import CsrRows

    return hybrid_csr.prepare(CsrRows(*h.held()), h.shape, h._dtype, shared=h._tiles.is_listed)


def _layout_of_elements(kernel: str, h):
    """The layout of a path whose `kernel` reads non-zeros one by one."""
    module = importlib.import_module(f"sparse24.kernels.{kernel}")
    return module.prepare(_bits(h), h._dtype, h._xp)


def _sum_layout(name: str, h):
    """The layout of a path that adds the product of a 2:4 matrix and a second one.

    `name` is that of its class in `_hybrid.two_four`.
    """
    from sparse24._hybrid import two_four

    return getattr(two_four, name)(h)


def _rewrite(path: str):
    """How a path of 2:4 strips makes them."""
    from sparse24.kernels import hybrid_evict, hybrid_regroup

    return {"slots": hybrid_evict, "regrouped": hybrid_regroup}[path]


def _strips_layout(path: str, h):
    from sparse24.kernels import hybrid_wgmma

    return hybrid_wgmma.prepare(_bits(h), h._dtype, _rewrite(path))


class _Known:
    """Something small that was found out about a matrix, and is kept with it."""

    nbytes = 0

    def __init__(self, value):
        self.value = value


def known(h, name: str, find: Callable[[], Any]) -> Any:
    """What ``find()`` returns, asked at the first need and kept with the matrix."""
    return h.prepared(name, lambda: _Known(find())).value


def _kept(find: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: ``find(h, *which)`` runs once for each matrix, which keeps what it returned.

    The first call waits for the GPU.
    """
    name = find.__name__.replace("_", " ")

    @functools.wraps(find)
    def kept(h, *which: str):
        return known(h, " ".join((name, *which)), lambda: _counted(h, lambda: find(h, *which)))

    return kept


def _counted(h, count: Callable[[], Any]) -> Any:
    """Return ``count()``, which waits for the GPU; refuse to while a CUDA graph is captured."""
    if h.device != "cpu" and _arrays.is_capturing():
        raise UnsupportedError(
            "the first choice of a path for this many columns counts elements of the matrix, which "
            "waits for the GPU, as a graph cannot; multiply by as many once before the capture"
        )
    return count()


@_kept
def strips_work(h, path: str):
    """What a product of 2:4 strips will cost."""
    from sparse24.kernels import hybrid_wgmma

    made = h.is_prepared(path)
    return layout(h, path).work if made else hybrid_wgmma.survey(_bits(h), _rewrite(path))


@_kept
def scatter_units(h):
    """How much the units of ``scatter`` hold."""
    from sparse24.kernels import hybrid_scatter

    made = h.is_prepared("scatter")
    return layout(h, "scatter").units if made else hybrid_scatter.survey(_bits(h))


@_kept
def row_lengths(h) -> np.ndarray:
    """Non-zeros of every row, the longest first."""
    return -np.sort(-np.diff(_arrays.to_numpy(h.row_starts())))


@_kept
def gather_units(h):
    """The units of ``gather``."""
    from sparse24.kernels import hybrid_gather_plan
    from sparse24.kernels.chip import chip

    if h.is_prepared("gather"):
        return layout(h, "gather").units
    panels = -(-h.shape[1] // hybrid_gather_plan.PANEL)
    return hybrid_gather_plan.plan(row_lengths(h), panels, chip())


@_kept
def rows_plan(h):
    """The slices of ``rows``."""
    from sparse24.kernels import hybrid_rows_plan
    from sparse24.kernels.chip import multiprocessors

    if h.is_prepared("rows"):
        return layout(h, "rows").plan
    return hybrid_rows_plan.plan(row_lengths(h), h.shape[1], multiprocessors())


@_kept
def panel_units(h):
    """The units of ``panel``."""
    from sparse24.kernels import hybrid_panel_plan
    from sparse24.kernels.chip import multiprocessors

    if h.is_prepared("panel"):
        return layout(h, "panel").units
    itemsize = h._dtype.itemsize
    return hybrid_panel_plan.plan(row_lengths(h), itemsize, multiprocessors())


@_kept
def excess(h) -> float:
    """Elements beyond two in a group of four."""
    xp = h._xp
    m, k = h.shape
    held = xp.pad(_bits(h) != 0, ((0, 0), (0, -k % 4))).reshape(m, -1, 4)
    count = held.sum(axis=2, dtype=np.int8)
    return float(xp.maximum(count - 2, 0).sum(dtype=np.int64))


@_kept
def filled_tiles(h) -> int:
    """Number of tiles that are not empty; where only rows are stored, an upper bound of it."""
    return h._tiles.source.filled()


COMPACT_COLUMNS = 64  # cuBLAS takes several times as long where k is not a multiple of 8


class _Compact:
    """The dense matrix without its empty columns, then zeros to a multiple of COMPACT_COLUMNS."""

    def __init__(self, h):
        xp, self.storage = h._xp, h._dtype.storage
        self.live = live_columns(h).places
        even = -(-len(self.live) // COMPACT_COLUMNS) * COMPACT_COLUMNS
        dense = xp.zeros((h.shape[0], even), self.storage)
        dense[:, : len(self.live)] = _bits(h)[:, self.live]
        self.dense = dense.view(h.dtype)

    def gather(self, b):
        """The rows of b that count, then zeros."""
        live = len(self.live)
        gathered = _arrays.namespace(b).empty((self.dense.shape[1], b.shape[1]), self.storage)
        b.view(self.storage).take(self.live, axis=0, out=gathered[:live])
        gathered[live:] = 0
        return gathered.view(b.dtype)

    @property
    def nbytes(self) -> int:
        return self.dense.nbytes


class _Live:
    """Numbers of the columns that hold a non-zero."""

    def __init__(self, h):
        xp = h._xp
        self.places = xp.flatnonzero((_bits(h) != 0).any(axis=0))
        self.nbytes = self.places.nbytes


def live_columns(h) -> _Live:
    """The columns that are not empty; found at the first need, which waits."""
    return h.prepared("live columns", lambda: _counted(h, lambda: _Live(h)))


def _cpu_layout(h):
    from sparse24.kernels import cpu_hybrid_rows

    starts, columns, bits = h.held()
    return cpu_hybrid_rows.Rows(starts, columns, bits, h._dtype, shared=h._tiles.is_listed)


def _masks_layout(h):
    from sparse24.kernels import cpu_hybrid_masks

    starts, columns, bits = h.held()
    return cpu_hybrid_masks.Masked(starts, columns, bits, h._dtype, h.shape[1])


def _blas_layout(h):
    from sparse24.kernels.cpu_decode import decoded

    return decoded(h.toarray(), h._dtype)


_LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "cpu": _cpu_layout,
    "masks": _masks_layout,
    "blas": _blas_layout,
    "stream": _stream_layout,
    "scatter": _scatter_layout,
    "csr": _csr_layout,
    "rows": functools.partial(_layout_of_elements, "hybrid_rows"),
    "gather": functools.partial(_layout_of_elements, "hybrid_gather"),
    "panel": functools.partial(_layout_of_elements, "hybrid_panel"),
    "two_four": functools.partial(_sum_layout, "TwoFour"),
    "twice": functools.partial(_sum_layout, "Twice"),
    "slots": functools.partial(_strips_layout, "slots"),
    "regrouped": functools.partial(_strips_layout, "regrouped"),
    "compact": _Compact,
}
