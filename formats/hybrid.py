"""`HybridArray`: an unstructured sparse matrix, stored in tiles without loss, and its products."""

from __future__ import annotations

from sparse24 import _check, _gradients
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid.predict import copied_by
from sparse24._hybrid.summary import summary
from sparse24.formats import hybrid_products
from sparse24.formats.hybrid_storage import HybridStorage


class HybridArray(HybridStorage):
    """An unstructured sparse matrix in 64x64 tiles: empty, dense, 2:4, bitmap, or scattered.

    Made by `sparse24.hybrid` or `from_tiles`, and immutable.  Elements are float16, bfloat16,
    float32, float64 or int8.  ``H @ b`` equals ``H.toarray() @ b`` up to the order of summation.

    Attributes
    ----------
    shape : tuple of int
        (m, k).
    dtype : numpy.dtype
        Element type.
    n_hint : int or None
        Columns of `b` for which the kinds of the tiles were chosen.

    Notes
    -----
    Work goes to CuPy's current stream.  `kinds`, `tocsr`, `tocoo` and a move to the CPU wait for
    the device, and so do the first product of a kind, `explain` and `summary` where they need
    counts of the matrix for the first time.  Later products, `toarray` and `mask` do not.

    `numpy.concatenate`, `vstack` and `hstack` join matrices of one type and device; on a GPU that
    waits, too.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> w = np.triu(np.ones((100, 80), np.float32))
    >>> H = s24.hybrid(w)
    >>> H
    <HybridArray 100x80 float32, 59.5% zeros, cpu>
    >>> bool((H @ np.ones(80, np.float32) == w.sum(1)).all())
    True
    >>> np.concatenate([H, H])
    <HybridArray 200x80 float32, 59.5% zeros, cpu>
    """

    __slots__ = ()

    # Products

    def _multiply(self, other):
        return hybrid_products.matmul(self, other, None, "auto", True)

    def _multiply_from_left(self, x):
        return self.T._multiply_rows(x)

    def _stays_sparse_beside(self, other):  # the dense matrix of a graph finds no room
        return self._is_mostly_zeros and self.size > other.size

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

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> H = s24.hybrid(np.triu(np.ones((3, 4), np.float32)))
        >>> H.matmul(np.arange(4, dtype=np.float32), algorithm="cpu")
        array([6., 6., 5.], dtype=float32)
        """
        _gradients.refuse(b, "b")
        _gradients.refuse(out, "out")
        if _check.is_an_array(algorithm):  # others are compared with the names of paths
            _check.text(algorithm, argument="algorithm", such_as="'auto' or a path of explain()")
        balance = _check.flag(balance, argument="balance")
        return hybrid_products.matmul(self, b, out, algorithm, balance)

    # What it costs, and why

    def explain(self, n: int | None = None, *, b_order: str = "row") -> dict:
        """The paths of a product with `n` columns, their predicted times, the choice and why.

        A path is one way to multiply: a kernel and its layout of the matrix.

        Parameters
        ----------
        n : int, optional
            By default `n_hint`, or 16.
        b_order : {"row", "column"}
            Memory order of the dense operand `b`: ``"column"`` for ``x @ H.T`` and ``linear(x, H)``
            with an `x` whose rows are contiguous.  Paths under ``"copies_b"`` copy it at each call.

        Returns
        -------
        dict
            ``"candidates"``, seconds by path for `n` columns; ``"choice"`` and ``"reason"``, which
            are those of the next number of columns for which choices are remembered, such as a
            power of two; ``"copies_b"`` and ``"n"``.  Where the device has no room for a dense
            copy of the matrix, paths that need one are no candidates, and the reason says so.

        Raises
        ------
        ArgumentError
            If `n` is not a positive integer, or `b_order` is unknown.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> told = s24.hybrid(np.triu(np.ones((100, 80), np.float32))).explain(n=32)
        >>> told["choice"], told["reason"]
        ('cpu', 'the only path for this many columns on this device')
        """
        _check.one_of(b_order, ("row", "column"), argument="b_order")
        n = self._columns(n)
        return hybrid_choice.explain(self, n, copied=copied_by(n, b_order))

    def summary(self, n: int | None = None) -> str:
        """A few lines: tiles by kind and band, memory against dense and CSR, and the choice.

        Parameters
        ----------
        n : int, optional
            Columns of the product; by default `n_hint`, or 16.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> text = s24.hybrid(np.triu(np.ones((100, 80), np.float32))).summary(n=32)
        >>> print(text.splitlines()[0])
        HybridArray 100x80 float32, 59.5% zeros, cpu
        """
        return summary(self, self._columns(n))

    def _columns(self, n: int | None) -> int:
        if n is None:
            return self.n_hint or hybrid_cost.DEFAULT_N
        return _check.whole(n, argument="n", least=1)
