"""`plan`, `explain` and `autotune`: what will run, why, and what ran fastest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparse24 import (
    _arrays,
    _autotune,
    _check,
    _dispatch,
    _dtypes,
    _foreign,
    _fuse,
    _planner,
    _product,
    _tuning_cache,
)
from sparse24 import _matmul as public
from sparse24._errors import ArgumentError, DeviceError
from sparse24._fuse import Call
from sparse24._planner import Candidate
from sparse24.formats.two_four import Sparse24Array


@dataclass(frozen=True)
class Explanation:
    """Which kernel multiplies, what else could, and why; ``str()`` gives a table.

    Attributes
    ----------
    chosen : str
        Name of the candidate that runs.
    candidates : tuple of Candidate
        Fastest prediction first, refused ones last; empty on the CPU.
    measured : dict
        Seconds by candidate name where this problem was tuned.
    reason : str
        One sentence.
    """

    chosen: str
    candidates: tuple[Candidate, ...]
    measured: dict[str, float]
    reason: str

    def __str__(self) -> str:
        lines = [f"{self.chosen}: {self.reason}"]
        for candidate in self.candidates:
            staging = " (copies first)" if candidate.stage_b or candidate.stage_out else ""
            if candidate.refusal is not None:
                lines.append(f"  {candidate.kernel:24} cannot: {candidate.refusal}{staging}")
                continue
            seconds = self.measured.get(candidate.name)
            measured = "" if seconds is None else f", measured {1e6 * seconds:.1f} µs"
            predicted = f"predicted {1e6 * candidate.seconds:.1f} µs"
            lines.append(f"  {candidate.name:32} {predicted}{measured}{staging}")
        return "\n".join(lines)


def explain(
    a, b, *, dtype=None, epilogue=None, algorithm="auto", a_dtype=None, b_dtype=None
) -> Explanation:
    """Say which kernel ``matmul(a, b)`` runs, and why.

    Parameters
    ----------
    a, b : Sparse24Array or array
        As for `matmul`; one is a `Sparse24Array`.  Nothing is multiplied.
    dtype, epilogue, algorithm, a_dtype, b_dtype
        As for `matmul`.

    Returns
    -------
    Explanation
        Printed, it lists the candidates with predicted and, if tuned, measured times.

    Raises
    ------
    ArgumentError
        If neither operand is a `Sparse24Array`.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((256, 256), rng=0)
    >>> print(s24.explain(A, np.ones((256, 1), np.float32)).chosen)
    cpu_sparse
    """
    return _explain(a, b, dtype, epilogue, algorithm, a_dtype, b_dtype)


def _explain(
    a, b, dtype=None, epilogue=None, algorithm="auto", a_dtype=None, b_dtype=None,
    out_order="row",
) -> Explanation:  # fmt: skip
    operand, other = _as_left(a, b)
    if operand.rows is None:
        reason = (
            "the groups do not run along the contracted axis, so the array is decompressed; "
            "compress with transposable=True to multiply from both sides"
        )
        return Explanation("dense", (), {}, reason)
    if not _arrays.is_cupy(other):
        return _explain_cpu(operand, other, algorithm)
    named = b_dtype if isinstance(a, Sparse24Array) else a_dtype
    call = Call(dtype=dtype, epilogue=epilogue, other_dtype=named)
    problem = _problem(operand, other, call, out_order)
    device = other.device.id
    dense = operand.dense is not None
    ranked = tuple(_planner.candidates(problem, device, dense=True))
    chosen = _planner.choose(problem, device, dense=dense, algorithm=algorithm)
    measured = _tuning_cache.measured(device, problem, dense=dense)
    reason = _reason(chosen, ranked, measured, dense, algorithm)
    return Explanation(chosen.name, ranked, measured, reason)


def _as_left(a, b):
    """The product as sparse operand times dense operand."""
    if isinstance(a, Sparse24Array):
        other = b.toarray() if isinstance(b, Sparse24Array) else _foreign.take(b)[0]
        return a._operand, other if other.ndim > 1 else other[:, None]
    if isinstance(b, Sparse24Array):
        other = _foreign.take(a)[0]
        other = other if other.ndim > 1 else other[None]
        if other.ndim > 2 and b.ndim == 2:
            other = other.reshape(-1, other.shape[-1])
        return b._operand.transposed(), other.swapaxes(-1, -2)
    raise ArgumentError(
        "one operand must be a Sparse24Array; plain arrays are checked at each call"
    )


def _problem(operand, other, call: Call, out_order: str):
    m, n = operand.shape[-2], other.shape[-1]
    shape = (m, n) if out_order == "row" else (n, m)
    types = _product._Result.plan(operand, other, None, call, (*other.shape[:-2], *shape))
    out = types.allocate(...)
    out = out if out_order == "row" else out.swapaxes(-1, -2)
    fused = _fuse.fuse(call, operand.shape, other.shape, *_product._vectors(operand))
    return _dispatch.problem_of(operand, other, out, fused, types)


def _explain_cpu(operand, other, algorithm: str) -> Explanation:
    from sparse24.kernels import cpu

    choice = cpu.choose(operand.shape[-2], operand.shape[-1], other.shape[-1], operand.dtype.name)
    chosen = f"cpu_{choice}" if algorithm == "auto" else algorithm
    reason = {
        "cpu_sparse": "the Numba kernel skips the zeros and wins at this size",
        "cpu_dense": "decompressing and multiplying by BLAS wins at this size",
    }.get(chosen, "it was asked for")
    return Explanation(chosen, (), {}, reason)


def _reason(chosen, ranked, measured, dense: bool, algorithm: str) -> str:
    if algorithm != "auto":
        return "it was asked for"
    dense_row = next(c for c in ranked if c.kernel == _planner.DENSE_KERNEL)
    if chosen.name in measured:
        return f"it measured fastest of {len(measured)} candidates on this GPU"
    if chosen.kernel == _planner.DENSE_KERNEL:
        return "no sparse kernel is predicted to beat the dense product at this size"
    ratio = dense_row.seconds / chosen.seconds
    if ratio >= 1:
        return f"it is predicted fastest, {ratio:.2f} times as fast as the dense product"
    way_out = "the dense matrix is not kept; keep_dense=True would let the dense product run"
    return f"it is predicted at {ratio:.2f} times the speed of the dense product; {way_out}"


class MatmulPlan:
    """A product prepared for one signature: chosen, compiled, ready to run.

    Made by `plan`.

    Attributes
    ----------
    candidates : tuple of Candidate
        What could run, fastest prediction first.
    chosen : str
        What runs.
    """

    def __init__(self, a: Sparse24Array, b, out_order: str, options: dict):
        self._a = a
        self._options = options
        self._out_order = out_order
        self.explanation = _explain(a, b, out_order=out_order, **options)
        self.candidates = self.explanation.candidates
        self.chosen = self.explanation.chosen
        self.execute(b)  # compiles, and lays out the launch

    def execute(self, b, out=None):
        """Multiply; `b` has the shape, dtype, order and alignment that the plan was made for.

        Another `b` is multiplied too, through `matmul`.  Enqueues on CuPy's current stream
        and does not wait.

        Parameters
        ----------
        b : array, shape (k, n)
        out : array, shape (m, n), optional

        Returns
        -------
        array, shape (m, n)
        """
        if out is None and self._out_order == "column":
            out = _column_result(self._a, b, self._options["dtype"])
        return public.matmul(self._a, b, out, **self._options)

    def __repr__(self) -> str:
        return f"<MatmulPlan: {self.chosen}, {len(self.candidates)} candidates>"


def _column_result(a: Sparse24Array, b, dtype):
    shape = (*b.shape[:-2], b.shape[-1], a.shape[-2])
    types = _product._Result.plan(a._operand, b, None, Call(dtype=dtype), shape)
    return types.allocate(...).swapaxes(-1, -2)


def plan(a, b_spec, *, dtype=None, epilogue=None, algorithm="auto", out_order="row") -> MatmulPlan:
    """Choose and compile the kernel of ``matmul(a, b)`` before there is a `b`.

    Parameters
    ----------
    a : Sparse24Array, shape (m, k)
    b_spec : array or (shape, dtype)
        An array like the coming ones, or its shape and dtype (row order).
    dtype, epilogue, algorithm
        As for `matmul`.
    out_order : {"row", "column"}
        Memory order of the result; ``"column"`` for a layer, whose ``y`` is ``out.T``.

    Returns
    -------
    MatmulPlan

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((64, 32), rng=0)
    >>> p = s24.plan(A, ((32, 8), np.float32))
    >>> p.execute(np.ones((32, 8), np.float32)).shape
    (64, 8)
    """
    if not isinstance(a, Sparse24Array):
        raise ArgumentError(f"a must be a Sparse24Array, got {type(a).__name__}; see compress")
    _check.one_of(out_order, ("row", "column"), argument="out_order")
    options = {"dtype": dtype, "epilogue": epilogue, "algorithm": algorithm}
    return MatmulPlan(a, _example(a, b_spec), out_order, options)


def _example(a: Sparse24Array, b_spec):
    """An array like those that a plan is for."""
    if not isinstance(b_spec, tuple):
        return _foreign.take(b_spec)[0]
    shape, dtype = b_spec
    row = _dtypes.lookup(dtype)
    if a.device == "cpu":
        return np.zeros(shape, row.logical)
    return _arrays.cupy_module().zeros(shape, np.uint8 if row.is_float8 else row.logical)


@contextlib.contextmanager
def autotune(enabled: bool = True, *, cache=None) -> Iterator[None]:
    """Measure every new product inside the block, and remember the fastest kernel.

    The first product of each signature runs all candidates within reach of the best
    prediction, checks each against the reference kernel (one that errs cannot win), and
    takes the median of interleaved rounds; it synchronises.  Winners serve all later
    calls, inside the block and after it.

    Parameters
    ----------
    enabled : bool, default True
        ``False`` makes the block do nothing.
    cache : path, optional
        A tuning file: read at the start, written at the end.  A file of another GPU,
        driver or version is ignored and left alone.

    Raises
    ------
    DeviceError
        If no GPU is there.

    Examples
    --------
    >>> import sparse24 as s24
    >>> with s24.autotune(enabled=False):
    ...     pass
    """
    if not enabled:
        yield
        return
    if not _arrays.cuda_available():
        raise DeviceError("autotune measures on a GPU, but CuPy finds no CUDA device")
    device = _arrays.cupy_module().cuda.Device().id
    if cache is not None:
        _tuning_cache.merge(Path(cache), device)
    token = _autotune.active.set(True)
    try:
        yield
    finally:
        _autotune.active.reset(token)
        if cache is not None:
            _tuning_cache.write(Path(cache), device, replace=False)
