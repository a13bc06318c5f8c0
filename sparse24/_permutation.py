"""Permute columns so that an n:m mask keeps more, and fold the permutation into the weights.

Which columns share a group decides what a mask must drop.  The search repeatedly pairs all
groups at random and, for all pairs at once, divides the columns of a pair between its two
groups in the best way; no step makes the result worse (after Pool, Yu, *Channel
Permutations for N:M Sparsity*, 2021).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _deals, _foreign, _foreign_streams, _scales
from sparse24._errors import ArgumentError, ShapeError


def find_permutation(
    w, *, pattern=(2, 4), scores=None, rounds=200, seconds=None, rng=0
) -> np.ndarray:
    """Find an order of columns in which an n:m mask along rows keeps more magnitude.

    Parameters
    ----------
    w : array, shape (m, k), or sequence of such
        A weight; or several that share their input and so must share the permutation.
    pattern : tuple (n, m), default (2, 4)
        The pattern of the mask, as in `prune`.
    scores : array like `w`, optional
        Non-negative scores whose kept sum is maximised, instead of the magnitudes.
    rounds : int, default 200
        How often all groups are paired.  The result depends on `rounds` and `rng` only.
    seconds : float, optional
        Stop after this time, even within a round; the result then depends on the machine's
        speed.
    rng : int or numpy.random.Generator, default 0
        Source of the pairings.

    Returns
    -------
    numpy.ndarray of int64, shape (k,)
        ``w[:, permutation]`` keeps at least as much as `w` does.

    Raises
    ------
    ShapeError, DTypeError
        If the weights are not matrices of the same width, scores have another shape, or either
        holds the bits of fp8 or other than real numbers.
    PatternError, ArgumentError
        If `pattern` is not a valid one, another argument does not fit, scores or `seconds` are
        negative, or no weights are given.

    See Also
    --------
    fold_permutation : Fold the permutation into the weights, so that it costs nothing at run time.

    Notes
    -----
    Runs where `w` is, on the CPU on all cores; waits for the GPU once or some times a round.
    A last, shorter group keeps its columns.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> w = np.array([[9.0, 8.0, 7.0, 6.0, 1.0, 1.0, 1.0, 1.0]])
    >>> order = s24.find_permutation(w)
    >>> float(s24.prune(w).sum()), float(s24.prune(w[:, order]).sum())
    (19.0, 30.0)
    """
    n, m = _check.pattern(pattern)
    rounds = _check.whole(rounds, argument="rounds", least=0)
    patience = np.inf if seconds is None else _check.number(seconds, argument="seconds")
    if not patience >= 0:  # nor NaN, by which the search would end at once
        raise ArgumentError(f"seconds must be at least 0, or None for no limit, got {seconds!r}")
    first = next(iter(w), None) if isinstance(w, Sequence) else w
    with _foreign_streams.stream_of(first):
        return _found(_columns(w, scores), n, m, rounds, patience, _check.generator(rng))


def _found(
    columns, n: int, m: int, rounds: int, patience: float, rng: np.random.Generator
) -> np.ndarray:
    k = len(columns)
    groups = np.arange(k - k % m).reshape(-1, m)  # column numbers
    search = _deals.Search(columns, n, m)
    stop = time.monotonic() + patience
    for _ in range(rounds if len(groups) > 1 else 0):
        if time.monotonic() > stop:
            break
        order = rng.permutation(len(groups))[: len(groups) // 2 * 2].reshape(-1, 2)
        pairs = groups[order].reshape(-1, 2 * m)
        groups[order] = search.dealt_anew(pairs, stop).reshape(-1, 2, m)
    return np.concatenate([groups.ravel(), np.arange(k - k % m, k)])


def _columns(w, scores):
    """Scores of all columns, float32 (k, rows), rows of several weights one after another."""
    parts: list[Any] = []
    sequence = isinstance(w, Sequence)
    weights = w if sequence else [w]
    if scores is None or not sequence:
        scores = [scores] * len(weights)
    elif not hasattr(scores, "__len__") or not getattr(scores, "ndim", 1):
        raise ArgumentError(
            "scores must be a sequence of arrays, one for each of those in w, got "
            f"{_check.shown(scores)}"
        )
    if not len(weights) or len(scores) != len(weights):
        raise ArgumentError(
            "w must hold at least one weight, and scores as many arrays as w, got "
            f"{len(weights)} and {len(scores)}"
        )
    for weight, score in zip(weights, scores, strict=True):
        array, _ = _foreign.take(weight, argument="w")
        if score is None:
            _check.not_bits(array, argument="w")
        else:
            shape, (array, _) = array.shape, _foreign.take(score, argument="scores")
            _check.same_shape(array.shape, shape, argument="scores", other="w")
        _arrays.check_real(array, argument="w" if score is None else "scores")
        if score is not None:
            _check_not_negative(array)
        if array.ndim != 2 or (parts and array.shape[1] != len(parts[0])):
            raise ShapeError(
                f"w must be matrices (m, k) of the same k, got shape {tuple(array.shape)}"
            )
        parts.append(array.T)
    if any(part.dtype == np.float64 for part in parts):  # beside which all have one scale
        parts = [part.astype(np.float64) for part in parts]
        scale = _scales.of_largest(max(map(_scales.largest, parts)))
        parts = [part * scale for part in parts]
    xp = _arrays.namespace(parts[0])
    parts = [xp.ascontiguousarray(xp.abs(part.astype(np.float32))) for part in parts]
    return xp.concatenate(parts, axis=1)


def _check_not_negative(scores) -> None:
    scores = scores.astype(np.float32) if scores.dtype.kind == "V" else scores  # of ml_dtypes
    negative = scores < 0
    if bool(negative.any()):
        raise ArgumentError(
            "scores must not be negative, as their sizes are compared, got "
            f"{float(scores[negative].min())}; pass scores - scores.min(), by which every order of "
            "the columns keeps as much more"
        )


def fold_permutation(permutation, producer, consumer, *, bias=None):
    """Permute the outputs of a layer and the inputs of the next, so that their result is the same.

    For ``consumer @ f(producer @ x + bias)`` with any elementwise f.

    Parameters
    ----------
    permutation : array of int, shape (k,)
        From `find_permutation` of the consumer.
    producer : array, shape (k, ...)
        Weights of the first layer, whose rows compute the k features.
    consumer : array, shape (m, k)
        Weights of the second layer, which takes the features.
    bias : array, shape (k,), optional
        The producer's bias.

    Returns
    -------
    producer, consumer : arrays
        With rows and columns, respectively, in the new order.
    bias : array
        Only if `bias` was given.

    Raises
    ------
    ArgumentError
        If `permutation` is not a permutation.
    ShapeError
        If the layers do not fit it.
    DTypeError
        If one of them is not an array.

    Notes
    -----
    Waits for the GPU only if `permutation` is there; `find_permutation` returns it on the host.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> rng = np.random.default_rng(0)
    >>> up, bias, down = rng.normal(size=(8, 3)), rng.normal(size=8), rng.normal(size=(2, 8))
    >>> up2, down2, bias2 = s24.fold_permutation(s24.find_permutation(down), up, down, bias=bias)
    >>> x = rng.normal(size=3)
    >>> before, after = down @ np.tanh(up @ x + bias), down2 @ np.tanh(up2 @ x + bias2)
    >>> np.allclose(before, after)
    True
    """
    order = _arrays.to_numpy(permutation, argument="permutation")
    k = order.size
    if order.ndim != 1 or order.dtype.kind not in "iu" or (np.sort(order) != np.arange(k)).any():
        shown = _check.shown(permutation)
        raise ArgumentError(f"permutation must hold each of 0 to k - 1 once, got {shown}")
    for name, given, axis in (("producer", producer, 0), ("consumer", consumer, -1)):
        _check.is_array(given, argument=name)
        _check.at_least_1d(given.shape, argument=name)
        if given.shape[axis] != k:
            raise ShapeError(
                f"{name} must have {k} elements on axis {axis}, one for each of the permutation, "
                f"got shape {tuple(given.shape)}"
            )
    order = np.ascontiguousarray(order, np.int64)  # torch takes uint8 for a mask
    if bias is None:
        return producer[order], consumer[..., order]
    _check.is_array(bias, argument="bias")
    if tuple(bias.shape) != (k,):
        raise ShapeError(f"bias must have shape ({k},), got {tuple(bias.shape)}")
    return producer[order], consumer[..., order], bias[order]
