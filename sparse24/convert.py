"""Conversions to and from the arrays of other libraries and older sparse formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _given_parts, _spec
from sparse24._compress import compress
from sparse24._errors import ArgumentError, DTypeError, FormatError, ShapeError
from sparse24._from_quantised import from_marlin24, from_quantised
from sparse24._make import from_scipy
from sparse24.formats.base import SparseArray
from sparse24.formats.parts import Parts
from sparse24.formats.two_four import Sparse24Array

__all__ = [
    "from_bitmask", "from_marlin24", "from_parts", "from_quantised", "from_scipy", "to_bitmask",
    "to_cupyx", "to_torch",
]  # fmt: skip


def from_parts(values, metadata, shape, *, dtype=None) -> Sparse24Array:
    """Make an array of canonical values and codes, checked.

    Parameters
    ----------
    values : array, shape (..., m, 2 * ceil(k / 4))
        Stored elements.
    metadata : array of uint8, shape (..., m, ceil(k / 8))
        Codes, two a byte, low K in the low nibble; see :ref:`layout`.
    shape : tuple of int
        Logical shape (..., m, k).
    dtype : dtype, optional
        Logical type of values that carry fp8 or bfloat16 bits.

    Returns
    -------
    Sparse24Array
        On the CPU; shares the memory of parts that are there.  Copying parts from a GPU waits.

    Raises
    ------
    FormatError
        If the parts do not fit together, or a code is not one of the six legal ones.
    ShapeError, DTypeError
        If `shape` is invalid, or the values are of a type that sparse24 does not store.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((4, 8), rng=0)
    >>> B = s24.convert.from_parts(A.values, A.metadata, A.shape)
    >>> bool((A.toarray() == B.toarray()).all())
    True
    """
    values = _given_parts.host(values, "values")
    metadata = _given_parts.host(metadata, "metadata")
    own = _arrays.logical_dtype(values, dtype, argument="values")
    values = _arrays.as_storage(values, own)
    parts = Parts(values, metadata, _check.sizes(shape, argument="shape"), own)
    return _given_parts.checked(parts, "from_parts")


def from_bitmask(values, bitmask, shape, *, dtype=None) -> Sparse24Array:
    """Read the portable ``sparse-24-bitmask`` form of compressed-tensors checkpoints.

    ``python -m sparse24 convert`` reads whole checkpoints of this form.

    Parameters
    ----------
    values : array
        The kept elements in row order: two of every four.
    bitmask : array of uint8, shape (m, ceil(k / 8))
        One bit an element, low K in the low bit.
    shape : (int, int), or array of shape (2,) or (2, 1)
        Logical shape (m, k).  Files hold a column.
    dtype : dtype, optional
        Logical type of values that carry fp8 or bfloat16 bits.

    Returns
    -------
    Sparse24Array
        On the CPU.

    Raises
    ------
    FormatError
        If the numbers of bits and values differ.
    PatternError
        If a group has more than two bits set.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> bits = np.array([[0b10010011]], np.uint8)
    >>> s24.convert.from_bitmask(np.array([1.0, 2, 3, 4]), bits, (1, 8)).toarray()
    array([[1., 2., 0., 0., 3., 0., 0., 4.]])
    """
    column = getattr(shape, "ndim", 1) == 2
    flat = _given_parts.host(shape, "shape").reshape(-1) if column else shape
    m, k = _check.sizes(flat, argument="shape", count=2)
    values = _given_parts.host(values, "values")
    bitmask = _given_parts.host(bitmask, "bitmask")
    if bitmask.dtype != np.uint8 or bitmask.shape != (m, -(-k // 8)):
        raise FormatError(
            f"bitmask must be uint8 of shape {(m, -(-k // 8))}, got {bitmask.dtype} {bitmask.shape}"
        )
    own = _arrays.logical_dtype(values, dtype, argument="values")
    mask = np.unpackbits(bitmask, axis=1, count=k, bitorder="little").astype(bool)
    if int(mask.sum()) != values.size:
        raise FormatError(f"bitmask has {int(mask.sum())} bits set for {values.size} values")
    dense = np.zeros((m, k), own.logical)
    dense[mask] = _arrays.as_storage(values, own).reshape(-1)
    return compress(dense, mask=mask)


def to_bitmask(a: Sparse24Array) -> tuple[np.ndarray, np.ndarray]:
    """The values and bit mask that `from_bitmask` reads; two bits in every full group.

    Parameters
    ----------
    a : Sparse24Array, shape (m, k)
        On a GPU it is copied to the host, which waits.

    Returns
    -------
    values : ndarray, shape (m, 2 * k / 4)
    bitmask : ndarray of uint8, shape (m, ceil(k / 8))

    Raises
    ------
    ShapeError
        If `a` is a batch, is transposed, or k is not a multiple of 4.
    ArgumentError
        If `a` is of another format.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[1.0, 2, 0, 0, 3, 0, 0, 4]]))
    >>> s24.convert.to_bitmask(A)
    (array([[1., 2., 3., 4.]]), array([[147]], dtype=uint8))
    """
    if not isinstance(a, Sparse24Array):
        raise ArgumentError(
            f"a must be a Sparse24Array, got {type(a).__name__}; make one with sparse24.compress"
        )
    a = a.to_device("cpu")
    if a.ndim != 2 or a.axis != -1 or a.shape[1] % _spec.GROUP:
        raise ShapeError(
            f"the bitmask form holds a matrix with k a multiple of 4 and axis -1, got {a!r}; "
            "take matrices of a batch one by one, and of one with axis -2 the transpose"
        )
    from sparse24.kernels import reference

    codes = reference.metadata_to_codes(a.metadata, a.shape[1])
    mask = np.zeros((*codes.shape, _spec.GROUP), bool)
    for slot in (codes & 3, codes >> 2):
        np.put_along_axis(mask, slot[..., None].astype(np.intp), True, axis=-1)
    return a.values, np.packbits(mask.reshape(a.shape), axis=1, bitorder="little")


def to_cupyx(a: Sparse24Array) -> Any:
    """The matrix as `cupyx.scipy.sparse.csr_matrix`, on the current GPU.

    Parameters
    ----------
    a : Sparse24Array, Quantised24Array, NMArray or HybridArray, shape (m, k)

    Returns
    -------
    cupyx.scipy.sparse.csr_matrix
        16-bit and 8-bit floats become float32.

    Raises
    ------
    DeviceError
        If no GPU is there.
    ArgumentError
        If `a` is something else, or a batch.

    Examples
    --------
    >>> import sparse24 as s24
    >>> A = s24.random((4, 8), rng=0)
    >>> s24.convert.to_cupyx(A).shape  # doctest: +SKIP
    (4, 8)
    """
    _check_ours(a)
    return a.to_device("cuda").tocsr()


def to_torch(a: Any) -> Any:
    """The matrix with its zeros, or a dense array, as a torch tensor on the same device.

    Parameters
    ----------
    a : Sparse24Array, Quantised24Array, NMArray, HybridArray, or array of NumPy or CuPy
        Shape (..., m, k) if it is sparse.

    Returns
    -------
    torch.Tensor
        Of the same shape and element type, bfloat16 and fp8 too.  Shares the memory of a dense
        array; of a sparse one there is no copy beyond `toarray`.

    Raises
    ------
    ArgumentError
        If `a` is something else, or has strides or a byte order that torch has not.
    DTypeError
        If torch has no such element type.

    See Also
    --------
    sparse24.torch.to_sparse_semi_structured : A tensor of a 2:4 array that stays compressed.

    Examples
    --------
    >>> import sparse24 as s24
    >>> A = s24.random((4, 8), dtype="bfloat16", rng=0)
    >>> s24.convert.to_torch(A).dtype  # doctest: +SKIP
    torch.bfloat16
    """
    if isinstance(a, np.ndarray) or _arrays.is_cupy(a):
        return _shared_with_torch(_foreign.take(a, argument="a")[0])
    _check_ours(a)
    dense = a.toarray()
    if a._dtype.is_float8 and _arrays.is_cupy(dense):
        import torch

        return _foreign.to_torch(dense).view(getattr(torch, _dtypes.lookup(a.dtype).name))
    return _foreign.to_torch(dense)


def _shared_with_torch(array: Any) -> Any:
    try:
        return _foreign.to_torch(array)
    except TypeError as error:
        raise DTypeError(f"a must hold numbers that torch has, got {array.dtype}") from error
    except ValueError as error:  # negative strides, or the byte order of other machines
        library = _arrays.namespace(array).__name__
        raise ArgumentError(
            "a must have strides that are not negative, and the byte order of this machine, as it "
            f"shares its memory with the tensor; pass {library}.array(a, "
            "a.dtype.newbyteorder('='), order='C'), which is a copy"
        ) from error


def _check_ours(a: Any) -> None:
    if not isinstance(a, SparseArray):
        raise ArgumentError(
            "a must be a Sparse24Array, Quantised24Array, NMArray or HybridArray, got "
            f"{type(a).__name__}; make one with sparse24.compress or sparse24.hybrid"
        )
