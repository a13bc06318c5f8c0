"""Which kernel multiplies: candidates, their predicted times, and the choice.

A candidate is a kernel, one of its configurations, and what must be copied first
(``staging``).  The fastest prediction wins unless the tuning cache knows a winner
that was measured on this chip.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparse24 import _chip_facts, _dtypes, _staging, _tuning_cache
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._records import Fused, Problem
from sparse24._staging import Variant
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import sparse_tile

SPARSE_KERNELS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_matvec", "sparse_split", "split_mma",
    "sparse_fma",
)  # fmt: skip
DENSE_KERNEL = "dense"
TENSOR_FLOAT_KERNEL = "sparse_wgmma"  # the only one for metadata of 1:2

# The time of the smallest product: a launch, and a few times the latency of memory.
LEAST_SECONDS = 3e-6

MOST_ROWS = {"sparse_wgmma": (1 << 27) - 64}  # 16 bytes of metadata of each in 32 bits
MOST_OF_A_LINE = {"sparse_mma": (1 << 31) - 1}  # bytes of a row of b, which it counts in 32 bits

REMEMBERED = 512  # choices, and prepared kernels, of the latest problems

# The model of this kernel hides a part of reading behind the rest, and so lets it read faster than
# memory can where that is slow.  It reads at about this share of the speed of a copy: 28672 x 8192
# by 1 column at 0.93 of it on an H100, at 1.0 on an H200 (few_tokens.json of both).
READING = {"sparse_wgmma": 0.96}
READING_LAUNCH = 2e-6  # seconds beside it, as in the model of `sparse_skinny`


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
        """As the kernel sees it."""
        return self.variant.problem

    @property
    def copies(self) -> bool:
        """Whether b, or the result, goes through a copy."""
        return self.variant.stage_b or self.variant.stage_out

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.config}" if self.config else self.kernel


def kernel_module(name: str):
    return importlib.import_module(f"sparse24.kernels.{name}")


def candidates(problem: Problem, device: int, *, dense: bool) -> list[Candidate]:
    """All candidates on a device, fastest prediction first, refused ones last."""
    scale = functools.partial(_tuning_cache.scale, device)
    return rank(problem, _chip_facts.facts(device), dense=dense, scale=scale)


def rank(
    problem: Problem, facts: dict[str, float], *, dense: bool, scale: Callable[[str], float]
) -> list[Candidate]:
    """All candidates on a chip of these facts; `scale` corrects a kernel's prediction."""
    names: tuple[str, ...] = (*SPARSE_KERNELS, DENSE_KERNEL) if dense else SPARSE_KERNELS
    if problem.tensor_float:
        names = (TENSOR_FLOAT_KERNEL,)
    found: list[tuple[float, Candidate]] = []  # with predictions without a floor
    for variant in _staging.variants(problem):
        staging = _staging.seconds(variant, problem, facts["bandwidth"])
        for name in names:
            if variant.kernels is not None and name not in variant.kernels:
                continue
            module = kernel_module(name)
            refusal = module.refuses(variant.problem) or _too_long(name, variant.problem)
            if refusal:
                found.append((math.inf, Candidate(name, "", variant, math.inf, refusal)))
                continue
            for config in module.configs(variant.problem):
                running = scale(name) * module.predict(variant.problem, config, facts)
                running = max(running, _reading(name, variant.problem, facts["bandwidth"]))
                running += _staging.reading(name, variant.problem, config, facts["sms"])
                total = staging + max(LEAST_SECONDS, running)
                candidate = Candidate(name, config.name, variant, total, None, config)
                found.append((staging + running, candidate))
    found.sort(key=lambda pair: (pair[1].seconds, pair[0]))
    return [candidate for _, candidate in found]


def _too_long(kernel: str, problem: Problem) -> str | None:
    """Why a kernel cannot take so many rows of A, or columns of b."""
    if problem.m > MOST_ROWS.get(kernel, problem.m):
        return f"it takes up to {MOST_ROWS[kernel]} rows of A"
    line = problem.n * _dtypes.TABLE[problem.b_dtype].itemsize
    if line > MOST_OF_A_LINE.get(kernel, line):
        return "it takes rows of b of less than 2 GiB"
    return None


def _reading(kernel: str, problem: Problem, bandwidth: float) -> float:
    """Seconds that a kernel takes at least, at so many bytes a second of a copy."""
    if kernel not in READING:
        return 0.0
    return READING_LAUNCH + sparse_tile.bytes_moved(problem) / (READING[kernel] * bandwidth)


def choose(problem: Problem, device: int, *, dense: bool, algorithm: str = "auto") -> Candidate:
    """The candidate to run; remembered until the tuning cache learns something.

    Raises
    ------
    UnsupportedError
        If the named kernel refuses; the message says why.
    ArgumentError
        If no kernel has that name.
    """
    return _choose(problem, device, dense, algorithm, _tuning_cache.generation())


@functools.lru_cache(REMEMBERED)
def _choose(
    problem: Problem, device: int, dense: bool, algorithm: str, generation: int
) -> Candidate:
    dense = dense or algorithm.partition("/")[0] == DENSE_KERNEL
    ranked = candidates(problem, device, dense=dense)
    if algorithm == "auto":
        tuned = _tuning_cache.winner(device, problem, dense=dense)
        for candidate in ranked:
            if candidate.name == tuned and candidate.refusal is None:
                return candidate
        return ranked[0]
    named = [c for c in ranked if algorithm in (c.kernel, c.name)]
    if not named:
        raise _unknown(algorithm)
    if named[0].refusal is not None:
        raise UnsupportedError(
            f"{algorithm} cannot multiply this: {named[0].refusal}; algorithm='auto' finds what can"
        )
    return named[0]


def check_name(algorithm: str) -> None:
    """Refuse what no kernel is called; configurations are not looked at."""
    kernel = str(algorithm).partition("/")[0]
    if kernel not in ("auto", *SPARSE_KERNELS, DENSE_KERNEL):
        raise _unknown(algorithm)


def _unknown(algorithm: str) -> ArgumentError:
    return ArgumentError(
        f"algorithm must be 'auto' or one of {', '.join((*SPARSE_KERNELS, DENSE_KERNEL))}, "
        f"optionally with '/config', got {algorithm!r}"
    )


def prepare(candidate: Candidate, epilogue: Fused) -> Callable[..., None]:
    """A callable ``run(a, b, out, epilogue)`` that stages and launches.

    ``a`` is a `Compressed24` with packed metadata, or a dense array for the dense kernel.
    The callable serves every product of these shapes, layouts and parts of an epilogue.
    """
    import cupy

    return _prepare(candidate, _epilogue.skeleton(epilogue), cupy.cuda.runtime.getDevice())


@functools.lru_cache(REMEMBERED)
def _prepare(candidate: Candidate, epilogue: Fused, device: int) -> Callable[..., None]:
    module = kernel_module(candidate.kernel)
    launch = module.prepare(candidate.problem, candidate.settings, epilogue)
    return _staging.staged(launch, candidate.variant) if candidate.copies else launch
