"""Which path multiplies a hybrid matrix, for how many columns, and why.

============  ==========================================================================
``cpu``       on the CPU: Numba, the non-zeros row by row
``blas``      on the CPU: the dense product, on a dense copy
``rows``      up to 4 columns, any dtype: each lane walks along the non-zeros of a row
``gather``    up to 16 columns, 16-bit: every non-zero reads its row of the dense operand
``panel``     16 to 64 bits: non-zeros multiply panels of the dense operand in shared memory
``stream``    up to 64 columns, 16-bit: non-zeros go to registers, sparse tensor cores place them
``scatter``   up to 128 columns, 16-bit, Hopper: non-zeros become dense tiles in shared memory
``tiles``     any dtype and size: the stored tiles, one by one, on CUDA cores
``slots``     from 128 columns, 16-bit, Hopper: 2:4 strips; what does not fit gets extra columns
``regrouped`` from 128 columns, 16-bit, Hopper: 2:4 strips, each with its columns grouped anew
``two_four``  more than 64 columns, 16-bit: a 2:4 product, then the elements left out are added
``compact``   many columns: the dense product without the empty columns of the matrix
``cublas``    the dense product, on a dense copy
============  ==========================================================================

A layout is made at the first product that needs it and kept with the matrix.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

import numpy as np

from sparse24 import (
    _arrays,
    _dtypes,
    _foreign,
    _hybrid_cost,
    _hybrid_on_cpu,
    _memory_order,
    _product,
    _tuning_cache,
)
from sparse24._errors import ArgumentError, DeviceError, UnsupportedError
from sparse24._hybrid_dense import DenseStack, flat_views
from sparse24._hybrid_layouts import layout
from sparse24._hybrid_predict import copied_by, copying_paths, predictions
from sparse24._hybrid_staged import Staged, by_rows, room_for
from sparse24._moved_layout import laying_out
from sparse24._records import PLAIN, Problem
from sparse24.kernels.dense import BoundDense

WORTH_LEAVING = 0.97  # a path is taken if it is predicted to take at most so much of cuBLAS's time
NOT_CAPTURED = ("cublas", "compact")
STRIPS = ("slots", "regrouped")
PLANNED = ("stream", "scatter", *STRIPS)  # paths with a plan for each number of columns


def result_dtype(dtype: _dtypes.DType) -> np.dtype:
    return _dtypes.numpy_dtype(dtype.result)


def same_device(device: str, b, argument: str) -> None:
    if _arrays.device_of(b) != device:
        raise DeviceError(
            f"{argument} must be on {device}, where the matrix is, got {_arrays.device_of(b)}; "
            "move one of them, for example with H.to_device(...)"
        )


def multiply(h, b, out, algorithm: str = "auto", balance: bool = True):
    """out = h @ b for matrices (k, n) and (m, n); both may be empty.

    Returns
    -------
    BoundProduct, Staged or None
        What multiplied, if it can again with arrays like these elsewhere.
    """
    if not out.size:
        return None
    if not b.size:
        out[...] = 0
        return None
    if h.device == "cpu":
        _hybrid_on_cpu.multiply(h, b, out, _choose(h, b, algorithm, balance))
        return None
    _foreign.make_current()
    path = _choose(h, b, algorithm, balance)
    kind = _kind(path, b.shape[1], balance)
    if not h.is_prepared(kind) and _arrays.is_capturing():
        raise UnsupportedError(
            f"the first product with {b.shape[1]} columns copies its plan to the GPU, which a "
            "graph cannot hold; run it once before the capture"
        )
    launched = _run(path, h, b, out, balance)
    h.prepared(kind, _Ran)
    return launched


def multiply_together(h, stack, out, algorithm: str, balance: bool) -> DenseStack | None:
    """out = h @ stack in one launch, if those of cuBLAS are the choice; else None, and none ran."""
    if h.device == "cpu" or not (stack.size and out.size):
        return None
    _foreign.make_current()
    views = flat_views(stack, out)
    if views is None or _arrays.is_capturing():
        return None
    b, result = (view.matrix((0,)) for view in views)
    if _choose(h, b, algorithm, balance) != "cublas":
        return None
    found = _bound("cublas", h, b, result, balance)
    if found is None:
        return None
    together = DenseStack(found[0])
    together(stack, out)
    h.prepared(_kind("cublas", b.shape[1], balance), _Ran)
    return together


def _kind(path: str, n: int, balance: bool) -> str:
    """The name under which a matrix remembers that such a product has been run."""
    return f"{path} by {n}, balance {balance}" if path in PLANNED else f"{path} at all"


class _Ran:
    """A mark that a kind of product has been run, kept with the matrix."""

    nbytes = 0


def _run(path: str, h, b, out, balance: bool):
    elsewhere = _made_elsewhere(path, h, out)
    room = room_for(out) if elsewhere else out
    found = _bound(path, h, b, room, balance)
    if found is None:
        _PATHS[path](h, b, out)
        return None
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
        found = h.prepared("bound dense", lambda: _bound_dense(h))
        return (found, b) if found.takes(b, out) else None
    if path not in _KERNEL_OF:
        return None
    how = {"balance": balance} if path in _BALANCED else {}
    return _binder(path)(layout(h, path), b, out, **how)


def _bound_dense(h):
    return BoundDense(h.prepared("dense", h.toarray))


def _choose(h, b, algorithm: str, balance: bool) -> str:
    n = b.shape[1]
    if algorithm == "auto" and h.device == "cpu":
        return _hybrid_on_cpu.choose(h, n)
    copied = copied_by(n, "row" if by_rows(b) else "column")
    if algorithm == "auto":
        path = h.prepared(choice_for(n, copied=copied), lambda: _Choice(h, n, copied=copied)).path
        return _captured(h, n, balance) if path in NOT_CAPTURED and _arrays.is_capturing() else path
    possible = ("auto", *explain(h, n, copied=copied)["candidates"])
    if algorithm not in possible:
        listed = ", ".join(map(repr, possible))
        raise ArgumentError(
            f"algorithm must be one of {listed} for this matrix and n = {n}, got {algorithm!r}"
        )
    return algorithm


def choice_for(n: int, *, copied: bool) -> str:
    """The name under which a matrix remembers a choice; another one after a calibration."""
    known = _tuning_cache.generation()
    return f"choice for {_hybrid_cost.bucket(n)}, copied {copied}, known {known}"


def _captured(h, n: int, balance: bool) -> str:
    """The best path that a graph can hold and that has multiplied so many columns before."""
    times = {path: t for path, t in predictions(h, n).items() if path not in NOT_CAPTURED}
    ready = [path for path in times if h.is_prepared(_kind(path, n, balance))]
    if not ready:
        best = min(times, key=times.__getitem__)
        raise UnsupportedError(
            f"cuBLAS is predicted to be the fastest for n = {n}, and CuPy does not capture it into "
            f"a graph; call H.matmul(b, algorithm={best!r}) once before the capture, and a capture "
            "takes that path"
        )
    return min(ready, key=times.__getitem__)


class _Choice:
    """The path chosen for a number of columns, kept with the matrix."""

    nbytes = 0

    def __init__(self, h, n: int, *, copied: bool):
        self.path = explain(h, _hybrid_cost.bucket(n), copied=copied)["choice"]


def _multiply_tiles(h, b, out) -> None:
    from sparse24.kernels import hybrid_tiles

    hybrid_tiles.product(h.tiles, b, out, h.tiles.dtype.result)


def _multiply_two_four(h, b, out) -> None:
    from sparse24.kernels import hybrid_overflow

    parts = layout(h, "two_four")
    _product.multiply(parts.main, b, out, plans=parts.plans)
    for overflow in parts.overflow:
        hybrid_overflow.add(overflow, b, out)


def _multiply_cublas(h, b, out) -> None:
    _dense_product(h.tiles.dtype, h.prepared("dense", h.toarray), b, out)


def _multiply_compact(h, b, out) -> None:
    parts = layout(h, "compact")
    _dense_product(h.tiles.dtype, parts.dense, parts.gather(b), out)


def _dense_product(dtype: _dtypes.DType, a, b, out) -> None:
    from sparse24.kernels import dense

    (m, k), n = a.shape, b.shape[1]
    problem = Problem(m, n, k, 1, dtype.name, dtype.name, dtype.result)
    dense.prepare(problem, dense.Config(), PLAIN)(a, b, out, PLAIN)


# Paths that are a single launch, and the kernel of each.
_KERNEL_OF = {
    "rows": "hybrid_rows", "gather": "hybrid_gather", "panel": "hybrid_panel",
    "stream": "hybrid_stream", "scatter": "hybrid_scatter",
    "slots": "hybrid_wgmma", "regrouped": "hybrid_wgmma",
}  # fmt: skip
_BALANCED = ("stream", "scatter")


@functools.cache
def _binder(path: str):
    return importlib.import_module(f"sparse24.kernels.{_KERNEL_OF[path]}").bound


_PATHS: dict[str, Callable[..., None]] = {
    "tiles": _multiply_tiles,
    "two_four": _multiply_two_four,
    "compact": _multiply_compact,
    "cublas": _multiply_cublas,
}


def explain(h, n: int, *, copied: bool | None = None) -> dict:
    """Predicted seconds by path, what they copy, the choice, and the reason in words.

    `copied`: whether paths that cannot read `b` must copy it; by default as if its rows are
    contiguous.  Choices are remembered for ranges of columns; this returns that of the range.
    """
    copied = copied_by(n) if copied is None else copied
    known = _hybrid_cost.bucket(n)
    times = predictions(h, known, copied)
    choice, reason = _best(times)
    if known != n and len(times) > 1:
        reason += f", for {known} columns, which decide the choice for {n}"
        times = {choice: times[choice]} | predictions(h, n, copied)
    copying = copying_paths(h, times, n) if copied else []
    if choice in copying:
        reason += "; it copies b at each call, whose rows do not begin on 16 bytes"
    return {
        "n": n, "candidates": times, "copies_b": copying, "choice": choice, "reason": reason,
    }  # fmt: skip


def _best(times: dict[str, float]) -> tuple[str, str]:
    """The path to take by predicted seconds, and why."""
    choice = min(times, key=times.__getitem__)
    if times[choice] > WORTH_LEAVING * times.get("cublas", np.inf):
        choice = "cublas"
    others = {name: t for name, t in times.items() if name != choice}
    if not others:
        return choice, "the only path for so many columns on this device"
    second = min(others, key=others.__getitem__)
    gain = others[second] / max(times[choice], 1e-12)
    if choice == "cublas":
        longer = f"{second} takes {gain:.2f} times as long"
        return choice, f"no sparse path is predicted to gain: {longer}"
    return choice, f"predicted {gain:.2f}x faster than {second}"
