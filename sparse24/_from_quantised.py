"""Matrices of integers and scales that are there already: `convert.from_quantised` and others."""

from __future__ import annotations

from typing import Literal, overload

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _given_parts, _marlin24, _quantised
from sparse24._errors import DTypeError, FormatError
from sparse24._quantised import FLOATS, GROUP
from sparse24.formats import quantised as quantised_format
from sparse24.formats.parts import Parts
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.quantised_parts import QuantisedParts
from sparse24.formats.two_four import Sparse24Array

_EXACT = ("float16", "bfloat16", "float32")  # types of scales, which float32 holds as they are


def from_quantised(integers, metadata, scales, shape, *, bits, dtype=None) -> Quantised24Array:
    """Make a quantised array of integers, codes and scales that are there already, checked.

    Parameters
    ----------
    integers : array of int8, shape (..., m, 2 * ceil(k / 4))
        Stored elements before they are multiplied by scales, from -8 to 7 if `bits` is 4.
    metadata : array of uint8, shape (..., m, ceil(k / 8))
        Codes, two a byte, low K in the low nibble; see :ref:`layout`.
    scales : array of float16, bfloat16 or float32, shape (..., m), (..., m, 1) or (..., m, n)
        One for each row, or for each of n groups of columns: 128, or a multiple of it that divides
        k.
    shape : tuple of int
        Logical shape (..., m, k).
    bits : {4, 8}
        Of an integer.
    dtype : dtype, optional
        Of the array: float16, bfloat16, float32 or float64, by default that of `scales`.

    Returns
    -------
    Quantised24Array
        On the CPU.  Copying parts from a GPU waits.

    Raises
    ------
    FormatError
        If the parts do not fit together, an integer has more bits, a code is not one of the six
        legal ones, or a scale is infinite or NaN.
    ShapeError, DTypeError, ArgumentError
        If `shape`, a type or `bits` is another.

    See Also
    --------
    sparse24.quantise : Choose integers and scales.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.array([[0, 3, 0, -8], [1, 0, 2, 0]], np.int8))
    >>> Q = s24.convert.from_quantised(A.values, A.metadata, np.array([0.5, 0.25], np.float16),
    ...                                (2, 4), bits=4)
    >>> Q.toarray()
    array([[ 0.  ,  1.5 ,  0.  , -4.  ],
           [ 0.25,  0.  ,  0.5 ,  0.  ]], dtype=float16)
    """
    bits = _quantised.checked_bits(bits)
    shape = _check.sizes(shape, argument="shape")
    parts = _quantised.Parts(
        _given_parts.host(integers, "integers"),
        _given_parts.host(metadata, "metadata"),
        _given_parts.host(scales, "scales"),
    )
    of_scales = parts.factors.dtype.name
    if of_scales not in _EXACT:
        raise DTypeError(
            f"scales must be one of {', '.join(_EXACT)}, got {of_scales}; convert them, for "
            "example by .astype('float32')"
        )
    own = _dtypes.lookup(of_scales if dtype is None else dtype, known=FLOATS)
    if own.name not in FLOATS:
        raise DTypeError(f"dtype must be one of {', '.join(FLOATS)}, got {own.name}")
    return _checked(parts, shape, bits, own, "from_quantised")


@overload
def from_marlin24(
    weight_packed,
    scale_packed,
    meta,
    *,
    scales_permuted: bool = ...,
    quantised: Literal[False] = ...,
) -> Sparse24Array: ...


@overload
def from_marlin24(
    weight_packed, scale_packed, meta, *, scales_permuted: bool = ..., quantised: Literal[True]
) -> Quantised24Array: ...


def from_marlin24(
    weight_packed, scale_packed, meta, *, scales_permuted: bool = True, quantised: bool = False
) -> Sparse24Array | Quantised24Array:
    """Read the ``marlin-24`` form of compressed-tensors checkpoints: 4 or 8 bits and factors.

    ``python -m sparse24 convert`` reads whole checkpoints of this form.

    Parameters
    ----------
    weight_packed : array of int32, shape (k / 32, 2 * m or 4 * m)
        The stored elements, of 4 or of 8 bits.
    scale_packed : array of float16 or bfloat16, shape (1 or k / 128, m)
        A factor for each row, or for each 128 columns of a row.
    meta : array of int16, shape (k / 32, 2 * m)
        The codes of the groups.
    scales_permuted : bool, optional
        False for factors of 128 columns that compressed-tensors 0.4 to 0.7 wrote, which left them
        in the order of the rows.  The arrays themselves do not tell.
    quantised : bool, optional
        True for an array of the very integers and factors, which is as small as the parts.

    Returns
    -------
    Sparse24Array or Quantised24Array, shape (m, k)
        On the CPU, of the type of the factors.  The elements of the first are the products of
        integers and factors, rounded once.

    Raises
    ------
    FormatError
        If the arrays do not fit together, a code is not one of the six legal ones, or a factor of
        a quantised array is infinite or NaN.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> ones = np.full((1, 128), 0x99999999, np.uint32).view(np.int32)  # 9 is 8 above 1
    >>> first_two = np.full((1, 128), 0x4444, np.int16)
    >>> A = s24.convert.from_marlin24(ones, np.full((1, 64), 0.5, np.float16), first_two)
    >>> A.toarray()[0, :8]
    array([0.5, 0.5, 0. , 0. , 0.5, 0.5, 0. , 0. ], dtype=float16)
    """
    permuted = _check.flag(scales_permuted, argument="scales_permuted")
    as_it_is = _check.flag(quantised, argument="quantised")
    given = zip(_marlin24.PARTS, (weight_packed, scale_packed, meta), strict=True)
    packed = {name: _given_parts.host(x, name) for name, x in given}
    layout = _marlin24.layout({name: (x.shape, x.dtype) for name, x in packed.items()})
    found = _marlin24.unpack(packed, layout, scales_permuted=permuted)
    own = _arrays.logical_dtype(found.factors)
    if as_it_is:
        return _checked(found, layout.shape, layout.bits, own, "marlin-24")
    values = _marlin24.multiplied(found)
    return _given_parts.checked(Parts(values, found.metadata, layout.shape, own), "meta")


def _checked(
    parts: _quantised.Parts, shape: tuple[int, ...], bits: int, dtype: _dtypes.DType, where: str
) -> Quantised24Array:
    """The array of parts whose factors are those of rows or of groups of columns."""
    spread = parts._replace(factors=_spread(parts.factors, shape))
    QuantisedParts(spread, shape, dtype, bits).check(where)
    return quantised_format.of_parts(spread, shape, bits, dtype)


def _spread(scales: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The scales, float32, of every 128 columns, which longer groups or whole rows share."""
    *rows, k = shape
    atoms = -(-k // GROUP)
    by_rows = scales[..., None] if scales.ndim == len(rows) else scales
    groups = by_rows.shape[-1] if by_rows.ndim == len(shape) else 0
    whole = groups in (1, atoms) or (0 < groups < atoms and k % (groups * GROUP) == 0)
    if by_rows.shape != (*rows, groups) or not whole:
        raise FormatError(
            f"scales must have shape {shape[:-1]}, {(*rows, 1)} or {(*rows, atoms)} for shape "
            f"{shape}, or one for each of equal groups of a multiple of {GROUP} columns, got "
            f"{scales.shape}"
        )
    times = 1 if groups == atoms else atoms // groups
    return np.repeat(by_rows.astype(np.float32), times, axis=-1)
