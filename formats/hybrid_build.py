"""Build the tiles of a block-hybrid matrix, on the CPU or on the GPU.

Two passes over the source: the first counts the non-zeros of every tile, the cost model
then chooses a kind for each, and the second pass writes.  A sparse matrix is read row by row
of its non-zeros; dense rows are read a few bands of tiles at a time.  Of a sparse matrix with
hardly any elements, or a large one with few, only the rows are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._errors import UnsupportedError
from sparse24._hybrid import room
from sparse24._hybrid.layouts import MOST_BLOCKS
from sparse24._storage import MOST_OF_AN_AXIS
from sparse24.formats import hybrid_listed
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.hybrid_listed import ListedRows
from sparse24.formats.hybrid_source import Source
from sparse24.kernels.csr import CsrRows

COUNTED = 1 << 20  # tiles whose elements are counted at a time, where all would take more memory
MAKING = 50  # bytes of the host for each tile while it is built, also of an empty one, as measured


@dataclass(frozen=True)
class Form:
    """Shape, type and device of a matrix that is built."""

    shape: tuple[int, int]
    dtype: _dtypes.DType
    xp: Any


Chooser = Callable[[np.ndarray, np.ndarray], np.ndarray]


def build(source: Source, choose: Chooser) -> tuple[ht.Tiles | ListedRows, int]:
    """Return what is to be stored, on the source's device, and the number of non-zeros.

    `choose` maps the tiles' counts of non-zeros and of 2:4 overflow to kinds.
    On the GPU this waits once, for the counts.
    """
    rows = source.csr_rows()
    form = Form(source.shape, source.dtype, source.xp)
    return _build_tiles(form, source, choose) if rows is None else of_rows(form, rows, choose)


def of_rows(
    form: Form, rows: CsrRows, choose: Chooser, *, shared: bool = True
) -> tuple[ht.Tiles | ListedRows, int]:
    """As `build`, of non-zeros row by row; rows whose arrays nobody shares may become its own."""
    if hybrid_listed.are_worth_listing(rows.bits.size, form.shape):
        listed = hybrid_listed.listed(rows, form.shape, form.dtype, shared=shared)
        return listed, listed.nnz
    return _build_tiles(form, rows, choose)


def kinds_of(listed: ListedRows, choose: Chooser) -> np.ndarray:
    """The kinds of `tiles_of`, (down, across), on the CPU; only those of tiles that hold anything
    are written, and no tile is built.
    """
    (m, _), (down, across) = listed.shape, listed.grid
    kinds = np.zeros((down, across), np.uint8)  # all are empty so far
    step = min(MOST_BLOCKS, max(1, COUNTED // max(1, across)))
    for first in range(0, down, step):
        part = listed.rows(first * ht.TILE, min((first + step) * ht.TILE, m))
        if part.nnz:
            found = choose(*_survey(*_by_rows(part)))
            at = np.flatnonzero(found)
            kinds[first : first + step].reshape(-1)[at] = found[at]
    return kinds


def tiles_of(listed: ListedRows, choose: Chooser) -> ht.Tiles:
    """The tiles of a matrix of which only the rows are stored."""
    return _build_tiles(*_by_rows(listed), choose)[0]


def _by_rows(listed: ListedRows) -> tuple[Form, CsrRows]:
    """Rows as tiles are built from them."""
    starts, columns, bits = listed.csr
    form = Form(listed.shape, listed.dtype, _arrays.namespace(bits))
    return form, CsrRows(starts, columns.view(np.int32), bits)


Content = CsrRows | Source  # non-zeros row by row, or what hands out dense rows


def _build_tiles(form: Form, content: Content, choose: Chooser) -> tuple[ht.Tiles, int]:
    refuse_large(form.shape, on_gpu=form.xp is not np)
    try:
        _refuse_more_than_memory(form.shape)
        return _built(form, content, choose)
    except MemoryError as error:
        tiles = math.prod(ht.grid_of(form.shape))
        error.add_note(
            f"tiles take {ht.TABLE_BYTES} bytes for each 64x64 elements, also where there are "
            f"none, and these are {tiles}; leave a matrix with hardly any elements in CSR"
        )
        raise


def _refuse_more_than_memory(shape: tuple[int, int]) -> None:
    """Raise a MemoryError for tiles beyond the host's memory before any of it is filled.

    A system may promise memory that it does not have, and end the process once that is written.
    """
    needed, whole = math.prod(ht.grid_of(shape)) * MAKING, room.memory("cpu")
    if needed > whole:
        raise MemoryError(
            f"Unable to build tiles in {needed / 1e9:.1f} GB, of which the host has "
            f"{whole / 1e9:.1f} GB"
        )


def refuse_large(shape: tuple[int, int], *, on_gpu: bool) -> None:
    """Refuse tiles on a GPU of more rows than a grid of blocks has, or with long column numbers."""
    most = MOST_BLOCKS * ht.TILE  # a block takes the rows of a tile
    if on_gpu and shape[0] > most:
        raise UnsupportedError(
            f"a hybrid matrix on a GPU has at most {most} rows, got {shape[0]}; build one of "
            "each part of the rows"
        )
    if on_gpu and shape[1] > MOST_OF_AN_AXIS:
        raise UnsupportedError(
            f"a hybrid matrix on a GPU has at most {MOST_OF_AN_AXIS} columns, got "
            f"{shape[1]}; build one of each part of the columns"
        )


def _built(form: Form, content: Content, choose: Chooser) -> tuple[ht.Tiles, int]:
    nonzeros, overflow = _survey(form, content)
    kinds = choose(nonzeros, overflow).astype(np.uint8)
    tiles = _allocate(form, kinds, nonzeros, overflow)
    _fill(form, content, tiles)
    values = tiles.values.view(form.dtype.logical)
    spill = tiles.overflow_values.view(form.dtype.logical)
    return ht.replace(tiles, values=values, overflow_values=spill), int(nonzeros.sum())


def _maker(form: Form, content: Content) -> Any:
    """The module that surveys and fills tiles of such content, on its device."""
    if form.xp is not np:
        from sparse24.kernels import hybrid_fill

        return hybrid_fill
    if isinstance(content, Source):
        from sparse24.kernels import cpu_hybrid

        return cpu_hybrid
    from sparse24.kernels import cpu_hybrid_csr

    return cpu_hybrid_csr


def _survey(form: Form, content: Content) -> tuple[np.ndarray, np.ndarray]:
    grid = ht.grid_of(form.shape)
    maker = _maker(form, content)
    nonzeros, overflow = form.xp.zeros(grid, np.int64), form.xp.zeros(grid, np.int64)
    if isinstance(content, Source):
        for first, last in content.steps("survey"):
            bands = slice(first // ht.TILE, -(-last // ht.TILE))
            bits = content.bits(first, last)
            maker.survey(bits, form.dtype, nonzeros[bands], overflow[bands])
    else:
        maker.survey(content, form.dtype, nonzeros, overflow)
    return _arrays.to_numpy(nonzeros).ravel(), _arrays.to_numpy(overflow).ravel()


def _allocate(form: Form, kinds, nonzeros, overflow) -> ht.Tiles:
    xp, storage = form.xp, form.dtype.storage
    starts = ht.starts_of(ht.values_of_kind(kinds, nonzeros))
    spill_starts = ht.starts_of(ht.overflow_of_kind(kinds, nonzeros, overflow))
    coded = ht.is_coded(kinds)
    slots = np.where(coded, np.cumsum(coded) - 1, -1).astype(np.int32)
    return ht.Tiles(
        form.shape, form.dtype, xp.asarray(kinds), xp.asarray(starts),
        xp.zeros(int(starts[-1]), storage), xp.asarray(slots),
        xp.zeros((int(coded.sum()), ht.TILE), np.uint64), xp.asarray(spill_starts),
        xp.zeros(int(spill_starts[-1]), storage), xp.zeros(int(spill_starts[-1]), np.uint16),
    )  # fmt: skip


def _fill(form: Form, content: Content, tiles: ht.Tiles) -> None:
    maker = _maker(form, content)
    if not isinstance(content, Source):
        maker.fill(content, form.dtype, tiles)
        return
    for first, last in content.steps("fill"):
        maker.fill(content.bits(first, last), form.dtype, tiles.rows(first, last))


def decode(tiles: ht.Tiles | ListedRows):
    """The dense matrix, on the device of the tiles, or of the rows."""
    if isinstance(tiles, ListedRows):
        return tiles.toarray()
    xp = _arrays.namespace(tiles.kinds)
    out = xp.zeros(tiles.shape, tiles.dtype.storage)
    if out.size:
        _reader(xp).decode(as_bits(tiles), out)
    return out.view(tiles.dtype.logical)


def rows_on_cpu(stored: ht.Tiles | ListedRows) -> CsrRows:
    """The non-zeros of NumPy arrays row by row; not to be written, they may be what is stored.

    Tiles may be some rows of tiles, of which the last are not all of the matrix: `Tiles.rows`.
    """
    from sparse24.kernels import cpu_hybrid_held

    if isinstance(stored, ListedRows):
        return stored.csr
    m, k = stored.shape
    whole = ht.replace(as_bits(stored), shape=(stored.grid[0] * ht.TILE, k))
    starts, columns, bits = cpu_hybrid_held.held(whole)
    return CsrRows(starts[: m + 1], columns[: starts[m]], bits[: starts[m]])


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
