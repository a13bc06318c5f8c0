"""`explain`: which kernel multiplies, what else could, and why."""

from __future__ import annotations

import dataclasses

from sparse24 import (
    _arrays,
    _batch_axes,
    _check,
    _dispatch,
    _foreign,
    _foreign_streams,
    _grouped_matmul,
    _other_formats,
    _product,
    _quantised,
)
from sparse24._errors import ArgumentError
from sparse24._explain_gpu import NOT_QUANTISED, of_quantised, on_gpu
from sparse24._explanation import Explanation
from sparse24._matmul import OURS, check_algorithm, embedded, factors, named_type
from sparse24._named_operands import with_array
from sparse24._options import Call
from sparse24._planner import Candidate
from sparse24._records import Operand24, Problem
from sparse24._staging import Variant
from sparse24.formats import hybrid_products, n_m_products
from sparse24.formats.base import SparseArray, densified, one_dense
from sparse24.formats.hybrid import HybridArray
from sparse24.formats.n_m import NMArray
from sparse24.formats.products_24 import Products24
from sparse24.formats.windows import Windows24

NOTHING = "none"  # what runs where a result has no elements
# Elements of a matrix, and columns, from which on BLAS and the CPU's sparse kernel take about as
# long: with 512 x 512 the sparse product took 0.8 to 1.2 times the time by 32 to 1024 columns, and
# 0.4 to 0.6 times by 8 (one thread with AVX-512, development runs).
SMALL_MATRIX = 1 << 18
FEW_COLUMNS = 16
OF_BLAS = ("float32", "float64")


def explain(
    a, b, out=None, *, c=None, alpha=1.0, beta=None, dtype=None, epilogue=None, scales=None,
    algorithm="auto", a_dtype=None, b_dtype=None, fast_accumulation=True, offsets=None,
    gated=False,
) -> Explanation:  # fmt: skip
    """Explain which kernel ``matmul(a, b)`` runs, and why; with `offsets`, ``grouped_matmul``.

    Parameters
    ----------
    a, b : Sparse24Array, Quantised24Array, NMArray, HybridArray, array or (shape, dtype)
        As for `matmul`; one of them is sparse.  Nothing is multiplied, so the shape and dtype of
        a dense one, which is then taken to be in row order, do as well.
    out, c, alpha, beta, dtype, epilogue, scales, algorithm, a_dtype, b_dtype, fast_accumulation
        As for `matmul`: pass those of the call to explain, since the choice depends on types,
        memory layouts and the epilogue.  Nothing is written.  ``precision="tf32"`` of `matmul`
        names its kernel itself, so it is not taken here.
    offsets, gated
        As for `grouped_matmul` and `grouped_linear`: `a` is then a stack, and `b` has tokens as
        columns, so pass ``x.T`` for tokens as rows.  Of the options above only `out`, `dtype`,
        `scales`, `b_dtype` and `fast_accumulation` apply.

    Returns
    -------
    Explanation
        Printed, it lists the best candidate of each kernel with its predicted and, if tuned,
        measured time.

    Raises
    ------
    ArgumentError
        If neither operand is sparse, or no kernel has the name `algorithm`.
    ShapeError, DTypeError, DeviceError
        If the operands do not fit.
    UnsupportedError
        If the named `algorithm` cannot multiply this.

    Notes
    -----
    Does not wait for the device, unless an `NMArray` or a `HybridArray` has not been multiplied
    yet.  For a `HybridArray` it counts what the choice needs.  It also makes and keeps what the
    product would make: a copy in another type or, on a GPU, the tiles of a transpose.
    `HybridArray.explain` needs no operand, only a number of columns.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((256, 256), rng=0)
    >>> print(s24.explain(A, np.ones((256, 1), np.float32)).chosen)
    cpu_sparse
    >>> s24.explain(A, ((256, 1), "float32")).chosen
    'cpu_sparse'
    """
    check_algorithm(algorithm)
    fast_accumulation = _check.flag(fast_accumulation, argument="fast_accumulation")
    gated = _check.flag(gated, argument="gated")
    a, b, a_dtype, b_dtype = _with_arrays(a, b, a_dtype, b_dtype)
    if offsets is not None:
        alpha = _check.number(alpha, argument="alpha")
        beta = 0.0 if beta is None else _check.number(beta, argument="beta")
        unknown = c is not None or epilogue is not None or a_dtype is not None
        if unknown or (alpha, beta, algorithm) != (1.0, 0.0, "auto"):
            raise ArgumentError(
                "grouped products, those with offsets, take no c, alpha, beta, epilogue, algorithm "
                "or a_dtype; drop them"
            )
        options = {"dtype": dtype, "scales": scales, "fast_accumulation": fast_accumulation}
        call = Call(other_dtype=b_dtype, **options)
        chosen, why = _grouped_matmul.explained(a, b, out, offsets, call, gated=gated)
        return Explanation(chosen, (), {}, why)
    if gated:
        raise ArgumentError("gated=True is an option of grouped products; pass their offsets, too")
    alpha, beta = factors(alpha, beta, c)
    other_dtype = named_type(a, b, a_dtype, b_dtype)
    call = Call(c, alpha, beta, dtype, epilogue, scales, algorithm, other_dtype, fast_accumulation)
    return explained(a, b, out, call)


def _with_arrays(a, b, a_dtype, b_dtype):
    """Both operands and their types, the dense one made if it is given by its shape and dtype."""
    if isinstance(a, SparseArray):
        b, b_dtype = with_array(a, b, b_dtype, argument="b")
    elif isinstance(b, SparseArray):
        a, a_dtype = with_array(b, a, a_dtype, argument="a")
    return a, b, a_dtype, b_dtype


def explained(a, b, out, call: Call) -> Explanation:
    """What `explain` says of a call whose options have been checked."""
    a, b = embedded(a), embedded(b)
    a, b = one_dense(a, b) if call.fits_all_formats else (a, b)
    from_left = not isinstance(a, Products24)
    operand, other = (b, a) if from_left else (a, b)
    if isinstance(operand, Products24):
        if isinstance(other, SparseArray):
            call = call._replace(other_dtype=other.dtype)
        return _explain_24(operand._operand, densified(other), out, call, from_left=from_left)
    first = a if isinstance(a, OURS) else b  # which multiplies, unless the other is a Windows24
    if isinstance(first, NMArray):
        return _explain_n_m(a, b, out, call)
    if isinstance(first, HybridArray) and not isinstance(b, Windows24):
        return _explain_hybrid(a, b, out, call)
    raise _none_sparse(a, b)


def _none_sparse(a, b) -> ArgumentError:
    """The error of two dense operands; what is no array is refused as by `matmul`."""
    for argument, x in (("a", a), ("b", b)):
        if not isinstance(x, SparseArray | Windows24 | tuple):  # a tuple is a shape and dtype
            _foreign.take(x, argument=argument)
    return ArgumentError(
        "one operand must be a Sparse24Array, Quantised24Array, NMArray or HybridArray; "
        "compress a plain array first, and for a Windows24 W call explain(W.array, b[W.index])"
    )


def _explain_n_m(a, b, out, call: Call) -> Explanation:
    """Explain a product of an `NMArray` whose pattern 2:4 cannot hold."""
    finish = _other_formats.checked(call)
    left = isinstance(a, NMArray)
    array, other = (a, b) if left else (b, a)
    with _foreign_streams.stream_of(other):
        other, _ = _foreign.take(densified(other, array), argument="b" if left else "a")
        other, _, _ = n_m_products.fitted(array, other, left=left)
        _other_formats.check_written(a, b, out, finish)
        why = n_m_products.why_dense(array, other, left=left)
    if why is not None:
        return Explanation("dense", (), {}, why)
    n, m = array.pattern
    return Explanation("cpu_n_m", (), {}, f"the Numba kernel for {n}:{m} skips the zeros")


def _explain_hybrid(a, b, out, call: Call) -> Explanation:
    finish = _other_formats.checked(call)
    left = isinstance(a, HybridArray)
    h, other = (a, b) if left else (b, a)
    other = densified(other) if _arrays.is_sparse_matrix(other) else other
    with _foreign_streams.stream_of(other):
        sums = _other_formats.name_of_sums(h, other, finish, argument="b" if left else "a")
        product = hybrid_products.expected(h, other, left=left, sums=sums is not None)
        _other_formats.check_written(*((h, other) if left else (other, h)), out, finish)
    if product.told is None:
        return Explanation(NOTHING, (), {}, "an operand has no elements, so no kernel runs")
    told, (m, k), own = product.told, product.h.shape, product.h._dtype
    if product.h.device == "cpu":
        return Explanation(told["choice"], (), {}, told["reason"])
    problem = Problem(m, told["n"], k, 1, own.name, own.name, own.result, b_order=product.order)
    ranked = (
        Candidate(path, "", Variant(problem, stage_b=path in told["copies_b"]), seconds)
        for path, seconds in sorted(told["candidates"].items(), key=lambda pair: pair[1])
    )
    return Explanation(told["choice"], tuple(ranked), {}, told["reason"], keeps_dense=True)


def _explain_24(operand: Operand24, other, out, call: Call, *, from_left: bool) -> Explanation:
    if not from_left and out is None and _product.puts_together(operand, other, call):
        _product.check_inner(operand.shape, other.shape)
        other = _product.put_together(other)
    call = _product.with_own_type(call, other)
    with _foreign_streams.stream_of(other):
        matrix, _, _ = _product.taken(other, operand, call, "a" if from_left else "b")
        laid = _product.laid_out(operand, matrix, out, call, from_left=from_left)
        a, b, target, epilogue = _as_multiplied(laid)
    kept = laid.a.dense is not None and laid.a.dtype is laid.types.type_a
    _dispatch.check_stored(laid.a, call.algorithm)
    if not laid.target.size:
        return Explanation(NOTHING, (), {}, "the result has no elements, so nothing runs")
    quantised = _dispatch.is_quantised(laid.a)
    keeps = _KEPT if quantised and not laid.types.on_gpu else ""
    if laid.a.rows is None:
        is_free = not laid.types.on_gpu and not kept and call.algorithm == "auto"
        if is_free and _dispatch.adds_rows(a.shape, b.shape, a.dtype):
            return Explanation("cpu_sparse", (), {}, _BY_ROWS + keeps)
        return Explanation("dense", (), {}, _why_dense(kept, quantised) + keeps)
    way_out = "keep_dense=True would let"
    if quantised:
        way_out = NOT_QUANTISED
    elif laid.a.dtype is not a.dtype:  # a conversion keeps nothing dense
        way_out = f"a matrix compressed in {a.dtype.name} with {way_out}"
    if not laid.types.on_gpu:
        if quantised and _quantised.reads_bricks(laid.a, b, a.dtype, call.algorithm):
            keeps, a = _BRICKS, dataclasses.replace(a, shape=a.shape[-2:])  # one after another
        told = _explain_cpu(a, b.shape[-1], call.algorithm, kept, way_out, plain=epilogue.is_plain)
        return dataclasses.replace(told, reason=told.reason + keeps)
    problem = _dispatch.problem_of(a, b, target, epilogue, laid.types, call.fast_accumulation)
    if quantised:
        return of_quantised(problem, laid.a, b.device.id, call.algorithm)
    return on_gpu(problem, laid.a.dtype.name, b.device.id, call.algorithm, kept, way_out)


_BRICKS = "; it reads integers and scales as they are stored"
_KEPT = "; the first product dequantises the matrix, and keeps the result"
_BY_ROWS = (
    "the groups do not run along the contracted axis, so the Numba kernel adds up the stored rows, "
    "skipping their zeros"
)


def _why_dense(kept: bool, quantised: bool) -> str:
    """The reason of a dense product of an array whose groups do not run along the sum."""
    how = "the kept dense matrix is multiplied" if kept else "the array is decompressed"
    way_out = "compress with transposable=True to multiply from both sides"
    if quantised:
        way_out = "an array that is not quantised can be transposable, to multiply from both sides"
    return f"the groups do not run along the contracted axis, so {how}; {way_out}"


def _as_multiplied(laid: _product.LaidOut):
    """Operands, result and epilogue as `_dispatch.fill` chooses by; of `a` the shape and type.

    An operand that would be converted is an array like the converted one.
    """
    types, b = laid.types, laid.b
    a = Operand24(None, None, None, laid.a.shape, types.type_a)
    if _arrays.logical_dtype(b, laid.named, argument="b") is types.type_b:
        b = _arrays.as_storage(b, types.type_b)
    else:
        dtype = types.type_b.carried if types.on_gpu else types.type_b.logical
        b = _arrays.empty_rows(_arrays.namespace(b), b.shape, dtype)
    if not laid.target.size:
        return a, b, laid.out, laid.epilogue
    return _batch_axes.flatten(a, b, laid.out, laid.epilogue, laid.out.shape[:-2])


def _explain_cpu(
    a: Operand24, n: int, algorithm: str, kept: bool, way_out: str, *, plain: bool
) -> Explanation:
    """Explain a product with `n` columns on the CPU, by the type in which `a` is multiplied.

    `plain` tells that it has no epilogue.
    """
    from sparse24.kernels import cpu

    (m, k), name, stacked = a.shape[-2:], a.dtype.name, len(a.shape) > 2
    choice = cpu.choose(m, k, n, name, kept=kept, stacked=stacked and not plain)
    small = not stacked and cpu.is_small((m, n), k)
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
            f"this size is faster still, and {way_out} it run"
        )
    elif m * k <= SMALL_MATRIX and n > FEW_COLUMNS and name in OF_BLAS:
        reason = (
            "the Numba kernel skips the zeros; for a matrix as small as this a plain NumPy array "
            "may be quicker"
        )
    else:
        reason = "the Numba kernel skips the zeros and wins at this size"
    if small:
        reason += (
            "; the product is so small that the overhead of the call dominates; a plain NumPy "
            "array is quicker"
        )
    return Explanation(chosen, (), {}, reason)
