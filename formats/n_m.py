"""`NMArray`: a matrix, or a batch, with at most n non-zeros in every group of m."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _storage
from sparse24._errors import ArgumentError, PatternError
from sparse24.formats import n_m_parts, n_m_products, tensor_float
from sparse24.formats.base import SparseArray, read_only
from sparse24.formats.two_four import Sparse24Array


class NMArray(SparseArray):
    """An n:m sparse array on the CPU or a GPU.  Immutable.

    Made by ``sparse24.compress(x, pattern=(n, m))`` or `from_dense`.

    Attributes
    ----------
    pattern : tuple of int
        ``(n, m)``, ``0 < n < m <= 32``.
    axis : int
        The axis that the groups run along: -1, or -2 for the transpose of such an array.
    values : array, shape (..., rows, n * groups)
        Stored elements, n a group; of the transposed matrix if `axis` is -2.  fp8 is
        carried as ``uint8`` on the GPU.
    indices : array of uint8, shape of `values`
        Place of each stored element in its group, rising within a group.

    Notes
    -----
    Products run on the 2:4 kernels where the pattern embeds into 2:4 exactly (1:2, 1:4,
    2:8, …: at most two elements in any aligned group of four).  Others run on a kernel
    of their own on the CPU, unless they are more than half full and meet many columns,
    and through the dense matrix else.  For patterns such as 6:8, `windows` prepares an
    exact 2:4 product over a longer k.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[0, 0, 7, 0, 0, 5, 0, 0]], np.float32), pattern=(1, 4))
    >>> A
    <NMArray: pattern 1:4, shape (1, 8), dtype float32, axis -1, on cpu, 10 bytes (dense: 32)>
    >>> A.values, A.indices
    (array([[7., 5.]], dtype=float32), array([[2, 1]], dtype=uint8))
    >>> A @ np.arange(8, dtype=np.float32)
    array([39.], dtype=float32)
    """

    __slots__ = (
        "_axis", "_cache", "_dtype", "_indices", "_pattern", "_rows_shape", "_turned", "_values",
    )  # fmt: skip

    _axis: int
    _cache: dict[str, Any]
    _indices: Any
    _pattern: tuple[int, int]
    _rows_shape: tuple[int, ...]
    _turned: Any  # the transposed view, an NMArray, or None
    _values: Any

    def __init__(self, values, indices, shape, pattern, dtype: _dtypes.DType, axis: int = -1):
        fields = {
            "_values": values,
            "_indices": indices,
            "_rows_shape": tuple(shape),  # (..., m, k), groups along the last axis
            "_pattern": tuple(pattern),
            "_dtype": dtype,
            "_axis": axis,
            "_cache": {},  # the forms that products take, made at first use
            "_turned": None,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"an NMArray is immutable; cannot set {name}")

    @classmethod
    def from_dense(
        cls, x, *, pattern=(2, 4), axis=-1, on_excess="raise", check: bool = True, dtype=None
    ) -> NMArray:
        """Compress an array that obeys n:m, or prune it by magnitude on the way.

        Parameters
        ----------
        x : array, shape (..., m, k)
            NumPy, CuPy, torch or JAX array of a supported dtype.
        pattern : tuple (n, m), default (2, 4)
        axis : {-1, -2}
            The axis that the groups run along.
        on_excess : {"raise", "prune"}
            What to do with a group of more than n non-zeros.  ``"raise"`` waits for
            the device.
        check : bool, default True
            ``False`` does not look for such groups: of one, the first n stay.
        dtype : dtype, optional
            Convert first; also the logical type of fp8 bits carried as ``uint8``.

        Raises
        ------
        PatternError
            If a group has more than n non-zeros; names the first and their number.
        """
        n, m = _check.pattern(pattern)
        _check.one_of(on_excess, ("raise", "prune"), argument="on_excess")
        with _foreign.stream_of(x):
            array, row = n_m_parts.in_dtype(_foreign.take(x)[0], dtype)
            _check.at_least_2d(array.shape, argument="x")
            number = _check.axis(axis, array.ndim) - array.ndim
            if number < -2:
                raise ArgumentError(f"axis must be one of the last two, got {axis}")
            array = array if number == -1 else array.swapaxes(-1, -2)
            values, indices, status = n_m_parts.compress(array, row, n, m, on_excess)
            if on_excess == "raise" and check:
                n_m_parts.raise_excess(status, (n, m), array.shape, number)
        return cls(values, indices, array.shape, (n, m), row, axis=number)

    # --- what it is ---------------------------------------------------------------------

    @property
    def pattern(self) -> tuple[int, int]:
        return self._pattern

    @property
    def axis(self) -> int:
        return self._axis

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, rows, k = self._rows_shape
        return (*batch, rows, k) if self._axis == -1 else (*batch, k, rows)

    @property
    def values(self):
        return read_only(self._values)

    @property
    def indices(self):
        return read_only(self._indices)

    @property
    def device(self) -> str:
        return _arrays.device_of(self._values)

    @property
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""
        return int((n_m_parts.magnitude_bits(self._values, self._dtype) != 0).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of values and indices, and of what products have made of them."""
        made = sum(array.nbytes for array in tuple(self._cache.values()))
        return self._values.nbytes + self._indices.nbytes + made

    def __repr__(self) -> str:
        n, m = self._pattern
        return (
            f"<NMArray: pattern {n}:{m}, shape {self.shape}, dtype {self._dtype.name}, axis "
            f"{self._axis}, on {self.device}, {self.nbytes} bytes "
            f"(dense: {self.size * self._dtype.itemsize})>"
        )

    # --- conversions --------------------------------------------------------------------

    def toarray(self, out=None):
        """Return the dense array (..., m, k), on the same device.

        Parameters
        ----------
        out : array, optional
            Where to write it; shape and dtype of the result.
        """
        if out is not None:
            _storage.check_out(out, self.shape, self._dtype, like=self._values)
        dense = n_m_parts.decompress(
            self._values, self._indices, self._dtype, self._pattern, self._rows_shape[-1]
        )
        dense = dense if self._axis == -1 else dense.swapaxes(-1, -2)
        if out is None:
            return dense
        out[...] = dense
        return out

    def mask(self):
        """Boolean array (..., m, k): the places of the stored elements that are not zero."""
        return n_m_parts.magnitude_bits(self.toarray(), self._dtype) != 0

    @property
    def T(self) -> NMArray:
        """The transposed matrix; nothing is copied."""
        if self.ndim > 2:
            raise ArgumentError(f"T is for matrices, got {self.ndim} axes; use .mT")
        return self.mT

    @property
    def mT(self) -> NMArray:
        """The array with its last two axes exchanged; nothing is copied."""
        if self._turned is None:
            turned = self._with(axis=-3 - self._axis)
            object.__setattr__(turned, "_turned", self)
            object.__setattr__(self, "_turned", turned)
        return self._turned

    def astype(self, dtype) -> NMArray:
        """Convert the stored elements; their places stay."""
        row = _dtypes.lookup(dtype)
        if row is self._dtype:
            return self
        return self._with(values=n_m_parts.cast(self._values, self._dtype, row), dtype=row)

    def copy(self) -> NMArray:
        """A deep copy."""
        return self._with(values=self._values.copy(), indices=self._indices.copy())

    def to_device(self, device, /, *, stream=None) -> NMArray:
        """Move to ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``; waits when it leaves the GPU."""
        if device == self.device or (device == "cuda" and self.device.startswith("cuda")):
            return self
        mover = _storage.mover(device, stream)
        values = _storage.move_values(self._values, self._dtype, mover)
        return self._with(values=values, indices=mover(self._indices))

    def _fields(self):
        shape, row = self._rows_shape, self._dtype
        return self._values, self._indices, shape, self._pattern, row, self._axis

    def __getitem__(self, key) -> NMArray:
        """Rows ``A[i:j]`` of a matrix, or matrices ``A[i]``, ``A[i:j]`` of a batch (step 1)."""
        is_batch = self.ndim > 2
        is_slice = isinstance(key, slice) and key.step in (None, 1)
        if not (is_slice and (is_batch or self._axis == -1)) and not (
            is_batch and isinstance(key, int | np.integer)
        ):
            raise ArgumentError(
                f"A[{key!r}] is not supported: slice rows of an array with axis -1 by step 1, or "
                "use .toarray()"
            )
        try:
            values, indices = self._values[key], self._indices[key]
        except IndexError as error:
            raise ArgumentError(f"A[{key}] is out of range for {len(self)} matrices") from error
        shape = (*values.shape[:-1], self._rows_shape[-1])
        return self._with(values=values, indices=indices, shape=shape)

    def _with(self, *, values=None, indices=None, shape=None, dtype=None, axis=None) -> NMArray:
        return NMArray(
            self._values if values is None else values,
            self._indices if indices is None else indices,
            shape or self._rows_shape,
            self._pattern,
            dtype or self._dtype,
            axis=axis or self._axis,
        )

    # --- products -----------------------------------------------------------------------

    def to_24(self) -> Sparse24Array:
        """The same matrix as a `Sparse24Array`, where the pattern embeds into 2:4.

        Raises
        ------
        PatternError
            If an aligned group of four can hold more than two elements of the pattern.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.eye(8, dtype=np.float32), pattern=(1, 4), on_excess="prune")
        >>> A.to_24().shape
        (8, 8)
        """
        n, m = self._pattern
        if not n_m_parts.embeds_in_24(n, m):
            raise PatternError(
                f"{n}:{m} does not embed into 2:4: a group of four may hold more than two of its "
                "elements; use .windows() or .toarray()"
            )
        rows = self if self._axis == -1 else self.mT
        sparse = n_m_parts.as_24(rows.toarray(), self._dtype)
        return sparse if self._axis == -1 else sparse.mT

    def windows(self):
        """The matrix as an exact 2:4 matrix over a longer k, for patterns such as 6:8.

        Returns
        -------
        Windows24
            For ``A @ b``: holds the 2:4 array and the rows of b that it multiplies.

        Raises
        ------
        PatternError
            If m is odd or n > m - 2, for which there is none.
        ArgumentError
            If the groups run along axis -2.
        """
        from sparse24.formats.windows import Windows24

        return Windows24.from_dense(self.toarray(), self._pattern, self._dtype, axis=self._axis)

    def embedded(self) -> Sparse24Array | None:
        """What `to_24` gives, kept; None where the pattern does not embed."""
        if not n_m_parts.embeds_in_24(*self._pattern):
            return None
        if "24" not in self._cache:
            self._cache["24"] = self.to_24()
        return self._cache["24"]

    def _multiply(self, other):
        sparse = self.embedded()
        return n_m_products.product(self, other, left=True) if sparse is None else sparse @ other

    def _multiply_from_left(self, other):
        sparse = self.embedded()
        return n_m_products.product(self, other, left=False) if sparse is None else other @ sparse

    def multiply_tf32(self, other, *, left: bool = True):
        """``self @ other`` (or ``other @ self``) with both operands rounded to TF32.

        Parameters
        ----------
        other : array, float32, at most two axes
            On the array's GPU.
        left : bool, default True
            Whether this array is the left operand; its groups must run along the
            contracted axis.

        Raises
        ------
        PatternError, DTypeError, UnsupportedError
            If the pattern is not 1:2, a type not float32, or the device not Hopper.
        """
        if "tf32" not in self._cache:
            tensor_float.check(self._pattern, self._dtype, self.device)
            self._cache["tf32"] = tensor_float.TensorFloat(
                self._values, self._indices, self._rows_shape, self._axis
            )
        return self._cache["tf32"].product(other, left=left)
