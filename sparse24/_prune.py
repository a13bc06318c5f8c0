"""Prune dense arrays to n:m patterns, or say where pruning would."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _foreign_streams, _gradients, _prune_rule
from sparse24._errors import ArgumentError, DTypeError


def prune(
    x,
    *,
    pattern=(2, 4),
    axis=-1,
    method="magnitude",
    scores=None,
    transposable=False,
    out=None,
    dtype=None,
    rng=None,
    calibration=None,
    hessian=None,
    activations=None,
    damping=0.01,
    channels=0.0,
):
    """Zero all but the best n of every m elements along an axis.

    Parameters
    ----------
    x : array, any shape with at least one axis
        NumPy, CuPy, torch or JAX array of an element type of `Sparse24Array`.
    pattern : tuple (n, m), default (2, 4)
        Keep at most n of every m neighbours, ``0 < n < m <= 32``.  A last, shorter
        group keeps its n best as well.
    axis : int, default -1
        The axis that is cut into groups: the one that a product sums over.
    method : str or callable, default "magnitude"
        What makes an element worth keeping:

        ``"magnitude"``
            its absolute value; NaN ranks highest.
        ``"wanda"``
            its absolute value times the norm of its input [1]_; needs
            `calibration`, `hessian` or `activations`.
        ``"sparsegpt"``
            the error that its removal causes in the layer's outputs after the
            elements to its right have been adjusted to compensate [2]_; needs
            `calibration` or `hessian`.  Changes the kept values too.
        ``"random"``
            a random number; see `rng`.
        callable
            ``method(x)``, called with the NumPy or CuPy array behind `x`, returns scores of
            its shape; more is better.
    scores : array, shape of `x`, optional
        Your own scores instead of a method; higher is better.  NaN ranks highest.  Integers
        are compared in float64, in which those beyond 2**53 are rounded.
    transposable : bool, default False
        Keep exactly 2 of 4 in rows and in columns, so that the transpose obeys 2:4
        too: of the 90 legal masks of each 4x4 tile over the last two axes, the
        one with the largest sum of scores, whichever of them is `axis`.  Pattern (2, 4) only.
        Sums are float32, in which NaN counts as a sixteenth of the largest number.  So an
        infinity ranks above NaN, several in a tile count as one, and ordinary elements make no
        difference beside either.
    out : array, shape and dtype of `x`, optional
        Where to write; may be `x` itself or overlap it.
    dtype : str or dtype, optional
        Logical type where `x` holds fp8 as ``uint8``, as on the GPU.
    rng : None, int or numpy.random.Generator, optional
        Source of ``method="random"``; refused with others, as they draw nothing.
    calibration : array, shape (..., k), or Calibration, optional
        Inputs of the layer; k is the length of `axis`.
    hessian : array, shape (k, k), optional
        ``X.T @ X`` of those inputs, instead of `calibration`.
    activations : array, shape (k,), optional
        Norms of the input features, instead of `calibration`; for ``"wanda"`` only.
    damping : float, default 0.01
        Fraction of the mean of the Hessian's diagonal that ``"sparsegpt"`` adds to the
        diagonal.  Use more, such as 0.1, with targets or with few inputs for many features.
    channels : float, default 0.0
        Fraction of the output channels (slices along the first other axis) to
        zero as a whole, on top of the pattern: those with the least kept scores.

    Returns
    -------
    array, shape and dtype of `x`
        In the library of `x`; `out` if that is given.

    Raises
    ------
    PatternError
        If `pattern` is not a valid one, or not (2, 4) with `transposable`.
    ArgumentError
        If an argument is unknown, missing for `method`, or `out` is read-only or, while torch
        records what is done with it, a tensor that requires a gradient; also if the
        inputs hold NaN or inf, and with ``"sparsegpt"`` if `x` does.  On a GPU ``"wanda"`` does
        not check this, since a check waits.
    ShapeError, DTypeError
        If an array does not fit `x`.

    See Also
    --------
    mask : The positions of the kept elements only.
    compress : Prune and store without the zeros.

    Notes
    -----
    Of equal scores the one with the lower index is kept.  The same input gives the same mask on
    every device.  Does not wait for the GPU, except with ``"sparsegpt"``.

    References
    ----------
    .. [1] Sun, Liu, Bair, Kolter, *A Simple and Effective Pruning Approach for Large
       Language Models*, 2023.
    .. [2] Frantar, Alistarh, *SparseGPT: Massive Language Models Can Be Accurately
       Pruned in One-Shot*, 2023.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.array([[1.0, -4.0, 2.0, 3.0, 5.0, 0.0, 0.0, 1.0]])
    >>> s24.prune(x)
    array([[ 0., -4.,  0.,  3.,  5.,  0.,  0.,  1.]])
    >>> s24.prune(x, pattern=(1, 4))
    array([[ 0., -4.,  0.,  0.,  5.,  0.,  0.,  0.]])
    >>> s24.prune(x, method="wanda", activations=[9, 1, 9, 1, 1, 1, 1, 9])
    array([[1., 0., 2., 0., 5., 0., 0., 1.]])
    """
    own = _foreign.float8_of(x)
    dtype = _foreign.with_float8(x, dtype)
    with _foreign_streams.stream_of(x):
        given, restore = _foreign.take(x)
        array = _as_numbers(given, dtype)
        rule = _prune_rule.of(
            array, pattern=pattern, axis=axis, method=method, scores=scores,
            transposable=transposable, dtype=dtype, rng=rng, calibration=calibration,
            hessian=hessian, activations=activations, damping=damping, channels=channels,
        )  # fmt: skip
        target = None if out is None else _target(given, out)
        result = np.moveaxis(_prune_rule.pruned(array, rule), -1, rule.axis)
        result = result if result.dtype == given.dtype else result.view(given.dtype)
        if target is None:
            made = restore(_in_c_order(result))
            return made if own is None else _foreign.of_float8(made, own)
        target[...] = result
        return out


def mask(
    x,
    *,
    pattern=(2, 4),
    axis=-1,
    method="magnitude",
    scores=None,
    transposable=False,
    dtype=None,
    rng=None,
    calibration=None,
    hessian=None,
    activations=None,
    damping=0.01,
    channels=0.0,
):
    """Where `prune` with the same arguments keeps elements.

    Parameters
    ----------
    x, pattern, axis, method, scores, transposable, dtype, rng, calibration, hessian, \
activations, damping, channels
        See `prune`.

    Returns
    -------
    array of bool, shape of `x`
        In the library of `x`.  A full group has exactly n true elements, even if fewer are
        non-zero.

    Raises
    ------
    PatternError, ArgumentError, ShapeError, DTypeError
        As `prune`.

    Notes
    -----
    Waits for the GPU where `prune` does.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> x = np.array([[4, 3, 2, 1], [4, 3, 2, 1], [1, 2, 3, 4], [1, 1, 1, 1]], np.float32)
    >>> s24.mask(x).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [1, 1, 0, 0]])
    >>> s24.mask(x, transposable=True).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 1],
           [0, 0, 1, 1]])
    """
    dtype = _foreign.with_float8(x, dtype)
    with _foreign_streams.stream_of(x):
        given, restore = _foreign.take(x)
        array = _as_numbers(given, dtype)
        rule = _prune_rule.of(
            array, pattern=pattern, axis=axis, method=method, scores=scores,
            transposable=transposable, dtype=dtype, rng=rng, calibration=calibration,
            hessian=hessian, activations=activations, damping=damping, channels=channels,
        )  # fmt: skip
        kept = np.moveaxis(_prune_rule.kept(array, rule), -1, rule.axis)
        return restore(_in_c_order(kept))


def _in_c_order(x):
    """`x`, or a copy of it where the groups run along another axis than the last."""
    if not isinstance(x, np.ndarray):
        return _arrays.namespace(x).ascontiguousarray(x)
    from sparse24.kernels import cpu

    return cpu.in_c_order(x)


def _as_numbers(x, dtype):
    """Bits of the host as the type that `dtype` names; a GPU has no other than bits."""
    if dtype is None or not isinstance(x, np.ndarray):
        return x
    return _arrays.as_storage(x, _arrays.logical_dtype(x, _dtypes.lookup(dtype)))


def _target(x, out):
    """The array behind `out`, fit to take the result for `x`."""
    _check.is_array(out, argument="out")
    _gradients.refuse_target(out)
    target, _ = _foreign.take(out, argument="out")
    if _arrays.namespace(target) is not _arrays.namespace(x):
        raise ArgumentError(f"out must be an array like x, {type(x)}, got {type(out)}")
    _check.same_shape(target.shape, x.shape, argument="out", other="x")
    if target.dtype != x.dtype:
        raise DTypeError(f"out must have the dtype of x, {x.dtype}, got {target.dtype}")
    _check.writable(target, argument="out")
    return target
