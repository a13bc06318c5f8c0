"""What `explain` tells of the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from sparse24 import _planner, _tuning_cache, _widening
from sparse24._explanation import Explanation
from sparse24._planner import Candidate
from sparse24._records import Operand24, Problem

# How the dense product would run in place of that of a quantised matrix.
NOT_QUANTISED = "a matrix that is not quantised, compressed with keep_dense=True, would let"


def on_gpu(
    problem: Problem, stored: str, device: int, algorithm: str, dense: bool, way_out: str
) -> Explanation:
    """Explain a 2:4 product.

    Parameters
    ----------
    problem, stored, device, algorithm
        As of `_widening.as_multiplied`.
    dense : bool
        Whether A is kept dense, too.
    way_out : str
        How to have the dense product run where it is not.
    """
    taken = _widening.as_multiplied(problem, stored, device, algorithm)
    if taken is not problem:
        return _widened(taken, problem, device, algorithm, f"widens the {stored} elements")
    converted = ""
    if stored != problem.dtype:
        converted = f"; the {stored} elements are converted to {problem.dtype} at each call"
    return _by_candidates(problem, device, algorithm, dense, way_out, converted)


def of_quantised(problem: Problem, a: Operand24, device: int, algorithm: str) -> Explanation:
    """Explain a product of a quantised matrix; the parameters are those of `on_gpu`."""
    taken = _widening.of_quantised(problem, a, device, algorithm)
    if taken.quantised:
        widens = f"widens the integers of {taken.quantised} bits"
        return _widened(taken, problem, device, algorithm, widens)
    converted = f"; the integers are dequantised to {problem.dtype} at each call"
    return _by_candidates(problem, device, algorithm, False, NOT_QUANTISED, converted)


def _by_candidates(
    problem: Problem, device: int, algorithm: str, dense: bool, way_out: str, converted: str
) -> Explanation:
    """Explain a product of elements of the problem's types; `converted` ends the reason."""
    ranked = tuple(_planner.candidates(problem, device, dense=True))
    chosen = _planner.choose(problem, device, dense=dense, algorithm=algorithm)
    measured = _tuning_cache.measured(device, problem, dense=dense)
    reason = "it was asked for"
    if algorithm == "auto":
        reason = _reason(chosen, ranked, measured, way_out)
    return Explanation(chosen.name, ranked, measured, reason + converted, dense)


def _widened(
    problem: Problem, converted: Problem, device: int, algorithm: str, widens: str
) -> Explanation:
    """Explain a product of elements as they are stored, beside the dense one of converted ones."""
    chosen = _planner.choose(problem, device, dense=False, algorithm=algorithm)
    dense = _planner.choose(converted, device, dense=True, algorithm=_planner.DENSE_KERNEL)
    measured = _tuning_cache.measured(device, problem, dense=False)
    reason = "it was asked for"
    if algorithm == "auto":
        faster = f"predicted {dense.seconds / chosen.seconds:.2f} times as fast as a dense product"
        if chosen.name in measured:
            faster = f"the fastest measured of {len(measured)} candidates on this GPU"
        reason = f"it {widens} as it reads them, and is {faster}"
    ranked = [*_planner.candidates(problem, device, dense=False), dense]
    ranked.sort(key=lambda candidate: candidate.seconds)
    return Explanation(chosen.name, tuple(ranked), measured, reason)


def _reason(
    chosen: Candidate, ranked: Sequence[Candidate], measured: dict[str, float], way_out: str
) -> str:
    dense_row = next(c for c in ranked if c.kernel == _planner.DENSE_KERNEL)
    if all(c is dense_row for c in ranked if c.refusal is None):
        return "no sparse kernel takes this product, so a dense matrix is multiplied"
    if chosen.name in measured:
        return f"it measured fastest of {len(measured)} candidates on this GPU"
    if chosen.kernel == _planner.DENSE_KERNEL:
        return "no sparse kernel is predicted to beat the dense product at this size"
    ratio = dense_row.seconds / chosen.seconds
    if ratio >= 1:
        return f"it is predicted fastest, {ratio:.2f} times as fast as the dense product"
    return (
        f"it is predicted at {ratio:.2f} times the speed of the dense product; the dense matrix "
        f"is not kept; {way_out} the dense product run"
    )
