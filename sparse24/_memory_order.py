"""How a matrix on the GPU lies in memory: along which axis its lines run, where they begin and end.

Kernels copy 16 bytes at a time along a line, a row or a column whose elements are contiguous.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from sparse24 import _arrays


def order(x) -> str:
    """``"row"``, ``"column"`` or ``"strided"``; a contiguous single column is ``"column"``."""
    rows, columns = x.shape[-2:]
    row, column = x.strides[-2:]
    size = x.dtype.itemsize
    if columns == 1 and row == size and rows > 1:
        return "column"
    if column == size or rows == columns == 1:
        return "row"
    return "column" if row == size else "strided"


def aligned(x, boundary: int = _arrays.VECTOR) -> bool:
    """True if the matrix starts on, and its lines advance by, multiples of `boundary` bytes.

    Lines that run backwards are not: the TMA takes no negative strides.
    """
    along = -2 if order(x) == "column" else -1
    across = [i for i in range(-x.ndim, 0) if i != along and x.shape[i] > 1]
    steps = [x.strides[i] for i in across]
    return x.data.ptr % boundary == 0 and all(s >= 0 and s % boundary == 0 for s in steps)


def packed(x) -> bool:
    """True if the lines of a matrix follow one another without gaps."""
    along, across = (-2, -1) if order(x) == "column" else (-1, -2)
    return x.shape[across] <= 1 or x.strides[across] == x.shape[along] * x.strides[along] > 0


def spills(out) -> bool:
    """True if a result is aligned for 16-byte stores, but the last one of a line passes its end."""
    along = order(out)
    extent = out.shape[-2] if along == "column" else out.shape[-1]
    ends = extent * out.dtype.itemsize % _arrays.VECTOR == 0
    return not ends and along != "strided" and aligned(out)


def batch_axes(x, trailing: int = 2) -> list[tuple[int, int]]:
    """Sizes and strides of the axes before the last ones, but for those of size 1, whose strides
    mean nothing.
    """
    axes = zip(x.shape[:-trailing], x.strides[:-trailing], strict=True)
    return [(size, stride) for size, stride in axes if size > 1]


def is_even(x, trailing: int = 2) -> bool:
    """Whether what these axes count, such as the matrices of a stack, lies at one distance."""
    return all(
        outer == size * inner for (_, outer), (size, inner) in pairwise(batch_axes(x, trailing))
    )


def facts(b, out) -> dict[str, Any]:
    """The fields of a `Problem` that tell how b and the result lie."""
    b_aligned, out_aligned = aligned(b) and _ends_on_16_bytes(b), aligned(out)
    return {
        "b_order": order(b), "out_order": order(out),
        "aligned": b_aligned and out_aligned, "b_aligned": b_aligned, "out_aligned": out_aligned,
        "out_spills": spills(out), "b_in_lines": aligned(b, _arrays.LINE),
        "b_packed": packed(b),
    }  # fmt: skip


def _ends_on_16_bytes(x) -> bool:
    """False for a single line that the last copy of 16 bytes would read past the end of."""
    rows, columns = x.shape[-2:]
    return min(rows, columns) > 1 or max(rows, columns) * x.dtype.itemsize % _arrays.VECTOR == 0
