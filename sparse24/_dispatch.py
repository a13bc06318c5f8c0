"""From a checked product to a kernel: convert types, choose a kernel and launch it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from sparse24 import (
    _arrays,
    _autotune,
    _batch_axes,
    _check,
    _cuda_graphs,
    _foreign_streams,
    _memory_order,
    _overlap,
    _planner,
    _quantised,
    _storage,
    _streams,
    _widening,
)
from sparse24._dtypes import TABLE, DType
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._made_anew import Converting, MadeDense, OfRecord
from sparse24._options import Call
from sparse24._records import Compressed24, Fused, Operand24, Problem
from sparse24._target import Result

OVERLAP = "{} shares memory with an operand; pass another array"


class Launched(NamedTuple):
    """A kernel with what it takes: ``launcher(a, b, out, epilogue)``."""

    launcher: Any  # a callable, on the GPU often a `Launcher`
    a: Any  # Compressed24, or a dense array
    b: Any
    out: Any
    epilogue: Fused
    settled: bool = False  # whether kernels may read `a` early, when this is repeated

    def run(self) -> None:
        self.launcher(self.a, self.b, self.out, self.epilogue)

    @property
    def waits(self) -> bool:
        """Whether the kernel waits for work before it to end, and would not if `a` was settled."""
        return not self.settled and getattr(self.launcher, "reads_early", False)


def fill(a: Operand24, b, out, epilogue: Fused, call: Call, types: Result) -> Launched | None:
    """Write ``a @ b`` into `out` (..., m, n), through the epilogue.

    Parameters
    ----------
    a : Operand24
        Any batch axes, as `b` and `out` have them.
    epilogue : Fused
        The record of `_records`: the factors, biases and activation of `call`.
    types : Result
        The types to which operands are converted, the type of the result, and where it goes.

    Returns
    -------
    Launched or None
        What was launched, if it used the given arrays without copies, so that it can be replayed.
    """
    with _cuda_graphs.keeping(a.rows, out):
        return _fill(a, b, out, epilogue, call, types)


def _fill(a: Operand24, b, out, epilogue: Fused, call: Call, types: Result) -> Launched | None:
    if types.out is not None:
        refuse_overlap("out", out, a, b)
    if epilogue.aux is not None:
        refuse_overlap("aux", epilogue.aux, a, b)
    check_stored(a, call.algorithm)
    batch = out.shape[:-2]
    given, whole, aux = b, a, epilogue.aux
    b = convert(b, types.type_b, call.other_dtype)
    as_given = b is given
    if math.prod(batch) == 0 or 0 in out.shape:
        return None
    a, b, flat_out, epilogue = _batch_axes.flatten(a, b, out, epilogue, batch)
    if types.on_gpu:
        problem = problem_of(a, b, flat_out, epilogue, types, call.fast_accumulation)
        taken, problem = _as_taken(a, problem, b.device.id, call.algorithm)
        launched = prepare(taken, b, flat_out, epilogue, call.algorithm, problem)
        _foreign_streams.make_current()
        _streams.hold_current()
    else:
        taken = _as_read_on_cpu(a, b, types.type_a, call.algorithm)
        launched = _prepare_on_cpu(taken, b, flat_out, epilogue, call.algorithm, types.type_a)
    launched.run()
    if aux is not None:
        _copy_back(epilogue.aux, aux)
    if _copy_back(flat_out, out):
        return None
    if types.on_gpu and _is_converted(launched.a, a):
        converting = Converting(launched.launcher, types.type_a)
        taken, launched = a, launched._replace(launcher=converting, a=a.stored)
    kept = _lies_as_in(whole, launched) if batch else _is_held(taken, launched.a)
    return launched if kept and as_given and taken.dtype is whole.dtype else None


def _is_held(a: Operand24, used: Any) -> bool:
    """Whether a product reads what an operand holds, not a dense matrix that was made for it."""
    return used is a.dense or isinstance(used, Compressed24)


def _lies_as_in(a: Operand24, launched: Launched) -> bool:
    """Whether a product of stacks reads an operand where it lies, and has no epilogue."""
    used = launched.a
    if not launched.epilogue.is_plain or a.rows is None or not isinstance(used, Compressed24):
        return False
    if not _arrays.is_cupy(used.values):
        return _overlap.shares_memory(used.values, a.rows.values)
    return used.values.data.ptr == a.rows.values.data.ptr


def _is_converted(taken: Any, a: Operand24) -> bool:
    """Whether a product takes the elements of an operand as others than those that it stores."""
    if not isinstance(taken, Compressed24):
        return False
    return taken.dtype is not a.dtype or (is_quantised(a) and not taken.quantised)


def is_quantised(a: Operand24) -> bool:
    """Whether the operand is stored as integers and factors."""
    return bool((a.rows or a.columns) and a.stored.quantised)


def _copy_back(flat_out, out) -> bool:
    """Write a result with one batch axis to `out`, unless it is a view of that; True if written."""
    if _overlap.shares_memory(flat_out, out):
        return False
    out[...] = flat_out.reshape(out.shape)
    return True


def check_stored(a: Operand24, algorithm: str) -> None:
    """Refuse a sparse kernel for an operand whose groups do not run along the contracted axis."""
    if a.rows is None and algorithm not in ("auto", "dense", "cpu_dense"):
        if _arrays.is_cupy(a.elements):
            _planner.check_name(algorithm)
        else:
            from sparse24.kernels import cpu

            _check.one_of(algorithm, cpu.ALGORITHMS, argument="algorithm")
        raise UnsupportedError(
            f"{algorithm} cannot multiply this: no operand is stored 2:4 along the contracted "
            "axis; see sparse24.compress"
        )


def prepare(a: Operand24, b, out, epilogue: Fused, algorithm: str, problem: Problem) -> Launched:
    """Choose and compile a kernel, and gather what it takes; nothing is launched yet."""
    device, has_dense = b.device.id, a.dense is not None
    if a.rows is None:
        algorithm = _planner.DENSE_KERNEL
    elif algorithm == "auto":
        _autotune.visit(a, b, out, epilogue, problem, device)
    choice = _planner.choose(problem, device, dense=has_dense, algorithm=algorithm)
    if choice.kernel == _planner.DENSE_KERNEL and _arrays.is_capturing():
        if algorithm == "auto":
            choice = _planner.choose(problem, device, dense=False)
        if choice.kernel == _planner.DENSE_KERNEL:
            raise UnsupportedError(
                "a CUDA graph cannot capture a dense product, since CuPy does not capture cuBLAS; "
                "compress an operand, and let algorithm='auto' choose a sparse kernel"
            )
    launcher = _planner.prepare(choice, epilogue)
    if choice.kernel != _planner.DENSE_KERNEL:
        assert a.rows is not None
        return Launched(launcher, _storage.with_packed(a.rows), b, out, epilogue)
    if a.dense is not None:
        return Launched(launcher, a.dense, b, out, epilogue)
    return Launched(MadeDense(launcher, a.rows is None), a.stored, b, out, epilogue)


def problem_of(a: Operand24, b, out, epilogue: Fused, types: Result, fast: bool = True) -> Problem:
    """The description of this product for the planner; `types` as for `fill`."""
    batched_a = len(a.shape) == 3 and a.shape[0] > 1
    batched_b = b.ndim == 3 and b.shape[0] > 1
    return Problem(
        m=a.shape[-2], n=b.shape[-1], k=a.shape[-1],
        batch=out.shape[0] if out.ndim == 3 else 1,
        dtype=types.type_a.name, b_dtype=types.type_b.name, out_dtype=types.name,
        a_batched=batched_a, b_batched=batched_b,
        plain=epilogue.is_plain, activation=epilogue.activation, fast_accumulation=fast,
        compute_capability=int(b.device.compute_capability), **_memory_order.facts(b, out),
    )  # fmt: skip


def refuse_overlap(name: str, target, a: Operand24, b) -> None:
    """Refuse to write to `target`, the argument `name`, if it shares memory with an operand."""
    if _overlap.shares_memory(target, b) or _overlap.shares_memory(target, a.elements):
        raise ArgumentError(OVERLAP.format(name))


def _as_taken(
    a: Operand24, problem: Problem, device: int, algorithm: str
) -> tuple[Operand24, Problem]:
    """The operand as a kernel takes it, in the type of the product or as it is stored."""
    if is_quantised(a):
        taken = _widening.of_quantised(problem, a, device, algorithm)
        if taken.quantised:
            return a, taken
        return _quantised.as_converted(a, TABLE[problem.dtype]), problem
    if a.rows is not None:
        taken = _widening.as_multiplied(problem, a.dtype.name, device, algorithm)
        if taken is not problem:
            return dataclasses.replace(a, dense=None), taken  # that only meets its own type
    return cast_operand(a, TABLE[problem.dtype]), problem


def _as_read_on_cpu(a: Operand24, b, dtype: DType, algorithm: str) -> Operand24:
    """The operand as kernels on the CPU take it, which widen the stored elements of int8."""
    if is_quantised(a):
        if _quantised.reads_bricks(a, b, dtype, algorithm):
            return a
        return _quantised.as_converted(a, dtype, keep=True)
    stored = a.rows is not None or a.columns is not None
    if a.dtype is dtype or not stored or a.dtype.name != "int8":
        return cast_operand(a, dtype)
    return dataclasses.replace(a, dense=None)


def cast_operand(a: Operand24, dtype: DType) -> Operand24:
    """The operand with elements of another type."""
    if a.dtype is dtype:
        return a
    if a.rows is None and a.columns is None:
        return Operand24(None, None, convert(a.dense, dtype, a.dtype), a.shape, dtype)
    turn = lambda record: None if record is None else _storage.cast(record, dtype)  # noqa: E731
    return Operand24(turn(a.rows), turn(a.columns), None, a.shape, dtype)


def convert(b, dtype: DType, b_dtype):
    """A dense operand, of type `b_dtype` if that is named, as kernels for type `dtype` take it."""
    own = _arrays.logical_dtype(b, b_dtype, argument="b")
    if own is dtype:
        return _arrays.as_storage(b, dtype)
    return _storage.converted(_arrays.as_storage(b, own), own, dtype)


def _dense_of(a: Operand24):
    """The dense matrix of an operand without rows, decompressed now if it was not kept."""
    return a.dense if a.dense is not None else _storage.decompress(a.stored).swapaxes(-1, -2)


def _prepare_on_cpu(
    a: Operand24, b, out, epilogue: Fused, algorithm: str, dtype: DType
) -> Launched:
    from sparse24.kernels import cpu

    _check.one_of(algorithm, cpu.ALGORITHMS, argument="algorithm")
    if is_quantised(a):
        of_bricks = _quantised.OfBricks(cpu.multiply_bricks, dtype)
        return Launched(of_bricks, a.rows, b, out, epilogue)
    if a.rows is None and a.dense is None and len(a.shape) == b.ndim == 2:
        by_rows = algorithm == "auto" and adds_rows(a.shape, b.shape, dtype)
        across: Any = cpu.add_rows if by_rows else OfRecord(cpu.matmul_across)
        return Launched(across, a.columns, b, out, epilogue)
    if a.rows is None:
        return Launched(cpu.dense_matmul, _dense_of(a), b, out, epilogue)
    choice = {"cpu_sparse": "sparse", "cpu_dense": "dense", "dense": "dense"}.get(algorithm)
    kept = a.dense is not None
    stacked = len(a.shape) > 2 and not epilogue.is_plain  # others are repeated matrix by matrix
    choice = choice or cpu.choose(
        a.shape[-2], a.shape[-1], b.shape[-1], dtype.name, kept=kept, stacked=stacked
    )
    if choice == "dense" and kept:
        return Launched(cpu.dense_matmul, a.dense, b, out, epilogue)
    product = cpu.matmul if choice == "sparse" else cpu.decompress_matmul
    return Launched(OfRecord(product), a.rows, b, out, epilogue)


def adds_rows(left: tuple[int, ...], right: tuple[int, ...], dtype: DType) -> bool:
    """Whether a product of these shapes across the groups adds up stored rows, on the CPU."""
    from sparse24.kernels import cpu

    matrices = len(left) == len(right) == 2
    return matrices and math.prod(left) > 0 and cpu.few_rows_pay(right[1], dtype)
