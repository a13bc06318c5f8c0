"""Dense products by cuBLAS: the rival that the planner may choose, and the fallback.

16-bit floats accumulate in float32.  fp8 operands are widened to float16, which holds
every value of both fp8 types exactly; int8 sums in int32 (`dense_int8`).  Neither is as fast as it
could be: a dense 8-bit product is only taken where no sparse kernel can run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._records import Fused, Problem
from sparse24.kernels import chip_rates, cublas, dense_int8, loader
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import current_stream

NAME = "dense"
EPILOGUE_STEM = "apply_epilogue"
THREADS = 256
MAX_BLOCKS = 8192

FLOATS = ("float16", "bfloat16", "float32", "float64")  # which cuBLAS multiplies as they lie

# Rates of a multiprocessor of an H200, for predictions; those of 16 bits are known for every chip.
FLOPS_PER_CLOCK = {"float32": 200, "float64": 200}
# The exact but slow ways of fp8 and int8.
SLOW_FLOPS_PER_CLOCK = {"float8_e4m3fn": 800, "float8_e5m2": 800, "int8": 20}
LAUNCH = 3e-6  # seconds
BANDWIDTH_SHARE = 1.02  # of copy speed, for weights read once

COMPILE_CHECKS = [
    (
        (("ACCUMULATOR", acc), ("OUTPUT", out), ("EPILOGUE", 511), ("ACTIVATION", 3)),
        arch,
        None,
    )
    for acc, out in (("float32", "bfloat16"), ("int32", "int8"), ("float64", "float64"))
    for arch in ("sm_80", "sm_90a", "sm_120")
]


@dataclass(frozen=True)
class Config:
    """cuBLAS chooses for itself."""

    name: str = "cublas"


def refuses(problem: Problem) -> str | None:
    """None: cuBLAS takes every problem."""
    return None


def configs(problem: Problem) -> list[Config]:
    """The only candidate."""
    return [Config()]


def predict(problem: Problem, config: Config, chip: dict) -> float:
    """Seconds: arithmetic and bytes, each at a measured share of its peak.

    Where both take about as long they hinder each other: the cubic mean of timings on an
    H200 with 1 to 256 columns.
    """
    flops = 2.0 * problem.m * problem.n * problem.k * problem.batch
    rate = _flops_per_clock(problem) * chip["sms"] * chip["clock_hz"]
    size = _dtypes.TABLE[problem.dtype].itemsize
    moved = problem.m * problem.k * (problem.batch if problem.a_batched else 1)
    moved += problem.k * problem.n * (problem.batch if problem.b_batched else 1)
    moved += problem.m * problem.n * problem.batch
    reading = moved * size / (BANDWIDTH_SHARE * chip["bandwidth"])
    return LAUNCH + ((flops / rate) ** 3 + reading**3) ** (1 / 3)


def _flops_per_clock(problem: Problem) -> float:
    capability = problem.compute_capability
    if problem.dtype in ("float16", "bfloat16"):
        return 2 * chip_rates.dense_bfloat16(capability)
    rate: float = (FLOPS_PER_CLOCK | SLOW_FLOPS_PER_CLOCK)[problem.dtype]
    if problem.dtype == "float32":
        rate *= chip_rates.fp32(capability) / chip_rates.fp32(90)
    return rate


def prepare(
    problem: Problem, config: Config, epilogue: Fused
) -> Callable[[Any, Any, Any, Fused], None]:
    """The callable multiplies a dense (m, k) or (batch, m, k) array by b."""
    direct = problem.plain and problem.out_dtype == problem.dtype and problem.dtype in FLOATS
    sums = problem.plain and problem.dtype == "int8" and problem.out_dtype == "int32"

    def launch(a, b, out, epilogue: Fused) -> None:
        if direct and _leading(out) is not None:
            _gemm(a, b, out, problem)
            return
        made = _accumulators(a, b, problem, out if sums else None)
        if made is not out:
            apply_epilogue(made, out, problem.out_dtype, epilogue)

    return launch


def _accumulators(a, b, problem: Problem, out):
    """The product in the accumulator's type, row-major (batch, m, n), or `out` if it is that."""
    import cupy as cp

    if problem.dtype == "int8":
        return dense_int8.accumulators(a, b, out)
    if problem.dtype not in FLOATS:
        a, b = _widen(a, problem.dtype), _widen(b, problem.b_dtype)
    shape = (problem.batch, problem.m, problem.n)
    acc = cp.empty(shape, _dtypes.TABLE[problem.dtype].accumulator)
    _gemm(a, b, acc, problem)
    return acc


def _widen(x, name: str):
    """fp8 bits to float16, exactly, rows contiguous."""
    import cupy as cp

    from sparse24.kernels import cast

    return cast.launch(cp.ascontiguousarray(x), _dtypes.TABLE[name], _dtypes.TABLE["float16"])


def _leading(x) -> tuple[bool, int] | None:
    """(stored by columns, leading dimension) as BLAS sees a matrix, or a stack of them.

    None if neither axis is contiguous, the other's stride is too long for cuBLAS, or the stack runs
    backwards: cuBLAS takes a negative stride of a batch, and then reads and writes elsewhere.
    """
    if x.ndim == 3 and x.shape[0] > 1 and x.strides[0] < 0:
        return None
    row, column = (stride // x.dtype.itemsize for stride in x.strides[-2:])
    rows, columns = x.shape[-2:]
    most = cublas.MOST_APART
    if (column == 1 or columns == 1) and (columns <= row <= most or rows == 1):
        return False, max(row if rows > 1 else columns, 1)
    if (row == 1 or rows == 1) and (rows <= column <= most or columns == 1):
        return True, max(column if columns > 1 else rows, 1)
    return None


def _gemm(a, b, out, problem: Problem) -> None:
    """``out = a @ b`` on CuPy's current stream."""
    import cupy as cp

    if out.size == 0:
        return
    if problem.k == 0:
        out[...] = 0
        return
    a = a if _leading(a) is not None else cp.ascontiguousarray(a)
    b = b if _leading(b) is not None else cp.ascontiguousarray(b)
    Gemm(a, b, out, problem)(current_stream())


class Gemm:
    """``out = a @ b`` through cublasGemmStridedBatchedEx, its arguments laid out beforehand.

    Of the operands it keeps addresses alone; each has rows or columns that are contiguous.
    """

    __slots__ = ("_arguments",)

    def __init__(self, a, b, out, problem: Problem):
        by_columns, ld_out = _leading(out)  # type: ignore[misc]
        # BLAS writes by columns; a result stored by rows is the transposed product.
        left, right = (a, b) if by_columns else (b, a)
        m, n = out.shape[-2:] if by_columns else out.shape[-2:][::-1]
        (ta, *of_left), (tb, *of_right) = (_factor(x, by_columns) for x in (left, right))
        double = _name(out) == "float64"
        scalars = _SCALARS[double]
        alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
        out_stride = out.strides[0] // out.dtype.itemsize if out.ndim == 3 else 0
        self._arguments = (
            ta, tb, m, n, problem.k, alpha, *of_left, *of_right, beta, out.data.ptr,
            cublas.DATA_TYPE[_name(out)], ld_out, out_stride, problem.batch,
            cublas.COMPUTE_64F if double else cublas.COMPUTE_32F, cublas.GEMM_DEFAULT,
        )  # fmt: skip

    def __call__(self, stream: int) -> None:
        """Enqueue on the stream of this address, without waiting."""
        if stream != current_stream():
            with _arrays.cupy_stream(stream):
                self(stream)
            return
        launch, handle = cublas.gemm()
        launch(handle(), *self._arguments)


_SCALARS = tuple(np.array([1, 0], kind) for kind in (np.float32, np.float64))


def _factor(x, by_columns: bool) -> tuple[int, int, int, int, int]:
    """Whether it is transposed, address, type, leading dimension and stride of an operand."""
    stored_by_columns, ld = _leading(x)  # type: ignore[misc]
    batched = x.ndim == 3 and x.shape[0] > 1
    stride = x.strides[0] // x.dtype.itemsize if batched else 0
    return int(stored_by_columns != by_columns), x.data.ptr, cublas.DATA_TYPE[_name(x)], ld, stride


class BoundDense:
    """Products with one dense matrix (m, k); called with ``(b, out)``, it enqueues one.

    Both are matrices, or stacks of one batch axis.
    """

    nbytes = 0  # the matrix is another's
    captured = False  # CuPy does not capture cuBLAS

    def __init__(self, a: Any):
        self._a = a

    def takes(self, b: Any, out: Any) -> bool:
        """Whether cuBLAS can multiply these matrices as they lie."""
        lie_well = _leading(b) is not None and _leading(out) is not None
        return lie_well and _name(self._a) in FLOATS

    def bind(self, b: Any, out: Any, stream: int) -> Gemm:
        name, (m, k), n = _name(self._a), self._a.shape, b.shape[-1]
        batch = b.shape[0] if b.ndim == 3 else 1
        problem = Problem(m, n, k, batch, name, name, name, b_batched=batch > 1)
        return Gemm(self._a, b, out, problem)

    def __call__(self, b: Any, out: Any) -> None:
        stream = current_stream()
        self.bind(b, out, stream)(stream)


def _name(x) -> str:
    return x.dtype.name


def apply_epilogue(acc, out, out_dtype: str, epilogue: Fused) -> None:
    """``out = epilogue(acc)`` for CuPy arrays (m, n) or (batch, m, n), `acc` contiguous."""
    if out.size == 0:
        return
    defines = (
        ("ACCUMULATOR", acc.dtype.name),
        ("OUTPUT", out_dtype),
        *_epilogue.defines(epilogue),
    )
    kernel = loader.function(EPILOGUE_STEM, EPILOGUE_STEM, defines)
    blocks = min(-(-acc.size // THREADS), MAX_BLOCKS)
    row, column = (stride // out.dtype.itemsize for stride in out.strides[-2:])
    batch = out.strides[0] // out.dtype.itemsize if out.ndim == 3 else 0
    sizes = (*out.shape[-2:], out.shape[0] if out.ndim == 3 else 1)
    arguments = (acc, out, row, column, batch, *sizes, _epilogue.params(epilogue))
    kernel((blocks,), (THREADS,), arguments)
