"""`advise`: predict the speed-up of a layer or checkpoint from 2:4, before pruning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparse24 import (
    _arrays,
    _check,
    _chip_facts,
    _dtypes,
    _kernel_corrections,
    _kernel_times,
    _planner,
    _storage,
    _tuning_cache,
)
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError, ShapeError
from sparse24._records import Problem

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Flops a clock and multiprocessor of cuBLAS's own dense products where they are faster than
# the exact dense product of this library: fp8 at 1200 TFLOP/s, int8 at 770 TOP/s (H200).
HOPPER_FLOPS_PER_CLOCK = {"float8_e4m3fn": 5350, "float8_e5m2": 5350, "int8": 3430}
# On other chips tensor cores take 8 bits twice as fast as 16, by NVIDIA's white papers on A100, Ada
# and RTX Blackwell; cuBLAS multiplies fp8 from Ada on (cuBLAS manual, cublasLtMatmul).
EIGHT_BITS, LEAST_OF_FP8 = 2, 89

# In float32 cuBLAS takes as long by 2 to 64 columns as by so many more, up to 64, and these at a
# share of its rate for many (H200).
NARROW, NARROW_MORE, NARROW_SHARE = 64, 24, 0.73

# Below this a dense product is mostly its launch, and no recorded run says how well the model
# does: the shortest one takes some 18 µs.
SHORT_SECONDS = 6e-6
SHORT_NOTE = "~ mostly the launch; measure it: python -m sparse24 bench"


@dataclass(frozen=True)
class Advice:
    """Predicted times of one layer at several token counts; ``str()`` gives a table.

    Attributes
    ----------
    shape : (int, int)
        (m, k) of the weight.
    dtype : str
    chip : str
        The GPU that the model stands for.
    tokens : tuple of int
    dense, sparse : tuple of float
        Predicted seconds of the dense and of the best sparse product.
    kernels : tuple of str
        The best sparse candidate at each token count.
    """

    shape: tuple[int, int]
    dtype: str
    chip: str
    tokens: tuple[int, ...]
    dense: tuple[float, ...]
    sparse: tuple[float, ...]
    kernels: tuple[str, ...]

    @property
    def speedup(self) -> tuple[float, ...]:
        """Dense over sparse time at each token count."""
        return tuple(d / s for d, s in zip(self.dense, self.sparse, strict=True))

    @property
    def ratios(self) -> tuple[str, ...]:
        """The speed-ups as text, with a ``~`` where the dense product is mostly its launch."""
        pairs = zip(self.speedup, self.dense, strict=True)
        return tuple(f"{'~' if d < SHORT_SECONDS else ''}{ratio:.2f}x" for ratio, d in pairs)

    def __str__(self) -> str:
        m, k = self.shape
        lines = [f"{m} x {k}, {self.dtype}, {self.chip}", "tokens   dense µs  sparse µs  speed-up"]
        rows = zip(self.tokens, self.dense, self.sparse, self.ratios, self.kernels, strict=True)
        for n, dense, sparse, ratio, kernel in rows:
            lines.append(f"{n:6} {1e6 * dense:10.1f} {1e6 * sparse:10.1f} {ratio:>9}  {kernel}")
        return "\n".join(lines + ([SHORT_NOTE] if min(self.dense) < SHORT_SECONDS else []))


def advise(shape, tokens: int | Sequence[int] = TOKENS, dtype="bfloat16") -> Advice:
    """Estimate what 2:4 would gain for a linear layer, before anything is pruned.

    Parameters
    ----------
    shape : (int, int)
        (m, k): output and input features of the weight.
    tokens : int or sequence of int
        Columns of the dense operand.
    dtype : dtype, default bfloat16
        Element type of the product.

    Returns
    -------
    Advice
        Predicted dense and sparse times and their ratio.  On a GPU from its own cost model
        (see `sparse24.tuning.calibrate`), elsewhere from that of an H200.

    Raises
    ------
    ShapeError
        If `shape` is not a pair of positive sizes.
    ArgumentError
        If a token count is not a positive integer, or more than a kernel takes.
    DTypeError
        If the element type is not one of sparse24's.
    UnsupportedError
        If the matrix has more rows or columns than kernels count.

    Notes
    -----
    The times are predicted, not measured; the page "When does 2:4 pay?" compares predictions
    with the recorded runs.  Does not synchronise.

    Examples
    --------
    >>> import sparse24 as s24
    >>> advice = s24.advise((14336, 4096), tokens=(1, 4096))
    >>> [ratio > 1 for ratio in advice.speedup]
    [True, True]
    """
    _refuse_matrix(shape)
    m, k = _check.sizes(shape, argument="shape", count=2, least=1)
    _storage.refuse_long((m, k))
    return estimate((m, k), _counts(tokens), _dtypes.lookup(dtype), _chip())


def _refuse_matrix(shape: Any) -> None:
    """Refuse a weight, or a layer, in place of the shape that it has."""
    for of_weight, x in ((" ", shape), (" .weight", getattr(shape, "weight", None))):
        if not isinstance(x, type) and len(getattr(x, "shape", ())) == 2:
            raise ShapeError(
                f"shape must be (m, k), got {_check.shown(shape)}; pass its{of_weight}.shape"
            )


def estimate(shape: tuple[int, int], counts: tuple[int, ...], dtype: DType, chip: Chip) -> Advice:
    """The advice for a shape, token counts and type, by the model of a chip."""
    (m, k), (name, facts, capability, scale) = shape, chip
    dense, sparse, kernels = [], [], []
    for n in counts:
        problem = _problem(m, k, n, dtype, capability)
        best = _planner.fastest_able(problem, facts, dense=False, scale=scale)
        seconds = scale("dense") * _dense_seconds(problem, facts)
        dense.append(max(_kernel_times.LEAST_SECONDS, seconds))
        sparse.append(best.seconds)
        kernels.append(best.name)
    return Advice((m, k), dtype.name, name, counts, tuple(dense), tuple(sparse), tuple(kernels))


def _problem(m: int, k: int, n: int, dtype: DType, capability: int) -> Problem:
    """The problem of ``x @ A.T`` with new arrays, whose rows are columns here."""
    lines_of_b, lines_of_out = k * dtype.itemsize, m * _dtypes.numpy_dtype(dtype.result).itemsize
    b_aligned = lines_of_b % _arrays.VECTOR == 0
    out_aligned = n == 1 or lines_of_out % _arrays.VECTOR == 0
    return Problem(
        m, n, k, 1, dtype.name, dtype.name, dtype.result, b_order="column", out_order="column",
        aligned=b_aligned and out_aligned, b_aligned=b_aligned, out_aligned=out_aligned,
        out_spills=n == 1 and lines_of_out % _arrays.VECTOR != 0,
        b_in_lines=n == 1 or lines_of_b % _arrays.LINE == 0, compute_capability=capability,
    )  # fmt: skip


def _dense_seconds(problem: Problem, facts: dict[str, float]) -> float:
    """What cuBLAS takes for the dense product."""
    from sparse24.kernels import dense

    if problem.dtype == "float32" and 1 < problem.n <= NARROW:
        wider = dataclasses.replace(problem, n=min(problem.n + NARROW_MORE, NARROW))
        return dense.predict(wider, dense.Config(), facts) / NARROW_SHARE
    flops_per_clock = _eight_bit_flops(problem)
    if flops_per_clock is None:
        predicted = dense.predict(problem, dense.Config(), facts)
        return max(predicted, _kernel_corrections.walking(problem, facts))
    flops = 2.0 * problem.m * problem.n * problem.k
    rate = flops_per_clock * facts["sms"] * facts["clock_hz"]
    moved = problem.m * problem.k + problem.k * problem.n + 2 * problem.m * problem.n
    moving = moved / (dense.BANDWIDTH_SHARE * facts["bandwidth"])
    return dense.LAUNCH + max(flops / rate, moving)


def _eight_bit_flops(problem: Problem) -> float | None:
    """Flops of cuBLAS a clock and multiprocessor; None where it has no product of these 8 bits."""
    from sparse24.kernels import chip_rates

    dtype, capability = problem.dtype, problem.compute_capability
    if dtype not in HOPPER_FLOPS_PER_CLOCK or (dtype != "int8" and capability < LEAST_OF_FP8):
        return None
    if capability == 90:
        return HOPPER_FLOPS_PER_CLOCK[dtype]
    return EIGHT_BITS * 2 * chip_rates.dense_bfloat16(capability)


def _counts(tokens) -> tuple[int, ...]:
    try:
        listed = tokens if hasattr(tokens, "__iter__") else (tokens,)
        counts = tuple(_check.integer(n) for n in listed)
    except TypeError:
        counts = ()
    if min(counts, default=0) < 1:
        raise ArgumentError(f"tokens must be positive whole numbers, got {_check.shown(tokens)}")
    if max(counts) > _storage.MOST_OF_AN_AXIS:
        raise ArgumentError(
            f"tokens must be at most {_storage.MOST_OF_AN_AXIS}, as kernels take no more columns "
            f"in one product, got {max(counts)}"
        )
    return counts


class Chip(NamedTuple):
    """The GPU that a prediction is for."""

    name: str
    facts: dict[str, float]  # of its cost model
    capability: int
    scale: Callable[[str], float]  # of the predictions of a kernel


def h200() -> Chip:
    """An H200, known without having one."""
    scale = lambda kernel: _tuning_cache.SCALES.get(kernel, 1.0)  # noqa: E731
    return Chip("model of an H200", _chip_facts.H200, 90, scale)


def _chip() -> Chip:
    """The current GPU, or an H200 where there is none."""
    if not _arrays.cuda_available():
        return h200()
    device = _arrays.cupy_module().cuda.Device()
    name = _tuning_cache.gpu_name(device.id)
    scale = lambda kernel: _tuning_cache.scale(device.id, kernel)  # noqa: E731
    return Chip(name, _chip_facts.facts(device.id), int(device.compute_capability), scale)
