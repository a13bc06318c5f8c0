"""`HybridArray`: an unstructured sparse matrix in tiles, exact, for products with dense ones."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _hybrid_cost, _hybrid_dispatch, _storage
from sparse24._hybrid_predict import copied_by
from sparse24._hybrid_summary import summary
from sparse24.formats import convert, hybrid_build, hybrid_products
from sparse24.formats import hybrid_tiles as ht
from sparse24.formats.base import SparseArray, made_by


class HybridArray(SparseArray):
    """A matrix cut into 64x64 tiles, each empty, dense, 2:4 with overflow, or a bitmap.

    Made by `sparse24.hybrid` or `from_tiles`, and immutable.  ``H @ b`` equals
    ``H.toarray() @ b`` up to the order of summation.

    Parameters
    ----------
    tiles : Tiles
        The arrays, all NumPy or all CuPy.
    nnz : int
        Number of non-zeros.
    n_hint : int, optional
        Columns of `b` for which the kinds were chosen.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> w = np.triu(np.ones((100, 80), np.float32))
    >>> H = s24.hybrid(w)
    >>> H
    <HybridArray 100x80 float32, 59.5% zeros, cpu>
    >>> bool((H @ np.ones(80, np.float32) == w.sum(1)).all())
    True
    """

    __slots__ = (
        "_dtype", "_lock", "_n_hint", "_nnz", "_plans", "_prepared", "_tiles", "_turned",
    )  # fmt: skip

    _lock: threading.RLock
    _n_hint: int | None
    _nnz: int
    _plans: dict[tuple, Any]
    _prepared: dict[str, Any]
    _tiles: ht.Tiles | ht.TurnedTiles
    _turned: Any

    def __init__(
        self, tiles: ht.Tiles | ht.TurnedTiles, nnz: int | None = None,
        n_hint: int | None = None, *, _turned=None,
    ):  # fmt: skip
        if not isinstance(tiles, ht.Tiles | ht.TurnedTiles) or nnz is None:
            raise made_by(self, tiles, "sparse24.hybrid(w)")
        fields = {
            "_tiles": tiles,
            "_turned": _turned,  # weakly, the matrix whose transpose this is
            "_dtype": tiles.dtype,
            "_nnz": int(nnz),
            "_n_hint": n_hint,
            "_lock": threading.RLock(),  # what is prepared may need another
            "_plans": {},  # prepared launches, by signature of b
            "_prepared": {},
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"a HybridArray is immutable; cannot set {name}")

    @classmethod
    def build(cls, w, *, n_hint: int | None = None, dtype=None) -> HybridArray:
        """Build from a dense, scipy or cupyx matrix; see `sparse24.hybrid`."""
        source = hybrid_build.Source(w, dtype)
        rates = _hybrid_cost.rates_for(source.dtype, source.xp is not np)
        n = n_hint or _hybrid_cost.DEFAULT_N
        tiles, nnz = hybrid_build.build(
            source, lambda held, spill: _hybrid_cost.choose(held, spill, source.dtype, n, rates)
        )
        return cls(tiles, nnz, n_hint)

    @classmethod
    def from_tiles(cls, tiles: ht.Tiles, n_hint: int | None = None) -> HybridArray:
        """Wrap NumPy arrays that may come from anywhere, after checking them.

        Raises
        ------
        FormatError
            If the arrays do not fit together.
        """
        ht.check(tiles)
        mask = tiles.dtype.logical.type(0)
        nnz = np.count_nonzero(tiles.values != mask) + tiles.overflow_values.size
        return cls(tiles, nnz, n_hint)

    # What it is

    @property
    def tiles(self) -> ht.Tiles:
        """The arrays, for those who write kernels; those of a transposed matrix are built now."""
        tiles = self._tiles
        return self._built() if isinstance(tiles, ht.TurnedTiles) else tiles

    def _built(self) -> ht.Tiles:
        with self._lock:
            tiles = self._tiles
            if isinstance(tiles, ht.TurnedTiles):
                source = HybridArray(tiles.source, self._nnz).toarray().T
                tiles = HybridArray.build(source, n_hint=self._n_hint).tiles
                object.__setattr__(self, "_tiles", tiles)
            return tiles

    @property
    def shape(self) -> tuple[int, int]:
        return self._tiles.shape

    @property
    def n_hint(self) -> int | None:
        """Columns of `b` for which the kinds were chosen, if they were told."""
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
        """Kinds of the tiles, (down, across): 0 empty, 1 dense, 2 2:4, 3 bitmap."""
        return _arrays.to_numpy(self.tiles.kinds).reshape(self.tiles.grid)

    def __repr__(self) -> str:
        return (
            f"<HybridArray {self.shape[0]}x{self.shape[1]} {self._dtype.name}, "
            f"{1 - self.density:.1%} zeros, {self.device}>"
        )

    # Out of it

    def toarray(self, out=None):
        """The dense matrix on the same device, equal to the input bit for bit (-0.0 as 0.0).

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.
        """
        return _storage.dense_into(
            out, lambda: hybrid_build.decode(self.tiles), self.shape, self._dtype,
            like=self.tiles.values,
        )  # fmt: skip

    def pieces(self):
        """Iterate over the dense matrix, a few rows at a time."""
        return hybrid_build.decoded(self.tiles)

    def tocsr(self, dtype=None):
        """As for all formats; on the CPU no more than a part of the matrix is dense at a time."""
        if self.device != "cpu" or not self.size:
            return super().tocsr(dtype)
        return convert.stack([convert.to_csr(rows, dtype) for rows in self.pieces()])

    def _fields(self):
        return self.tiles, self._nnz, self.n_hint

    def copy(self) -> HybridArray:
        """A deep copy."""
        return HybridArray(self.tiles.map(lambda x: x.copy()), self.nnz, self.n_hint)

    def to_device(self, device, /, *, stream=None) -> HybridArray:
        """Move to ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``; waits when it leaves the GPU.

        Devices of torch and CuPy are taken, too.
        """
        device = _storage.device_name(device)
        if device == self.device or (device == "cuda" and self.device.startswith("cuda")):
            return self
        mover = _storage.mover(device, stream)
        return HybridArray(self.tiles.map(mover), self.nnz, self.n_hint)

    def astype(self, dtype) -> HybridArray:
        """The matrix with elements of another type, built anew."""
        if _dtypes.lookup(dtype) is self._dtype:
            return self
        return HybridArray.build(self.toarray(), n_hint=self.n_hint, dtype=dtype)

    def mask(self):
        """Boolean array (m, k): the places of the elements that are not zero."""
        return self.toarray().view(self._dtype.storage) != 0

    @property
    def T(self) -> HybridArray:
        """The transposed matrix, kept; its tiles are built where they are first needed.

        ``x @ H.T`` does not need them: it multiplies with those of ``H``.
        """
        other = self._turned and self._turned()
        if other is not None:
            return other
        return self.prepared("transposed", self._transposed_anew)

    def _transposed_anew(self) -> HybridArray:
        """Which knows this one weakly, so that neither waits for the garbage collector."""
        with self._lock:
            held = self._tiles
            tiles = held.source if isinstance(held, ht.TurnedTiles) else ht.TurnedTiles(held)
        return HybridArray(tiles, self._nnz, self._n_hint, _turned=weakref.ref(self))

    @property
    def mT(self) -> HybridArray:
        """The same as `T`: there are no batches."""
        return self.T

    # Products

    def _multiply(self, other):
        return self.matmul(other)

    def _multiply_from_left(self, x):
        return self.T._multiply_rows(x)

    def _multiply_rows(self, x):
        """``x @ self.T``; the transpose is not built."""
        return hybrid_products.multiply_rows(self, x)

    def matmul(self, b, out=None, *, algorithm: str = "auto", balance: bool = True):
        """Return ``self @ b``.

        Parameters
        ----------
        b : array, shape (k,), (k, n) or (..., k, n)
            Operand on the same device.  Sparse ones are made dense.  Where its dtype is
            another than the matrix's, both are converted to one that holds both exactly.
        out : array, optional
            Written in place and returned; shape of the result, and its dtype.
        algorithm : str, default "auto"
            ``"auto"``, or the name of a path that `explain` lists.
        balance : bool, default True
            Cut the work into units of equal cost, and fold a stack of products with few
            columns into one; ``False`` gives every unit the same number of tiles, and
            every product of a stack its own turn.  The same inputs give the same bits
            either way.

        Returns
        -------
        array, shape (m,), (m, n) or (..., m, n)
            int32 for int8, else of the dtype of the operands.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, ArgumentError
            If `b` or `out` do not fit, or `algorithm` cannot run.
        UnsupportedError
            If a graph is captured, the choice is cuBLAS, and no other path has been prepared.

        Notes
        -----
        Does not synchronise, except that the first product of a kind on the GPU
        prepares its layout, which waits.  The first product with a `b` of a wider dtype
        builds the matrix anew in it, and keeps it.
        """
        return hybrid_products.matmul(self, b, out, algorithm, balance)

    def prepared(self, name: str, make):
        """A layout or another derived thing, made by `make()` at the first use and kept."""
        found = self._prepared.get(name)
        if found is None:
            with self._lock:
                found = self._prepared.get(name)
                if found is None:
                    found = self._prepared[name] = make()
        return found

    def is_prepared(self, name: str) -> bool:
        """True if `prepared` has made this thing."""
        return name in self._prepared

    # What it costs, and why

    def explain(self, n: int | None = None, *, b_order: str = "row") -> dict:
        """The paths of a product with `n` columns, their predicted seconds, the choice and why.

        Parameters
        ----------
        n : int, optional
            By default `n_hint`, or 16.
        b_order : {"row", "column"}
            Memory order of the dense operand `b`: ``"column"`` for ``x @ H.T`` and ``linear(x, H)``
            with an `x` whose rows are contiguous.  Paths under ``"copies_b"`` copy it at each call.
        """
        _check.one_of(b_order, ("row", "column"), argument="b_order")
        n = self._columns(n)
        return _hybrid_dispatch.explain(self, n, copied=copied_by(n, b_order))

    def summary(self, n: int | None = None) -> str:
        """A few lines: tiles by kind and band, memory against dense and CSR, and the choice.

        Parameters
        ----------
        n : int, optional
            Columns of the product; by default `n_hint`, or 16.
        """
        return summary(self, self._columns(n))

    def _columns(self, n: int | None) -> int:
        if n is None:
            return self.n_hint or _hybrid_cost.DEFAULT_N
        return _check.whole(n, argument="n", least=1)
