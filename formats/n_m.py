"""`NMArray`: a matrix, or a batch, with at most n non-zeros in every group of m."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _product, _storage
from sparse24._errors import ArgumentError, DeviceError, PatternError, ShapeError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.base import SparseArray
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
    Products go through the 2:4 kernels where the pattern embeds into 2:4 exactly
    (1:4, 1:2, 2:8, …: see `embeds_in_24`), through the dense matrix otherwise.  For
    patterns such as 6:8, `windows` prepares an exact 2:4 product over a longer k.

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

    __slots__ = ("_axis", "_cache", "_dtype", "_indices", "_pattern", "_rows_shape", "_values")

    def __init__(self, values, indices, shape, pattern, dtype: _dtypes.DType, *, axis: int = -1):
        fields = {
            "_values": values,
            "_indices": indices,
            "_rows_shape": tuple(shape),  # (..., m, k), groups along the last axis
            "_pattern": tuple(pattern),
            "_dtype": dtype,
            "_axis": axis,
            "_cache": {},  # the 2:4 array that this one embeds into, made at first use
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"an NMArray is immutable; cannot set {name}")

    @classmethod
    def from_dense(
        cls, x, *, pattern=(2, 4), axis: int = -1, on_excess: str = "raise", dtype=None
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
            array, row = _converted(_foreign.take(x)[0], dtype)
            _check.at_least_2d(array.shape, argument="x")
            number = _check.axis(axis, array.ndim) - array.ndim
            if number < -2:
                raise ArgumentError(f"axis must be one of the last two, got {axis}")
            array = array if number == -1 else array.swapaxes(-1, -2)
            values, indices, excess = _compress(array, row, n, m, on_excess)
            if excess is not None:
                _raise_excess(excess, (n, m), array.shape[-1], number)
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
        return self._values

    @property
    def indices(self):
        return self._indices

    @property
    def device(self) -> str:
        return _arrays.device_of(self._values)

    @property
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""
        return int((_bits(self._values, self._dtype) != 0).sum())

    @property
    def nbytes(self) -> int:
        """Bytes of values and indices, and of the 2:4 array once a product has made it."""
        made = sum(array.nbytes for array in self._cache.values())
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
        dense = _decompress(self._values, self._indices, self._pattern, self._rows_shape[-1])
        dense = dense if self._axis == -1 else dense.swapaxes(-1, -2)
        if out is None:
            return dense
        out[...] = dense
        return out

    def mask(self):
        """Boolean array (..., m, k): the places of the stored elements that are not zero."""
        return _bits(self.toarray(), self._dtype) != 0

    @property
    def T(self) -> NMArray:
        """The transposed matrix; nothing is copied."""
        if self.ndim > 2:
            raise ArgumentError(f"T is for matrices, got {self.ndim} axes; use .mT")
        return self.mT

    @property
    def mT(self) -> NMArray:
        """The array with its last two axes exchanged; nothing is copied."""
        return self._with(axis=-3 - self._axis)

    def astype(self, dtype) -> NMArray:
        """Convert the stored elements; their places stay."""
        row = _dtypes.lookup(dtype)
        if row is self._dtype:
            return self
        flat = Compressed24(self._values, None, None, self._values.shape, self._dtype)
        return self._with(values=_storage.cast(flat, row).values, dtype=row)

    def copy(self) -> NMArray:
        """A deep copy."""
        return self._with(values=self._values.copy(), indices=self._indices.copy())

    def to_device(self, device, /, *, stream=None) -> NMArray:
        """Move to ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``; waits when it leaves the GPU."""
        if device == self.device or (device == "cuda" and self.device.startswith("cuda")):
            return self
        shape = self._values.shape
        record = Compressed24(self._values, self._indices, None, shape, self._dtype)
        moved = _storage.move(record, _storage.mover(device, stream))
        return self._with(values=moved.values, indices=moved.metadata)

    def __getitem__(self, key) -> NMArray:
        """Rows ``A[i:j]`` (step 1) of an array with ``axis=-1``."""
        if not isinstance(key, slice) or key.step not in (None, 1) or self._axis == -2:
            raise ArgumentError(
                f"A[{key!r}] is not supported: slice rows of an array with axis -1 by step 1, or "
                "use .toarray()"
            )
        values, indices = self._values[key], self._indices[key]
        shape = (len(values), *self._rows_shape[1:])
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
        if not embeds_in_24(n, m):
            raise PatternError(
                f"{n}:{m} does not embed into 2:4: a group of four may hold more than two of its "
                "elements; use .windows() or .toarray()"
            )
        rows = self if self._axis == -1 else self.mT
        sparse = as_24(rows.toarray(), self._dtype)
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

    def _embedded(self) -> Sparse24Array | None:
        if not embeds_in_24(*self._pattern):
            return None
        if "24" not in self._cache:
            self._cache["24"] = self.to_24()
        return self._cache["24"]

    def _multiply(self, other):
        sparse = self._embedded()
        return self._dense_product(other, left=True) if sparse is None else sparse @ other

    def _multiply_from_left(self, other):
        sparse = self._embedded()
        return self._dense_product(other, left=False) if sparse is None else other @ sparse

    def _dense_product(self, other, *, left: bool):
        """``self @ other`` or ``other @ self`` of the dense matrix."""
        if isinstance(other, SparseArray) or hasattr(other, "tocoo"):
            other = other.toarray()
        with _foreign.stream_of(other):
            other, restore = _foreign.take(other, argument="b" if left else "a")
            if _arrays.device_of(other) != self.device:
                raise DeviceError(
                    f"the array is on {self.device}, the other operand on "
                    f"{_arrays.device_of(other)}; move one: A.to_device(...) or cupy.asarray(x)"
                )
            own, its = _product.promote(self._dtype, _arrays.logical_dtype(other, argument="b"))
            pair = (_wide(self.toarray(), self._dtype), _wide(other, its))
            a, b = pair if left else pair[::-1]
            if not b.ndim or a.shape[-1] != b.shape[0 if b.ndim == 1 else -2]:
                raise ShapeError(f"matmul: shapes {a.shape} @ {b.shape} do not fit")
            return restore(_narrow(_arrays.namespace(a).matmul(a, b), own.result))


def embeds_in_24(n: int, m: int) -> bool:
    """True if every n:m matrix is a 2:4 matrix of the same width.

    Examples
    --------
    >>> from sparse24.formats.n_m import embeds_in_24
    >>> [(n, m) for n, m in [(1, 2), (1, 4), (2, 8), (4, 8), (6, 8)] if embeds_in_24(n, m)]
    [(1, 2), (1, 4), (2, 8)]
    """
    for start in range(0, 4 * m, 4):
        groups = [place // m for place in range(start, start + 4)]
        if sum(min(n, groups.count(group)) for group in set(groups)) > 2:
            return False
    return True


# --- arrays in and out: whole arrays at a time, the same code on both devices -------------


def _converted(x, dtype) -> tuple[Any, _dtypes.DType]:
    """The array in the wanted type, as it is carried on its device, and its table row."""
    bits = dtype is not None and x.dtype == np.uint8
    row = _arrays.logical_dtype(x, dtype if bits else None)
    x = _arrays.as_storage(x, row)
    wanted = row if dtype is None else _dtypes.lookup(dtype)
    if wanted is row:
        return x, row
    record = Compressed24(x, None, None, x.shape, row)
    return _storage.cast(record, wanted).values, wanted


def _bits(x, row: _dtypes.DType):
    """Unsigned magnitudes that are zero for zeros of either sign."""
    bits = x.view(row.storage)
    return bits if row.name == "int8" else bits & row.storage.type((1 << 8 * row.itemsize - 1) - 1)


def _compress(x, row: _dtypes.DType, n: int, m: int, on_excess: str):
    """Values, places and, to be raised, the array of bad groups."""
    from sparse24 import _methods, _select

    xp = _arrays.namespace(x)
    groups = _select.in_groups(x.view(row.storage), m)
    nonzero = _bits(groups, row) != 0
    excess = None
    if on_excess == "prune":
        scores = _methods.magnitude(x, row)
        nonzero &= _select.in_groups(_select.best_of_groups(scores, n, m), m)
    else:
        excess = nonzero.sum(-1) > n
    places = xp.sort(xp.argsort(~nonzero, axis=-1, kind="stable")[..., :n], axis=-1)
    values = xp.take_along_axis(xp.where(nonzero, groups, row.storage.type(0)), places, axis=-1)
    shape = (*x.shape[:-1], n * groups.shape[-2])
    return values.reshape(shape).view(x.dtype), places.astype(np.uint8).reshape(shape), excess


def as_24(dense, row: _dtypes.DType) -> Sparse24Array:
    """A dense array (..., m, k) that is known to obey 2:4."""
    if _arrays.is_cupy(dense):
        from sparse24.kernels import compress

        record, _ = compress.launch(dense, row, rule="check")
    else:
        from sparse24.kernels import cpu

        values, metadata, _ = cpu.compress(dense, "check")
        record = Compressed24(values, metadata, None, dense.shape, row)
    return Sparse24Array(Operand24(record, None, None, record.shape, row))


def _decompress(values, indices, pattern, k: int):
    xp, (n, m) = _arrays.namespace(values), pattern
    bits = values.view(f"u{values.dtype.itemsize}")
    shape = (*values.shape[:-1], values.shape[-1] // n)
    dense = xp.zeros((*shape, m), bits.dtype)
    places = indices.reshape(*shape, n).astype(np.int64)
    xp.put_along_axis(dense, places, bits.reshape(*shape, n), axis=-1)
    dense = dense.reshape(*shape[:-1], shape[-1] * m)[..., :k]
    return xp.ascontiguousarray(dense).view(values.dtype)


def _raise_excess(excess, pattern, k: int, axis: int) -> None:
    count = int(excess.sum())
    if not count:
        return
    (n, m), first = pattern, np.unravel_index(int(excess.argmax()), excess.shape)
    place = [str(int(i)) for i in first[:-1]]
    start = m * int(first[-1])
    place.insert(len(place) if axis == -1 else len(place) - 1, f"{start}:{min(start + m, k)}")
    raise PatternError(
        f"x[{', '.join(place)}] has more than {n} non-zeros, the first of {count} such groups; "
        f"prune it first (sparse24.prune with pattern=({n}, {m})), or pass on_excess='prune'"
    )


def _wide(x, row: _dtypes.DType):
    """The array in the type that its products are summed in; int8 in float64, exactly."""
    wide = np.float64 if row.name in ("int8", "float64") else np.float32
    if not _arrays.is_cupy(x):
        return x.astype(wide)
    from sparse24.kernels import cast

    if row.name == "int8":
        return x.astype(wide)
    xp = _arrays.namespace(x)
    return x if x.dtype == wide else cast.launch(xp.ascontiguousarray(x), row, _dtypes.lookup(wide))


def _narrow(x, name: str):
    """A result in the type `name`, as its device carries it."""
    if name == "int32" or x.dtype == _dtypes.numpy_dtype(name):
        return x.astype(_dtypes.numpy_dtype(name))
    if not _arrays.is_cupy(x):
        from sparse24.kernels import reference

        return reference.to_dtype(x, _dtypes.numpy_dtype(name))
    from sparse24.kernels import cast

    return cast.launch(x, _dtypes.lookup(x.dtype), _dtypes.lookup(name))
