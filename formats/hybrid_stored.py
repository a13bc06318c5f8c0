"""What a hybrid matrix stores, tiles or rows, and what products derive from it and keep."""

from __future__ import annotations

import threading
from typing import Any, Self, cast

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _locks
from sparse24._errors import DTypeError
from sparse24._hybrid import cost as hybrid_cost
from sparse24.formats import hybrid_build, hybrid_checks
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.base import SparseArray, made_by
from sparse24.formats.hybrid_listed import ListedRows
from sparse24.formats.hybrid_source import Source

CSR_BELOW = 4  # elements for each non-zero, above which CSR takes less memory than the dense matrix


class HybridStored(SparseArray):
    """The tiles of a `HybridArray`, or its rows; what is made of them is its own."""

    __slots__ = (
        "_dtype", "_lock", "_n_hint", "_nnz", "_plans", "_prepared", "_tiles", "_transpose_of",
    )  # fmt: skip

    _lock: threading.RLock
    _n_hint: int | None
    _nnz: int
    _plans: dict[tuple, Any]
    _prepared: dict[str, Any]
    _tiles: ht.Tiles | ListedRows | ht.Transposed
    _transpose_of: Any

    def __init__(
        self, tiles: ht.Tiles | ListedRows | ht.Transposed, nnz: int | None = None,
        n_hint: int | None = None, *, _transpose_of=None,
    ):  # fmt: skip
        if not isinstance(tiles, ht.Tiles | ListedRows | ht.Transposed) or nnz is None:
            raise made_by(self, tiles, "sparse24.hybrid(w)")
        if isinstance(tiles, ht.Tiles):
            hybrid_build.refuse_large(tiles.shape, on_gpu=_arrays.is_cupy(tiles.home))
        if not isinstance(tiles, ht.Transposed):  # whose arrays are those of a matrix
            tiles = tiles.map(_arrays.read_only)
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
        n_hint = _checked_hint(n_hint)
        source = Source(w, dtype)
        choose = chooser(source.dtype, source.xp is not np, n_hint)
        stored, nnz = hybrid_build.build(source, choose)
        return cls(stored, nnz, n_hint)

    @classmethod
    def from_tiles(cls, tiles: ht.Tiles, n_hint: int | None = None) -> Self:
        """Make a matrix of given tiles, NumPy arrays, after checking them.

        Parameters
        ----------
        tiles : Tiles
            Of the kind that the property `tiles` gives.
        n_hint : int, optional
            Columns of the products for which the kinds were chosen.

        Returns
        -------
        HybridArray

        Raises
        ------
        FormatError
            If the arrays do not fit together.
        DTypeError
            If `tiles` is something else.
        ArgumentError
            If `n_hint` is not a positive integer.
        """
        if not isinstance(tiles, ht.Tiles):
            raise DTypeError(
                f"tiles must be those of a HybridArray, as H.tiles, got {type(tiles).__name__}; of "
                "a matrix sparse24.hybrid makes one"
            )
        n_hint = _checked_hint(n_hint)
        hybrid_checks.check(tiles)
        return cls(tiles, ht.count_nonzero(tiles), n_hint)

    # What it is

    @property
    def tiles(self) -> ht.Tiles:
        """The arrays of the tiles, for writers of kernels; a transposed matrix, and one of which
        only the rows are stored, builds them now.

        On the CPU read-only, and not to be written on a GPU either: products keep what they have
        derived from them.
        """
        stored = self.stored
        return stored if isinstance(stored, ht.Tiles) else self.prepared("tiles", self._in_tiles)

    @_devices.on_own_device
    def _in_tiles(self) -> ht.Tiles:
        """The tiles of a matrix of which only the rows are stored."""
        on_gpu = _arrays.is_cupy(self.stored.home)
        choose = chooser(self._dtype, on_gpu, self._n_hint)
        tiles = hybrid_build.tiles_of(cast(ListedRows, self.stored), choose)
        return tiles.map(_arrays.read_only)

    @property
    def stored(self) -> ht.Tiles | ListedRows:
        """The stored arrays; a transposed matrix builds its own now.

        Rows instead of tiles are those of a matrix that was made from a sparse one and has fewer
        than one non-zero among 1000 elements, or 20 if it is large.  Read-only, as `tiles`.
        """
        stored = self._tiles
        return self._built() if isinstance(stored, ht.Transposed) else stored

    @_devices.on_own_device
    def _built(self) -> ht.Tiles | ListedRows:
        with self._lock:
            stored = self._tiles
            if isinstance(stored, ht.Transposed):
                made = type(self).build(self._to_build(stored), n_hint=self._n_hint,
                                        dtype=self._dtype)  # fmt: skip
                stored = made.stored
                _arrays.settle(stored.home)
                object.__setattr__(self, "_tiles", stored)
            return stored

    def _to_build(self, transposed: ht.Transposed) -> Any:
        """What a transposed matrix is built from."""
        return type(self)(transposed.source, self._nnz)._source().T

    def _source(self) -> Any:
        """What `build` makes this matrix of: CSR, where that is less than the dense matrix."""
        return self.tocsr() if self._is_mostly_zeros else self.toarray()

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
        """Bytes of what is stored, and of every layout that products have prepared so far."""
        with self._lock:
            return self._tiles.nbytes + sum(layout.nbytes for layout in self._prepared.values())

    @property
    def device(self) -> str:
        return _arrays.device_of(self._tiles.home)

    @property
    def _xp(self) -> Any:
        return _arrays.namespace(self._tiles.home)

    @property
    def kinds(self) -> np.ndarray:
        """Kinds of the tiles, (down, across), read-only.

        0 is empty, 1 dense, 2 2:4, 3 a bitmap, and 4 scattered.  Where only rows are stored, those
        that their tiles would have, counted at each call.
        """
        stored = self.stored
        if isinstance(stored, ListedRows) and not self.is_prepared("tiles"):
            return _arrays.read_only(self._kinds_of_rows(stored))
        return _arrays.read_only(_arrays.to_numpy(self.tiles.kinds).reshape(self.tiles.grid))

    @_devices.on_own_device
    def _kinds_of_rows(self, stored: ListedRows) -> np.ndarray:
        choose = chooser(self._dtype, _arrays.is_cupy(stored.home), self._n_hint)
        return hybrid_build.kinds_of(stored, choose)

    def held(self) -> tuple[Any, Any, Any]:
        """Where rows start, and the columns and bits of their elements; on a GPU this waits.

        Not to be written: they may be those that are stored, or that products read.  On the CPU a
        transposed matrix takes them from what is stored of the other.
        """
        now = self._tiles
        if _arrays.is_cupy(now.home):
            return self._held_on_gpu()
        rows = self.read_by_products()
        if rows is not None:
            return rows
        if not isinstance(now, ht.Transposed):
            return hybrid_build.rows_on_cpu(now)
        from sparse24.kernels import cpu_hybrid_held

        other = self._transpose_of and self._transpose_of()
        starts, columns, bits = (
            hybrid_build.rows_on_cpu(now.source) if other is None else other.held()
        )
        return cpu_hybrid_held.turned(starts, columns, bits, self.shape[0])

    def read_by_products(self) -> tuple[Any, Any, Any] | None:
        """What `held` returns, if products on the CPU have made it of tiles and kept it."""
        rows = self._prepared.get("cpu")
        if rows is None or rows.values.dtype != self.dtype:  # which kernels have widened
            return None
        return rows.starts, rows.columns, rows.values.view(self._dtype.storage)

    def _held_on_gpu(self) -> tuple[Any, Any, Any]:
        from sparse24.kernels import hybrid_list

        stored = self.stored
        if isinstance(stored, ListedRows):
            return stored.csr
        return hybrid_list.rows(hybrid_build.as_bits(stored))

    def row_starts(self) -> Any:
        """Where rows start, as in `held`."""
        stored = self.stored if _arrays.is_cupy(self._tiles.home) else None
        if not isinstance(stored, ht.Tiles):
            return self.held()[0]
        from sparse24.kernels import hybrid_list

        return hybrid_list.row_starts(stored)

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
                        _arrays.settle(self._tiles.home)
                    self._prepared[name] = found
        return found

    def is_prepared(self, name: str) -> bool:
        """Whether `prepared` has already made the layout `name`."""
        return name in self._prepared


def _checked_hint(n_hint: int | None) -> int | None:
    return None if n_hint is None else _check.whole(n_hint, argument="n_hint", least=1)


def chooser(dtype: _dtypes.DType, on_gpu: bool, n_hint: int | None) -> hybrid_build.Chooser:
    """The function that chooses the kinds of tiles by their non-zeros and 2:4 overflow."""
    rates = hybrid_cost.rates_for(dtype, on_gpu)
    n = n_hint or hybrid_cost.DEFAULT_N
    return lambda held, spill: hybrid_cost.choose(held, spill, dtype, n, rates)
