"""Arithmetic of sparse arrays that keeps their zeros, and sums and extremes of their elements."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any, Self

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _elementwise, _foreign_streams
from sparse24._dtypes import DType
from sparse24._errors import DTypeError
from sparse24.formats import convert
from sparse24.formats.refusals import Refusals
from sparse24.formats.unary import Unary


class Arithmetic(Unary, Refusals):
    """Factors, signs, functions of elements and reductions; all other operators are refused."""

    _has = (
        "what keeps zeros: @, abs(), unary - and +, * and / by a factor, and functions such as "
        "numpy.sqrt"
    )

    dtype: Any
    device: Any
    _dtype: DType
    astype: Any
    toarray: Any

    @abstractmethod
    def _elementwise(self, ufunc: np.ufunc, factor: Any, result: DType) -> Self:
        """`ufunc` of the elements and a factor: None, a number, or of the shape of the array."""

    def _scaled(self, ufunc: np.ufunc, factor: Any) -> Self:
        with _foreign_streams.stream_of(factor), _devices.on_device(self.device):
            given, factor = factor, self._factor(factor)
            # The dense form of fp8 is wider, see `_dense`.
            typed = np.empty(0, given.dtype) if isinstance(given, Arithmetic) else factor
            result = _elementwise.result_type(ufunc, self._dtype, typed)
            return self._elementwise(ufunc, factor, result)

    def _factor(self, factor: Any) -> Any:
        """A factor as `_elementwise` takes it, after its checks."""
        return _elementwise.factor_of(_dense(factor), self.shape, device=self.device)

    def multiply(self, other: Any) -> Self:
        """``A * other``: the elements times a factor, zeros staying zeros.

        Parameters
        ----------
        other : number, array or sparse array
            Broadcasts to the shape of the array, as ``(m, 1)`` for a factor of each row.

        Returns
        -------
        sparse array
            Of the same class and shape.  Its type is NumPy's for the dense arrays, but numbers
            of Python leave bfloat16 and fp8 as they are.  Results in these are computed in
            float32; fp8 saturates.

        Raises
        ------
        ShapeError, DTypeError, DeviceError
            If `other` does not broadcast, the type is not stored, or it is on another device.
        ArgumentError
            If `other` is a whole number that does not fit the type of the array.

        Notes
        -----
        Does not synchronise, but that of a `HybridArray`, whose non-zeros are counted.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.array([[0, 1, 0, 2], [3, 0, 0, 0]], np.float32))
        >>> (A * np.array([[10], [100]], np.float32)).toarray()
        array([[  0.,  10.,   0.,  20.],
               [300.,   0.,   0.,   0.]], dtype=float32)
        """
        return self._scaled(np.multiply, other)

    def __mul__(self, other: Any) -> Self:
        return self._scaled(np.multiply, other)

    def __rmul__(self, other: Any) -> Any:
        """``other * A``; the matrix product if ``*`` is that for `other`, as a `numpy.matrix`."""
        return other @ self if _multiplies_by_star(other) else self * other

    def __truediv__(self, other: Any) -> Self:
        return self._scaled(np.divide, other)

    @_devices.on_own_device
    def __neg__(self) -> Self:
        return self._elementwise(np.negative, None, self._dtype)

    def __pos__(self) -> Self:
        return self

    @_devices.on_own_device
    def __abs__(self) -> Self:
        return self._elementwise(np.absolute, None, self._dtype)

    def sum(self, axis=None, dtype=None, out=None, keepdims: bool = False):
        """Sum of the elements, as of the dense array, which is made for it.

        On the CPU nothing is made dense of a `HybridArray` with three quarters of zeros or more,
        nor of other arrays if `axis` has that along which the groups run, or is None.

        bfloat16 and fp8 are summed in float32, and give it; likewise in `mean`, `max` and `min`.

        Parameters
        ----------
        axis : int or tuple of int, optional
            By default all.
        dtype, out, keepdims
            As in `numpy.sum`.

        Returns
        -------
        array or number
            On the same device.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> A = s24.compress(np.array([[0, 1, 0, 2], [3, 0, 0, 0]], np.float32))
        >>> A.sum(axis=1), abs(A).max(axis=0, keepdims=True)
        (array([3., 3.], dtype=float32), array([[3., 1., 0., 2.]], dtype=float32))
        """
        dtype, keepdims = _sum_type(dtype), _check.flag(keepdims, argument="keepdims")
        return self._for_reduction(axis).sum(axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def mean(self, axis=None, dtype=None, out=None, keepdims: bool = False):
        """Mean of the elements, zeros included; see `sum`."""
        dtype, keepdims = _sum_type(dtype), _check.flag(keepdims, argument="keepdims")
        return self._for_reduction(axis).mean(axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def max(self, axis=None, out=None, keepdims: bool = False):
        """Largest element, zeros included; see `sum`."""
        keepdims = _check.flag(keepdims, argument="keepdims")
        return self._for_reduction(axis).max(axis=axis, out=out, keepdims=keepdims)

    def min(self, axis=None, out=None, keepdims: bool = False):
        """Smallest element, zeros included; see `sum`."""
        keepdims = _check.flag(keepdims, argument="keepdims")
        return self._for_reduction(axis).min(axis=axis, out=out, keepdims=keepdims)

    def _of_elements(self) -> Any:
        """The array whose elements are those of `toarray` in every type that it is converted to."""
        return self

    @_devices.on_own_device
    def _for_reduction(self, axis: Any) -> Any:
        """What has `sum`, `mean`, `max` and `min` along `axis`: here the dense array.

        In a type in which NumPy and CuPy compute.
        """
        return _in_numbers(self).toarray()


def _multiplies_by_star(x: Any) -> bool:
    """True for a matrix of which ``*`` is the matrix product, as of `numpy.matrix`."""
    of_scipy = _arrays.is_scipy_sparse(x) and isinstance(x, sys.modules["scipy.sparse"].spmatrix)
    return of_scipy or isinstance(x, np.matrix) or _arrays.is_cupyx_sparse(x)


def _in_numbers(array: Any) -> Any:
    return array if _elementwise.is_native(array._dtype) else array.astype("float32")


def _dense(factor: Any) -> Any:
    """A factor that is sparse made dense; its fp8, which would be bits on a GPU, as float32."""
    if isinstance(factor, Arithmetic):
        return (_in_numbers(factor) if factor._dtype.is_float8 else factor).toarray()
    if _arrays.is_sparse_matrix(factor):
        return convert.checked(factor, argument="the factor").toarray()
    return factor


def _sum_type(dtype) -> np.dtype | None:
    """The type of a sum that was asked for, which is any of NumPy's."""
    found = None if dtype is None else _dtypes.of_numpy(_dtypes.by_name(dtype))
    if found is None and dtype is not None:
        raise DTypeError(
            f"dtype must be one of NumPy's, such as float64 or int64, got {_check.shown(dtype)}"
        )
    return found
