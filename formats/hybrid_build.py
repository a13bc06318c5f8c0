"""Build the tiles of a block-hybrid matrix, on the CPU or on the GPU.

Two passes over the source: the first counts the non-zeros of every tile, the cost model
then chooses a kind for each, and the second pass writes.  A sparse matrix is read row by row
of its non-zeros; dense rows, and those of a SciPy matrix that holds an element twice, are read
a few bands of tiles at a time.  Of a sparse matrix with hardly any elements only the rows are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from sparse24 import _arrays, _dtypes, _foreign
from sparse24._errors import DTypeError, ShapeError
from sparse24.formats import convert, hybrid_rows
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_rows import ListedRows
from sparse24.kernels.csr import CsrRows

STEP_ELEMENTS = 1 << 25  # dense elements that are held at a time
BAR_FROM = 1 << 28  # elements above which a progress bar is shown


class Source:
    """A matrix that hands out its rows; wraps NumPy, CuPy, scipy and cupyx matrices."""

    def __init__(self, w: Any, dtype=None):
        self.sparse = _arrays.is_sparse_matrix(w)
        if not self.sparse:
            w, _ = _foreign.take(w, argument="w")
        if w.ndim != 2:
            raise ShapeError(
                f"w must be a matrix with two axes (m, k), got shape {tuple(w.shape)}; "
                "build one hybrid matrix for each matrix of a stack"
            )
        given, argument = (w.dtype, "w.dtype") if dtype is None else (dtype, "dtype")
        self.dtype = _dtypes.lookup(given, argument=argument, known=ht.DTYPES)
        if self.dtype.name not in ht.DTYPES:
            way_out = "convert it first, for example with .astype('float16')"
            raise DTypeError(
                f"{argument} must be one of {', '.join(ht.DTYPES)} for a hybrid matrix, got "
                f"{self.dtype.name}; {way_out if dtype is None else 'name one of these'}"
            )
        _arrays.check_real(w, argument="w")
        self.matrix = convert.checked(w, argument="w").tocsr() if self.sparse else w
        self.shape = (int(w.shape[0]), int(w.shape[1]))
        on_gpu = _arrays.is_cupyx_sparse(w) or _arrays.is_cupy(w)
        if self.sparse:
            self.matrix = convert.seen_anew(self.matrix)
        self.xp = _arrays.cupy_module() if on_gpu else np
        early = self.sparse and not on_gpu and self.dtype.name in ("float32", "float64")
        if early and self.matrix.has_canonical_format:  # else SciPy adds up in its own type first
            self.matrix = self.matrix.astype(self.dtype.logical, copy=False)  # not its zeros

    def csr_rows(self) -> CsrRows | None:
        """The non-zeros of a sparse matrix row by row, or None where there are no such rows.

        Those of a SciPy matrix that holds an element twice are added up by its ``toarray``.
        """
        matrix = self.matrix
        if not self.sparse:
            return None
        if not matrix.has_canonical_format:
            matrix = self._in_order(matrix.copy())
            if matrix is None:
                return None
        narrow = np.int32 if self.shape[1] <= np.iinfo(np.int32).max else np.int64
        columns = matrix.indices.astype(narrow, copy=False)
        bits = self._in_dtype(matrix.data).view(self.dtype.storage)
        return CsrRows(matrix.indptr.astype(np.int64, copy=False), columns, bits)

    def _in_order(self, matrix):
        """The matrix with ascending columns; None for one of SciPy with an element twice."""
        if self.xp is not np:
            matrix.sum_duplicates()
            return matrix
        matrix.sort_indices()
        return matrix if matrix.has_canonical_format else None

    def bits(self, first: int, last: int):
        """Rows [first, last) as unsigned integers, each row contiguous."""
        rows = self.matrix[first:last]
        if self.sparse:
            rows = rows.toarray()
        rows = self.xp.ascontiguousarray(self._in_dtype(rows))
        return rows.view(self.dtype.storage)

    def _in_dtype(self, rows):
        """The rows in the matrix's type; int8 rounds to even and saturates, as in `compress`."""
        from sparse24.kernels import reference

        if self.xp is np and rows.dtype == np.float64 and self.dtype.name == "bfloat16":
            return reference.to_dtype(rows, self.dtype.logical)  # rounds once
        if self.dtype.name != "int8" or rows.dtype == self.dtype.logical:
            return rows.astype(self.dtype.logical, copy=False)
        wide = rows if rows.dtype.kind == "f" else rows.astype(np.float64)
        return reference.to_dtype(wide, self.dtype.logical)

    def steps(self, task: str):
        """(first row, last row) of a few bands at a time, with a bar on long builds."""
        m, k = self.shape
        rows = max(1, STEP_ELEMENTS // max(1, k * ht.TILE)) * ht.TILE
        pieces = [(at, min(m, at + rows)) for at in range(0, m, rows)] if k else []
        return tqdm(pieces, desc=f"sparse24.hybrid: {task}", disable=m * k < BAR_FROM, unit="step")


Chooser = Callable[[np.ndarray, np.ndarray], np.ndarray]


def build(source: Source, choose: Chooser) -> tuple[ht.Tiles | ListedRows, int]:
    """Return what is to be stored, on the source's device, and the number of non-zeros.

    `choose` maps the tiles' counts of non-zeros and of 2:4 overflow to kinds.
    On the GPU this waits once, for the counts.
    """
    rows = source.csr_rows()
    if rows is not None and hybrid_rows.are_worth_listing(rows.bits.size, source.shape):
        listed = hybrid_rows.listed(rows, source.shape, source.dtype)
        return listed, listed.nnz
    return _build_tiles(source, rows, choose)


def tiles_of(listed: ListedRows, choose: Chooser) -> ht.Tiles:
    """The tiles of a matrix of which only the rows are stored."""
    starts, columns, bits = listed.csr
    source = _Listed(listed.shape, listed.dtype, _arrays.namespace(bits))
    return _build_tiles(source, CsrRows(starts, columns.view(np.int32), bits), choose)[0]


@dataclass(frozen=True)
class _Listed:
    """What of a `Source` is asked where its rows are given."""

    shape: tuple[int, int]
    dtype: _dtypes.DType
    xp: Any


def _build_tiles(
    source: Source | _Listed, rows: CsrRows | None, choose: Chooser
) -> tuple[ht.Tiles, int]:
    try:
        return _built(source, rows, choose)
    except MemoryError as error:
        tiles = math.prod(ht.grid_of(source.shape))
        error.add_note(
            f"tiles take {ht.TABLE_BYTES} bytes for each 64x64 elements, also where there are "
            f"none, and these are {tiles}; leave a matrix with hardly any elements in CSR"
        )
        raise


def _built(source: Source | _Listed, rows: CsrRows | None, choose: Chooser) -> tuple[ht.Tiles, int]:
    nonzeros, overflow = _survey(source, rows)
    kinds = choose(nonzeros, overflow).astype(np.uint8)
    tiles = _allocate(source, kinds, nonzeros, overflow)
    _fill(source, rows, tiles)
    values = tiles.values.view(source.dtype.logical)
    spill = tiles.overflow_values.view(source.dtype.logical)
    return ht.replace(tiles, values=values, overflow_values=spill), int(nonzeros.sum())


def _maker(source: Source | _Listed, rows: CsrRows | None) -> Any:
    """The module that surveys and fills tiles: of such rows, on the source's device."""
    if source.xp is not np:
        from sparse24.kernels import hybrid_fill

        return hybrid_fill
    if rows is None:
        from sparse24.kernels import cpu_hybrid

        return cpu_hybrid
    from sparse24.kernels import cpu_hybrid_csr

    return cpu_hybrid_csr


def _survey(source: Source | _Listed, rows: CsrRows | None) -> tuple[np.ndarray, np.ndarray]:
    grid = ht.grid_of(source.shape)
    maker = _maker(source, rows)
    nonzeros = source.xp.zeros(grid, np.int64)
    overflow = source.xp.zeros(grid, np.int64)
    if rows is not None:
        maker.survey(rows, source.dtype, nonzeros, overflow)
    else:
        for first, last in source.steps("survey"):
            bands = slice(first // ht.TILE, -(-last // ht.TILE))
            bits = source.bits(first, last)
            maker.survey(bits, source.dtype, nonzeros[bands], overflow[bands])
    return _arrays.to_numpy(nonzeros).ravel(), _arrays.to_numpy(overflow).ravel()


def _allocate(source: Source | _Listed, kinds, nonzeros, overflow) -> ht.Tiles:
    xp, storage = source.xp, source.dtype.storage
    starts = ht.starts_of(ht.values_of_kind(kinds, nonzeros))
    spill_starts = ht.starts_of(ht.overflow_of_kind(kinds, nonzeros, overflow))
    coded = ht.is_coded(kinds)
    slots = np.where(coded, np.cumsum(coded) - 1, -1).astype(np.int32)
    return ht.Tiles(
        source.shape, source.dtype, xp.asarray(kinds), xp.asarray(starts),
        xp.zeros(int(starts[-1]), storage), xp.asarray(slots),
        xp.zeros((int(coded.sum()), ht.TILE), np.uint64), xp.asarray(spill_starts),
        xp.zeros(int(spill_starts[-1]), storage), xp.zeros(int(spill_starts[-1]), np.uint16),
    )  # fmt: skip


def _fill(source: Source | _Listed, rows: CsrRows | None, tiles: ht.Tiles) -> None:
    maker = _maker(source, rows)
    if rows is not None:
        maker.fill(rows, source.dtype, tiles)
        return
    for first, last in source.steps("fill"):
        maker.fill(source.bits(first, last), source.dtype, tiles.rows(first, last))


def decode(tiles: ht.Tiles | ListedRows):
    """The dense matrix, on the device of the tiles, or of the rows."""
    if isinstance(tiles, ListedRows):
        return tiles.toarray()
    xp = _arrays.namespace(tiles.kinds)
    out = xp.zeros(tiles.shape, tiles.dtype.storage)
    if out.size:
        _reader(xp).decode(as_bits(tiles), out)
    return out.view(tiles.dtype.logical)


def _reader(xp) -> Any:
    """The module that decodes tiles on the device of `xp`."""
    if xp is np:
        from sparse24.kernels import cpu_hybrid

        return cpu_hybrid
    from sparse24.kernels import hybrid_tiles

    return hybrid_tiles


def as_bits(tiles: ht.Tiles) -> ht.Tiles:
    """The tiles with their elements as unsigned integers, as kernels read them."""
    storage = tiles.dtype.storage
    values, overflow = tiles.values.view(storage), tiles.overflow_values.view(storage)
    return ht.replace(tiles, values=values, overflow_values=overflow)
