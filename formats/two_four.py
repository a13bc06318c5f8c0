"""`Sparse24Array`: a matrix, or a batch, with at most two non-zeros in every group of four."""

from __future__ import annotations

from sparse24 import _devices, _dtypes, _foreign_streams, _storage
from sparse24.formats import convert
from sparse24.formats.two_four_storage import Sparse24Storage


class Sparse24Array(Sparse24Storage):
    """A 2:4 sparse array on the CPU or a GPU.  Immutable.

    Made by `sparse24.compress`, `sparse24.asarray`, `sparse24.from_scipy` or
    `sparse24.random`; not by its constructor.  Elements are float16, bfloat16, float32, float64,
    int8, float8_e4m3fn or float8_e5m2.

    Attributes
    ----------
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : numpy.dtype
        Logical element type; fp8 types too, though a GPU carries them as ``uint8``.
    pattern : tuple of int
        ``(2, 4)``.
    axis : int
        The axis that the groups run along: -1, or -2 for the transpose of such an array.
    transposable : bool
        True if groups obey the pattern along both axes and both are stored.

    Notes
    -----
    A product is sparse where the groups run along the contracted axis: ``A @ b`` for
    ``axis=-1``, ``x @ A`` for ``axis=-2`` (so ``x @ A.T`` for a weight compressed along
    its rows), and both for a transposable array.  Otherwise the array is decompressed and the
    product is dense; on the CPU, with up to 16 columns, stored rows are added up instead.

    ``A[rows]``, ``A[:, i:j]`` for whole groups of columns, and matrices of a batch are sparse; a
    single row or column is dense, an element a number.  The values of ``A[i:j]`` are views.  Parts
    of a transposable array, which can be cut along either axis, are stored in one orientation.
    `numpy.concatenate` and `numpy.stack` join arrays of one type, on either device.

    ``A * f``, ``A / f``, ``-A`` and ``abs(A)`` keep zeros, for a factor that is a number, or an
    array that broadcasts to the shape of A; the result has NumPy's type.  So do functions such as
    ``numpy.sqrt(A)``.  `sum`, `mean`, `max` and `min` count zeros, too; `sum` says when the array
    becomes dense for them.

    Work goes to CuPy's current stream.  `nnz`, `density`, `check`, `tocsr`, `tocoo` and a move to
    the CPU wait for the device; products, `toarray`, `mask`, `astype` and views do not.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[0, 1, 0, 2, 3, 0, 0, 0]], np.float32))
    >>> A
    <Sparse24Array: shape (1, 8), dtype float32, axis -1, on cpu, 17 bytes (dense: 32)>
    >>> A.values, A.metadata
    (array([[1., 2., 3., 0.]], dtype=float32), array([[205]], dtype=uint8))
    >>> A @ np.ones(8, np.float32)
    array([6.], dtype=float32)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        dense = self.size * self._dtype.itemsize
        return (
            f"<Sparse24Array: shape {self.shape}, dtype {self._dtype.name}, axis {self.axis}, "
            f"on {self.device}, {self.nbytes} bytes (dense: {dense})>"
        )

    # --- conversions --------------------------------------------------------------------

    @_devices.on_own_device
    def toarray(self, out=None):
        """Return the dense array (..., m, k), on the same device.

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.  Also a tensor of torch.

        Returns
        -------
        array, shape (..., m, k)
            `out`, if that is given; fp8 on a GPU as bits (``uint8``).

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        """
        record = self._operand.stored
        swap = self.axis == -2
        if out is None:
            dense = _storage.decompress(record)
            return dense.swapaxes(-1, -2) if swap else dense
        with _foreign_streams.stream_of(out):
            target = _storage.check_out(out, self.shape, self._dtype, like=record.values)
            _storage.decompress(record, target.swapaxes(-1, -2) if swap else target)
        return out

    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        As `NMArray.tocsr`, with its `dtype`, but on the CPU nothing becomes dense.
        """
        if self.device != "cpu" or self.ndim > 2:
            return super().tocsr(dtype)
        stored = self._operand.stored
        csr = convert.csr_of_24(stored.values, _storage.canonical(stored), stored.shape, dtype)
        return csr.T.tocsr() if self.axis == -2 else csr

    def _astype(self, dtype: _dtypes.DType) -> Sparse24Array:
        return self._map(lambda record: _storage.cast(record, dtype), dtype)
