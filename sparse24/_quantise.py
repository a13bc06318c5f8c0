"""`quantise`: 2:4 matrices as integers of 4 or 8 bits times scales."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sparse24 import (
    _arrays,
    _check,
    _devices,
    _dtypes,
    _prune_methods,
    _quantised,
    _record_parts,
    _spec,
    _storage,
)
from sparse24._compress import compress
from sparse24._errors import ArgumentError, DTypeError, ShapeError, Sparse24Error
from sparse24._gptq import gptq
from sparse24._quantised import FLOATS
from sparse24._records import Compressed24
from sparse24.formats.base import SparseArray
from sparse24.formats.quantised import Quantised24Array, of_parts
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import bricks

# Of the largest scale, those that `method="mse"` tries; 0.95 is best for normal elements.
SHARES = tuple(np.linspace(0.65, 1.0, 15).tolist())
# Scales below are zero, as GPUs take subnormal ones for zeros.
TINY = np.float32(2 * np.finfo(np.float32).tiny)
_FLOAT32 = _dtypes.TABLE["float32"]
METHODS = ("mse", "absmax", "gptq")


def quantise(
    A, *, bits=4, method="mse", calibration=None, hessian=None, damping=0.01
) -> Quantised24Array:
    """Round the stored elements of a 2:4 array to integers of few bits times scales.

    Every 128 columns of a row, 64 stored elements, share a scale.

    Parameters
    ----------
    A : Sparse24Array or array, shape (..., m, k)
        float16, bfloat16, float32 or float64; a plain array must obey 2:4 along its rows.
    bits : {4, 8}
        Of an integer.
    method : {"mse", "absmax", "gptq"}
        How scales are chosen.  ``"absmax"``: the element of the largest magnitude becomes the least
        integer, such as -8.  ``"mse"``: of that scale and 14 smaller ones the one that leaves the
        least square error.  ``"gptq"``: as ``"mse"``, but columns are rounded one after another,
        and later ones move to make up for what that does to the outputs; needs `calibration` or
        `hessian`.
    calibration : array, shape (..., k), or Calibration, optional
        Inputs of the layer, as for `prune`, with k features along the groups; of an array with
        `axis` -2 these are its rows.  For a stack (e, m, k) a sequence of e of them, as each expert
        has its own tokens; None for one that has none, which is rounded as by ``"mse"``.
    hessian : array, shape (k, k), optional
        ``X.T @ X`` of those inputs, instead of `calibration`.  For a stack (e, k, k), or a
        sequence as above.
    damping : float, default 0.01
        For ``"gptq"``: part of the mean of the Hessian's diagonal that is added to the diagonal.

    Returns
    -------
    Quantised24Array
        On the same device, of the same type and axis: with `axis` -2, 128 rows of a column share a
        scale.  Waits for a GPU.

    Raises
    ------
    DTypeError, ShapeError, PatternError
        If `A` is not an array of floats that obeys 2:4, or inputs do not fit it.
    ArgumentError
        If an element is not finite, or an option is unknown.

    See Also
    --------
    sparse24.convert.from_quantised : Of integers and scales that are there already.

    Notes
    -----
    Zeros stay zero, also with ``"gptq"`` (Frantar et al., 2022), which computes in float64 with
    matrices of (k, k).

    The type is kept: for fast products with tokens of 16 bits quantise ``A.astype("bfloat16")`` or
    ``A.astype("float16")``.

    Scales are normal numbers of float32, or zero: 64 stored elements of which none is beyond some
    3e-36 may all become zeros.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((64, 512), dtype="float16", rng=0)
    >>> for bits in (4, 8):
    ...     error = s24.quantise(A, bits=bits).toarray().astype("float32") - A.toarray()
    ...     print(f"{np.linalg.norm(error) / np.linalg.norm(A.toarray()):.3f}")
    0.090
    0.006

    Inputs of which some features go together let columns make up for one another:

    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((1024, 64)) @ rng.standard_normal((64, 512))
    >>> y = X @ A.toarray().T
    >>> for inputs in ({}, {"method": "gptq", "calibration": X}):
    ...     Q = s24.quantise(A, **inputs).astype("float64")
    ...     print(f"{np.linalg.norm(X @ Q.toarray().T - y) / np.linalg.norm(y):.3f}")
    0.089
    0.057
    """
    bits = _quantised.checked_bits(bits)
    _check.one_of(method, METHODS, argument="method")
    damping = _check.positive(damping, argument="damping")
    _check_inputs(method, calibration, hessian)
    array = _as_24(A)
    record = array._operand.stored
    inputs = _inputs_of_each(calibration, hessian, record.shape[:-2])
    shares = (1.0,) if method == "absmax" else SHARES
    nothing = calibration is hessian is None

    def quantised(matrix: Compressed24, calibration, hessian):
        without_tokens = not nothing and calibration is hessian is None
        if method != "gptq" or without_tokens:
            return _rounded(matrix, bits, shares)
        seen = _prune_methods.input_hessian(matrix.k, calibration, hessian, method=method)
        return _by_inputs(matrix, seen, bits, damping)

    with _devices.on_device(array.device):
        integers, factors = _of_each(record, inputs, quantised)
        parts = _quantised.Parts(integers, _storage.canonical(record), factors)
        made = of_parts(parts, record.shape, bits, record.dtype)
    return made if array.axis == -1 else made.mT


def _check_inputs(method: str, calibration, hessian) -> None:
    """Refuse what is known of the inputs where nothing looks at it, or where it is told twice."""
    if method != "gptq" and not calibration is hessian is None:
        raise ArgumentError(
            f"calibration= and hessian= are for method='gptq', and {method!r} does not use them; "
            "drop them, or name that method"
        )
    if calibration is not None and hessian is not None:
        raise ArgumentError("calibration and hessian say the same; pass one of them")


def _as_24(A) -> Sparse24Array:
    """The argument as an array of floats in 2:4."""
    if isinstance(A, SparseArray) and not isinstance(A, Sparse24Array):
        raise DTypeError(
            f"A must be a Sparse24Array or an array that obeys 2:4, got {type(A).__name__}; make "
            "one of its elements with sparse24.compress(A)"
        )
    array = A if isinstance(A, Sparse24Array) else compress(A)
    if array._dtype.name not in FLOATS:
        raise DTypeError(
            f"A must be one of {', '.join(FLOATS)}, got {array.dtype.name}; convert it, for "
            "example by .astype('float32'), or give integers with scales of their own to "
            "sparse24.convert.from_quantised"
        )
    array.check()
    return array


def _inputs_of_each(calibration, hessian, batch: tuple[int, ...]) -> list[tuple[Any, Any]]:
    """What is known of the inputs of each matrix of a stack, or of a single one."""
    given = {"calibration": calibration, "hessian": hessian}
    parts = (_of_batch(x, batch, name) for name, x in given.items())
    return list(zip(*parts, strict=True))


def _of_batch(x, batch: tuple[int, ...], argument: str) -> list[Any]:
    """What a sequence, for more batch axes one of sequences, has for each matrix of a stack."""
    if x is None:
        return [None] * math.prod(batch)
    if not batch:
        return [x]
    sized = hasattr(x, "__len__") and getattr(x, "shape", None) != ()
    if not sized or len(x) != batch[0]:
        raise ShapeError(
            f"{argument} must be a sequence of {batch[0]}, one for each matrix of a stack, got "
            f"{_check.shown(x)}; repeat what several of them share, as in [x] * {batch[0]}, and "
            "give None for those without inputs"
        )
    return [found for part in x for found in _of_batch(part, batch[1:], argument)]


def _of_each(record: Compressed24, inputs: list[tuple[Any, Any]], quantised):
    """Integers of stored elements (..., m, stored), and factors, of the matrices of a record.

    ``quantised(matrix, calibration, hessian)`` gives those of one.
    """
    batch, xp = record.shape[:-2], _arrays.namespace(record.values)
    if not batch:
        return quantised(record, *inputs[0])
    integers = xp.empty(record.values.shape, np.int8)
    factors = xp.empty((*record.shape[:-1], bricks.counts(*record.shape[-2:])[1]), np.float32)
    for place, known in zip(np.ndindex(*batch), inputs, strict=True):
        matrix = _record_parts.of_batch(record, place)
        try:
            integers[place], factors[place] = quantised(matrix, *known)
        except Sparse24Error as error:
            raise type(error)(f"matrix {list(place)} of the stack: {error}") from error
    return integers, factors


def _by_inputs(record: Compressed24, hessian, bits: int, damping: float):
    """As `_rounded`, but errors of columns are made up for by later ones."""
    exact = _storage.decompress(_storage.cast(record, _dtypes.TABLE["float64"]))
    with np.errstate(over="ignore"):
        _refuse_beyond(exact.astype(np.float32))
    xp = _arrays.namespace(exact)
    most = min(float(ml_dtypes.finfo(x.logical).max) for x in (record.dtype, _FLOAT32))

    def choose(group):  # whose elements the errors of others may have moved beyond the type
        return best(xp.clip(group, -most, most).astype(np.float32), bits, SHARES)[0]

    dense, factors = gptq(
        exact, exact != 0, hessian, bits=bits, group=bricks.COLUMNS, damping=damping, choose=choose
    )
    stored = record.values.shape[1]
    columns = _record_parts.columns_of(_storage.canonical(record), stored)
    padded = xp.zeros((record.m, stored // _spec.KEPT * _spec.GROUP), np.int8)
    padded[:, : record.k] = dense
    return xp.take_along_axis(padded, columns, axis=1), factors


def _rounded(record: Compressed24, bits: int, shares: Sequence[float]):
    """Integers of stored elements (m, stored), and the factors of every 64 of them.

    Of the factors that are these shares of the largest, those with the least square error.
    """
    if _arrays.is_cupy(record.values):
        values = record.values
        if record.dtype is not _FLOAT32:
            values = _storage.converted(values, record.dtype, _FLOAT32)
        _refuse_beyond(values)
        return rounded(values, bits, shares)
    from sparse24.kernels import cpu

    integers, factors = cpu.quantise(record.values, record.dtype, bits, shares, TINY)
    _refuse_beyond(factors)
    return integers, factors


def _refuse_beyond(values) -> None:
    """Refuse elements, or factors made of them, that are not finite."""
    if not bool(_arrays.namespace(values).isfinite(values).all()):
        raise ArgumentError(
            "A has elements that are infinite, NaN or beyond float32; replace them, for example by "
            "numpy.nan_to_num, or scale A if they are only too large"
        )


def rounded(values, bits: int, shares: Sequence[float]):
    """As `_rounded`, of finite float32, by operations on whole arrays."""
    groups = _in_groups(values)
    factors, integers = best(groups, bits, shares)
    m, stored = values.shape
    return integers.reshape(m, groups.shape[1] * bricks.STORED)[:, :stored], factors[..., 0]


def best(groups, bits: int, shares: Sequence[float]):
    """Factors (..., 1) and integers (..., n) of groups of n elements, as of `_rounded`."""
    xp = _arrays.namespace(groups)
    least = -(1 << bits - 1)
    at = xp.abs(groups).argmax(-1)[..., None]
    largest = xp.take_along_axis(groups, at, -1) / np.float32(least)
    largest = xp.where(xp.abs(largest) < TINY, np.float32(0), largest)
    lowest = xp.full(largest.shape, np.inf, np.float32)
    factors, integers = xp.zeros_like(largest), xp.zeros(groups.shape, np.int8)
    for share in map(np.float32, shares):
        tried = largest * share
        scaled = groups / xp.where(tried == 0, np.float32(np.inf), tried)
        nearest = xp.clip(xp.rint(scaled), least, -1 - least)
        error = xp.square(nearest - scaled).sum(-1, keepdims=True) * share**2
        better = error < lowest
        lowest, factors = xp.where(better, error, lowest), xp.where(better, tried, factors)
        integers = xp.where(better, nearest.astype(np.int8), integers)
    return factors, integers


def _in_groups(values):
    """Rows of float32 in groups of 64, with zeros behind their ends."""
    m, stored = values.shape
    groups = -(-stored // bricks.STORED)
    padded = _arrays.namespace(values).zeros((m, groups * bricks.STORED), np.float32)
    padded[:, :stored] = values
    return padded.reshape(m, groups, bricks.STORED)
