"""Products of a hybrid matrix: `_hybrid.choice` names a path, which runs here."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import numpy as np

from sparse24 import _arrays, _dtypes, _foreign_streams, _memory_order, _streams
from sparse24._errors import UnsupportedError
from sparse24._hybrid import on_cpu as hybrid_on_cpu
from sparse24._hybrid.choice import STRIPS, Ran, choose, kind_of, way_of
from sparse24._hybrid.dense import DenseStack, flat_views
from sparse24._hybrid.layouts import layout
from sparse24._hybrid.staged import Staged, by_rows, room_for
from sparse24._hybrid.two_four import Twice, TwoFour
from sparse24._moved_layout import laying_out
from sparse24._records import PLAIN, Problem
from sparse24.kernels.dense import BoundDense

MOST_COLUMNS = 1 << 30  # of b in one product: kernels count them in 32 bits with a sign


def result_dtype(dtype: _dtypes.DType) -> np.dtype:
    return _dtypes.numpy_dtype(dtype.result)


def multiply(h, b, out, algorithm: str = "auto", balance: bool = True):
    """out = h @ b for matrices (k, n) and (m, n); both may be empty.

    Returns
    -------
    BoundProduct, Staged, TwoFour, Twice, dense product or None
        What multiplied, if it can again with arrays like these elsewhere.
    """
    if not out.size:
        return None
    if not b.size:
        out[...] = 0
        return None
    if h.device == "cpu":
        hybrid_on_cpu.multiply(h, b, out, choose(h, b, algorithm, balance))
        return None
    if b.shape[1] > MOST_COLUMNS:
        for first in range(0, b.shape[1], MOST_COLUMNS):
            part = slice(first, first + MOST_COLUMNS)
            multiply(h, b[:, part], out[:, part], algorithm, balance)
        return None
    _foreign_streams.make_current()
    path = choose(h, b, algorithm, balance)
    kind = kind_of(path, b.shape[1], balance)
    own = f"{kind}, {way_of(path, b, out)}"
    if not h.is_prepared(own) and _arrays.is_capturing():
        raise UnsupportedError(
            f"the first product with {b.shape[1]} columns in these memory orders copies its plan "
            "to the GPU, which a graph cannot hold; run it once before the capture"
        )
    launched = _run(path, h, b, out, balance)
    for made in (kind, own):
        h.prepared(made, Ran)
    return launched


def multiply_together(h, stack, out, algorithm: str, balance: bool) -> DenseStack | None:
    """out = h @ stack in one launch, if those of cuBLAS are the choice; else None, and none ran."""
    if h.device == "cpu" or not (stack.size and out.size) or stack.shape[-1] > MOST_COLUMNS:
        return None
    _foreign_streams.make_current()
    views = flat_views(stack, out)
    if views is None or _arrays.is_capturing():
        return None
    b, result = (view.matrix((0,)) for view in views)
    if choose(h, b, algorithm, balance) != "cublas":
        return None
    found = _bound("cublas", h, b, result, balance)
    if found is None:
        return None
    together = DenseStack(found[0])
    together(stack, out)
    h.prepared(kind_of("cublas", b.shape[1], balance), Ran)
    return together


def _run(path: str, h, b, out, balance: bool):
    _streams.hold_current()
    elsewhere = _made_elsewhere(path, h, out)
    room = room_for(out) if elsewhere else out
    found = _bound(path, h, b, room, balance)
    if found is None:
        return _PATHS[path](h, b, out)
    product, operand = found
    with laying_out:
        if operand is b and not elsewhere:
            product(b, out)
            return product
        staged = Staged(product, room=elsewhere)
        staged.multiply(operand, room, out)
    return staged


def _made_elsewhere(path: str, h, out) -> bool:
    """Whether a result is made in scratch memory and copied.

    The kernel of strips would write past the ends of some lines; and if it stores rows by number,
    it is slow unless they are contiguous.
    """
    if path not in STRIPS:
        return False
    return _memory_order.spills(out) or (layout(h, path).rows is not None and not by_rows(out))


def _bound(path: str, h, b, out, balance: bool):
    """What multiplies, and `b` as it takes it; None if that is more than one launch."""
    if path == "cublas":
        found = h.prepared("bound dense", lambda: BoundDense(h.prepared("dense", h.toarray)))
        return (found, b) if found.takes(b, out) else None
    if path not in _KERNEL_OF:
        return None
    how = {"balance": balance} if path in _BALANCED else {}
    return _binder(path)(layout(h, path), b, out, **how)


def _multiply_tiles(h, b, out) -> None:
    from sparse24.kernels import hybrid_tiles

    hybrid_tiles.product(h.tiles, b, out, h._dtype.result)


def _multiply_sum(path: str, h, b, out) -> TwoFour | Twice:
    product = layout(h, path)
    product(b, out)
    return product


def _multiply_cublas(h, b, out) -> _Dense:
    product = _Dense(h._dtype, h.prepared("dense", h.toarray), b.shape[1])
    product(b, out)
    return product


def _multiply_compact(h, b, out) -> None:
    parts = layout(h, "compact")
    _Dense(h._dtype, parts.dense, b.shape[1])(parts.gather(b), out)


class _Dense:
    """Products by cuBLAS in more launches than one: of int8, or with copies of what lies badly."""

    captured = False  # CuPy does not capture cuBLAS

    def __init__(self, dtype: _dtypes.DType, matrix, n: int):
        from sparse24.kernels import dense

        (m, k), name = matrix.shape, dtype.name
        problem = Problem(m, n, k, 1, name, name, dtype.result)
        self._launch, self._matrix = dense.prepare(problem, dense.Config(), PLAIN), matrix

    def __call__(self, b, out) -> None:
        self._launch(self._matrix, b, out, PLAIN)


# Paths that are a single launch, and the kernel of each.
_KERNEL_OF = {
    "csr": "hybrid_csr", "rows": "hybrid_rows", "gather": "hybrid_gather", "panel": "hybrid_panel",
    "stream": "hybrid_stream", "scatter": "hybrid_scatter",
    "slots": "hybrid_wgmma", "regrouped": "hybrid_wgmma",
}  # fmt: skip
_BALANCED = ("stream", "scatter")


@functools.cache
def _binder(path: str):
    return importlib.import_module(f"sparse24.kernels.{_KERNEL_OF[path]}").bound


_PATHS: dict[str, Callable[..., _Dense | TwoFour | Twice | None]] = {
    "tiles": _multiply_tiles,
    "two_four": functools.partial(_multiply_sum, "two_four"),
    "twice": functools.partial(_multiply_sum, "twice"),
    "compact": _multiply_compact,
    "cublas": _multiply_cublas,
}
