"""Which kernel multiplies: candidates, their predicted times, and the choice.

A candidate is a kernel, one of its configurations, and what must be copied first
(``staging``).  The fastest prediction wins unless the tuning cache knows a winner
that was measured on this chip.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparse24 import _dtypes, _tuning_cache
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._records import Compressed24, Fused, Problem
from sparse24.kernels import epilogue as _epilogue

SPARSE_KERNELS = (
    "sparse_wgmma", "sparse_mma", "sparse_skinny", "sparse_matvec", "sparse_split", "sparse_fma"
)  # fmt: skip
DENSE_KERNEL = "dense"
TENSOR_FLOAT_KERNEL = "sparse_wgmma"  # the one that reads the metadata of 1:2

# A strided copy of an operand moves its bytes twice at about this share of copy speed
# (an elementwise kernel with one side uncoalesced; measured on an H200); `transpose` at this one.
STAGING_EFFICIENCY = 0.25
TRANSPOSE_EFFICIENCY = 0.7
STAGING_LAUNCH = 4e-6  # seconds

# What any product takes, however small: a launch, and memory's latency a few times over.
LEAST_SECONDS = 3e-6

REMEMBERED = 512  # choices, and prepared kernels, of the latest problems

# Copy bandwidth where none was measured: bytes a second and multiprocessor of an H200.
DEFAULT_BANDWIDTH_PER_SM = 4.2e12 / 132


@dataclass(frozen=True)
class Candidate:
    """One way to compute a product.

    Attributes
    ----------
    kernel, config : str
        Names, as `algorithm` takes them: ``"kernel"`` or ``"kernel/config"``.
    problem : Problem
        The problem that the kernel sees, after staging.
    seconds : float
        Predicted time, staging included; ``inf`` if the kernel refuses.
    refusal : str or None
        Why it cannot run.
    stage_b, stage_out : bool
        Whether b, or the result, goes through a copy.
    """

    kernel: str
    config: str
    problem: Problem
    seconds: float
    refusal: str | None = None
    stage_b: bool = False
    stage_out: bool = False
    settings: Any = None

    @property
    def name(self) -> str:
        return f"{self.kernel}/{self.config}" if self.config else self.kernel


def kernel_module(name: str):
    return importlib.import_module(f"sparse24.kernels.{name}")


def chip(device: int) -> dict[str, float]:
    """Multiprocessors, clock in Hz and copy bandwidth in bytes a second of a device."""
    sms, clock = _sms_and_clock(device)
    measured = _tuning_cache.bandwidth(device)
    return {
        "sms": sms,
        "clock_hz": clock,
        "bandwidth": measured or DEFAULT_BANDWIDTH_PER_SM * sms,
    }


@functools.cache
def _sms_and_clock(device: int) -> tuple[int, float]:
    import cupy

    attributes = cupy.cuda.Device(device).attributes
    return attributes["MultiProcessorCount"], 1e3 * attributes["ClockRate"]


def _variants(problem: Problem) -> list[tuple[Problem, bool, bool, float]]:
    """The problem as it is, and with operands copied: (problem, stage b, stage out, bytes)."""
    size = _dtypes.TABLE[problem.b_dtype].itemsize
    b_bytes = problem.k * problem.n * size * (problem.batch if problem.b_batched else 1)
    out_size = _dtypes.numpy_dtype(problem.out_dtype).itemsize
    out_bytes = problem.m * problem.n * problem.batch * out_size
    found = [(problem, False, False, 0.0)]
    needs_b = not problem.aligned or problem.b_order == "strided" or size == 1
    needs_b = needs_b or problem.tensor_float
    if (needs_b and problem.b_order != "column") or not problem.aligned:
        staged = dataclasses.replace(problem, b_order="column", aligned=True)
        stage_out = not problem.aligned or problem.out_order == "strided"
        if stage_out:
            order = problem.out_order if problem.out_order != "strided" else "row"
            staged = dataclasses.replace(staged, out_order=order)
        found.append((staged, True, stage_out, b_bytes + stage_out * out_bytes))
    elif problem.out_order == "strided":
        staged = dataclasses.replace(problem, out_order="row")
        found.append((staged, False, True, out_bytes))
    return found


def candidates(problem: Problem, device: int, *, dense: bool) -> list[Candidate]:
    """All candidates on a device, fastest prediction first, refused ones last."""
    scale = functools.partial(_tuning_cache.scale, device)
    return rank(problem, chip(device), dense=dense, scale=scale)


def rank(
    problem: Problem, facts: dict[str, float], *, dense: bool, scale: Callable[[str], float]
) -> list[Candidate]:
    """All candidates on a chip of these facts; `scale` corrects a kernel's prediction."""
    names: tuple[str, ...] = (*SPARSE_KERNELS, DENSE_KERNEL) if dense else SPARSE_KERNELS
    if problem.tensor_float:
        names = (TENSOR_FLOAT_KERNEL,)
    found: list[tuple[float, Candidate]] = []  # beside the prediction without a floor
    for variant, stage_b, stage_out, moved in _variants(problem):
        turned = problem.b_order == "row" and stage_b and not stage_out
        share = TRANSPOSE_EFFICIENCY if turned else STAGING_EFFICIENCY
        staging = moved * 2 / (share * facts["bandwidth"])
        staging += STAGING_LAUNCH * (stage_b + stage_out)
        for name in names:
            module = kernel_module(name)
            refusal = module.refuses(variant)
            if refusal:
                refused = Candidate(name, "", variant, math.inf, refusal, stage_b, stage_out)
                found.append((math.inf, refused))
                continue
            for config in module.configs(variant):
                running = scale(name) * module.predict(variant, config, facts)
                seconds = staging + max(LEAST_SECONDS, running)
                candidate = Candidate(
                    name, config.name, variant, seconds, None, stage_b, stage_out, config
                )
                found.append((staging + running, candidate))
    found.sort(key=lambda pair: (pair[1].seconds, pair[0]))
    return [candidate for _, candidate in found]


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
    ranked = candidates(problem, device, dense=dense or algorithm == DENSE_KERNEL)
    if algorithm == "auto":
        tuned = _tuning_cache.winner(device, problem, dense=dense)
        for candidate in ranked:
            if candidate.name == tuned and candidate.refusal is None:
                return candidate
        return ranked[0]
    named = [c for c in ranked if algorithm in (c.kernel, c.name)]
    if not named:
        raise ArgumentError(
            f"algorithm must be 'auto' or one of {', '.join((*SPARSE_KERNELS, DENSE_KERNEL))}, "
            f"optionally with '/config', got {algorithm!r}"
        )
    if named[0].refusal is not None:
        raise UnsupportedError(f"{algorithm} cannot multiply this: {named[0].refusal}")
    return named[0]


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
    if not (candidate.stage_b or candidate.stage_out):
        return launch

    def staged(a: Compressed24 | Any, b, out, epilogue: Fused) -> None:
        inner_b = _aligned_column_order(b) if candidate.stage_b else b
        inner_out = out
        if candidate.stage_out:
            inner_out = _aligned_like(out, candidate.problem.out_order)
        launch(a, inner_b, inner_out, epilogue)
        if candidate.stage_out:
            out[...] = inner_out

    return staged


def _aligned_column_order(b):
    """A copy of b (..., k, n) whose columns are contiguous and 16-byte aligned."""
    from sparse24 import _arrays
    from sparse24.kernels import transpose

    if transpose.takes(b):
        return transpose.launch(b)
    xp = _arrays.namespace(b)
    turned = b.swapaxes(-1, -2)
    copy = _arrays.empty_rows(xp, turned.shape, b.dtype)
    copy[...] = turned
    return copy.swapaxes(-1, -2)


def _aligned_like(out, order: str):
    """Scratch of the shape of `out`, in the given order, rows 16-byte aligned."""
    from sparse24 import _arrays

    xp = _arrays.namespace(out)
    if order == "column":
        turned = _arrays.empty_rows(xp, out.swapaxes(-1, -2).shape, out.dtype)
        return turned.swapaxes(-1, -2)
    return _arrays.empty_rows(xp, out.shape, out.dtype)
