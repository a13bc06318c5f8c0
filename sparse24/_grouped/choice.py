"""Which kernel multiplies experts by their tokens, and whether as they are stored."""

from __future__ import annotations

from dataclasses import replace

from sparse24 import _planner
from sparse24._grouped.product import Grouped, problem_of
from sparse24._records import Problem
from sparse24._target import Result
from sparse24.kernels.sparse_decode_plan import widens

KERNELS = ("grouped_wgmma", "grouped_mma")  # the fastest first; the last one refuses least
# Those that take matrices as they are stored, with fewer bits than the tokens.
DIRECT = QUANTISED, MIXED = ("grouped_quantised", "grouped_mixed")
# From so many tokens of an expert on, on average, MIXED is faster than QUANTISED with long rows, by
# bits; with SHORT_ROWS columns half as many suffice.  And by bits, or 0 for 8-bit elements, it pays
# to convert matrices, which takes the time of moving each element once and saves a part of the time
# of each product.  Of sweeps on an H200: docs/benchmarks/log_grouped.rst, "Experts that are
# widened".
MIXED_PAYS = {4: 115, 8: 70}
SHORT_ROWS = 3000
CONVERTING_PAYS = {0: 1200, 4: 3000, 8: 1700}


def kernel_of(product: Grouped, types: Result) -> tuple[str, str | None]:
    """The kernel that takes the product, or the last one that refuses, and why."""
    for name, problem in candidates(product, types):
        refusal = _planner.kernel_module(name).refuses(problem, gated=product.gated)
        refusal = refusal or _planner.too_long(name, problem)
        if refusal is None:
            break
    return name, refusal


def candidates(product: Grouped, types: Result) -> list[tuple[str, Problem]]:
    """Kernels in the order in which they are asked, and the product as each would take it."""
    problem, a = problem_of(product, types), product.a.stored
    dtype = problem.dtype if a.quantised else a.dtype.name
    stored = replace(problem, dtype=dtype, quantised=a.quantised)
    return [*((name, stored) for name in _direct(stored)), *((name, problem) for name in KERNELS)]


def _direct(stored: Problem) -> tuple[str, ...]:
    """Kernels that may take the matrices as they are stored, in the order in which to ask them."""
    bits, tokens, k = stored.quantised, stored.n / stored.batch, stored.k
    if tokens >= CONVERTING_PAYS[bits]:
        return ()
    if not bits:
        return (MIXED,) if widens(stored) else ()
    many = tokens * (k + SHORT_ROWS) >= MIXED_PAYS[bits] * k
    return (MIXED, QUANTISED) if many else DIRECT
