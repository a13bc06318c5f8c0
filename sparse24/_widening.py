"""Products of narrow elements with 16-bit ones: of those that are stored, or converted before.

Of 8 bits both give the same values, as 16-bit types hold all of them.  A kernel that widens
elements as it reads them moves half as many bytes, or a quarter, but may multiply more slowly than
others: with thousands of columns, and on most GPUs with hundreds, it pays to convert the matrix for
each product, and where no kernel widens, there is no other way.
"""

from __future__ import annotations

import dataclasses
import functools

from sparse24 import _chip_facts, _dtypes, _planner, _tuning_cache
from sparse24._records import Operand24, Problem
from sparse24.kernels import sparse_decode_plan

KERNELS = ("sparse_decode", "sparse_mixed")  # those that widen for the tensor cores

# At which share of the speed of a copy elements are moved, and the seconds of a launch:
# docs/benchmarks/log_few_tokens.rst, "4-bit weights" and "Warpgroups that widen".
DEQUANTISATION_EFFICIENCY, WIDENING_EFFICIENCY, LAUNCH = 0.65, 0.85, 4e-6


def as_multiplied(problem: Problem, stored: str, device: int, algorithm: str) -> Problem:
    """The problem of a converted A, or of A as it is stored where that is faster, or asked for.

    Parameters
    ----------
    problem : Problem
        With A in the type of the product.
    stored : str
        The type in which A is stored.
    device : int
    algorithm : str
        What the caller asks for.
    """
    kernel = algorithm.partition("/")[0]
    if stored == problem.dtype or kernel not in ("auto", *KERNELS):
        return problem
    narrow = dataclasses.replace(problem, dtype=stored)
    if not sparse_decode_plan.widens(narrow):
        return problem
    if kernel != "auto" or _pays(narrow, problem, device, _tuning_cache.generation()):
        return narrow
    return problem


@functools.lru_cache(_planner.REMEMBERED)
def _pays(narrow: Problem, wide: Problem, device: int, generation: int) -> bool:
    """Whether a kernel takes A as it is stored, and is faster than any with the converted A."""
    facts, scale = _chip_facts.facts(device), functools.partial(_tuning_cache.scale, device)
    direct = _planner.fastest(narrow, facts, dense=False, scale=scale)
    if direct.refusal is not None:
        return False
    elements = wide.m * wide.k // 2 * (wide.batch if wide.a_batched else 1)
    moved = elements * sum(_bytes_of_element(p) for p in (narrow, wide))
    efficiency = DEQUANTISATION_EFFICIENCY if narrow.quantised else WIDENING_EFFICIENCY
    conversion = LAUNCH + moved / (efficiency * facts["bandwidth"])
    if direct.seconds <= conversion:  # by few columns; nothing else has to be planned
        return True
    converted = _planner.fastest_able(wide, facts, dense=False, scale=scale)
    return direct.seconds <= conversion + converted.seconds


def _bytes_of_element(problem: Problem) -> float:
    return problem.quantised / 8 or _dtypes.TABLE[problem.dtype].itemsize


def of_quantised(problem: Problem, a: Operand24, device: int, algorithm: str) -> Problem:
    """As `as_multiplied`, for an operand of integers times factors.

    Dequantised elements are rounded to the type of the product.  So are those of `sparse_mixed`,
    but not those of `sparse_quantised`.
    """
    kernel = algorithm.partition("/")[0]
    exact = a.rows is not None and problem.dtype == problem.b_dtype in _dtypes.OF_16_BITS
    if kernel not in ("auto", *_planner.QUANTISED_KERNELS) or not exact:
        return problem
    direct = dataclasses.replace(problem, quantised=a.stored.quantised)
    if kernel != "auto" or _pays(direct, problem, device, _tuning_cache.generation()):
        return direct
    return problem
