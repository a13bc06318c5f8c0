"""`SparseArray`: the attributes and methods that all formats share with NumPy and SciPy arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _gradients, _storage
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, DTypeError
from sparse24._torch import functions as torch_functions
from sparse24.formats import convert, vector_products
from sparse24.formats.arithmetic import Arithmetic
from sparse24.formats.array_functions import FUNCTIONS
from sparse24.formats.refusals import Refusals
from sparse24.formats.scipy_names import ScipyNames, missing, way_to
from sparse24.formats.ufuncs import Ufuncs


class SparseArray(ScipyNames, Arithmetic, ABC):
    """Shape, sizes, conversions and products that all formats share.

    A subclass gives `shape`, `_dtype`, `nnz`, `nbytes`, `device`, `mT`, `toarray`, `_astype`,
    `copy`, `_moved`, `_elementwise`, `_elements`, `_multiply`, `_multiply_from_left` and `_fields`.
    """

    # NumPy and CuPy hand ``ndarray @ A`` to ``A.__rmatmul__`` instead of trying themselves.
    __array_ufunc__ = Ufuncs()

    _dtype: DType

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Logical shape, as of the dense array."""

    @property
    @abstractmethod
    def nnz(self) -> int:
        """Number of non-zero elements (waits for the device)."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all stored arrays."""

    @property
    @abstractmethod
    def device(self) -> str:
        """``"cpu"`` or ``"cuda:<index>"``."""

    @property
    @abstractmethod
    def mT(self) -> Any:
        """The array with its last two axes exchanged; nothing is copied."""

    @abstractmethod
    def toarray(self, out=None):
        """The dense array, on the same device."""

    @_devices.on_own_device
    def mask(self):
        """Boolean array (..., m, k): true where elements are not zero."""
        return _arrays.not_zero(self.toarray(), self._dtype)

    def astype(self, dtype, *, copy: bool = False) -> Self:
        """The same array with elements of another type.

        Parameters
        ----------
        dtype : str or dtype
        copy : bool, optional
            Taken for compatibility: arrays are immutable, so one of this type is returned itself.

        Raises
        ------
        DTypeError
            If sparse24, or for a `HybridArray` that format, does not store the type.

        Notes
        -----
        Places stay, and elements are converted where they are stored; a `HybridArray` in tiles
        is built again.  Does not wait for the device, except that of a `HybridArray`.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> s24.compress(np.eye(4)).astype("float16").dtype
        dtype('float16')
        """
        wanted = _dtypes.lookup(dtype)  # of None, as for NumPy, float64
        if wanted is self._dtype:
            return self
        with _devices.on_device(self.device):
            return self._astype(wanted)

    @abstractmethod
    def _astype(self, dtype: DType) -> Any:
        """A copy with elements of another type."""

    @abstractmethod
    def copy(self) -> Any:
        """A deep copy."""

    def to_device(self, device, /, *, stream=None) -> Self:
        """Move to another device; waits when it leaves the GPU.

        Parameters
        ----------
        device : str or device
            ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``, or a device of torch or CuPy.
        stream : cupy.cuda.Stream, optional
            For copies to the CPU; by default CuPy's current stream.

        Returns
        -------
        array of the same class
            The array itself, if it is there already.

        Raises
        ------
        DeviceError, ArgumentError
            If the device is not there or unknown.
        """
        device = _storage.device_name(device)
        if device == self.device or (device == "cuda" and self.device.startswith("cuda")):
            return self
        mover = _storage.mover(device, stream)
        with _devices.on_device(self.device if device == "cpu" else device):
            return self._moved(mover)

    @abstractmethod
    def _moved(self, mover: Callable[[Any], Any]) -> Any:
        """A copy made of what `mover` returns for each stored array."""

    @abstractmethod
    def _elements(self) -> tuple[Any, ...]:
        """Arrays of all stored elements, each once, and zeros among them."""

    @abstractmethod
    def _fields(self) -> tuple:
        """The arguments of the constructor that give this array, for pickling."""

    @abstractmethod
    def _multiply(self, other):
        """``self @ other``."""

    @abstractmethod
    def _multiply_from_left(self, other):
        """``other @ self``."""

    @property
    def dtype(self) -> np.dtype:
        """Logical element type."""
        return self._dtype.logical

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements, zeros included."""
        return math.prod(self.shape)

    @property
    def T(self) -> Self:
        """The transposed matrix; nothing is copied."""
        if self.ndim > 2:
            raise ArgumentError(f"T is for matrices, got {self.ndim} axes; use .mT")
        return self.mT

    @property
    def density(self) -> float:
        """Share of elements that are not zero (waits for the device)."""
        return self.nnz / self.size if self.size else 0.0

    def transpose(self, axes=None, *more) -> Any:
        """The same as `T`, as in SciPy and NumPy; also ``numpy.transpose(A)``.

        Parameters
        ----------
        axes, *more : tuple of int, or several int, optional
            (1, 0), of a batch its axes with the last two exchanged, such as (0, 2, 1): the same as
            `mT`.  ``A.transpose(1, 0)`` is that of ``A.transpose((1, 0))``.

        Raises
        ------
        ArgumentError
            If `axes` is something else, or not given and this is a batch.
        """
        axes = (axes, *more) if more else axes
        if axes is None:
            return self.T
        *batch, rows, columns = range(self.ndim)
        wanted = (*batch, columns, rows)
        try:
            given = tuple(_check.integer(axis) for axis in axes)
        except TypeError:
            given = ()
        if tuple(axis + self.ndim if axis < 0 else axis for axis in given) != wanted:
            name = ".mT" if batch else ".T"
            raise ArgumentError(f"axes must be {wanted}, got {_check.shown(axes)}; use {name}")
        return self.mT

    def __matmul__(self, other):
        _gradients.refuse(other)
        left, right = one_dense(self, other)
        return self._multiply(right) if left is self else right._multiply_from_left(left)

    def __rmatmul__(self, other):
        _gradients.refuse(other)
        left, right = one_dense(other, self)
        return right._multiply_from_left(left) if right is self else left._multiply(right)

    def _stays_sparse_beside(self, other: SparseArray) -> bool:
        """Whether `other` is made dense in a product of both, be it the left or the right one."""
        return False

    def dot(self, other):
        """``self @ other``."""
        return self @ other

    _matvec = vector_products.matvec
    _vecmat = vector_products.vecmat

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function in FUNCTIONS:
            return FUNCTIONS[function](*args, **kwargs)
        return super().__array_function__(function, types, args, kwargs)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch_functions.apply(function, args, kwargs or {})

    def __copy__(self):
        return self  # immutable

    def __deepcopy__(self, memo):
        return self.copy()

    def __reduce__(self):
        return _unpickled, (type(self), self.to_device("cpu")._fields(), self.device)

    def __len__(self) -> int:
        return self.shape[0]


class WaysBack:
    """For windows: an attribute that only arrays have raises an error that names the n:m array."""

    if not TYPE_CHECKING:  # as in `ScipyNames`

        def __getattr__(self, name: str):
            way = f".{name}" if hasattr(SparseArray, name) else way_to(name)
            if way is None or name.startswith("_"):
                return object.__getattribute__(self, name)  # which raises as it did before
            whose = f"A{way} of" if way.startswith(".") else f"{way} with"
            way_out = f"use {whose} the n:m array A, before A.windows(), or .toarray()"
            raise missing(self, name, way_out)


def made_by(array: Any, given: Any, maker: str) -> DTypeError:
    """The error of a constructor that was given an array, as those of SciPy take."""
    return DTypeError(
        f"{type(array).__name__} is not made by its constructor, which got {_check.shown(given)}; "
        f"use {maker}"
    )


def made_dense(x: Any, *, argument: str) -> Any:
    """A sparse array of this library, SciPy or cupyx made dense; all else unchanged."""
    if _arrays.is_sparse_matrix(x):
        return convert.densify(x, argument=argument)
    return cast(Any, x).toarray() if isinstance(x, Refusals) else x


def densified(x: Any, beside: Any = None) -> Any:
    """An operand of a product, as `made_dense` gives it.

    An fp8 array on a GPU, whose dense form is bits, becomes one of numbers for a product with the
    array `beside`.
    """
    if not isinstance(x, Refusals) and not _arrays.is_sparse_matrix(x):
        return x
    try:
        if beside is not None and hasattr(x, "_dtype"):  # not windows, nor those of SciPy
            return convert.dense_beside(x, beside)
        return made_dense(x, argument="the operand")
    except MemoryError as error:
        error.add_note(
            "a sparse operand is made dense here; the product of two of SciPy's formats, such as "
            "A.tocsr() @ m.tocsr(), is sparse"
        )
        raise


def one_dense(a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, one of two sparse ones made dense if the other has to stay as it is.

    Where neither has to, or they do not fit, both are returned as they were; the one that
    multiplies makes the other dense.
    """
    if not (hasattr(type(a), "tocsr") and hasattr(type(b), "tocsr")):  # at once of dense arrays
        return a, b
    left = convert.as_hybrid(a, b.size) if isinstance(b, SparseArray) else a
    right = convert.as_hybrid(b, a.size) if isinstance(a, SparseArray) else b
    both = isinstance(left, SparseArray) and isinstance(right, SparseArray)
    if both and left.shape[-1] == right.shape[-2]:
        if right._stays_sparse_beside(left):
            return convert.dense_beside(left, right), right
        if left._stays_sparse_beside(right):
            return left, convert.dense_beside(right, left)
    return a, b


def _unpickled(kind: type[SparseArray], fields: tuple, device: str) -> SparseArray:
    """An array from its pickled fields, on the device where it was."""
    array = kind(*fields)
    return array if device == "cpu" else array.to_device(device)
