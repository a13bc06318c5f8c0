"""`quantise`: 2:4 matrices as integers of 4 or 8 bits times scales."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _quantised, _storage
from sparse24._compress import compress
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._quantised import FLOATS
from sparse24._records import Compressed24
from sparse24.formats.base import SparseArray
from sparse24.formats.quantised import Quantised24Array, of_parts
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import bricks

# Of the largest scale, those that `method="mse"` tries; 0.95 is best for normal elements.
SHARES = tuple(np.linspace(0.65, 1.0, 15).tolist())
TINY = np.float32(
    2 * np.finfo(np.float32).tiny
)  # scales below are zero: GPUs take subnormal ones for zeros


def quantise(A, *, bits=4, method="mse") -> Quantised24Array:
    """Round the stored elements of a 2:4 matrix to integers of few bits times scales.

    Every 128 columns of a row, 64 stored elements, share a scale.

    Parameters
    ----------
    A : Sparse24Array or array, shape (m, k)
        float16, bfloat16, float32 or float64; a plain array must obey 2:4 along its rows.
    bits : {4, 8}
        Of an integer.
    method : {"mse", "absmax"}
        How scales are chosen.  ``"absmax"``: the element of the largest magnitude becomes the least
        integer, such as -8.  ``"mse"``: of that scale and 14 smaller ones the one that leaves the
        least square error.

    Returns
    -------
    Quantised24Array
        On the same device, of the same type.  Waits for a GPU.

    Raises
    ------
    DTypeError, ShapeError, PatternError
        If `A` is not a float matrix that obeys 2:4.
    ArgumentError
        If an element is not finite, or an option is unknown.

    See Also
    --------
    sparse24.convert.from_quantised : Of integers and scales that are there already.

    Notes
    -----
    The type is kept: for fast products with tokens of 16 bits quantise ``A.astype("bfloat16")`` or
    ``A.astype("float16")``.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((64, 512), dtype="float16", rng=0)
    >>> for bits in (4, 8):
    ...     error = s24.quantise(A, bits=bits).toarray().astype("float32") - A.toarray()
    ...     print(f"{np.linalg.norm(error) / np.linalg.norm(A.toarray()):.3f}")
    0.090
    0.006
    """
    _check.one_of(bits, bricks.BITS, argument="bits")
    _check.one_of(method, ("mse", "absmax"), argument="method")
    array = _as_24(A)
    record = array._operand.stored
    with _devices.on_device(array.device):
        integers, factors = _rounded(record, bits, SHARES if method == "mse" else (1.0,))
        parts = _quantised.Parts(integers, _storage.canonical(record), factors)
        quantised = of_parts(parts, record.shape, bits, record.dtype)
    return quantised if array.axis == -1 else quantised.mT


def _as_24(A) -> Sparse24Array:
    """The argument as a matrix of floats in 2:4."""
    if isinstance(A, SparseArray) and not isinstance(A, Sparse24Array):
        raise DTypeError(
            f"A must be a Sparse24Array or an array that obeys 2:4, got {type(A).__name__}"
        )
    array = A if isinstance(A, Sparse24Array) else compress(A)
    if array.ndim != 2:
        raise ShapeError(f"A must be a matrix, got shape {array.shape}; quantise one after another")
    if array._dtype.name not in FLOATS:
        raise DTypeError(f"A must be one of {', '.join(FLOATS)}, got {array.dtype.name}")
    array.check()
    return array


def _rounded(record: Compressed24, bits: int, shares: Sequence[float]):
    """Integers of stored elements (m, stored), and the factors of every 64 of them.

    Of the factors that are these shares of the largest, those with the least square error.
    """
    if _arrays.is_cupy(record.values):
        single = _dtypes.TABLE["float32"]
        values = record.values
        if record.dtype is not single:
            values = _storage.converted(values, record.dtype, single)
        _refuse_beyond(values)
        return rounded(values, bits, shares)
    from sparse24.kernels import cpu

    integers, factors = cpu.quantise(record.values, record.dtype, bits, shares, TINY)
    _refuse_beyond(factors)
    return integers, factors


def _refuse_beyond(values) -> None:
    """Refuse elements, or factors made of them, that are not finite."""
    if not bool(_arrays.namespace(values).isfinite(values).all()):
        raise ArgumentError("A has elements that are infinite, NaN or beyond float32; scale it")


def rounded(values, bits: int, shares: Sequence[float]):
    """As `_rounded`, of finite float32, by operations on whole arrays."""
    xp = _arrays.namespace(values)
    groups = _in_groups(values)
    least = -(1 << bits - 1)
    at = xp.abs(groups).argmax(-1)[..., None]
    largest = xp.take_along_axis(groups, at, -1) / np.float32(least)
    largest = xp.where(xp.abs(largest) < TINY, np.float32(0), largest)
    best = xp.full(largest.shape, np.inf, np.float32)
    factors, integers = xp.zeros_like(largest), xp.zeros(groups.shape, np.int8)
    for share in map(np.float32, shares):
        tried = largest * share
        scaled = groups / xp.where(tried == 0, np.float32(np.inf), tried)
        rounded = xp.clip(xp.rint(scaled), least, -1 - least)
        error = xp.square(rounded - scaled).sum(-1, keepdims=True) * share**2
        better = error < best
        best, factors = xp.where(better, error, best), xp.where(better, tried, factors)
        integers = xp.where(better, rounded.astype(np.int8), integers)
    m, stored = values.shape
    return integers.reshape(m, groups.shape[1] * bricks.STORED)[:, :stored], factors[..., 0]


def _in_groups(values):
    """Rows of float32 in groups of 64, with zeros behind their ends."""
    m, stored = values.shape
    groups = -(-stored // bricks.STORED)
    padded = _arrays.namespace(values).zeros((m, groups * bricks.STORED), np.float32)
    padded[:, :stored] = values
    return padded.reshape(m, groups, bricks.STORED)
