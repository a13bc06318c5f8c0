"""`activate_compress`: activations as sparse operands."""

from __future__ import annotations

from typing import Any

from sparse24 import _arrays, _backend, _check, _foreign, _foreign_streams, _gradients, _storage
from sparse24._dtypes import TABLE
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.two_four import Sparse24Array

ACTIVATIONS = ("relu", "relu2", "silu")
FLOATS = ("float16", "bfloat16", "float32", "float64")


def activate_compress(x, activation="relu2", *, gate=None, quantise=False):
    """Apply an activation, prune its result to 2:4 along the features, and compress it.

    For a feed-forward layer in which the activations, not the weights, are the sparse operand:
    squared relu zeroes about half of them anyway.

    Parameters
    ----------
    x : array, shape (m, k)
        Tokens by features, float16 or bfloat16; on the CPU also float32 and float64.
    activation : {"relu", "relu2", "silu"}, default "relu2"
        ``"relu2"`` is ``max(x, 0) ** 2``; ``"silu"`` is multiplied by `gate`.
    gate : array, like `x`
        With ``"silu"`` only.
    quantise : bool, default False
        Store float8_e4m3fn, scaled so that the largest magnitude of each row becomes 448.  A row
        of magnitudes below 2**-100 has the scale 1 and becomes zeros.  A row with an infinity, or
        a float64 beyond the range of float32, has an infinite scale, and its products are NaN.

    Returns
    -------
    array : Sparse24Array, shape (m, k)
        The two of largest magnitude of every four neighbours in a row.
    scales : array of float32, shape (m, 1)
        Only if `quantise` is true: ``array * scales`` is the pruned activation.  Pass it on as
        ``matmul(array, b, scales=(scales, 1.0))``.

    Raises
    ------
    ArgumentError
        If `activation` is unknown, or `gate` missing or superfluous.
    ShapeError, DTypeError
        If an array does not fit.
    UnsupportedError
        If the GPU has no kernel for the element type.

    Notes
    -----
    One pass on the GPU, which does not wait.  The activation is computed in float32
    (float64 of float64) and rounded to the type of `x`; the rounded numbers are compared.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.array([[1, 2, 3, -4, 0, -1, 2, 0]], np.float16)
    >>> s24.activate_compress(x).toarray()
    array([[0., 4., 9., 0., 0., 0., 4., 0.]], dtype=float16)
    >>> array, scales = s24.activate_compress(x, quantise=True)
    >>> array.dtype.name, (array.toarray() * scales).round(2)
    ('float8_e4m3fn', array([[0.  , 3.86, 9.  , 0.  , 0.  , 0.  , 3.86, 0.  ]], dtype=float32))
    """
    _check.one_of(activation, ACTIVATIONS, argument="activation")
    quantise = _check.flag(quantise, argument="quantise")
    _gradients.refuse(x, "x")
    _gradients.refuse(gate, "gate")
    with _foreign_streams.makes_of(x):
        array, restore = _foreign.take(x)
        array, gate = _backend.place(array), _checked_gate(gate, array, activation)
        dtype = _arrays.logical_dtype(array)
        if array.ndim != 2:
            raise ShapeError(
                f"x must be a matrix (tokens, features), got shape {tuple(array.shape)}; "
                "x.reshape(-1, x.shape[-1]) makes it one"
            )
        if dtype.name not in FLOATS:
            raise DTypeError(f"x must be one of {', '.join(FLOATS)}, got {dtype.name}")
        record, scales = _compressed(array, dtype, activation, gate, quantise)
        shape = tuple(array.shape)
        result = Sparse24Array(Operand24(record, None, None, shape, record.dtype))
        return (result, restore(scales[:, None])) if quantise else result


def _checked_gate(gate, x, activation: str):
    if (gate is not None) != (activation == "silu"):
        need = "needs" if gate is None else "takes no"
        raise ArgumentError(f"activation={activation!r} {need} gate=; only 'silu' is gated")
    if gate is None:
        return None
    gate, _ = _foreign.take(gate, argument="gate")
    gate = _backend.place(gate)
    _check.same_shape(gate.shape, x.shape, argument="gate", other="x")
    if gate.dtype != x.dtype:
        raise DTypeError(f"gate must have the dtype of x, {x.dtype}, got {gate.dtype}")
    return gate


def _compressed(x, dtype, activation: str, gate, quantise: bool) -> tuple[Compressed24, Any]:
    if _arrays.is_cupy(x):
        from sparse24.kernels import activate_compress as kernel

        _storage.refuse_long(x.shape)
        return kernel.launch(x, dtype, activation=activation, gate=gate, quantise=quantise)
    from sparse24.kernels import cpu

    values, metadata, scales = cpu.activate_compress(x, activation, gate, quantise=quantise)
    stored = TABLE["float8_e4m3fn"] if quantise else dtype
    return Compressed24(values, metadata, None, x.shape, stored), scales
