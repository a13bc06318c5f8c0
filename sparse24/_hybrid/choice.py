"""Which path multiplies a hybrid matrix, for how many columns, and why.

============  ==========================================================================
``cpu``       on the CPU: Numba, the non-zeros row by row
``masks``     on the CPU, up to 16 columns, int8 32: Numba, what is stored of a vector of columns
``blas``      on the CPU: the dense product, on a dense copy
``rows``      up to 4 columns, any dtype: each lane walks along the non-zeros of a row
``csr``       any dtype and size: every non-zero reads its row of the dense operand where it lies
``gather``    up to 16 columns, 16-bit: every non-zero reads that row from shared memory
``panel``     16 to 64 bits: non-zeros multiply panels of the dense operand in shared memory
``stream``    up to 64 columns, 16-bit: non-zeros go to registers, sparse tensor cores place them
``scatter``   up to 128 columns, 16-bit, Hopper: non-zeros become dense tiles in shared memory
``tiles``     any dtype and size: the stored tiles, one by one, on CUDA cores
``slots``     from 128 columns, 16-bit, Hopper: 2:4 strips; what does not fit gets extra columns
``regrouped`` from 128 columns, 16-bit, Hopper: 2:4 strips, each with its columns grouped anew
``two_four``  from 65 columns in 16 bits, 5 in float32 and int8: 2:4, and what that leaves out
``twice``     from 5 columns in float32 and int8: two 2:4 matrices whose sum is the matrix
``compact``   many columns: the dense product without the empty columns of the matrix
``cublas``    the dense product, on a dense copy
============  ==========================================================================

A layout is made at the first product that needs it and kept with the matrix.
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _tuning_cache
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import layouts as hybrid_layouts
from sparse24._hybrid import on_cpu as hybrid_on_cpu
from sparse24._hybrid import room
from sparse24._hybrid.predict import COLUMNS, copied_by, copying_paths, predictions
from sparse24._hybrid.staged import by_rows

WORTH_LEAVING = 0.97  # a path is taken if it is predicted to take at most so much of cuBLAS's time
NOT_CAPTURED = ("cublas", "compact")
STRIPS = ("slots", "regrouped")
PLANNED = ("stream", "scatter", *STRIPS)  # paths with a plan for each number of columns


def choose(h, b, algorithm: str, balance: bool) -> str:
    """The path of a product: the one that is named, or the best one for "auto"."""
    n = b.shape[1]
    if algorithm == "auto" and h.device == "cpu":
        return hybrid_on_cpu.choose(h, n)
    copied = copied_by(n, "row" if by_rows(b) else "column")
    if algorithm == "auto":
        path = _chosen(h, n, copied=copied)
        return _captured(h, n, balance) if path in NOT_CAPTURED and _arrays.is_capturing() else path
    possible = ("auto", *explain(h, n, copied=copied)["candidates"])
    if algorithm not in possible:
        listed = ", ".join(map(repr, possible))
        raise ArgumentError(
            f"algorithm must be one of {listed} for this matrix and n = {n}, got {algorithm!r}"
            + _lacking(h, n)
        )
    return algorithm


def choice_for(n: int, *, copied: str) -> str:
    """The name under which a matrix remembers a choice; another one after a calibration."""
    known = _tuning_cache.generation()
    return f"choice for {hybrid_cost.bucket(n)}, copied {copied!r}, known {known}"


def _captured(h, n: int, balance: bool) -> str:
    """The best path that a graph can hold and that has multiplied this many columns before."""
    times = {path: t for path, t in predictions(h, n).items() if path not in NOT_CAPTURED}
    ready = [path for path in times if h.is_prepared(kind_of(path, n, balance))]
    if not ready:
        best = min(times, key=times.__getitem__)
        raise UnsupportedError(
            f"cuBLAS is predicted to be the fastest for n = {n}, and CuPy does not capture it into "
            f"a graph; call H.matmul(b, algorithm={best!r}) once before the capture, and a capture "
            "takes that path"
        )
    return min(ready, key=times.__getitem__)


def _chosen(h, n: int, *, copied: str) -> str:
    """The path for a number of columns, found for the range to which it belongs, and kept."""
    find = lambda: explain(h, hybrid_cost.bucket(n), copied=copied)["choice"]  # noqa: E731
    return hybrid_layouts.known(h, choice_for(n, copied=copied), find)


def kind_of(path: str, n: int, balance: bool) -> str:
    """The name under which a matrix remembers that such a product has been run."""
    return f"{path} by {n}, balance {balance}" if path in PLANNED else f"{path} at all"


def way_of(path: str, b, out) -> str:
    """The variant of a path's launch that reads such an operand and writes such a result.

    Each variant has tables of its own on the GPU.  They are told apart as by `bound` of
    ``hybrid_stream`` and ``hybrid_wgmma``.
    """
    if path == "stream":
        row, column = b.strides
        vectors = column == b.itemsize and row % _arrays.VECTOR == 0
        return "by vectors" if vectors and b.data.ptr % _arrays.VECTOR == 0 else "by elements"
    if path in STRIPS:
        row, column = out.strides
        return "by columns" if row == out.itemsize != column else "by rows"
    return "any"


class Ran:
    """Marks that a kind of product has been run: the matrix keeps it like a layout of no bytes."""

    nbytes = 0


def explain(h, n: int, *, copied: str | None = None) -> dict:
    """Predicted seconds by path, what they copy, the choice, and the reason in words.

    `copied`: what `copied_by` says of `b`; by default as if its rows are contiguous.  Choices are
    remembered for ranges of columns; this returns that of the range.
    """
    copied = copied_by(n) if copied is None else copied
    known = hybrid_cost.bucket(n)
    times = predictions(h, known, copied)
    choice, reason = _best(times)
    if known != n and len(times) > 1:
        reason += f", for {known} columns, which decide the choice for {n}"
        times = {choice: times[choice]} | predictions(h, n, copied)
    copying = copying_paths(h, times, n, copied)
    if choice in copying:
        lies = "are not contiguous" if copied == COLUMNS else "do not begin on 16 bytes"
        reason += f"; it copies b at each call, whose rows {lies}"
    reason += _lacking(h, n)
    return {
        "n": n, "candidates": times, "copies_b": copying, "choice": choice, "reason": reason,
    }  # fmt: skip


def _lacking(h, n: int) -> str:
    """Words on paths for which the device has no room; "" if none of them would be considered."""
    takes_dense = h.device != "cpu" or hybrid_on_cpu.would_take_blas(h, n)
    return room.lacking(h) if takes_dense else ""


def _best(times: dict[str, float]) -> tuple[str, str]:
    """The path to take by predicted seconds, and why."""
    choice = min(times, key=times.__getitem__)
    if times[choice] > WORTH_LEAVING * times.get("cublas", np.inf):
        choice = "cublas"
    others = {name: t for name, t in times.items() if name != choice}
    if not others:
        return choice, "the only path for this many columns on this device"
    second = min(others, key=others.__getitem__)
    gain = others[second] / max(times[choice], 1e-12)
    if choice == "cublas":
        longer = f"{second} takes {gain:.2f} times as long"
        return choice, f"no sparse path is predicted to gain: {longer}"
    return choice, f"predicted {gain:.2f} times as fast as {second}"
