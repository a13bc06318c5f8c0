"""Patterns n:m on the GPU: prune, compress and decompress; launcher of ``cuda/n_m.cu``.

Groups run along the last axis.  Nothing here waits for the device.
"""

from __future__ import annotations

import itertools

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import NAMES, TABLE, DType
from sparse24.kernels import loader
from sparse24.kernels.compress import _as_chosen, row_alignment

NAME = "n_m"
THREADS = 256
NO_VIEW = (0, 0, 0, 0)


def prune_n_m(x, row: DType, n: int, m: int, *, scores=None, out=None):
    """Zero all but the `n` best of every `m` elements of (..., rows, k).

    Parameters
    ----------
    x : cupy.ndarray, shape (..., rows, k), storage dtype of `row`, any strides
    row : DType
    n, m : int
        0 < n < m <= 32.
    scores : cupy.ndarray of real numbers, shape of `x`, optional
        Rank by these instead of by magnitude.
    out : cupy.ndarray, like `x`, optional
        May be `x` itself.
    """
    out = _arrays.cupy_module().empty(x.shape, x.dtype) if out is None else out
    return _into(out, lambda dense: _prune(x, row, n, m, scores, dense=dense))


def mask_n_m(x, row: DType, n: int, m: int, *, scores=None, out=None):
    """Where `prune_n_m` keeps elements: bool, shape of `x`."""
    out = _arrays.cupy_module().empty(x.shape, np.bool_) if out is None else out
    return _into(out, lambda mask: _prune(x, row, n, m, scores, mask=mask))


def compress_n_m(x, row: DType, n: int, m: int):
    """Values, places (uint8) and status of an n:m array (..., rows, k).

    Both have shape (..., rows, n * ceil(k / m)).  The status is that of
    `kernels.compress.launch`; a group with too many non-zeros keeps its first `n`.
    """
    xp = _arrays.cupy_module()
    shape = (*x.shape[:-1], n * -(-x.shape[-1] // m))
    values, places = xp.empty(shape, x.dtype), xp.empty(shape, np.uint8)
    status = xp.zeros(2, np.int64)
    if x.size:
        views = (_view(x), _view(values), _view(places), (status,))
        _launch("compress", x, defines(row.name, n, m, by_rows=_by_rows(x)), m, views)
    return values, places, status


def decompress_n_m(values, places, row: DType, n: int, m: int, k: int, *, out=None):
    """The dense array (..., rows, k); every group has `n` distinct, ascending places."""
    xp = _arrays.cupy_module()
    out = xp.empty((*values.shape[:-1], k), values.dtype) if out is None else out

    def write(dense):
        views = (_view(values), _view(places), _view(dense))
        _launch("decompress", dense, defines(row.name, n, m, by_rows=_by_rows(dense)), m, views)

    return _into(out, write) if out.size else out


def defines(
    name: str,
    n: int,
    m: int,
    *,
    score: str | None = None,
    dense: bool = True,
    mask: bool = False,
    by_rows: bool = False,
    span: int | None = None,
    one_row: bool = False,
) -> loader.Defines:
    """The macros of ``n_m.cu``; a `span`, of elements a thread, asks for 16-byte accesses."""
    return (
        ("ELEMENT", name),
        ("KEEP", n),
        ("GROUP", m),
        ("SCORED", int(score is not None)),
        ("SCORE", score or "float"),
        ("WRITE_DENSE", int(dense)),
        ("WRITE_MASK", int(mask)),
        ("BY_ROWS", int(by_rows)),
        ("SPAN", span or m),
        ("VECTOR", int(span is not None)),
        ("ONE_ROW", int(one_row)),
    )


def _into(out, write):
    """Let `write` fill `out`, by way of a copy where its batch axes do not collapse to one."""
    flat = out.reshape(-1, *out.shape[-2:]) if out.size else out
    write(flat)
    if flat.data.ptr != out.data.ptr:
        out[...] = flat.reshape(out.shape)
    return out


def _prune(x, row, n, m, scores, *, dense=None, mask=None):
    if not x.size:
        return
    score = None
    if scores is not None:
        scores = _as_chosen(scores, "scores")
        score = "double" if scores.dtype.itemsize == 8 else "float"
    arrays = [x, scores, dense, mask]
    span = _span(x.shape[-1], m, arrays[:3], mask)
    one_row = span is not None and all(a is None or a.flags.c_contiguous for a in arrays)
    if one_row:  # groups do not cross rows
        arrays = [None if array is None else array.reshape(1, 1, -1) for array in arrays]
        x = arrays[0]
    macros = defines(
        row.name, n, m, score=score, dense=dense is not None, mask=mask is not None,
        by_rows=span is None and _by_rows(x), span=span, one_row=one_row,
    )  # fmt: skip
    in_lanes = span is not None and (n, m) == (2, 4) and scores is None
    views = tuple(_view(array) for array in arrays)
    _launch("prune_24" if in_lanes else "prune", x, macros, span or m, views)


def _span(k: int, m: int, arrays, mask) -> int | None:
    """Elements that a thread takes 16 bytes at a time; None where rows do not allow it."""
    given = [array for array in arrays if array is not None]
    span = max(m, 16 // min(array.itemsize for array in given))
    aligned = m & (m - 1) == 0 and k % span == 0
    aligned = aligned and all(_rows_on(array, 16) for array in given)
    return span if aligned and (mask is None or _rows_on(mask, min(span, 16))) else None


def _rows_on(array, boundary: int) -> bool:
    if array.flags.c_contiguous and array.shape[-1] * array.itemsize % boundary == 0:
        return array.data.ptr % boundary == 0
    flat = array.reshape(-1, *array.shape[-2:])
    return row_alignment(flat, array.itemsize, boundary) == boundary


def _launch(kernel, x, macros, span, views):
    rows, k = x.shape[-2:]
    batches = x.size // (rows * k)
    blocks = -(-batches * rows * -(-k // span) // THREADS)
    arguments = (*itertools.chain(*views), batches, rows, k)
    loader.function(NAME, kernel, macros)((blocks,), (THREADS,), arguments)


def _by_rows(x) -> bool:
    return abs(x.strides[-2]) < abs(x.strides[-1])


def _view(array) -> tuple[int, int, int, int]:
    """Pointer and strides of (batch, rows, columns); the batch axes must collapse."""
    if array is None:
        return NO_VIEW
    flat = array.reshape(-1, *array.shape[-2:]) if array.ndim != 3 else array
    assert flat.data.ptr == array.data.ptr, "a copy of what is written to"
    return (flat.data.ptr, *flat.strides)


COMPILE_CHECKS = (
    *((defines(name, 2, 4), "sm_90a", None) for name in NAMES),
    *((defines("bfloat16", n, m), "sm_90a", None) for n, m in ((1, 4), (4, 8), (8, 16), (16, 32))),
    *(
        (defines(name, 2, 4, mask=True, span=max(4, 16 // TABLE[name].itemsize)), "sm_90a", None)
        for name in NAMES
    ),
    (defines("int8", 1, 2, score="double", dense=False, mask=True, span=2), "sm_90a", None),
    *((defines("float16", 2, 8), f"sm_{arch}", None) for arch in ("80", "86", "89", "100a", "120")),
)
