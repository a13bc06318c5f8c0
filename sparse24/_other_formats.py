"""Products of formats other than `Sparse24Array`, and of element types that only NumPy knows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _cuda_graphs,
    _dispatch,
    _dtypes,
    _finish,
    _foreign,
    _foreign_streams,
    _overlap,
    _product,
    _target,
)
from sparse24._errors import ArgumentError, DTypeError
from sparse24._fuse import fuse
from sparse24._options import NO_OPTIONS, Call
from sparse24._promotion import promote, result_of
from sparse24.formats import hybrid_products, n_m_products
from sparse24.formats.base import SparseArray, densified
from sparse24.formats.hybrid import HybridArray
from sparse24.formats.n_m import NMArray
from sparse24.formats.windows import Windows24


def multiply(a, b, out, call: Call):
    """``a @ b`` where one operand is of such a format."""
    if call is NO_OPTIONS and out is None and np.ndarray in (type(a), type(b)):
        return a @ b
    call = checked(call)
    with _foreign_streams.stream_of(a), _foreign_streams.stream_of(b):  # one of them is ours
        if not (isinstance(a, Windows24) or isinstance(b, Windows24)):
            return _asked(*in_sums(a, b, call), a, b, out)
        _refuse_overlaps(_target.given(out), call, a, b)
        if isinstance(a, Windows24):
            return a._multiply(b, out, call)
        return b._multiply_from_left(a, out, call)


def in_place_of(*operands) -> str:
    """What a refusal adds where a product with derivatives was given a `Windows24`, or nothing."""
    if not any(isinstance(x, Windows24) for x in operands):
        return ""
    return "; in place of a Windows24 pass the array whose windows() made it, to have derivatives"


def in_tf32(a, b, out, call: Call):
    """The product of an n:m array in TF32; other formats multiply in full precision only."""
    left = isinstance(a, SparseArray)
    sparse, other = (a, b) if left else (b, a)
    if not isinstance(sparse, NMArray):
        raise ArgumentError(
            "precision='tf32' needs a float32 NMArray of pattern (1, 2), got "
            f"{type(sparse).__name__}; compress it with pattern=(1, 2)"
        )
    product = functools.partial(sparse.multiply_tf32, other, left=left)
    with _foreign_streams.stream_of(other):
        return _asked(product, checked(call), a, b, out)


def by_library(a, b, out, call: Call):
    """Types that sparse24 does not know, such as int64 and complex: NumPy's or CuPy's product."""
    if not call.is_plain:
        raise DTypeError(
            f"plain operands of {a.dtype} and {b.dtype} have only the plain product; convert "
            f"them to one of {', '.join(_dtypes.NAMES)}"
        )
    _product.check_inner(a.shape, b.shape)
    return _asked(lambda: _library_product(a, b), call, a, b, out)


def _library_product(a, b):
    try:
        return _arrays.namespace(a).matmul(a, b)
    except TypeError as error:  # texts, dates, records, and objects that are no numbers
        raise DTypeError(
            f"a and b must hold numbers, got {a.dtype} and {b.dtype}, which have no product; "
            "convert them, for example by .astype('float32')"
        ) from error


def _refuse_overlaps(out, call: Call, a, b) -> None:
    """Refuse what would be written over an operand: a result, as every format does, and aux."""
    aux = getattr(call.epilogue, "aux", None)
    for written, given in (("out", out), ("aux", aux)):
        if given is None:
            continue
        target, _ = _foreign.take(given, argument=written)
        for argument, x in (("a", a), ("b", b)):
            if isinstance(x, SparseArray | Windows24) or _arrays.is_sparse_matrix(x):
                continue
            if _overlap.shares_memory(_foreign.take(x, argument=argument)[0], target):
                raise ArgumentError(_dispatch.OVERLAP.format(written))


def in_sums(a, b, call: Call) -> tuple[Callable[[], Any], Call]:
    """A function that multiplies without rounding, and the call that finishes its product.

    These formats round a product to the type of its result.  Where that has 16 bits, and something
    is done to it or another type asked for, sums stay in float32: else a result would show both
    roundings, and infinities of the first.  But most kernels of a `HybridArray` on a GPU store the
    type of the operands alone, and only another type is worth a product in float32.
    """
    left = isinstance(a, SparseArray)
    ours, other = (a, b) if left else (b, a)
    other = densified(other) if _arrays.is_sparse_matrix(other) else other
    name = name_of_sums(ours, other, call, argument="b" if left else "a")
    if name is None:
        return (lambda: ours @ other) if left else (lambda: other @ ours), call
    products = n_m_products if isinstance(ours, NMArray) else hybrid_products
    return (lambda: products.in_sums(ours, other, left=left)), call._replace(dtype=name)


def name_of_sums(ours: SparseArray, other, call: Call, *, argument: str) -> str | None:
    """The type to which sums in float32 are rounded at the end; None where nothing is kept."""
    if call.is_plain:
        return None
    result = _result_of(ours, other, argument=argument)
    name = result if call.dtype is None else _target.result_name(call.dtype)
    on_gpu = isinstance(ours, HybridArray) and ours.device != "cpu"
    kept = name == result and (on_gpu or call._replace(dtype=None).is_plain)
    return None if kept or result not in _dtypes.OF_16_BITS else name


def _result_of(ours: SparseArray, other, *, argument: str) -> str:
    """The type that a product of these operands has by itself."""
    if isinstance(other, SparseArray):
        return promote(ours._dtype, other._dtype)[0].result
    dense = not _arrays.is_sparse_matrix(other)
    array = _foreign.take(other, argument=argument)[0] if dense else other
    return result_of(ours._dtype, array.dtype, argument=argument)


def _asked(product: Callable[[], Any], finish: Call, a, b, out):
    """The result of a call: its product, then its options and `out` in a pass of their own.

    The kernels of 2:4 arrays fuse these options; those of other formats do not.
    """
    target = _target.given(out)
    _refuse_overlaps(target, finish, a, b)
    is_the_result = target is None and finish.is_plain
    with contextlib.nullcontext() if is_the_result else _keeping(a, b):
        result, restore = _foreign.take(product(), argument="the product")
        if not finish.is_plain:
            finished = _finish.finished(result, out, finish, _shape(a), _shape(b))
            return _target.restored(finished, restore, finish) if out is None else out
        if target is None:
            return restore(result)
        _target.check_out(target, result.shape, result.dtype, _arrays.device_of(result))
        target[...] = result
        return out


def _keeping(a, b) -> contextlib.AbstractContextManager[None]:
    """Keep what a product makes on its way for a captured graph, while the sparse operand lives."""
    formats = SparseArray | Windows24
    ours, other = (a, b) if isinstance(a, formats) else (b, a)
    if isinstance(ours, HybridArray):
        return _cuda_graphs.keeping_with_hybrid(ours, other)
    if isinstance(ours, formats):
        return _cuda_graphs.keeping_with(ours, other)
    return contextlib.nullcontext()


def check_written(a, b, out, finish: Call) -> None:
    """Refuse `out` and the options of a call as `multiply` does, without a product.

    The operands are checked already.
    """
    target = _target.given(out)
    _refuse_overlaps(target, finish, a, b)
    left = isinstance(a, SparseArray)
    ours, other = (a, b) if left else (b, a)
    result = _result_of(ours, other, argument="b" if left else "a")
    shapes = _shape(a), _shape(b)
    dropped, full = _finish.dropped_axis(*shapes), _shape_with_both_axes(*shapes)
    if finish.is_plain:
        if target is not None:
            shape = tuple(size for i, size in enumerate(full) if i - len(full) != dropped)
            _target.check_out(target, shape, _dtypes.numpy_dtype(result), ours.device)
        return
    on_gpu, name = ours.device != "cpu", result
    if finish.dtype is not None:
        name = _target.result_name(finish.dtype)
    _target.refuse_integers(result, name, on_gpu=on_gpu)
    goes = _target.Target(full, name, target, on_gpu)
    if target is not None:
        goes.allocate(dropped)
    xp = _arrays.cupy_module() if on_gpu else np
    goes.fitted(fuse(finish, *shapes, xp, _target.vector_type(name, xp)), dropped)


def _shape_with_both_axes(left: tuple, right: tuple) -> tuple[int, ...]:
    """The shape of a product, in which a vector is a matrix of one row or column."""
    m, n = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
    return (*np.broadcast_shapes(left[:-2], right[:-2]), m, n)


def checked(call: Call) -> Call:
    """A call of these formats; refuses options that only the kernels of 2:4 have."""
    if not call.fits_all_formats:
        raise ArgumentError(
            "algorithm=, operand types and fast_accumulation= are for Sparse24Array operands, "
            "Quantised24Array ones and n:m ones that 2:4 can hold; drop them, but "
            "HybridArray.matmul takes algorithm="
        )
    return call


def _shape(x) -> tuple[int, ...]:
    return tuple(x.shape if hasattr(x, "shape") else np.shape(x))
