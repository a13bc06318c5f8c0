"""`Windows24`: patterns such as 6:8 as an exact 2:4 matrix over a longer k.

A group of m = 2N elements with at most 2N - 2 non-zeros is covered by N - 1 windows
of four that start two apart and so overlap.  Assigning the non-zeros to windows from left to
right leaves at most two in each, so every window is a 2:4 group; the rows of b under two
windows are repeated.  k grows by a factor of 4 (N - 1) / 2N: 1.33 for 4:6, 1.5 for 6:8
(SlideSparse, 2026).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _cuda_graphs,
    _devices,
    _dtypes,
    _foreign,
    _foreign_streams,
    _gradients,
    _product,
    _spec,
    _target,
)
from sparse24._errors import ArgumentError, DeviceError, PatternError, ShapeError
from sparse24._options import NO_OPTIONS, Call
from sparse24.formats import convert
from sparse24.formats.base import WaysBack, densified
from sparse24.formats.n_m_parts import as_24
from sparse24.formats.refusals import Refusals
from sparse24.formats.two_four import Sparse24Array
from sparse24.formats.ufuncs import Ufuncs


class Windows24(WaysBack, Refusals):
    """An n:m matrix with n <= m - 2 and m even, stored exactly as 2:4 over a longer k.  Immutable.

    Made by `NMArray.windows` or `from_dense`.  ``W @ b`` (``x @ W`` for ``axis=-2``)
    gathers the rows of b and multiplies on the 2:4 kernels.

    Attributes
    ----------
    array : Sparse24Array, shape (..., rows, longer k)
        The 2:4 matrix; transposed if `axis` is -2.
    index : array of int64, shape (longer k,)
        Which row of b each of its columns multiplies.
    shape : tuple of int
        Logical shape, as of the dense array.
    pattern : tuple of int
    axis : int

    Notes
    -----
    Repeated rows of b are multiplied by zeros, too, so the result may be NaN for an infinity in
    b, even where the matrix has a non-zero.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.array([[1, 2, 3, 4, 5, 0, 6, 0]], np.float32)
    >>> W = s24.compress(x, pattern=(6, 8)).windows()
    >>> W
    <Windows24: pattern 6:8, shape (1, 8) as 2:4 of shape (1, 12), dtype float32, on cpu>
    >>> W.array.toarray(), W.index
    (array([[1., 2., 0., 0., 3., 4., 0., 0., 5., 0., 6., 0.]], dtype=float32), \
array([0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 7]))
    >>> W @ np.ones(8, np.float32)
    array([21.], dtype=float32)
    >>> np.ones(8, np.float32) @ W.T
    array([21.], dtype=float32)
    """

    __array_ufunc__ = Ufuncs()  # numpy_array @ W comes to __rmatmul__

    array: Sparse24Array
    index: Any
    shape: tuple[int, ...]
    pattern: tuple[int, int]

    def __init__(self, array: Sparse24Array, index, shape, pattern):
        fields = {"array": array, "index": _arrays.read_only(index)}
        fields |= {"shape": tuple(shape), "pattern": tuple(pattern)}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_dense(cls, dense, pattern, dtype: _dtypes.DType | None = None, *, axis: int = -1):
        """Spread a dense array that obeys a pattern over windows.

        Parameters
        ----------
        dense : array, shape (..., m, k)
            NumPy or CuPy array; not checked: of a group with more non-zeros some are lost.
        pattern : tuple (n, m)
            m even and n <= m - 2.
        dtype : DType, optional
            Logical type, where fp8 is carried as ``uint8``.
        axis : {-1, -2}
            The axis that the groups run along.

        Raises
        ------
        PatternError
            If the pattern has no windows.
        ShapeError, ArgumentError
            If `dense` has fewer than two axes, or `axis` is not one of the last two.
        """
        n, m = _check.pattern(pattern)
        _check.at_least_2d(dense.shape, argument="dense")
        axis = _check.matrix_axis(axis, dense.ndim)
        if m % 2 or n > m - 2:
            raise PatternError(
                f"windows need an even m and n <= m - 2, such as 6:8 or 4:6, got {n}:{m}; "
                "use .toarray()"
            )
        own = dtype or _arrays.logical_dtype(dense)
        rows = dense if axis == -1 else dense.swapaxes(-1, -2)
        array = as_24(_spread(rows, m, own), own)
        return cls._over(array if axis == -1 else array.mT, dense.shape, (n, m))

    @classmethod
    def _over(cls, array: Sparse24Array, shape, pattern):
        """The windows that an array holds, with their index on its device."""
        index = _gather_index(shape[array.axis], pattern[1])
        return cls(array, _arrays.namespace(array.values).asarray(index), shape, pattern)

    @property
    def axis(self) -> int:
        return self.array.axis

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> str:
        return self.array.device

    @property
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""
        return self.array.nnz

    @property
    def size(self) -> int:
        """Number of elements, zeros included."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes + self.index.nbytes

    @property
    def mT(self) -> Windows24:
        """The last two axes exchanged, without a copy."""
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return Windows24(self.array.mT, self.index, shape, self.pattern)

    @property
    def T(self) -> Windows24:
        """The transpose of a matrix, without a copy."""
        if self.ndim != 2:
            raise ArgumentError(f"T is for matrices, got {self.ndim} axes; use .mT")
        return self.mT

    @_devices.on_own_device
    def toarray(self):
        """The dense array that the windows stand for."""
        transposed = self.axis == -2
        dense = (self.array.mT if transposed else self.array).toarray()
        rows = dense.view(self.array._dtype.storage)
        m, k = self.pattern[1], self.shape[self.axis]
        count, among = m // 2 - 1, -(-k // m)
        windows = rows.reshape(*rows.shape[:-1], among, count, _spec.GROUP)
        groups = _arrays.namespace(rows).zeros((*rows.shape[:-1], among, m), rows.dtype)
        for j in range(count):  # an element is in one of the windows that cover its place
            groups[..., 2 * j : 2 * j + _spec.GROUP] |= windows[..., j, :]
        dense = groups.reshape(*rows.shape[:-1], among * m)[..., :k].view(dense.dtype)
        return dense.swapaxes(-1, -2) if transposed else dense

    def tocsr(self, dtype=None):
        """The matrix as `Sparse24Array.tocsr` gives it."""
        array = self.array
        if array._dtype.is_float8 and self.device != "cpu":  # its dense form there is bits
            array = array.astype("float32")
        whole = Windows24(array, self.index, self.shape, self.pattern)
        return convert.to_csr(whole.toarray(), dtype)

    def __repr__(self) -> str:
        n, m = self.pattern
        return (
            f"<Windows24: pattern {n}:{m}, shape {self.shape} as 2:4 of shape {self.array.shape}, "
            f"dtype {self.dtype.name}, on {self.array.device}>"
        )

    def __copy__(self):
        return self  # immutable

    def __reduce__(self):
        return _unpickled, (self.array, self.shape, self.pattern)

    def __matmul__(self, b: Any):
        _gradients.refuse(b, "b")
        return self._multiply(b)

    def __rmatmul__(self, x: Any):
        _gradients.refuse(x, "a")
        return self._multiply_from_left(x)

    def _multiply(self, b: Any, out: Any = None, call: Call = NO_OPTIONS):
        if self.axis == -2:
            raise ShapeError(
                "the windows run along axis -2 and serve x @ W, not W @ b; use W.toarray() @ b"
            )
        return self._product(b, self.array._multiply, out, call, axis=-2)

    def _multiply_from_left(self, x: Any, out: Any = None, call: Call = NO_OPTIONS):
        if self.axis == -1:
            raise ShapeError(
                "the windows run along axis -1 and serve W @ b and x @ W.T, not x @ W; use "
                "x @ W.toarray()"
            )
        return self._product(x, self.array._multiply_from_left, out, call, axis=-1)

    def _product(self, other, multiply, out, call: Call, *, axis: int):
        other = densified(other)
        call = _product.with_own_type(call, other)
        with _foreign_streams.stream_of(other):
            other, restore = _foreign.take(other, argument="b")
            _check.not_scalar(other.shape, argument="b" if self.axis == -1 else "a")
            if _arrays.device_of(other) != self.device:
                raise DeviceError(
                    f"the windows are on {self.device}, the other operand on "
                    f"{_arrays.device_of(other)}; move one: A.to_device(...).windows() or "
                    "cupy.asarray(x)"
                )
            axis = axis if other.ndim > 1 else -1
            k = self.shape[-1 if self.axis == -1 else -2]
            if other.shape[axis] != k:
                raise ShapeError(
                    f"matmul: the contracted axis must have {k} elements, got shape "
                    f"{tuple(other.shape)}"
                )
            with _cuda_graphs.keeping_with(self, other):
                operand = _taken(other, self.index, axis)
            product = multiply(operand, out, call)
            return _target.restored(product, restore, call) if out is None else out


def _unpickled(array: Sparse24Array, shape, pattern) -> Windows24:
    with _devices.on_device(array.device):
        return Windows24._over(array, shape, pattern)


def _taken(b, index, axis: int):
    """`b` taken at the rows, or columns, of `index`.

    CuPy moves one element at a time, so rows go in pieces of 16 bytes where they divide so.
    """
    xp = _arrays.namespace(b)
    pieces = _arrays.is_cupy(b) and axis == -2 and b.flags.c_contiguous and b.data.ptr % 16 == 0
    if not pieces or b.shape[-1] * b.itemsize % 16:
        return xp.take(b, index, axis=axis)
    return xp.take(b.view(np.complex128), index, axis=axis).view(b.dtype)


def _spread(dense, m: int, dtype: _dtypes.DType):
    """The dense matrix over windows: every element in the first window with a place for it."""
    from sparse24 import _select

    xp = _arrays.namespace(dense)
    groups = _select.in_groups(dense.view(dtype.storage), m)
    sign = 0 if dtype.name == "int8" else 1 << 8 * dtype.itemsize - 1
    left = (groups & dtype.storage.type(~sign & (1 << 8 * dtype.itemsize) - 1)) != 0
    count = m // 2 - 1
    spread = xp.zeros((*groups.shape[:-1], count, _spec.GROUP), dtype.storage)
    for j in range(count):
        window = slice(2 * j, 2 * j + _spec.GROUP)
        taken = left[..., window]
        taken = taken & (xp.cumsum(taken, axis=-1, dtype=np.uint8) <= _spec.KEPT)
        spread[..., j, :] = xp.where(taken, groups[..., window], dtype.storage.type(0))
        left[..., window] &= ~taken
    width = groups.shape[-2] * count * _spec.GROUP
    return spread.reshape(*groups.shape[:-2], width).view(dense.dtype)


def _gather_index(k: int, m: int) -> np.ndarray:
    """The row of b behind each column of the windows; columns past the edge repeat the last."""
    starts = m * np.arange(-(-k // m))[:, None, None] + 2 * np.arange(m // 2 - 1)[:, None]
    return np.minimum((starts + np.arange(_spec.GROUP)).ravel(), max(k - 1, 0))
