"""From a checked grouped product to its kernel, or to one product for each expert.

A kernel computes all products in one launch and reads the offsets on the device: ``grouped_wgmma``
on Hopper, ``grouped_mma`` elsewhere.  Matrices of fewer bits than the tokens have kernels of their
own on Hopper, ``grouped_mixed``, and ``grouped_quantised`` for quantised ones and few tokens;
elsewhere they are converted first.  All take operands and results of one layout alone, columns that
are contiguous and begin on 16-byte boundaries; others go through copies.  What all refuse, and
everything on the CPU, is multiplied expert by expert, by `_dispatch.fill`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _dispatch,
    _foreign_streams,
    _planner,
    _quantised,
    _ready_stacks,
    _staging,
    _storage,
)
from sparse24._dtypes import DType
from sparse24._errors import UnsupportedError
from sparse24._grouped import choice
from sparse24._grouped import gate as grouped_gate
from sparse24._grouped import host as grouped_host
from sparse24._grouped import offsets as grouped_offsets
from sparse24._grouped.product import Grouped
from sparse24._options import Call
from sparse24._records import EXPERTS, MAKING, Compressed24, Fused, Operand24
from sparse24._target import Result
from sparse24.kernels import grouped
from sparse24.kernels.launch import current_stream


def fill(product: Grouped, call: Call, types: Result, plans: dict) -> Callable[..., Any] | None:
    """Compute a product; `types` are its types, `plans` those of the experts.

    Returns ``bind(b, out, stream, offsets)``, which makes the same launch for arrays of the same
    layouts, where the kernel has multiplied the arrays of `product` themselves.

    On the GPU enqueues on CuPy's current stream and does not wait, except for offsets on the
    device where the kernel refuses.  Runs inside `_cuda_graphs.keeping`.
    """
    if 0 in product.out.shape or not product.a.shape[0]:
        return None
    if not types.on_gpu:
        prepared = plans.setdefault(EXPERTS, grouped_host.Prepared())
        _one_by_one(product, call, types, prepared.fill, _ready_stacks.share)
        return None
    on_device = _arrays.is_cupy(product.offsets)
    kernel, refusal = choice.kernel_of(product, types)
    if _arrays.is_capturing():
        _check_captured(kernel, refusal, on_device=on_device)
    if refusal is None:
        return _by_kernel(kernel, product, call, types)
    if on_device:
        tokens = product.b.shape[1]
        offsets = grouped_offsets.validated(product.offsets.get().astype(np.int64), tokens)
        product = product._replace(offsets=offsets)
    _one_by_one(product, call, types, _fill_on_gpu)
    return None


def explained(product: Grouped, call: Call, types: Result) -> tuple[str, str]:
    """The kernel that `fill` runs, and why."""
    if 0 in product.out.shape or not product.a.shape[0]:
        return "none", "the result has no elements, so nothing runs"
    if not types.on_gpu:
        return "cpu", f"{_EACH}, as always on the CPU"
    kernel, refusal = choice.kernel_of(product, types)
    if refusal is not None:
        return "each", f"{_EACH}, since {kernel} cannot: {refusal}"
    (experts, rows, _), tokens = product.a.shape, product.b.shape[1]
    direct, module = kernel in choice.DIRECT, _planner.kernel_module(kernel)
    for_what = product.a.stored if direct else _types_of(product, call, types)
    tile = module.tile_of(experts, rows, tokens, for_what)
    reason = (
        f"one launch serves all {experts} experts, by tiles of {tile.name} for the {tokens} "
        "tokens of all"
    )
    if not direct:
        reason += _conversion(product.a.stored, types.type_a)
    if not _in_vectors(product.b) or not _stored_whole(product.out):
        reason += "; tokens or results are copied, since theirs are not contiguous in 16 bytes"
    return kernel, reason


_EACH = "each expert that has tokens has a product of its own"


def _conversion(a: Compressed24, dtype: DType) -> str:
    """The end of a reason, for a kernel that takes elements of a type."""
    if a.quantised:
        return f"; the integers are dequantised to {dtype.name} at each call"
    if a.dtype.name == dtype.name:
        return ""
    return f"; the {a.dtype.name} elements are converted to {dtype.name} at each call"


def _check_captured(kernel: str, refusal: str | None, *, on_device: bool) -> None:
    """Refuse what a CUDA graph cannot hold: copies of offsets to the device, and to the host."""
    if refusal is None and not on_device:
        raise UnsupportedError(
            "a CUDA graph cannot capture the copy of offsets from the host; pass an array on the "
            "GPU, which the graph reads anew at each replay"
        )
    if refusal is not None and on_device:
        raise UnsupportedError(
            "this grouped product runs expert by expert, for which offsets are copied to the "
            f"host, and the capture of a CUDA graph cannot wait for that ({kernel}: {refusal}); "
            "pass offsets as a list or NumPy array, which the graph then keeps"
        )


def _by_kernel(name: str, product: Grouped, call: Call, types: Result) -> Callable[..., Any] | None:
    """All experts in one launch."""
    kernel, out = _planner.kernel_module(name), product.out
    a = product.a if name in choice.DIRECT else _as_multiplied(product.a, types.type_a)
    assert a.rows is not None
    b = _dispatch.convert(product.b, types.type_b, call.other_dtype)
    if not _in_vectors(b):
        b = _staging.aligned_columns(b)
    target = out if _stored_whole(out) else _staging.aligned_like(out, "column")
    offsets = _arrays.namespace(b).asarray(product.offsets)
    _foreign_streams.make_current()
    used = product._replace(a=a, b=b, out=target, offsets=offsets)
    bind = _binder(kernel, _storage.with_packed(a.rows), used, call, types)
    stream = current_stream()
    bind(b, target, stream, offsets.data.ptr)(stream)
    if target is not out:
        out[...] = target
    return bind if _same(used, product) else None


def _as_multiplied(a: Operand24, dtype: DType) -> Operand24:
    """The matrices with elements of a type, dequantised if they are integers with factors."""
    if a.stored.quantised:
        return _quantised.as_converted(a, dtype)
    return _dispatch.cast_operand(a, dtype)


def _same(used: Grouped, given: Grouped) -> bool:
    """Whether the kernel took all arrays as they were given."""
    return all(x is y for x, y in zip(used, given, strict=True))


def _binder(
    kernel, rows: Compressed24, product: Grouped, call: Call, types: Result
) -> Callable[..., Any]:
    of, params = _types_of(product, call, types), grouped.params_of(product.epilogue)
    return lambda b, out, stream, offsets: kernel.bind(rows, b, out, of, offsets, params)


def _types_of(product: Grouped, call: Call, types: Result) -> grouped.Types:
    return grouped.types_of(
        types.type_a.name, types.type_b.name, types.name, product.offsets.dtype.name,
        product.epilogue, gated=product.gated, fast_accumulation=call.fast_accumulation,
    )  # fmt: skip


def _stored_whole(out) -> bool:
    """Whether the kernel stores to `out` itself: it writes 16 bytes at a time to the last one."""
    return out.shape[0] * out.itemsize % _arrays.VECTOR == 0 and _in_vectors(out)


def _in_vectors(x) -> bool:
    """Whether columns are contiguous, and each begins on a boundary of 16 bytes."""
    step, pitch = x.strides
    return step == x.itemsize and pitch > 0 and (x.data.ptr | pitch) % _arrays.VECTOR == 0


def _in_turn(one: Callable[[int], None], work: dict[int, int]) -> None:
    for expert in work:
        one(expert)


def _one_by_one(
    product: Grouped, call: Call, types: Result, multiply: Callable[..., Any], run=_in_turn
) -> None:
    """One product for each expert that has tokens.

    `multiply` takes what `_dispatch.fill` does, after the number of the expert and with a function
    that makes its matrix.  ``run(one, work)`` calls ``one(i)`` for each expert i in `work`, which
    tells its multiplications.
    """
    offsets, (_, m, k) = product.offsets.tolist(), product.a.shape
    spans = enumerate(itertools.pairwise(offsets))
    work = {i: (stop - start) * m * (k // 2) for i, (start, stop) in spans if stop > start}

    def each(out, epilogue: Fused, types: Result) -> None:
        def one(i: int) -> None:
            tokens = slice(offsets[i], offsets[i + 1])
            a, of_expert = functools.partial(_expert, product.a, i), _of_expert(epilogue, i, tokens)
            multiply(i, a, product.b[:, tokens], out[:, tokens], of_expert, call, types)

        run(one, work)

    if product.gated:
        grouped_gate.fill(each, product.out, product.epilogue, types)
    else:
        each(product.out, product.epilogue, types)


def _fill_on_gpu(number: int, a: Callable[[], Operand24], *rest: Any) -> None:
    _dispatch.fill(a(), *rest)


def _of_expert(e: Fused, number: int, tokens: slice) -> Fused:
    """The part of an epilogue that is of one expert and its tokens."""
    if e.row_scale is e.column_scale is e.row_bias is None:
        return e
    part = lambda x, at: None if x is None else x[at]  # noqa: E731
    return Fused(  # of what `fuse.fused` sets; `replace` takes twice as long
        e.alpha, row_scale=part(e.row_scale, number), column_scale=part(e.column_scale, tokens),
        row_bias=part(e.row_bias, number), activation=e.activation,
    )  # fmt: skip


def _expert(a: Operand24, number: int) -> Operand24:
    """One matrix of a stack."""
    assert a.rows is not None
    dense = None if a.dense is None else a.dense[number]
    return Operand24(_record(a.rows, number), None, dense, a.shape[1:], a.dtype)


def _record(rows: Compressed24, number: int) -> Compressed24:
    """The record of one matrix of a stack.

    On a GPU it is kept with the stack, so that the layouts which kernels derive from it are made
    only once; on the CPU a quantised one, which keeps itself dequantised.
    """
    keeps = rows.quantised or _arrays.is_cupy(rows.values)
    kept = rows.derived.setdefault(EXPERTS, {}) if keeps else {}
    if number not in kept:
        arrays = (rows.values, rows.metadata, rows.packed)
        values, metadata, packed = (None if x is None else x[number] for x in arrays)
        shape, bits = rows.shape[1:], rows.quantised
        one = Compressed24(values, metadata, packed, shape, rows.dtype, quantised=bits)
        if MAKING in rows.derived:
            one.derived[MAKING] = rows.derived[MAKING]
        kept.setdefault(number, one)
    return kept[number]
