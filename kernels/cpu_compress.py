"""prune, compress, decompress and like on the CPU, bit for bit as `reference`.

A matrix is cut into runs of whole rows, which the threads share.  A run is seen as a flat
list of groups of four and passes through two kernels of `cpu_groups` while it is in cache: the
first sets the flags of every group by one of four rules, the second stores the flagged elements.
"""

from __future__ import annotations

import math

import numpy as np

from sparse24 import _arrays, _check, _spec
from sparse24._errors import ArgumentError
from sparse24.kernels import cpu_groups
from sparse24.kernels._numba import parallel, slices
from sparse24.kernels._simd_copy import RUN
from sparse24.kernels.cpu_turn import by_columns, copy_rows

RULES = ("magnitude", "scores", "mask", "check")
NO_BAD_GROUP = -1
_RUN_BYTES = 1 << 17  # of dense elements: a run and what is made of it stay in L2


def groups_of(x: np.ndarray, rows: slice, size: int = _spec.GROUP, fill=0) -> np.ndarray:
    """Rows of a matrix as one contiguous list of whole groups, filled up with `fill`."""
    part = x[rows]
    k = part.shape[1]
    if k % size == 0 and not by_columns(x):
        return np.require(part, requirements="CA").reshape(-1)
    whole = np.empty((part.shape[0], -(-k // size) * size), part.dtype)
    copy_rows(x, rows, whole)
    whole[:, k:] = fill
    return whole.reshape(-1)


def matrix_of(x: np.ndarray, dtype=None) -> np.ndarray:
    """(..., k) as (rows, k), seen as `dtype`."""
    x = x if dtype is None else x.view(dtype)
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def runs_of(x: np.ndarray, run_bytes: int = _RUN_BYTES) -> list[slice]:
    """Runs of rows of a matrix; whole squares of those whose columns are contiguous."""
    rows, k = x.shape
    multiple = RUN if by_columns(x) else 1
    rows_of_run = max(multiple, run_bytes // max(1, k * x.itemsize))
    return slices(rows, max(1, rows_of_run // 4), rows_of_run, multiple)


def _scores_of(scores, shape) -> np.ndarray:
    scores = np.asarray(scores)
    _check.same_shape(scores.shape, shape, argument="scores", other="x")
    narrow = scores.dtype.kind == "b" or (scores.dtype.itemsize < 4 and scores.dtype.kind != "i")
    kind = np.float32 if narrow or scores.dtype == np.float32 else np.float64
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like others
        return matrix_of(scores.astype(kind, copy=False))


def _flags(x: np.ndarray, rows: slice, rule: str, bits: cpu_groups.Bits, guide) -> tuple:
    """The groups of some rows and their flags."""
    part = groups_of(x, rows)
    flags = np.empty(part.size // _spec.GROUP, np.uint8)
    if rule == "magnitude":
        cpu_groups.flag_largest(part, *bits, flags)
    elif rule == "scores":
        cpu_groups.flag_best_scores(groups_of(guide, rows, fill=-np.inf), flags)
    elif rule == "mask":
        cpu_groups.flag_mask(groups_of(guide, rows), flags)
    else:
        flags.fill(0xF)
    return part, flags


def prune(x: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the two best of every group of four along the last axis.

    Parameters
    ----------
    x : ndarray, shape (..., k)
        Any element type of the library, any strides.
    scores : ndarray, shape (..., k), optional
        What ranks the elements; by default their magnitude.  NaN ranks first.

    Returns
    -------
    ndarray, shape (..., k), dtype of `x`, C order
    """
    dtype = _arrays.logical_dtype(x)
    bits = cpu_groups.bits_of(dtype)
    guide = None if scores is None else _scores_of(scores, x.shape)
    rule = "magnitude" if scores is None else "scores"
    matrix = matrix_of(x, dtype.storage)
    rows, k = matrix.shape
    out = np.empty((rows, k), dtype.storage)

    def run(rows: slice):
        part, flags = _flags(matrix, rows, rule, bits, guide)
        if k % _spec.GROUP == 0:
            cpu_groups.select(part, flags, out[rows].reshape(-1))
        else:
            whole = np.empty_like(part)
            cpu_groups.select(part, flags, whole)
            out[rows] = whole.reshape(len(out[rows]), -1)[:, :k]

    _each(run, runs_of(matrix), matrix.nbytes)
    return out.reshape(x.shape).view(dtype.logical)


def _each(run, runs: list[slice], size: int) -> None:
    if size:
        parallel(lambda i: run(runs[i]), len(runs), 4 * size)


def compress(
    x: np.ndarray,
    rule: str = "magnitude",
    scores: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    """Canonical values and metadata of the elements that a rule keeps.

    Parameters
    ----------
    x : ndarray, shape (..., m, k)
        Any element type of the library, any strides.
    rule : {"magnitude", "scores", "mask", "check"}
        Keep the two largest of each group, the two of the best `scores`, what
        `mask` says (its zeros too), or every non-zero.
    scores, mask : ndarray, shape (..., m, k), optional
        What the rules of their names need.

    Returns
    -------
    values : ndarray, shape (..., m, values_per_row(k)), dtype of `x`
    metadata : ndarray of uint8, shape (..., m, metadata_bytes_per_row(k))
    status : tuple of int
        Flat index of the first group, in the order of (..., m, groups), of which
        the rule keeps more than two elements, or -1; and how many there are.
        Of such a group the first and the last are stored.
    """
    dtype = _arrays.logical_dtype(x)
    _check.one_of(rule, RULES, argument="rule")
    guide = _guide_of(rule, scores, mask, x.shape)
    bits = cpu_groups.bits_of(dtype)
    matrix = matrix_of(x, dtype.storage)
    rows, k = matrix.shape
    groups = _spec.groups(k)
    values = np.empty((rows, _spec.values_per_row(k)), dtype.storage)
    metadata = np.empty((rows, _spec.metadata_bytes_per_row(k)), np.uint8)
    runs = runs_of(matrix)
    found = [(NO_BAD_GROUP, 0)] * len(runs)

    def run(number: int):
        rows = runs[number]
        part, flags = _flags(matrix, rows, rule, bits, guide)
        codes = np.empty(flags.size, np.uint8)
        out = values[rows].reshape(-1)
        found[number] = cpu_groups.store(part, flags, rule != "mask", bits.size, out, codes)
        cpu_groups.join_codes(codes.reshape(-1, groups), metadata[rows])

    if k:
        parallel(run, len(runs), 4 * matrix.nbytes)
    status = status_of(found, runs, groups)
    return shaped(values, x.shape, dtype), shaped(metadata, x.shape), status


def status_of(found, runs: list[slice], groups: int) -> tuple[int, int]:
    """The status of a matrix from (first bad group, number of them) of its runs of rows."""
    bad = [run.start * groups + first for run, (first, count) in zip(runs, found) if count]
    return min(bad, default=NO_BAD_GROUP), sum(count for _, count in found)


def shaped(matrix: np.ndarray, shape, dtype=None) -> np.ndarray:
    """The rows of a matrix under the leading axes of `shape`."""
    array = matrix.reshape(*shape[:-1], matrix.shape[-1])
    return array if dtype is None else array.view(dtype.logical)


def check_guide(rule: str, name: str, guide) -> None:
    """A rule and the argument of its name come together."""
    if (guide is None) == (rule == name):
        problem = "needs" if guide is None else "does not take"
        raise ArgumentError(f"rule={rule!r} {problem} {name}=; pass both or neither")


def _guide_of(rule: str, scores, mask, shape) -> np.ndarray | None:
    """The matrix that steers a rule, if it needs one."""
    check_guide(rule, "scores", scores)
    check_guide(rule, "mask", mask)
    if rule == "scores":
        return _scores_of(scores, shape)
    if rule == "mask":
        mask = np.asarray(mask)
        _check.same_shape(mask.shape, shape, argument="mask", other="x")
        return matrix_of(mask.astype(bool, copy=False), np.uint8)
    return None


def decompress(
    values: np.ndarray, metadata: np.ndarray, k: int, out: np.ndarray | None = None
) -> np.ndarray:
    """The dense matrix of canonical values and metadata.

    Parameters
    ----------
    values : ndarray, shape (..., m, values_per_row(k))
    metadata : ndarray of uint8, shape (..., m, metadata_bytes_per_row(k))
        Legal codes only.
    k : int
        Columns of the dense matrix.
    out : ndarray, shape (..., m, k), dtype of `values`, optional
        Where to write, any strides.

    Returns
    -------
    ndarray, shape (..., m, k), dtype of `values`
    """
    dtype = _arrays.logical_dtype(values, argument="values")
    shape = (*values.shape[:-1], k)
    if out is not None:
        _check.same_shape(out.shape, shape, argument="out", other="the dense matrix")
        _check.writable(out, argument="out")
    stored, codes_of = matrix_of(values, dtype.storage), matrix_of(metadata)
    groups = _spec.groups(k)
    plain = out is None or (out.flags.c_contiguous and out.flags.aligned)
    target = np.empty(shape, dtype.logical) if out is None or not plain else out
    rows = matrix_of(target, dtype.storage)

    def run(part: slice):
        codes = np.empty((len(rows[part]), groups), np.uint8)
        cpu_groups.split_codes(np.require(codes_of[part], requirements="CA"), codes)
        kept = np.require(stored[part], requirements="CA").reshape(-1)
        if k % _spec.GROUP == 0:
            cpu_groups.scatter(kept, codes.reshape(-1), rows[part].reshape(-1))
        else:
            whole = np.empty((len(codes), _spec.GROUP * groups), dtype.storage)
            cpu_groups.scatter(kept, codes.reshape(-1), whole.reshape(-1))
            rows[part] = whole[:, :k]

    _each(run, runs_of(rows), rows.nbytes)
    if out is None or plain:
        return target
    out[...] = target
    return out


def like(metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of a new matrix at the places of an old one: shape (..., m, values_per_row(k)).

    Every stored place is filled, also where the old matrix held a zero there.
    """
    dtype = _arrays.logical_dtype(x)
    return _gathered(metadata, x, cpu_groups.bits_of(dtype).size)


def at_places(metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """As `like`, bit for bit (-0.0 stays), of any element type of 1, 2, 4 or 8 bytes."""
    return _gathered(metadata, x, ~np.dtype(f"u{x.itemsize}").type(0))


def _gathered(metadata: np.ndarray, x: np.ndarray, magnitude: np.unsignedinteger) -> np.ndarray:
    """Elements at the places of a matrix; those without a bit of `magnitude` become 0."""
    matrix, codes_of = matrix_of(x, magnitude.dtype), matrix_of(metadata)
    rows, k = matrix.shape
    groups = _spec.groups(k)
    values = np.empty((rows, _spec.values_per_row(k)), magnitude.dtype)

    def run(part: slice):
        codes = np.empty((len(values[part]), groups), np.uint8)
        cpu_groups.split_codes(np.require(codes_of[part], requirements="CA"), codes)
        dense = groups_of(matrix, part)
        cpu_groups.gather(dense, codes.reshape(-1), magnitude, values[part].reshape(-1))

    _each(run, runs_of(matrix), matrix.nbytes)
    return shaped(values, x.shape).view(x.dtype)
