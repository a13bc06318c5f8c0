"""General n:m patterns on the CPU: prune, compress and decompress.

A group of m <= 32 elements stores n values and their places, which rise.  Kernels work on a
flat list of groups, as those of 2:4 do.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ShapeError
from sparse24.kernels import cpu_compress, cpu_groups
from sparse24.kernels._numba import njit, parallel

# Groups whose ranks are compared at once, each in a column: a few machine vectors of them, so that
# what one comparison of two rows takes to begin does not count.
_COLUMNS = 128


@njit
def _rank_magnitudes(x, size, infinity, is_integer, ranks):
    """`cpu_groups.magnitude` in the carrier of the elements, where more of them fill a vector."""
    for i in range(x.size):
        if is_integer:
            ranks[i] = min(x[i], x.dtype.type(-x[i]))
        else:
            rank = x[i] & size
            ranks[i] = size if rank > infinity else rank


@njit
def _rank_scores(scores, bits, ranks):
    """Signed numbers in the order of float64 scores, NaN on top; `bits` are the scores' own."""
    largest = np.int64((1 << 63) - 1)
    for i in range(scores.size):
        if scores[i] != scores[i]:
            ranks[i] = largest
        elif scores[i] == 0:
            ranks[i] = 0
        else:
            ranks[i] = bits[i] ^ largest if bits[i] < 0 else bits[i]


@njit
def _keep_best(ranks, n, m, keep):
    """Keep the elements that fewer than n others of their group go before."""
    turned = np.empty((m, _COLUMNS), ranks.dtype)
    before = np.empty(_COLUMNS, ranks.dtype)  # of their width, to share vectors with them
    one, limit = ranks.dtype.type(1), ranks.dtype.type(n)
    groups = ranks.size // m
    for first in range(0, groups, _COLUMNS):
        count = min(_COLUMNS, groups - first)
        for i in range(m):
            at = np.uintp(first * m + i)
            for g in range(count):
                turned[i, g] = ranks[at]
                at += np.uintp(m)
        for i in range(m):
            before[:] = 0
            for j in range(i):
                for g in range(_COLUMNS):
                    before[g] += one if turned[j, g] >= turned[i, g] else 0
            for j in range(i + 1, m):
                for g in range(_COLUMNS):
                    before[g] += one if turned[j, g] > turned[i, g] else 0
            at = np.uintp(first * m + i)
            for g in range(count):
                keep[at] = before[g] < limit
                at += np.uintp(m)


@njit
def _select(x, keep, out):
    for i in range(x.size):
        out[i] = x[i] & x.dtype.type(-np.int64(keep[i]))


@njit
def _store(x, keep, n, m, size, values, places):
    """Store the kept non-zeros, then the first other places with value 0.

    Of more than n, the first n are stored.  Returns the first such group and their number.
    Every element is written to the next slot, which moves on behind those that stay; so
    `values` and `places` have one slot behind the last.
    """
    zero, one = x.dtype.type(0), np.uintp(1)  # unsigned places are not asked if they are negative
    first_bad, bad, at, slot = -1, 0, np.uintp(0), np.uintp(0)
    for g in range(x.size // m):
        count = 0
        for i in range(m):
            count += keep[at + np.uintp(i)] & (x[at + np.uintp(i)] & size != 0)
        if count > n:
            first_bad = g if bad == 0 else first_bad
            bad += 1
        spare, left = n - count, n
        for i in range(m):
            here = x[at]
            kept = np.int64(keep[at] & (here & size != 0))
            values[slot] = here if kept else zero
            places[slot] = i
            at += one
            if count == n:  # mostly, and then nothing else decides where the next one goes
                slot += np.uintp(kept)
                continue
            moves = (kept | np.int64(spare > 0)) & np.int64(left > 0)
            slot += np.uintp(moves)
            left -= moves
            spare -= moves & (kept ^ 1)
    return first_bad, bad


@njit
def scatter(values, places, n, m, out):
    for i in range(out.size):
        out[i] = 0
    for g in range(values.size // n):
        for t in range(n * g, n * g + n):
            out[m * g + places[t]] = values[t]


def _kept(part: np.ndarray, scores, n: int, m: int, bits: cpu_groups.Bits) -> np.ndarray:
    """Which are the n best of every group, by magnitude or by scores."""
    if scores is None:
        ranks = np.empty(part.size, part.dtype)
        _rank_magnitudes(part, *bits, ranks)
        if not bits.is_integer:  # without signs, and AVX2 compares signed numbers in less time
            ranks = ranks.view(f"i{ranks.itemsize}")
    else:
        ranks = np.empty(part.size, np.int64)
        _rank_scores(scores, scores.view(np.int64), ranks)
    keep = np.empty(part.size, np.uint8)
    _keep_best(ranks, n, m, keep)
    return keep


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
        _select(part, _kept(part, guide, n, m, bits), whole)
        out[rows] = whole.reshape(rows.stop - rows.start, -1)[:, :k]

    if out.size:
        parallel(task, len(runs), 4 * m * out.size)
    return out.reshape(x.shape).view(dtype.logical)


def mask_n_m(x: np.ndarray, n: int, m: int) -> np.ndarray:
    """Where `prune_n_m` keeps elements by their magnitude: bool (..., k), C order."""
    n, m, dtype, matrix, _ = _prepared(x, n, m, None)
    bits = cpu_groups.bits_of(dtype)
    out = np.empty(matrix.shape, bool)
    runs = cpu_compress.runs_of(matrix)

    def task(number: int):
        rows = runs[number]
        keep = _kept(cpu_compress.groups_of(matrix, rows, m), None, n, m, bits)
        out[rows] = keep.view(bool).reshape(rows.stop - rows.start, -1)[:, : out.shape[1]]

    if out.size:
        parallel(task, len(runs), 4 * m * out.size)
    return out.reshape(x.shape)


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
            keep = np.ones(part.size, np.uint8)
        else:
            guide = None if scores is None else cpu_compress.groups_of(scores, rows, m, -np.inf)
            keep = _kept(part, guide, n, m, bits)
        size = (rows.stop - rows.start) * values.shape[1]
        kept, at = np.empty(size + 1, values.dtype), np.empty(size + 1, np.uint8)
        found[number] = _store(part, keep, n, m, bits.size, kept, at)
        values[rows], places[rows] = (x[:size].reshape(-1, values.shape[1]) for x in (kept, at))

    if values.size:
        parallel(task, len(runs), 4 * m * matrix.size)
    status = cpu_compress.status_of(found, runs, groups)
    shaped = cpu_compress.shaped
    return shaped(values, x.shape, dtype), shaped(places, x.shape), status


def decompress_n_m(values: np.ndarray, places: np.ndarray, n: int, m: int, k: int) -> np.ndarray:
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
