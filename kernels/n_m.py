"""Patterns n:m on the GPU: prune, compress and decompress; launcher of ``cuda/n_m.cu``.

Groups run along the last axis.  Nothing here waits for the device.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays
from sparse24._dtypes import NAMES, DType
from sparse24.kernels import loader
from sparse24.kernels.compress import _as_chosen, _clean_status

NAME = "n_m"
THREADS = 256
VIEW = np.dtype([("data", "u8"), ("batch", "i8"), ("row", "i8"), ("column", "i8")])
NO_VIEW = np.zeros(1, VIEW)


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
    status = _clean_status(xp)
    if x.size:
        views = (_view(x), _view(values), _view(places), status)
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
) -> loader.Defines:
    """The macros of ``n_m.cu``."""
    return (
        ("ELEMENT", name),
        ("KEEP", n),
        ("GROUP", m),
        ("SCORED", int(score is not None)),
        ("SCORE", score or "float"),
        ("WRITE_DENSE", int(dense)),
        ("WRITE_MASK", int(mask)),
        ("BY_ROWS", int(by_rows)),
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
    macros = defines(
        row.name, n, m, score=score, dense=dense is not None, mask=mask is not None,
        by_rows=_by_rows(x),
    )  # fmt: skip
    _launch("prune", x, macros, m, tuple(_view(array) for array in (x, scores, dense, mask)))


def _launch(kernel, x, macros, m, views):
    rows, k = x.shape[-2:]
    batches = x.size // (rows * k)
    blocks = -(-batches * rows * -(-k // m) // THREADS)
    loader.function(NAME, kernel, macros)((blocks,), (THREADS,), (*views, batches, rows, k))


def _by_rows(x) -> bool:
    return abs(x.strides[-2]) < abs(x.strides[-1])


def _view(array):
    """Pointer and strides of (batch, rows, columns), by value; the batch axes must collapse."""
    if array is None:
        return NO_VIEW
    flat = array.reshape(-1, *array.shape[-2:])
    return np.array([(flat.data.ptr, *flat.strides)], VIEW)


COMPILE_CHECKS = (
    *((defines(name, 2, 4), "sm_90a", None) for name in NAMES),
    *((defines("bfloat16", n, m), "sm_90a", None) for n, m in ((1, 4), (4, 8), (8, 16), (16, 32))),
    *((defines("float16", 2, 8), f"sm_{arch}", None) for arch in ("80", "86", "89", "100a", "120")),
)
