"""The checked arguments of `prune` and `mask`, and the functions that carry them out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _prune_methods, _select
from sparse24._calibration import Calibration
from sparse24._errors import ArgumentError, PatternError, UnsupportedError
from sparse24._refit import fitted
from sparse24._sparsegpt import narrowed, sparsegpt


@dataclass(frozen=True)
class Rule:
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
    damping: float
    channels: float


def of(
    x, *, pattern, axis, method, scores, transposable, dtype, rng, calibration, hessian,
    activations, damping, channels,
) -> Rule:  # fmt: skip
    """Check the arguments of `prune` against an array."""
    n, m = _check.pattern(pattern)
    _check.at_least_1d(x.shape, argument="x")
    number = _check.axis(axis, x.ndim)
    named = None if dtype is None else _dtypes.lookup(dtype)
    transposable = _check.flag(transposable, argument="transposable")
    if transposable:
        _check_transposable(x, n, m, number)
    if not 0 <= _check.number(channels, argument="channels") < 1:
        raise ArgumentError(f"channels must be a fraction in [0, 1), got {channels!r}")
    damping = _check.positive(damping, argument="damping")
    if channels:
        _check.at_least_2d(x.shape, argument="x")
    scores = _checked_scores(x, scores, method)
    if rng is not None and method != "random":
        raise ArgumentError(
            "rng= is for method='random', and nothing else draws numbers; drop it, or name that"
        )
    by_name = scores is None and isinstance(method, str)
    _prune_methods.check_inputs(
        method if by_name else None,
        calibration=calibration, hessian=hessian, activations=activations,
    )  # fmt: skip
    return Rule(
        n, m, number, method, scores,
        transposable=transposable, dtype=_arrays.logical_dtype(x, named), rng=rng,
        calibration=calibration, hessian=hessian, activations=activations, damping=damping,
        channels=float(channels),
    )  # fmt: skip


def _check_transposable(x, n: int, m: int, axis: int) -> None:
    if (n, m) != (2, 4):
        raise PatternError(f"transposable needs pattern (2, 4), got ({n}, {m})")
    _check.at_least_2d(x.shape, argument="x")
    if axis < x.ndim - 2:
        raise ArgumentError(f"transposable works on the last two axes; axis={axis} is neither")


def _checked_scores(x, scores, method):
    if not callable(method):
        _check.one_of(method, _prune_methods.NAMES, argument="method")
    if scores is None:
        return None
    if method != "magnitude":
        raise ArgumentError(f"scores replace a method; drop scores= or method={method!r}")
    return _prune_methods.checked_scores(scores, x)


def pruned(x, rule: Rule):
    """`x` pruned, its grouped axis moved to the end."""
    fused = not rule.transposable and not rule.channels  # no mask in between
    if fused and _by_magnitude(rule):
        return _select.best_elements(_storage_of(x, rule), rule.dtype, rule.n, rule.m)
    if fused and _arrays.is_cupy(x) and rule.method != "sparsegpt":
        scores = np.moveaxis(_scores(x, rule), rule.axis, -1)
        return _select.best_elements(_storage_of(x, rule), rule.dtype, rule.n, rule.m, scores)
    kept, weights = decide(x, rule)
    bits = weights.view(rule.dtype.storage)  # bits, as CuPy cannot select among all types
    zero = rule.dtype.storage.type(0)
    return _arrays.namespace(x).where(kept, bits, zero).view(weights.dtype)


def kept(x, rule: Rule):
    """Where `pruned` keeps elements, the grouped axis moved to the end."""
    in_one_kernel = _by_magnitude(rule) and not rule.channels
    if in_one_kernel and not rule.transposable:
        return _select.mask_by_magnitude(_storage_of(x, rule), rule.dtype, rule.n, rule.m)
    if in_one_kernel and _arrays.is_cupy(x):
        mask = _select.best_of_tiles(_arrays.as_storage(x, rule.dtype), rule.dtype)
        return np.moveaxis(mask, rule.axis, -1)
    return decide(x, rule)[0]


def _by_magnitude(rule: Rule) -> bool:
    return isinstance(rule.method, str) and rule.method == "magnitude" and rule.scores is None


def _storage_of(x, rule: Rule):
    """`x` as its kernels take it, its grouped axis moved to the end."""
    return _arrays.as_storage(np.moveaxis(x, rule.axis, -1), rule.dtype)


def decide(x, rule: Rule):
    """Mask and weights with the grouped axis last; the weights are x's unless the method acts."""
    scores = _scores(x, rule)
    weights = np.moveaxis(x, rule.axis, -1)
    if scores is None:
        return _second_order(weights, rule)
    grouped = np.moveaxis(scores, rule.axis, -1)
    if rule.transposable:  # in the axes of x: which of two equal sums is first depends on them
        any_sign = rule.scores is not None or callable(rule.method)
        kept = _select.best_of_tiles(_select.raised_tiles(scores) if any_sign else scores)
        kept = np.moveaxis(kept, rule.axis, -1)
    else:
        kept = _select.best_of_groups(grouped, rule.n, rule.m)
    return _without_channels(kept, grouped, rule.channels), weights


def _scores(x, rule: Rule):
    """Scores in x's axes, or None for a method that chooses by itself."""
    if rule.scores is not None:
        return rule.scores
    if callable(rule.method):
        return _prune_methods.checked_scores(rule.method(x), x, argument="method(x)")
    if rule.method == "magnitude":
        return _prune_methods.magnitude(x, rule.dtype)
    if rule.method == "random":
        return _prune_methods.random(x, rule.rng)
    if rule.method == "wanda":
        k = x.shape[rule.axis]
        norms = _prune_methods.input_norms(k, rule.calibration, rule.hessian, rule.activations)
        scores = _prune_methods.wanda(np.moveaxis(x, rule.axis, -1), rule.dtype, norms)
        return np.moveaxis(scores, -1, rule.axis)
    return None


def _without_channels(kept, scores, fraction: float):
    if not fraction:
        return kept
    flat = kept.reshape(len(kept), math.prod(kept.shape[1:]))
    return _select.without_channels(flat, scores.reshape(flat.shape), fraction).reshape(kept.shape)


def _second_order(weights, rule: Rule):
    """`sparsegpt` on weights (..., k): mask and updated weights."""
    xp = _arrays.namespace(weights)
    if rule.dtype.is_float8 and xp is not np:
        raise UnsupportedError(
            "method='sparsegpt' cannot update fp8 bits on the GPU; prune before the "
            "conversion to fp8, or pass a NumPy array"
        )
    k = weights.shape[-1]
    hessian = _prune_methods.input_hessian(k, rule.calibration, rule.hessian)
    if not weights.size:
        return xp.ones(weights.shape, bool), weights
    together = (1, math.prod(weights.shape[:-1]), k)
    rows = weights.reshape((-1, *weights.shape[-2:]) if rule.transposable else together)
    parts = []
    for part in rows.astype(np.float64):
        if not bool(xp.isfinite(part).all()):
            raise ArgumentError(
                "x holds NaN or inf, which method='sparsegpt' would spread over whole rows; repair "
                "it, or prune by another method"
            )
        if isinstance(rule.calibration, Calibration):
            part = fitted(part, rule.calibration, rule.damping)
        parts.append(
            sparsegpt(
                part, hessian, rule.n, rule.m, transposable=rule.transposable, damping=rule.damping
            )
        )
    updated = xp.concatenate([part[0] for part in parts]).reshape(weights.shape)
    kept = xp.concatenate([part[1] for part in parts]).reshape(weights.shape)
    kept = _without_channels(kept, xp.abs(updated), rule.channels)
    return kept, narrowed(updated, weights.dtype)
