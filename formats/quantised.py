"""`Quantised24Array`: a 2:4 matrix, or a batch, of integers of 4 or 8 bits times factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from sparse24 import _arrays, _devices, _dtypes, _quantised, _storage
from sparse24._records import Compressed24, Operand24
from sparse24.formats.products_24 import Products24
from sparse24.formats.quantised_cuts import QuantisedCuts
from sparse24.formats.scipy_names import missing
from sparse24.formats.transposes import KeptTranspose
from sparse24.formats.two_four import Sparse24Array


class Quantised24Array(KeptTranspose, QuantisedCuts, Products24):
    """A quantised 2:4 matrix, or a stack of them, on the CPU or a GPU.  Immutable.

    Made by `sparse24.quantise` or `sparse24.convert.from_quantised`; not by its constructor.  An
    element is an integer times a scale, which the elements of 128 columns of a row share.

    Attributes
    ----------
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : numpy.dtype
        The type that products take the elements for, and to which `toarray` rounds them.
    bits : int
        Of an integer: 4 or 8.
    pattern : tuple of int
        ``(2, 4)``.
    axis : int
        The axis that the groups run along: -1, or -2 for the transpose.

    Notes
    -----
    With few tokens of the same type, float16 or bfloat16, ``A @ b`` and ``x @ A.T`` multiply the
    integers on the tensor cores of Hopper: the sums of 128 columns are multiplied by the scales in
    float32, so that elements are not rounded.  With more tokens they are rounded to that type, in
    registers.  Products of other types and on other GPUs dequantise the matrix at each call, to the
    type in which the operands meet.  On the CPU the first product does so, and keeps what it made;
    but with AVX2 ``A @ b`` and ``x @ A.T`` of up to 4 tokens, of 8 bits 1 token, whose sums are
    float32, read the integers as they are stored.

    In memory a dense element of 4 bits takes 3.25 bits with its codes and scales, one of 8 bits
    5.25, in blocks of 16 rows by 128 columns.

    ``A[rows]``, ``A[:, i:j]`` for multiples of 128 columns, matrices of a stack, and joined arrays
    stay quantised; ``A[i:j]`` for multiples of 16 rows of a matrix, or for matrices of a stack, is
    a view.  Arithmetic, functions of elements, other columns and ``A.astype`` to another type give
    a `Sparse24Array`.  These, sums, extremes and norms have the elements of `toarray`, but
    ``A.astype`` rounds integers times scales anew, as `dequantise` does.

    A stack (e, m, k) holds the weights of experts: see `grouped_linear`.  Its other products are
    as those of a matrix.

    Work goes to CuPy's current stream.  `nnz`, `density`, `tocsr` and a move to the CPU wait for
    the device; products, `toarray`, `dequantise`, `mask` and views do not.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((64, 256), dtype="float16", rng=0)
    >>> Q = s24.quantise(A)
    >>> Q
    <Quantised24Array: 4 bits for float16, shape (64, 256), axis -1, on cpu, 6656 bytes (dense: \
32768)>
    >>> Q.integers.shape, Q.scales.shape
    ((64, 128), (64, 2))
    >>> x = np.ones((3, 256), np.float16)
    >>> (x @ Q.T).shape, (x @ Q.T).dtype
    ((3, 64), dtype('float16'))
    """

    __slots__ = ("_operand", "_plans", "_transpose")

    def __init__(self, operand: Operand24):
        self._take(operand, maker="sparse24.quantise(A)")

    # --- what it is ---------------------------------------------------------------------

    @property
    def bits(self) -> int:
        return self._operand.stored.quantised

    @property
    @_devices.on_own_device
    def nnz(self) -> int:
        """Number of elements that are not zero once they are rounded (waits for the device)."""
        return self.dequantise().nnz

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held, on the CPU those of a dequantised matrix, too."""
        return sum(x.nbytes for x in _storage.arrays(self._operand.stored) if x is not None)

    @property
    @_devices.on_own_device
    def integers(self):
        """Stored elements before the scales, int8 (..., m, 2 * ceil(k / 4)); a copy.

        Of the transposed matrix if `axis` is -2, as `scales` and `metadata`.
        """
        return self._parts().integers

    @property
    @_devices.on_own_device
    def scales(self):
        """The scales, float32 (..., m, ceil(k / 128)); a copy."""
        return self._parts().factors.copy()  # else those of a single brick are a view

    @property
    @_devices.on_own_device
    def metadata(self):
        """Canonical codes, uint8 (..., m, ceil(k / 8)), two per byte: see :ref:`layout`; a copy."""
        return self._parts().metadata

    @property
    def mT(self) -> Self:
        """The array with its last two axes exchanged; nothing is copied."""
        return self._kept_transpose(lambda: type(self)(self._operand.transposed()))

    def __repr__(self) -> str:
        dense = self.size * self._dtype.itemsize
        return (
            f"<Quantised24Array: {self.bits} bits for {self._dtype.name}, shape {self.shape}, "
            f"axis {self.axis}, on {self.device}, {self.nbytes} bytes (dense: {dense})>"
        )

    # --- conversions --------------------------------------------------------------------

    @_devices.on_own_device
    def dequantise(self, dtype=None) -> Sparse24Array:
        """The array with elements, integers times scales, rounded to float32 and then to the type.

        In float64 they are exact.

        Parameters
        ----------
        dtype : str or dtype, optional
            By default that of the array.

        Returns
        -------
        Sparse24Array
            On the same device, for which this does not wait.

        Raises
        ------
        DTypeError
            If sparse24 does not store the type.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.array([[0, 7, 0, -8], [14, 0, 2, 0]], np.float32))
        >>> Q = s24.quantise(A)
        >>> Q.scales, Q.integers, Q.dequantise().toarray()
        (array([[ 1.  ],
               [-1.75]], dtype=float32), array([[ 7, -8],
               [-8, -1]], dtype=int8), array([[ 0.  ,  7.  ,  0.  , -8.  ],
               [14.  ,  0.  ,  1.75,  0.  ]], dtype=float32))
        """
        wanted = self._dtype if dtype is None else _dtypes.lookup(dtype)
        return Sparse24Array(_quantised.as_converted(self._operand, wanted))

    def toarray(self, out=None):
        """Return the dense array (..., m, k), on the same device.

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.  Also a tensor of torch.

        Returns
        -------
        array, shape (..., m, k)
            `out`, if that is given.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            If `out` does not fit or is read-only.
        """
        return self.dequantise().toarray(out)

    def tocsr(self, dtype=None):
        """The matrix as `scipy.sparse.csr_array` (`cupyx.scipy.sparse.csr_matrix` on the GPU).

        As `Sparse24Array.tocsr`, with its `dtype`, of `dequantise`.
        """
        return self.dequantise().tocsr(dtype)

    def _astype(self, dtype: _dtypes.DType) -> Sparse24Array:
        return self.dequantise(dtype)

    def _elementwise(self, ufunc, factor, result) -> Any:
        return self.dequantise()._elementwise(ufunc, factor, result)

    def _elements(self):
        return self.dequantise()._elements()

    def _of_elements(self) -> Sparse24Array:
        return self.dequantise()  # `astype` rounds integers times scales to its own type

    def _for_reduction(self, axis) -> Any:
        return self._of_elements()._for_reduction(axis)

    @_devices.on_own_device
    def copy(self) -> Self:
        """A deep copy."""
        return self._moved(lambda x: x.copy())

    def _moved(self, mover) -> Self:
        old = self._operand.stored
        bricks = mover(old.values)
        if _arrays.is_cupy(bricks):
            _storage.refuse_long(old.shape)
        return self._oriented(_quantised.with_bricks(bricks, old.shape, old.quantised, old.dtype))

    def _fields(self):
        return (self._operand,)

    if not TYPE_CHECKING:  # as in `ScipyNames`

        def __getattr__(self, name: str):
            if name.startswith("_") or not hasattr(Sparse24Array, name):
                return super().__getattr__(name)
            raise missing(self, name, f"use .dequantise().{name}")

    def _oriented(self, record: Compressed24) -> Self:
        array = self._of(record)
        return array if self.axis == -1 else array.mT


def of_parts(parts: _quantised.Parts, shape: tuple[int, ...], bits: int, dtype: _dtypes.DType):
    """The array of checked parts."""
    return Quantised24Array._of(_quantised.record_of(parts, shape, bits, dtype))
