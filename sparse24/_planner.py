"""Which kernel multiplies: candidates, their predicted times, and the choice.

A candidate is a kernel, one of its configurations, and what must be copied first
(`_staging`).  The fastest prediction wins unless the tuning cache knows a winner
that was measured on this chip.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sparse24 import _chip_facts, _dtypes, _staging, _tuning_cache
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._kernel_times import ASKS_FOR_TILES, KernelTimes, Scale, Times, kernel_module
from sparse24._records import Fused, Problem
from sparse24._staging import Variant
from sparse24._storage import MOST_OF_AN_AXIS
from sparse24.kernels import epilogue as _epilogue

SPARSE_KERNELS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_decode", "sparse_mixed", "sparse_matvec",
    "split_skinny", "sparse_split", "split_mma", "sparse_fma",
)  # fmt: skip
DENSE_KERNEL = "dense"
QUANTISED_KERNELS = ("sparse_quantised", "sparse_mixed")  # those for quantised matrices
KERNELS = tuple(dict.fromkeys((*SPARSE_KERNELS, *QUANTISED_KERNELS)))
TENSOR_FLOAT_KERNEL = "sparse_wgmma"  # the only one for metadata of 1:2

# Rows of A, whose metadata, 16 bytes a row, these kernels address in 32 bits.
MOST_ROWS = dict.fromkeys(
    ("sparse_wgmma", "sparse_split", "sparse_decode", "sparse_mixed"), (1 << 27) - 64
)
MOST_OF_A_LINE = {"sparse_mma": (1 << 31) - 1}  # bytes of a row of b, which it counts in 32 bits
# Columns of A, whose offsets they count in bytes, also from row to row of bricks, or, of the pieces
# of float32, in elements;
# `sparse_matvec` goes a few steps beyond the last ones.
MOST_COLUMNS = {
    "sparse_skinny": 1 << 29, "sparse_decode": 1 << 29, "sparse_mma": 1 << 29,
    "grouped_mma": 1 << 29, "sparse_split": 1 << 27, "split_mma": 1 << 27, "sparse_mixed": 1 << 27,
    "grouped_mixed": 1 << 27,
    "split_skinny": 1 << 30, "sparse_matvec": (1 << 31) - (1 << 16),
}  # fmt: skip

REMEMBERED = 4096  # choices of the latest problems: of a few layers by all their numbers of tokens
PREPARED = 512  # kernels of the latest ones

Found = tuple[KernelTimes, Any]  # a kernel, and one of its configurations


@dataclass(frozen=True)
class Candidate:
    """One way to compute a product.

    Attributes
    ----------
    kernel, config : str
        Names, as `algorithm` takes them: ``"kernel"`` or ``"kernel/config"``.
    variant : Variant
        The problem that the kernel sees, and what is copied for that.
    seconds : float
        Predicted time, copies included; ``inf`` if the kernel refuses.
    refusal : str or None
        Why it cannot run.
    """

    kernel: str
    config: str
    variant: Variant
    seconds: float
    refusal: str | None = None
    settings: Any = None

    @property
    def problem(self) -> Problem:
        """The problem as the kernel sees it, after the copies of the variant."""
        return self.variant.problem

    @property
    def copies(self) -> bool:
        """Whether b, or the result, goes through a copy."""
        return self.variant.stage_b or self.variant.stage_out

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.config}" if self.config else self.kernel


def candidates(problem: Problem, device: int, *, dense: bool) -> list[Candidate]:
    """All candidates on a device, fastest prediction first, refused ones last."""
    scale = functools.partial(_tuning_cache.scale, device)
    return rank(problem, _chip_facts.facts(device), dense=dense, scale=scale)


def rank(
    problem: Problem, facts: dict[str, float], *, dense: bool, scale: Scale
) -> list[Candidate]:
    """All candidates on a chip of these facts; `scale` corrects a kernel's prediction."""
    found: list[tuple[Times, Candidate]] = []
    refused: list[Candidate] = []
    for name, variant in _pairs(problem, dense=dense):
        refusal = _refusal(name, variant.problem)
        if refusal:
            refused.append(Candidate(name, "", variant, math.inf, refusal))
            continue
        kernel = KernelTimes(name, variant, problem, facts, scale)
        for config in kernel_module(name).configs(variant.problem):
            times = kernel.times(config)
            found.append((times, Candidate(name, config.name, variant, times[0], None, config)))
    found.sort(key=lambda pair: pair[0])
    return [candidate for _, candidate in found] + refused


def fastest(problem: Problem, facts: dict[str, float], *, dense: bool, scale: Scale) -> Candidate:
    """The first of `rank`, found at a fraction of its cost, as every product of new sizes waits.

    Kernels and configurations are tried in the order of a lower bound of their time.  The search
    ends where the next bound exceeds the best time so far.
    """
    kernels = [
        KernelTimes(name, variant, problem, facts, scale)
        for name, variant in _pairs(problem, dense=dense)
        if not _refusal(name, variant.problem)
    ]
    best, found = (math.inf, math.inf), list[Found]()
    for kernel in sorted((k for k in kernels if k.bounds), key=lambda k: k.least(k.bounds[0][0])):
        for bound, config in kernel.configs():
            if kernel.least(bound) > best[0]:
                break
            times = kernel.times(config)
            if times < best:
                best, found = times, []
            if times == best:
                found.append((kernel, config))
    if not found:
        return rank(problem, facts, dense=dense, scale=scale)[0]
    kernel, config = found[0] if len(found) == 1 else _first(found, kernels)
    return Candidate(kernel.name, config.name, kernel.variant, best[0], None, config)


def fastest_able(
    problem: Problem, facts: dict[str, float], *, dense: bool, scale: Scale
) -> Candidate:
    """As `fastest`, and the dense product if every sparse kernel refuses."""
    choice = fastest(problem, facts, dense=dense, scale=scale)
    if choice.refusal is None:
        return choice
    return fastest(problem, facts, dense=True, scale=scale)


def _first(found: list[Found], kernels: list[KernelTimes]) -> Found:
    """The kernel and configuration that `rank` puts first, among some that take equally long."""
    kernel = min((kernel for kernel, _ in found), key=kernels.index)
    able = [config for other, config in found if other is kernel]
    if len(able) > 1 and kernel.name not in ASKS_FOR_TILES:  # those are in order
        in_order = kernel_module(kernel.name).configs(kernel.variant.problem)
        return kernel, next(config for config in in_order if config in able)
    return kernel, able[0]


def _pairs(problem: Problem, *, dense: bool) -> Iterator[tuple[str, Variant]]:
    """Every kernel with every form of the problem that it may take."""
    names: tuple[str, ...] = (*SPARSE_KERNELS, DENSE_KERNEL) if dense else SPARSE_KERNELS
    if problem.quantised:
        names = QUANTISED_KERNELS
    if problem.tensor_float:
        names = (TENSOR_FLOAT_KERNEL,)
    for variant in _staging.variants(problem):
        for name in names:
            if variant.kernels is None or name in variant.kernels:
                yield name, variant


def _refusal(name: str, problem: Problem) -> str | None:
    return kernel_module(name).refuses(problem) or too_long(name, problem)


def too_long(kernel: str, problem: Problem) -> str | None:
    """Why a kernel cannot take as many rows or columns of A, or columns of b; None if it can."""
    if problem.m > MOST_ROWS.get(kernel, problem.m):
        return f"it takes up to {MOST_ROWS[kernel]} rows of A"
    if problem.k > MOST_COLUMNS.get(kernel, problem.k):
        return f"it takes up to {MOST_COLUMNS[kernel]} columns of A"
    if problem.n > MOST_OF_AN_AXIS:
        return f"it takes up to {MOST_OF_AN_AXIS} columns of b"
    line = problem.n * _dtypes.TABLE[problem.b_dtype].itemsize
    if line > MOST_OF_A_LINE.get(kernel, line):
        return "it takes rows of b of less than 2 GiB"
    return None


def choose(problem: Problem, device: int, *, dense: bool, algorithm: str = "auto") -> Candidate:
    """The candidate to run; remembered until the tuning cache learns something.

    Raises
    ------
    UnsupportedError
        If the named kernel refuses; the message says why.
    ArgumentError
        If no kernel has that name.
    """
    if not isinstance(algorithm, str):
        raise _unknown(algorithm)
    return _choose(problem, device, dense, algorithm, _tuning_cache.generation())


@functools.lru_cache(REMEMBERED)
def _choose(
    problem: Problem, device: int, dense: bool, algorithm: str, generation: int
) -> Candidate:
    dense = dense or algorithm.partition("/")[0] == DENSE_KERNEL
    if algorithm == "auto":
        return _automatic(problem, device, dense)
    ranked = candidates(problem, device, dense=dense)
    named = [c for c in ranked if algorithm in (c.kernel, c.name)]
    if not named:
        raise _unknown(algorithm)
    if named[0].refusal is not None:
        raise UnsupportedError(
            f"{algorithm} cannot multiply this: {named[0].refusal}; algorithm='auto' finds what can"
        )
    return named[0]


def _automatic(problem: Problem, device: int, dense: bool) -> Candidate:
    """What was measured fastest, or else what is predicted so."""
    tuned = _tuning_cache.winner(device, problem, dense=dense)
    if tuned is not None:
        for candidate in candidates(problem, device, dense=dense):
            if candidate.name == tuned and candidate.refusal is None:
                return candidate
    scale = functools.partial(_tuning_cache.scale, device)
    return fastest_able(problem, _chip_facts.facts(device), dense=dense, scale=scale)


def check_name(algorithm: str) -> None:
    """Refuse what no kernel is called; configurations are not looked at."""
    kernel = str(algorithm).partition("/")[0]
    if kernel not in ("auto", *KERNELS, DENSE_KERNEL):
        raise _unknown(algorithm)


def _unknown(algorithm: str) -> ArgumentError:
    known = (*KERNELS, DENSE_KERNEL)
    return ArgumentError(
        f"algorithm must be 'auto' or one of {', '.join(known)}, "
        f"optionally with '/config', got {algorithm!r}"
    )


def prepare(candidate: Candidate, epilogue: Fused) -> Callable[..., None]:
    """A callable ``run(a, b, out, epilogue)`` that stages and launches.

    ``a`` is a `Compressed24` with packed metadata, or a dense array for the dense kernel.
    The callable serves every product of these shapes, layouts and parts of an epilogue.
    """
    import cupy

    return _prepare(candidate, _epilogue.skeleton(epilogue), cupy.cuda.runtime.getDevice())


def prepare_all(candidates: Iterable[Candidate], epilogue: Fused) -> list[Callable[..., None]]:
    """What `prepare` gives of each; their kernels are compiled side by side.

    In threads, as NVRTC compiles without Python's lock: a kernel takes a second or two, and a
    product has dozens of candidates.
    """
    import cupy

    device, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()

    def prepare_here(candidate: Candidate) -> Callable[..., None]:
        with device, stream:
            return prepare(candidate, epilogue)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(prepare_here, candidates))


@functools.lru_cache(PREPARED)
def _prepare(candidate: Candidate, epilogue: Fused, device: int) -> Callable[..., None]:
    module = kernel_module(candidate.kernel)
    launch = module.prepare(candidate.problem, candidate.settings, epilogue)
    return _staging.staged(launch, candidate.variant) if candidate.copies else launch
