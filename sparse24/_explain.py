"""`explain`: which kernel multiplies, what else could, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse24 import _arrays, _check, _dispatch, _foreign, _planner, _product, _tuning_cache
from sparse24._dtypes import DType
from sparse24._errors import ArgumentError
from sparse24._fuse import Call, fuse
from sparse24._matmul import embedded
from sparse24._planner import Candidate
from sparse24._table import duration, table
from sparse24.formats import n_m_products
from sparse24.formats.base import SparseArray, densified
from sparse24.formats.n_m import NMArray
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
    keeps_dense : bool
        Whether the dense product is among those that may run.
    """

    chosen: str
    candidates: tuple[Candidate, ...]
    measured: dict[str, float]
    reason: str
    keeps_dense: bool = False

    def __str__(self) -> str:
        first = f"{self.chosen}: {self.reason}"
        if not self.candidates:
            return first
        able: dict[str, Candidate] = {}  # of one name the first, which is the one that runs
        for candidate in self.candidates:
            if candidate.refusal is None:
                able.setdefault(candidate.name, candidate)
        rows = [self._row(candidate) for candidate in self._shown(list(able.values()))]
        lines = [first, "", table(["best of each kernel", "predicted", "measured", ""], rows)]
        if len(able) > len(rows):
            lines.append(f"and {len(able) - len(rows)} other configurations: see .candidates")
        refused = {c.kernel: c.refusal for c in self.candidates if c.refusal is not None}
        for kernel, why in refused.items():
            if kernel not in {candidate.kernel for candidate in able.values()}:
                lines.append(f"{kernel} cannot: {why}")
        return "\n".join(lines)

    def _shown(self, able: list[Candidate]) -> list[Candidate]:
        """Of each kernel what measured fastest, or else is predicted so; and what is chosen."""
        best: dict[str, Candidate] = {}
        for candidate in sorted(able, key=lambda c: self.measured.get(c.name, math.inf)):
            best.setdefault(candidate.kernel, candidate)
        keep = {self.chosen, *(candidate.name for candidate in best.values())}
        return [candidate for candidate in able if candidate.name in keep]

    def _row(self, candidate: Candidate) -> list[str]:
        name, notes = candidate.name, []
        if name == self.chosen:
            notes.append("runs")
        if candidate.kernel == _planner.DENSE_KERNEL and not self.keeps_dense:
            notes.append("not kept")
        if candidate.copies:
            notes.append("copies first")
        measured = duration(self.measured[name]) if name in self.measured else ""
        return [name, duration(candidate.seconds), measured, ", ".join(notes)]


def explain(
    a, b, *, dtype=None, epilogue=None, algorithm="auto", a_dtype=None, b_dtype=None
) -> Explanation:
    """Say which kernel ``matmul(a, b)`` runs, and why.

    Parameters
    ----------
    a, b : Sparse24Array, NMArray or array
        As for `matmul`; one is a `Sparse24Array` or an `NMArray`.  Nothing is multiplied.
    dtype, epilogue, algorithm, a_dtype, b_dtype
        As for `matmul`.

    Returns
    -------
    Explanation
        Printed, it lists the best candidate of each kernel with its predicted and, if tuned,
        measured time.

    Raises
    ------
    ArgumentError
        If neither operand is one of these, or no kernel has the name `algorithm`.
    ShapeError, DTypeError, DeviceError
        If the operands do not fit.
    UnsupportedError
        If the named `algorithm` cannot multiply this.

    Notes
    -----
    Does not wait for the device.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((256, 256), rng=0)
    >>> print(s24.explain(A, np.ones((256, 1), np.float32)).chosen)
    cpu_sparse
    """
    return explained(a, b, dtype, epilogue, algorithm, a_dtype, b_dtype)


def explained(
    a, b, dtype=None, epilogue=None, algorithm="auto", a_dtype=None, b_dtype=None,
    out_order="row",
) -> Explanation:  # fmt: skip
    """The same for a result of another memory order, that of the whole product."""
    a, b = embedded(a), embedded(b)
    if isinstance(a, NMArray) or (isinstance(b, NMArray) and not isinstance(a, Sparse24Array)):
        return _explain_n_m(a, b)
    operand, other = _as_left(a, b)
    left = isinstance(a, Sparse24Array)
    if not left:  # the kernel sees the product from the other side
        out_order = "column" if out_order == "row" else "row"
    named, given = (b_dtype, b) if left else (a_dtype, a)
    named = given.dtype if isinstance(given, SparseArray) else named
    other = _product.real(other, operand.dtype, named)
    call = Call(dtype=dtype, epilogue=epilogue, other_dtype=named)
    types, fused = _asked(operand, other, call, out_order, left=left)
    _dispatch.check_stored(operand, algorithm)
    if operand.rows is None:
        reason = (
            "the groups do not run along the contracted axis, so the array is decompressed; "
            "compress with transposable=True to multiply from both sides"
        )
        return Explanation("dense", (), {}, reason)
    if not _arrays.is_cupy(other):
        return _explain_cpu(operand, other, types.row_a, algorithm)
    problem = _problem(operand, other, types, fused, out_order)
    device = other.device.id
    dense = operand.dense is not None
    ranked = tuple(_planner.candidates(problem, device, dense=True))
    chosen = _planner.choose(problem, device, dense=dense, algorithm=algorithm)
    measured = _tuning_cache.measured(device, problem, dense=dense)
    reason = _reason(chosen, ranked, measured, dense, algorithm)
    return Explanation(chosen.name, ranked, measured, reason, dense)


def _explain_n_m(a, b) -> Explanation:
    """For patterns that 2:4 cannot hold."""
    left = isinstance(a, NMArray)
    array, other = (a, b) if left else (b, a)
    other = _array(densified(other), "b" if left else "a")
    _product.check_inner(*((array.shape, other.shape) if left else (other.shape, array.shape)))
    other = _product.real(other, array._dtype)
    _product.promote(array._dtype, _arrays.logical_dtype(other, argument="b" if left else "a"))
    n, m = array.pattern
    if n_m_products.is_direct(array, other, left=left):
        return Explanation("cpu_n_m", (), {}, f"the Numba kernel for {n}:{m} skips the zeros")
    reason = f"{n}:{m} does not embed into 2:4, so the product is dense"
    if m % 2 == 0 and n <= m - 2:
        reason += "; .windows() makes an exact 2:4 product over a longer k"
    return Explanation("dense", (), {}, reason)


def _as_left(a, b):
    """The product as sparse operand times dense operand, both with two axes or more."""
    if isinstance(a, Sparse24Array):
        other = _array(densified(b), "b")
        operand, other = a._operand, other if other.ndim > 1 else other[:, None]
    elif isinstance(b, Sparse24Array):
        other = _array(densified(a), "a")
        other = other if other.ndim > 1 else other[None]
        if other.ndim > 2 and b.ndim == 2:
            other = other.reshape(math.prod(other.shape[:-1]), other.shape[-1])
        operand, other = b._operand.transposed(), other.swapaxes(-1, -2)
    else:
        raise ArgumentError(
            "one operand must be a Sparse24Array or an NMArray; plain arrays are checked at each "
            "call, and a HybridArray has .explain(n) of its own"
        )
    _product.check_inner(operand.shape, other.shape)
    return operand, other


def _array(x, argument: str):
    array, _ = _foreign.take(x, argument=argument)
    _check.at_least_1d(array.shape, argument=argument)
    return array


def _asked(operand, other, call: Call, out_order: str, *, left: bool):
    """Types and epilogue of a product as `_as_left` gives it, checked as `matmul` does."""
    m, n = operand.shape[-2], other.shape[-1]
    shape = (m, n) if out_order == "row" else (n, m)
    batch = _product.batch_of(operand, other)
    types = _product.Result.plan(operand, other, None, call, (*batch, *shape))
    vectors = _product.vectors_of(operand, types.name)
    if left:
        return types, fuse(call, operand.shape, other.shape, *vectors)
    turned = ((*x.shape[:-2], x.shape[-1], x.shape[-2]) for x in (other, operand))
    return types, fuse(call, *turned, *vectors).transposed()


def _problem(operand, other, types, fused, out_order: str):
    out = types.allocate(None)
    out = out if out_order == "row" else out.swapaxes(-1, -2)
    batch = types.shape[:-2]
    operand, other, out, fused = _dispatch.flatten(operand, other, out, fused, batch)
    return _dispatch.problem_of(operand, other, out, fused, types)


def _explain_cpu(operand, other, row: DType, algorithm: str) -> Explanation:
    """For operands that meet in the type of `row`, in which nothing dense is kept if it is new."""
    from sparse24.kernels import cpu

    (m, k), n, name = operand.shape[-2:], other.shape[-1], row.name
    kept = operand.dense is not None and operand.dtype is row
    stacked = math.prod(operand.shape[:-2]) > 1
    choice = cpu.choose(m, k, n, name, kept=kept, stacked=stacked)
    _check.one_of(algorithm, cpu.ALGORITHMS, argument="algorithm")
    if algorithm != "auto":
        chosen = "cpu_dense" if algorithm == "dense" else algorithm
        return Explanation(chosen, (), {}, "it was asked for")
    chosen = f"cpu_{choice}"
    if choice == "dense":
        how = "multiplying the kept dense matrix" if kept else "decompressing and multiplying"
        reason = f"{how} by BLAS wins at this size"
    elif not kept and cpu.choose(m, k, n, name, kept=True) == "dense":
        reason = (
            "the Numba kernel skips the zeros and beats decompressing first; a dense product of "
            "this size is faster still, and keep_dense=True would let it run"
        )
    else:
        reason = "the Numba kernel skips the zeros and wins at this size"
    if cpu.is_small((m, n), k) and not stacked:
        reason += (
            "; the Python of a call takes longer than a product this small, which is quicker with "
            "a dense array of NumPy"
        )
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
