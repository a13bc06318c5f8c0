"""Copies of operands and results whose layout kernels cannot read or write, and their cost.

Kernels copy 16 bytes at a time.  Where a row of *b* does not begin on 16 bytes, as with an odd
number of columns, an aligned copy of it is multiplied; where the result's do not, most kernels
write to scratch memory that is copied afterwards.  A row that begins inside a line of memory costs
the L2 cache twice as many requests, so a copy may pay even where kernels can read *b*.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from sparse24 import _arrays, _dtypes
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import sparse_tile

# Shares of copy speed, measured on an H200: of a strided copy of an operand, which reads or writes
# single elements, and of the kernel `transpose`, after which the product begins early.
STAGING_EFFICIENCY, STAGING_LAUNCH = 0.25, 4e-6  # seconds
TRANSPOSE_EFFICIENCY, TRANSPOSE_LAUNCH = 0.7, 3e-6

# Kernels that store results of any strides: where the TMA cannot write, their threads do, element
# by element, each warp whole lines of memory.
STORES_ANY = ("sparse_wgmma", "sparse_mixed")
# Kernels that write nothing but the result.  The others store by the TMA, which always writes 16
# bytes.  Where a line of the result ends within these, they would overwrite what follows it, such
# as the next columns of a larger array.
STORES_NO_MORE = (
    "sparse_mma", "sparse_skinny", "sparse_decode", "sparse_matvec", "split_skinny", "split_mma",
    "sparse_quantised", "sparse_fma", "dense",
)  # fmt: skip
# Kernels whose prediction depends on whether rows of b begin on lines of memory.
ASKS_FOR_LINES = ("sparse_wgmma", "sparse_mixed")
# Kernels that read a b of any strides, element by element, and the seconds that a block takes for
# each element of its tile.  docs/benchmarks/log_gemm.rst, "Odd sizes".
READ_BY_ELEMENT = {"sparse_mma": 0.9e-9, "sparse_skinny": 0.42e-9}


class Variant(NamedTuple):
    """A problem as kernels may see it.

    Attributes
    ----------
    problem : Problem
        After staging.
    stage_b, stage_out : bool
        Whether b, or the result, goes through a copy.
    kernels : tuple of str or None
        Which may take it; None for all.
    """

    problem: Problem
    stage_b: bool = False
    stage_out: bool = False
    kernels: tuple[str, ...] | None = None


def variants(problem: Problem) -> list[Variant]:
    """The problem as it is and, where layouts require it, with copies or for fewer kernels."""
    if problem.out_spills:
        inside = variants(dataclasses.replace(problem, out_spills=False))
        able = [variant for variant in inside if variant.kernels is None]
        exact = [variant._replace(kernels=STORES_NO_MORE) for variant in able]
        return exact + [variant._replace(stage_out=True) for variant in able]
    p, found = problem, [Variant(problem)]
    narrow = p.quantised > 0 or _dtypes.TABLE[p.dtype].itemsize < _b_itemsize(p)  # A is widened
    by_rows = p.b_order == "row" and (p.tensor_float or narrow or _b_itemsize(p) == 1)
    stage_b = not (p.aligned or p.b_aligned) or p.b_order == "strided" or by_rows
    fits = (p.aligned or p.out_aligned) and p.out_order != "strided"
    if fits and p.b_in_lines and not stage_b:
        return found
    copied = dataclasses.replace(p, b_order="column", aligned=True, b_in_lines=True)
    staged = copied if stage_b else dataclasses.replace(p, aligned=True)
    if fits:
        return [*found, Variant(copied, True, kernels=None if stage_b else ASKS_FOR_LINES)]
    if stage_b or not p.aligned:
        found.append(Variant(staged, stage_b, False, STORES_ANY))
    order = "row" if p.out_order == "strided" else p.out_order
    return [*found, Variant(dataclasses.replace(staged, out_order=order), stage_b, True)]


def seconds(variant: Variant, original: Problem, bandwidth: float) -> float:
    """What the copies take, where a plain copy moves `bandwidth` bytes a second."""
    p, moved, launches = original, 0.0, 0.0
    if variant.stage_b:
        turned = p.b_order == "row"
        share = TRANSPOSE_EFFICIENCY if turned else STAGING_EFFICIENCY
        moved += p.k * p.n * _b_itemsize(p) * (p.batch if p.b_batched else 1) / share
        launches += TRANSPOSE_LAUNCH if turned else STAGING_LAUNCH
    if variant.stage_out:
        itemsize = _dtypes.numpy_dtype(p.out_dtype).itemsize
        moved += p.m * p.n * p.batch * itemsize / STAGING_EFFICIENCY
        launches += STAGING_LAUNCH
    return 2 * moved / bandwidth + launches


def reading(kernel: str, problem: Problem, config: Any, sms: float) -> float:
    """Seconds that a kernel takes longer for reading b element by element."""
    if kernel not in READ_BY_ELEMENT or (problem.aligned and problem.b_order != "strided"):
        return 0.0
    waves = -(-sparse_tile.tiles(problem, config) // sms)
    return waves * config.n * problem.k / config.split * READ_BY_ELEMENT[kernel]


def _b_itemsize(problem: Problem) -> int:
    return _dtypes.TABLE[problem.b_dtype].itemsize


def staged(launch: Callable[..., None], variant: Variant) -> Callable[..., None]:
    """``launch(a, b, out, epilogue)`` with the copies of a variant before and after it."""

    def run(a: Compressed24 | Any, b, out, epilogue: Fused) -> None:
        inner_b = aligned_columns(b) if variant.stage_b else b
        inner_out = aligned_like(out, variant.problem.out_order) if variant.stage_out else out
        launch(a, inner_b, inner_out, epilogue)
        if variant.stage_out:
            out[...] = inner_out

    return run


def aligned_columns(b):
    """A copy of b (..., k, n) whose columns are contiguous and begin on lines of memory."""
    from sparse24.kernels import transpose

    if transpose.takes(b):
        return transpose.launch(b)
    turned = b.swapaxes(-1, -2)
    copy = _arrays.empty_rows(_arrays.namespace(b), turned.shape, b.dtype, _arrays.LINE)
    copy[...] = turned
    return copy.swapaxes(-1, -2)


def aligned_like(out, order: str):
    """Scratch of the shape of `out`, in the given order, rows 16-byte aligned."""
    xp = _arrays.namespace(out)
    if order == "column":
        turned = _arrays.empty_rows(xp, out.swapaxes(-1, -2).shape, out.dtype)
        return turned.swapaxes(-1, -2)
    return _arrays.empty_rows(xp, out.shape, out.dtype)
