"""The tiles of a hybrid matrix, its dense form, and other arrays derived from the tiles."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Self

import numpy as np

from sparse24 import _arrays, _devices, _dtypes, _locks, _storage, _table
from sparse24._errors import UnsupportedError
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid.layouts import MOST_BLOCKS
from sparse24.formats import (
    convert,
    hybrid_arithmetic,
    hybrid_build,
    hybrid_checks,
    hybrid_indexing,
    hybrid_reductions,
)
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.base import SparseArray, made_by

CSR_BELOW = 4  # elements for each non-zero, above which CSR takes less memory than the dense matrix


class HybridStorage(SparseArray):
    """The tiles of a `HybridArray`; the products are its own."""

    __slots__ = (
        "_dtype", "_lock", "_n_hint", "_nnz", "_plans", "_prepared", "_tiles", "_transpose_of",
    )  # fmt: skip

    _lock: threading.RLock
    _n_hint: int | None
    _nnz: int
    _plans: dict[tuple, Any]
    _prepared: dict[str, Any]
    _tiles: ht.Tiles | ht.TransposedTiles
    _transpose_of: Any

    def __init__(
        self, tiles: ht.Tiles | ht.TransposedTiles, nnz: int | None = None,
        n_hint: int | None = None, *, _transpose_of=None,
    ):  # fmt: skip
        if not isinstance(tiles, ht.Tiles | ht.TransposedTiles) or nnz is None:
            raise made_by(self, tiles, "sparse24.hybrid(w)")
        _refuse_tall(tiles)
        fields = {
            "_tiles": tiles,
            "_transpose_of": _transpose_of,  # weakly, the matrix whose transpose this is
            "_dtype": tiles.dtype,
            "_nnz": int(nnz),
            "_n_hint": n_hint,
            "_lock": _locks.reentrant(),  # what is prepared may need another
            "_plans": {},  # prepared launches, by signature of b
            "_prepared": {},
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def build(cls, w, *, n_hint: int | None = None, dtype=None) -> Self:
        """Build from a dense, scipy or cupyx matrix; see `sparse24.hybrid`."""
        source = hybrid_build.Source(w, dtype)
        rates = hybrid_cost.rates_for(source.dtype, source.xp is not np)
        n = n_hint or hybrid_cost.DEFAULT_N
        tiles, nnz = hybrid_build.build(
            source, lambda held, spill: hybrid_cost.choose(held, spill, source.dtype, n, rates)
        )
        return cls(tiles, nnz, n_hint)

    @classmethod
    def from_tiles(cls, tiles: ht.Tiles, n_hint: int | None = None) -> Self:
        """Make a matrix of given tiles, NumPy arrays, after checking them.

        Raises
        ------
        FormatError
            If the arrays do not fit together.
        """
        hybrid_checks.check(tiles)
        return cls(tiles, ht.count_nonzero(tiles), n_hint)

    # What it is

    @property
    def tiles(self) -> ht.Tiles:
        """The stored arrays, for writers of kernels; a transposed matrix builds its own now.

        Not to be written: products keep what they have derived from them.
        """
        tiles = self._tiles
        return self._built() if isinstance(tiles, ht.TransposedTiles) else tiles

    @_devices.on_own_device
    def _built(self) -> ht.Tiles:
        with self._lock:
            tiles = self._tiles
            if isinstance(tiles, ht.TransposedTiles):
                tiles = type(self).build(self._to_build(tiles), n_hint=self._n_hint,
                                         dtype=self._dtype).tiles  # fmt: skip
                _arrays.settle(tiles.kinds)
                object.__setattr__(self, "_tiles", tiles)
            return tiles

    def _to_build(self, transposed: ht.TransposedTiles) -> Any:
        """What a transposed matrix is built from: CSR, where that is less than the dense matrix."""
        source = type(self)(transposed.source, self._nnz)
        return (source.tocsr() if self._is_mostly_zeros else source.toarray()).T

    @property
    def is_less_as_csr(self) -> bool:
        """Whether the matrix is on the CPU, and CSR takes less memory there than the dense one."""
        return self.device == "cpu" and self._is_mostly_zeros

    @property
    def _is_mostly_zeros(self) -> bool:
        """Whether CSR takes less memory than the dense matrix."""
        return CSR_BELOW * self._nnz < self.size

    @property
    def shape(self) -> tuple[int, int]:
        return self._tiles.shape

    @property
    def n_hint(self) -> int | None:
        """Columns of `b` for which the kinds were chosen, if given."""
        return self._n_hint

    @property
    def nnz(self) -> int:
        """Number of non-zeros, counted when the matrix was built."""
        return self._nnz

    @property
    def nbytes(self) -> int:
        """Bytes of the tiles and of every layout that products have prepared so far."""
        with self._lock:
            return self._tiles.nbytes + sum(layout.nbytes for layout in self._prepared.values())

    @property
    def device(self) -> str:
        return _arrays.device_of(self._tiles.kinds)

    @property
    def kinds(self) -> np.ndarray:
        """Kinds of the tiles, (down, across), read-only.

        0 is empty, 1 dense, 2 2:4, 3 a bitmap, and 4 scattered.
        """
        return _arrays.read_only(_arrays.to_numpy(self.tiles.kinds).reshape(self.tiles.grid))

    def __repr__(self) -> str:
        return (
            f"<HybridArray {self.shape[0]}x{self.shape[1]} {self._dtype.name}, "
            f"{_table.rest(self.density)} zeros, {self.device}>"
        )

    # Out of it

    @_devices.on_own_device
    def toarray(self, out=None):
        """The dense matrix on the same device, equal to the input bit for bit (-0.0 as 0.0).

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.

        Returns
        -------
        array, shape (m, k)
            `out`, if that is given.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        """
        return _storage.dense_into(
            out, lambda: hybrid_build.decode(self.tiles), self.shape, self._dtype,
            like=self.tiles.values,
        )  # fmt: skip

    def held(self) -> tuple[Any, Any, Any]:
        """Where rows start, and the columns and bits of their elements; on a GPU this waits.

        On the CPU a transposed matrix takes them from the tiles of the other.
        """
        if _arrays.is_cupy(self._tiles.kinds):
            from sparse24.kernels import hybrid_list

            return hybrid_list.rows(hybrid_build.as_bits(self.tiles))
        from sparse24.kernels import cpu_hybrid_held

        rows = cpu_hybrid_held.held(hybrid_build.as_bits(self._tiles.source))
        turn = isinstance(self._tiles, ht.TransposedTiles)
        return cpu_hybrid_held.turned(*rows, self.shape[0]) if turn else rows

    @_devices.on_own_device
    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        Nothing becomes dense of a matrix of which at least three quarters are zeros.
        """
        starts, columns, bits = self.held()
        values = bits.view(self._dtype.logical)
        return convert.csr_of(starts, columns, values, self.shape, dtype)

    def _fields(self):
        return self.tiles, self._nnz, self.n_hint

    @_devices.on_own_device
    def copy(self) -> Self:
        """A deep copy."""
        return type(self)(self.tiles.map(lambda x: x.copy()), self.nnz, self.n_hint)

    def _moved(self, mover) -> Self:
        return type(self)(self.tiles.map(mover), self.nnz, self.n_hint)

    def _astype(self, dtype: _dtypes.DType) -> Self:
        source = self.tocsr() if self._is_mostly_zeros else self.toarray()
        return type(self).build(source, n_hint=self.n_hint, dtype=dtype)

    @_devices.on_own_device
    def __getitem__(self, key) -> Any:
        """A part, built anew; where it has one axis or none, dense.

        Of rows, and on the CPU columns, by a number or a slice nothing is made dense but their
        tiles, and nothing at all of large matrices on the CPU where CSR takes less memory, unless
        the key pairs arrays.
        """
        return hybrid_indexing.part_of(self, key)

    def _factor(self, factor):
        sparse = hybrid_arithmetic.sparse_factor(self, factor) if self.is_less_as_csr else None
        return super()._factor(factor) if sparse is None else sparse

    def _elementwise(self, ufunc, factor, result) -> Self:
        return hybrid_arithmetic.elementwise(self, ufunc, factor, result)

    def _for_reduction(self, axis) -> Any:
        by_csr = self.is_less_as_csr
        return hybrid_reductions.Elements(self) if by_csr else super()._for_reduction(axis)

    @_devices.on_own_device
    def mask(self):
        """Boolean array (m, k): true where elements are not zero."""
        return _arrays.not_zero(self.toarray(), self._dtype)

    @property
    def T(self) -> Self:
        """The transposed matrix; its tiles are built where they are first needed, and kept.

        ``x @ H.T`` does not need them: it multiplies with those of ``H``.
        """
        other = self._transpose_of and self._transpose_of()
        if other is not None:
            return other
        return self.prepared("transposed", self._transposed_anew)

    def _transposed_anew(self) -> Self:
        """Make the transposed matrix; it refers back weakly, so the two form no reference cycle."""
        with self._lock:
            source = self._tiles.source  # itself, unless it is only transposed so far
            tiles = ht.TransposedTiles(source) if self._tiles is source else source
        return type(self)(tiles, self._nnz, self._n_hint, _transpose_of=weakref.ref(self))

    @property
    def mT(self) -> Self:
        """The same as `T`: there are no batches."""
        return self.T

    def prepared(self, name: str, make):
        """The derived layout `name`, made by `make()` at the first use and kept.

        Waits for its arrays, if it has any: the next product may run on another stream.
        """
        found = self._prepared.get(name)
        if found is None:
            with self._lock:
                found = self._prepared.get(name)
                if found is None:
                    found = make()
                    if found.nbytes:
                        _arrays.settle(self._tiles.kinds)
                    self._prepared[name] = found
        return found

    def is_prepared(self, name: str) -> bool:
        """Whether `prepared` has already made the layout `name`."""
        return name in self._prepared


def _refuse_tall(tiles: ht.Tiles | ht.TransposedTiles) -> None:
    """Refuse more rows on a GPU than a grid of blocks has."""
    most = MOST_BLOCKS * ht.TILE  # a block takes the rows of a tile
    if isinstance(tiles, ht.Tiles) and tiles.shape[0] > most and _arrays.is_cupy(tiles.kinds):
        raise UnsupportedError(
            f"a hybrid matrix on a GPU has at most {most} rows, got {tiles.shape[0]}; build one of "
            "each part of the rows"
        )
