"""General n:m patterns on the CPU: prune, compress and decompress.

A group of m <= 32 elements stores n values and their places, which rise.  Kernels work on a
flat list of groups, as those of 2:4 do; flags are 32 bits.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ShapeError
from sparse24.kernels import cpu_compress, cpu_groups
from sparse24.kernels._numba import njit, parallel

_EVERY = np.uint32(0xFFFFFFFF)


@njit
def _rank_magnitudes(x, size, infinity, is_integer, ranks):
    for i in range(x.size):
        ranks[i] = cpu_groups.magnitude(x[i], size, infinity, is_integer)


@njit
def _rank_scores(scores, bits, ranks):
    """Unsigned numbers in the order of float64 scores, NaN on top; 0 is below them all."""
    sign = np.uint64(1 << 63)
    for i in range(scores.size):
        if scores[i] != scores[i]:
            ranks[i] = ~np.uint64(0)
        elif scores[i] == 0:
            ranks[i] = sign
        else:
            ranks[i] = ~bits[i] if bits[i] & sign else bits[i] | sign


@njit
def _flag_best(ranks, n, m, flags):
    """Flag the elements that fewer than n others of their group go before."""
    for g in range(flags.size):
        kept = 0
        for i in range(m):
            mine = ranks[m * g + i]
            before = 0
            for j in range(i):
                before += ranks[m * g + j] >= mine
            for j in range(i + 1, m):
                before += ranks[m * g + j] > mine
            kept |= np.int64(before < n) << i
        flags[g] = kept


@njit
def _select(x, flags, m, out):
    for g in range(flags.size):
        for i in range(m):
            keep = x.dtype.type(-(np.int64(flags[g]) >> i & 1))
            out[m * g + i] = x[m * g + i] & keep


@njit
def _store(x, flags, n, m, size, values, places):
    """Store the flagged non-zeros, then the first other places with value 0.

    Of more than n, the first n are stored.  Returns the first such group and their number.
    """
    zero = x.dtype.type(0)
    first_bad, bad = -1, 0
    for g in range(flags.size):
        count = 0
        for i in range(m):
            count += (np.int64(flags[g]) >> i & 1) & (x[m * g + i] & size != 0)
        if count > n:
            first_bad = g if bad == 0 else first_bad
            bad += 1
        spare, slot = max(n - count, 0), 0
        for i in range(m):
            keep = (np.int64(flags[g]) >> i & 1) & (x[m * g + i] & size != 0)
            if slot < n and (keep or spare > 0):
                values[n * g + slot] = x[m * g + i] if keep else zero
                places[n * g + slot] = i
                slot += 1
                spare -= 1 - keep
    return first_bad, bad


@njit
def scatter(values, places, n, m, out):
    for i in range(out.size):
        out[i] = 0
    for g in range(values.size // n):
        for t in range(n * g, n * g + n):
            out[m * g + places[t]] = values[t]


def _flags(part: np.ndarray, scores, n: int, m: int, bits: cpu_groups.Bits) -> np.ndarray:
    """Flags of the n best of every group, by magnitude or by scores."""
    ranks = np.empty(part.size, np.uint64)
    if scores is None:
        _rank_magnitudes(part, *bits, ranks)
    else:
        _rank_scores(scores, scores.view(np.uint64), ranks)
    flags = np.empty(part.size // m, np.uint32)
    _flag_best(ranks, n, m, flags)
    return flags


def _prepared(x, n, m, scores):
    """What `prune_n_m` and `compress_n_m` begin with."""
    n, m = _check.pattern((n, m))
    dtype = _arrays.logical_dtype(x)
    _check.at_least_1d(x.shape, argument="x")
    if scores is not None:
        scores = np.asarray(scores)
        _check.same_shape(scores.shape, x.shape, argument="scores", other="x")
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like others
            scores = cpu_compress.matrix_of(scores.astype(np.float64, copy=False))
    return n, m, dtype, cpu_compress.matrix_of(x, dtype.storage), scores


def prune_n_m(x: np.ndarray, n: int, m: int, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the n best of every group of m along the last axis.

    Parameters
    ----------
    x : ndarray, shape (..., k)
        Any element type of the library, any strides.
    n, m : int
        ``0 < n < m <= 32``.
    scores : ndarray, shape (..., k), optional
        What ranks the elements; by default their magnitude.  NaN ranks first.

    Returns
    -------
    ndarray, shape (..., k), dtype of `x`, C order
    """
    n, m, dtype, matrix, scores = _prepared(x, n, m, scores)
    bits = cpu_groups.bits_of(dtype)
    out = np.empty(matrix.shape, dtype.storage)
    k = matrix.shape[1]
    runs = cpu_compress.runs_of(matrix)

    def task(number: int):
        rows = runs[number]
        part = cpu_compress.groups_of(matrix, rows, m)
        guide = None if scores is None else cpu_compress.groups_of(scores, rows, m, -np.inf)
        whole = np.empty_like(part)
        _select(part, _flags(part, guide, n, m, bits), m, whole)
        out[rows] = whole.reshape(rows.stop - rows.start, -1)[:, :k]

    if out.size:
        parallel(task, len(runs), 4 * m * out.size)
    return out.reshape(x.shape).view(dtype.logical)


def compress_n_m(
    x: np.ndarray, n: int, m: int, rule: str = "magnitude", scores: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Values and places of the elements that a rule keeps.

    Parameters
    ----------
    x : ndarray, shape (..., rows, k)
    n, m : int
        ``0 < n < m <= 32``.
    rule : {"magnitude", "scores", "check"}
        Keep the n largest of each group, the n of the best `scores`, or every non-zero.
    scores : ndarray, shape (..., rows, k), optional

    Returns
    -------
    values : ndarray, shape (..., rows, n * groups), dtype of `x`
    places : ndarray of uint8, same shape
        Place of each stored element in its group, rising.  A group with fewer than n
        non-zeros stores its first other places with value 0.
    status : tuple of int
        Flat index of the first group with more than n non-zeros, or -1, and their
        number.  Of such a group the first n are stored.
    """
    _check.one_of(rule, ("magnitude", "scores", "check"), argument="rule")
    cpu_compress.check_guide(rule, "scores", scores)
    n, m, dtype, matrix, scores = _prepared(x, n, m, scores)
    bits = cpu_groups.bits_of(dtype)
    rows_, k = matrix.shape
    groups = -(-k // m)
    values = np.empty((rows_, n * groups), dtype.storage)
    places = np.empty(values.shape, np.uint8)
    runs = cpu_compress.runs_of(matrix)
    found = [(cpu_compress.NO_BAD_GROUP, 0)] * len(runs)

    def task(number: int):
        rows = runs[number]
        part = cpu_compress.groups_of(matrix, rows, m)
        if rule == "check":
            flags = np.full(part.size // m, _EVERY)
        else:
            guide = None if scores is None else cpu_compress.groups_of(scores, rows, m, -np.inf)
            flags = _flags(part, guide, n, m, bits)
        kept, at = values[rows].reshape(-1), places[rows].reshape(-1)
        found[number] = _store(part, flags, n, m, bits.size, kept, at)

    if values.size:
        parallel(task, len(runs), 4 * m * matrix.size)
    status = cpu_compress.status_of(found, runs, groups)
    shaped = cpu_compress.shaped
    return shaped(values, x.shape, dtype), shaped(places, x.shape), status


def decompress_n_m(
    values: np.ndarray, places: np.ndarray, n: int, m: int, k: int
) -> np.ndarray:
    """The dense matrix (..., rows, k) of values and places, C order."""
    n, m = _check.pattern((n, m))
    dtype = _arrays.logical_dtype(values, argument="values")
    _check.same_shape(places.shape, values.shape, argument="places", other="values")
    check_stored(values, n, m, k)
    stored, at = cpu_compress.matrix_of(values, dtype.storage), cpu_compress.matrix_of(places)
    out = np.empty((len(stored), k), dtype.storage)
    groups = -(-k // m)
    runs = cpu_compress.runs_of(out)

    def task(number: int):
        rows = runs[number]
        whole = np.empty((rows.stop - rows.start, m * groups), dtype.storage)
        kept = np.require(stored[rows], requirements="CA").reshape(-1)
        where = np.require(at[rows], requirements="CA").reshape(-1)
        scatter(kept, where, n, m, whole.reshape(-1))
        out[rows] = whole[:, :k]

    if out.size:
        parallel(task, len(runs), 4 * out.nbytes)
    return out.reshape(*values.shape[:-1], k).view(dtype.logical)


def check_stored(values, n: int, m: int, k: int) -> None:
    """Refuse stored elements that are not those of `k` columns."""
    want = n * -(-k // m)
    if values.shape[-1] != want:
        raise ShapeError(
            f"values must store {want} elements a row for {n}:{m} and k = {k}, "
            f"got shape {values.shape}"
        )
