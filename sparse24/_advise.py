"""`advise`: is 2:4 worth it for this layer, before anyone prunes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparse24 import _arrays, _dtypes, _planner
from sparse24._errors import ArgumentError, ShapeError
from sparse24._records import Problem

TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)

# Flops a clock and multiprocessor of cuBLAS's own dense products where they are faster than
# the exact dense product of this library: fp8 at 1200 TFLOP/s, int8 at 770 TOP/s (H200).
CUBLAS_FLOPS_PER_CLOCK = {"float8_e4m3fn": 5350, "float8_e5m2": 5350, "int8": 3430}

# An H200 at its sustained clock, where no GPU is there to ask (docs/benchmarks).
H200 = {"sms": 132.0, "clock_hz": 1.7e9, "bandwidth": 4.2e12}


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

    def __str__(self) -> str:
        m, k = self.shape
        lines = [f"{m} x {k}, {self.dtype}, {self.chip}", "tokens   dense µs  sparse µs  speed-up"]
        rows = zip(self.tokens, self.dense, self.sparse, self.speedup, self.kernels, strict=True)
        for n, dense, sparse, ratio, kernel in rows:
            lines.append(f"{n:6} {1e6 * dense:10.1f} {1e6 * sparse:10.1f} {ratio:8.2f}x  {kernel}")
        return "\n".join(lines)


def advise(shape, tokens: int | Sequence[int] = TOKENS, dtype="bfloat16") -> Advice:
    """Estimate what 2:4 would gain for a linear layer, before anything is pruned.

    Parameters
    ----------
    shape : (int, int)
        (m, k): output and input features of the weight.
    tokens : int or sequence of int
        Columns of the dense operand.
    dtype : dtype, default bfloat16

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
        If a token count is not positive.

    Notes
    -----
    The predictions are of the model, not measured; ``docs/benchmarks`` says how far they
    are off.  Does not synchronise.

    Examples
    --------
    >>> import sparse24 as s24
    >>> advice = s24.advise((14336, 4096), tokens=(1, 4096))
    >>> [ratio > 1 for ratio in advice.speedup]
    [True, True]
    """
    m, k = _pair(shape)
    row = _dtypes.lookup(dtype)
    counts = (tokens,) if isinstance(tokens, int) else tuple(int(n) for n in tokens)
    if min(counts, default=0) < 1:
        raise ArgumentError(f"tokens must be positive whole numbers, got {tokens!r}")
    chip, facts, capability, scale = _chip()
    dense, sparse, kernels = [], [], []
    for n in counts:
        problem = Problem(
            m, n, k, 1, row.name, row.name, row.result, b_order="column", out_order="column",
            compute_capability=capability,
        )  # fmt: skip
        best = _planner.rank(problem, facts, dense=False, scale=scale)[0]
        dense.append(max(_planner.LEAST_SECONDS, scale("dense") * _dense_seconds(problem, facts)))
        sparse.append(best.seconds)
        kernels.append(best.name)
    return Advice((m, k), row.name, chip, counts, tuple(dense), tuple(sparse), tuple(kernels))


def _dense_seconds(problem: Problem, facts: dict[str, float]) -> float:
    """What cuBLAS takes for the dense product."""
    from sparse24.kernels import dense

    if problem.dtype not in CUBLAS_FLOPS_PER_CLOCK:
        return dense.predict(problem, dense.Config(), facts)
    flops = 2.0 * problem.m * problem.n * problem.k
    rate = CUBLAS_FLOPS_PER_CLOCK[problem.dtype] * facts["sms"] * facts["clock_hz"]
    moved = problem.m * problem.k + problem.k * problem.n + 2 * problem.m * problem.n
    moving = moved / (dense.BANDWIDTH_SHARE * facts["bandwidth"])
    return dense.LAUNCH + max(flops / rate, moving)


def _pair(shape) -> tuple[int, int]:
    sizes = tuple(int(size) for size in shape)
    if len(sizes) != 2 or min(sizes) < 1:
        raise ShapeError(f"shape must be (output features, input features), got {shape!r}")
    return sizes  # type: ignore[return-value]


def _chip():
    """Name, cost model facts, compute capability and kernel scales of the GPU to speak of."""
    from sparse24 import _tuning_cache

    if not _arrays.cuda_available():
        scale = lambda kernel: _tuning_cache.SCALES.get(kernel, 1.0)  # noqa: E731
        return "model of an H200", H200, 90, scale
    device = _arrays.cupy_module().cuda.Device()
    name = _tuning_cache._gpu_name(device.id)
    scale = lambda kernel: _tuning_cache.scale(device.id, kernel)  # noqa: E731
    return name, _planner.chip(device.id), int(device.compute_capability), scale
