"""Prune dense arrays to n:m patterns, or say where pruning would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _methods, _select
from sparse24._errors import ArgumentError, PatternError, UnsupportedError
from sparse24._sparsegpt import sparsegpt


@dataclass(frozen=True)
class _Rule:
    """The arguments of `prune` and `mask` after checking."""

    n: int
    m: int
    axis: int
    method: str | Callable[[Any], Any]
    scores: Any
    transposable: bool
    dtype: _dtypes.DType
    rng: Any
    calibration: Any
    hessian: Any
    activations: Any
    channels: float


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
    channels=0.0,
):
    """Zero all but the best n of every m elements along an axis.

    Parameters
    ----------
    x : array, any shape with at least one axis
        NumPy, CuPy, torch or JAX array of a supported dtype.
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
            elements to its right have made up for it [2]_; needs `calibration` or
            `hessian`.  Changes the kept values too.
        ``"random"``
            chance; see `rng`.
        callable
            ``method(x)`` returns scores of x's shape, more is better.
    scores : array, shape of `x`, optional
        Scores themselves, in place of a method.  NaN ranks
        highest.
    transposable : bool, default False
        Keep exactly 2 of 4 in rows and in columns, so that the transpose obeys 2:4
        too: of the 90 legal masks of each 4x4 tile over the last two axes, the
        one with the largest sum of scores.  Pattern (2, 4) only.
    out : array, shape and dtype of `x`, optional
        Where to write; may be `x` itself or overlap it.
    dtype : str or dtype, optional
        Logical type where `x` holds fp8 as ``uint8``, as on the GPU.
    rng : None, int or numpy.random.Generator, optional
        Source of ``method="random"``.
    calibration : array, shape (..., k), or Calibration, optional
        Inputs of the layer; k is the length of `axis`.
    hessian : array, shape (k, k), optional
        ``X.T @ X`` of those inputs, in place of them.
    activations : array, shape (k,), optional
        Norms of the input features, in place of them, for ``"wanda"``.
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
        If `pattern` is none, or not (2, 4) with `transposable`.
    ArgumentError
        If an argument is unknown, missing for `method`, or `out` is read-only.
    ShapeError, DTypeError
        If an array does not fit `x`.

    See Also
    --------
    mask : Only where the kept elements are.
    compress : Prune and store without the zeros.

    Notes
    -----
    Equal scores keep the lower index.  The same input gives the same mask on every
    device.  Does not wait for the GPU, except with ``"sparsegpt"``.

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
    array, restore = _foreign.take(x)
    rule = _rule(
        array,
        pattern,
        axis,
        method,
        scores,
        transposable,
        dtype,
        rng,
        calibration,
        hessian,
        activations,
        channels,
    )
    target = None if out is None else _target(array, out)
    kept, weights = _decide(array, rule)
    zero = np.zeros((), weights.dtype)
    result = np.moveaxis(_arrays.namespace(array).where(kept, weights, zero), -1, rule.axis)
    if target is None:
        return restore(_arrays.namespace(array).ascontiguousarray(result))
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
    channels=0.0,
):
    """Where `prune` with the same arguments keeps elements.

    Parameters
    ----------
    x, pattern, axis, method, scores, transposable, dtype, rng, calibration, hessian, \
activations, channels
        See `prune`.

    Returns
    -------
    array of bool, shape of `x`
        In the library of `x`.  Zeros may be kept: a full group has exactly n true
        elements.

    Raises
    ------
    PatternError, ArgumentError, ShapeError, DTypeError
        As `prune`.

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
    array, restore = _foreign.take(x)
    rule = _rule(
        array,
        pattern,
        axis,
        method,
        scores,
        transposable,
        dtype,
        rng,
        calibration,
        hessian,
        activations,
        channels,
    )
    kept = np.moveaxis(_decide(array, rule)[0], -1, rule.axis)
    return restore(_arrays.namespace(array).ascontiguousarray(kept))


def _rule(
    x,
    pattern,
    axis,
    method,
    scores,
    transposable,
    dtype,
    rng,
    calibration,
    hessian,
    activations,
    channels,
) -> _Rule:
    n, m = _check.pattern(pattern)
    _check.at_least_1d(x.shape, argument="x")
    number = _check.axis(axis, x.ndim)
    if not callable(method):
        _check.one_of(method, _methods.NAMES, argument="method")
    if scores is not None:
        if method != "magnitude":
            raise ArgumentError(f"scores replace a method; drop scores= or method={method!r}")
        scores, _ = _foreign.take(scores, argument="scores")
        _check.same_shape(scores.shape, x.shape, argument="scores", other="x")
    if transposable:
        if (n, m) != (2, 4):
            raise PatternError(f"transposable needs pattern (2, 4), got ({n}, {m})")
        _check.at_least_2d(x.shape, argument="x")
        if number < x.ndim - 2:
            raise ArgumentError(f"transposable works on the last two axes; axis={axis} is neither")
    if not 0 <= channels < 1:
        raise ArgumentError(f"channels must be a fraction in [0, 1), got {channels!r}")
    if channels:
        _check.at_least_2d(x.shape, argument="x")
    row = _arrays.logical_dtype(x, dtype)
    return _Rule(
        n,
        m,
        number,
        method,
        scores,
        bool(transposable),
        row,
        rng,
        calibration,
        hessian,
        activations,
        float(channels),
    )


def _target(x, out):
    """The array behind `out`, fit to take the result for `x`."""
    target, _ = _foreign.take(out, argument="out")
    if _arrays.namespace(target) is not _arrays.namespace(x):
        raise ArgumentError(f"out must be an array like x, {type(x)}, got {type(out)}")
    _check.same_shape(target.shape, x.shape, argument="out", other="x")
    if target.dtype != x.dtype:
        raise ArgumentError(f"out must have the dtype of x, {x.dtype}, got {target.dtype}")
    _check.writable(target, argument="out")
    return target


def _pruned(x, rule: _Rule):
    """`x` pruned, its grouped axis moved to the end."""
    if _is_plain(x, rule):
        from sparse24.kernels import cpu

        return cpu.prune(np.moveaxis(x, rule.axis, -1))
    kept, weights = _decide(x, rule)
    return _arrays.namespace(x).where(kept, weights, np.zeros((), weights.dtype))


def _is_plain(x, rule: _Rule) -> bool:
    """True where one kernel prunes without a mask in between."""
    by_size = rule.method == "magnitude" and rule.scores is None
    whole = by_size and not rule.transposable and not rule.channels
    return whole and (rule.n, rule.m) == (2, 4) and not _arrays.is_cupy(x)


def _decide(x, rule: _Rule):
    """Mask and weights with the grouped axis last; the weights are x's unless the method acts."""
    scores = _scores(x, rule)
    weights = np.moveaxis(x, rule.axis, -1)
    if scores is None:
        return _second_order(weights, rule)
    scores = np.moveaxis(scores, rule.axis, -1)
    if rule.transposable:
        kept = _select.best_of_tiles(scores)
    else:
        kept = _select.best_of_groups(scores, rule.n, rule.m)
    return _without_channels(kept, scores, rule.channels), weights


def _scores(x, rule: _Rule):
    """Scores in x's axes, or None for a method that chooses by itself."""
    if rule.scores is not None:
        return rule.scores
    if callable(rule.method):
        scores, _ = _foreign.take(rule.method(x), argument="method(x)")
        _check.same_shape(scores.shape, x.shape, argument="method(x)", other="x")
        return scores
    if rule.method == "magnitude":
        return _methods.magnitude(x, rule.dtype)
    if rule.method == "random":
        return _methods.random(x, rule.rng)
    if rule.method == "wanda":
        k = x.shape[rule.axis]
        norms = _methods.input_norms(k, rule.calibration, rule.hessian, rule.activations)
        scores = _methods.wanda(np.moveaxis(x, rule.axis, -1), rule.dtype, norms)
        return np.moveaxis(scores, -1, rule.axis)
    return None


def _without_channels(kept, scores, fraction: float):
    if not fraction:
        return kept
    flat = kept.reshape(len(kept), -1)
    return _select.without_channels(flat, scores.reshape(flat.shape), fraction).reshape(kept.shape)


def _second_order(weights, rule: _Rule):
    """`sparsegpt` on weights (..., k): mask and updated weights."""
    xp = _arrays.namespace(weights)
    if rule.dtype.is_float8 and xp is not np:
        raise UnsupportedError(
            "method='sparsegpt' cannot update fp8 bits on the GPU; prune before the "
            "conversion to fp8, or pass a NumPy array"
        )
    k = weights.shape[-1]
    hessian = _methods.input_hessian(k, rule.calibration, rule.hessian)
    rows = weights.reshape((-1, *weights.shape[-2:]) if rule.transposable else (1, -1, k))
    parts = [
        sparsegpt(part.astype(np.float64), hessian, rule.n, rule.m, transposable=rule.transposable)
        for part in rows
    ]
    updated = xp.concatenate([part[0] for part in parts]).reshape(weights.shape)
    kept = xp.concatenate([part[1] for part in parts]).reshape(weights.shape)
    kept = _without_channels(kept, xp.abs(updated), rule.channels)
    if rule.dtype.name == "int8":
        updated = xp.clip(xp.rint(updated), -128, 127)
    return kept, updated.astype(weights.dtype)
