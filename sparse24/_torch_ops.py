"""The custom operators of torch that the bridge is made of: pack, multiply, mask, sample.

A packed 2:4 matrix travels as a plain list of tensors, (values, codes) for each orientation, so
that autograd, checkpointing and ``torch.compile`` carry it like any other.  CPU tensors are
seen as NumPy arrays and CUDA tensors as CuPy arrays; nothing is copied, and work goes to torch's
current stream.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _arrays, _compress, _dtypes, _foreign, _matmul, _prune, _spec, _storage
from sparse24._errors import ArgumentError
from sparse24._records import Compressed24, Operand24
from sparse24._sched_gradients import mvue_24
from sparse24.formats.two_four import Sparse24Array

FORMS = ("x@At", "x@A", "A@b", "At@b")


@torch.library.custom_op("sparse24::pack", mutates_args=())
def pack(x: Tensor, mask: Tensor | None, transposable: bool) -> list[Tensor]:
    """Values and codes of a matrix (m, k), pruned by magnitude or by `mask`.

    Two tensors, or four for a transposable matrix: those of the transpose follow.
    """
    with _foreign.stream_of(x):
        if mask is None:
            array = _compress.compress(
                x.detach(), on_excess="prune", check=False, transposable=transposable
            )
            operand = array._operand
            records = (operand.rows, operand.columns) if transposable else (operand.rows,)
        else:
            turns = ((x, mask), (x.mT, mask.mT))[: 1 + transposable]
            arrays = [_compress.compress(a.detach(), mask=m, check=False) for a, m in turns]
            records = tuple(array._operand.rows for array in arrays)
        return [_foreign.to_torch(part) for record in records for part in _parts(record)]


@pack.register_fake
def _(x, mask, transposable):
    m, k = x.shape
    shapes = ((m, k), (k, m))[: 1 + transposable]
    return [part for shape in shapes for part in _like_parts(x, *shape)]


def _like_parts(x: Tensor, m: int, k: int) -> list[Tensor]:
    columns = _spec.values_per_row(k)
    codes: tuple[int, ...] = (m, _spec.metadata_bytes_per_row(k))
    if x.device.type == "cuda":
        columns = _arrays.row_pitch(columns, x.element_size())
        codes = _spec.packed_shape(m, k)
    return [x.new_empty((m, columns)), x.new_empty(codes, dtype=torch.uint8)]


def _parts(record: Compressed24):
    """(values with their row padding, codes) as whole arrays."""
    values = record.values
    if not _arrays.is_cupy(values):
        return values, _storage.canonical(record)
    m, columns = values.shape
    pitch = _arrays.row_pitch(columns, values.itemsize)
    if pitch != columns:  # the rows' storage is that wide
        cupy = _arrays.cupy_module()
        strides = (pitch * values.itemsize, values.itemsize)
        values = cupy.lib.stride_tricks.as_strided(values, (m, pitch), strides)
    return values, _storage.packed(record)


def unpack(parts: list[Tensor], m: int, k: int) -> Sparse24Array:
    """The array that the tensors of `pack` describe; nothing is copied."""
    rows = _record(parts[0], parts[1], m, k)
    columns = _record(parts[2], parts[3], k, m) if len(parts) == 4 else None
    return Sparse24Array(Operand24(rows, columns, None, (m, k), rows.dtype))


def _record(values: Tensor, codes: Tensor, m: int, k: int) -> Compressed24:
    row = _dtypes.lookup(str(values.dtype).removeprefix("torch."))
    stored = _foreign.from_torch(values)[:, : _spec.values_per_row(k)]
    bits = _foreign.from_torch(codes)
    metadata, packed = (bits, None) if bits.ndim == 2 else (None, bits)
    return Compressed24(stored, metadata, packed, (m, k), row)


@torch.library.custom_op("sparse24::product", mutates_args=())
def product(
    parts: list[Tensor], m: int, k: int, dense: Tensor, bias: Tensor | None, form: str
) -> Tensor:
    """A product with the packed matrix A (m, k); `form` is one of `FORMS`."""
    with _foreign.stream_of(dense):
        a = unpack(parts, m, k)
        a = a.mT if "t" in form else a
        if form.startswith("A"):
            return _matmul.matmul(a, dense)
        epilogue = None if bias is None else _matmul.Epilogue(bias=bias)
        return _matmul.matmul(dense, a, epilogue=epilogue)


@product.register_fake
def _(parts, m, k, dense, bias, form):
    if form not in FORMS:
        raise ArgumentError(f"form must be one of {FORMS}, got {form!r}")
    rows, columns = {
        "x@At": (dense.shape[0], m),
        "x@A": (dense.shape[0], k),
        "A@b": (m, dense.shape[1]),
        "At@b": (k, dense.shape[1]),
    }[form]
    return dense.new_empty((rows, columns), dtype=torch.promote_types(parts[0].dtype, dense.dtype))


@torch.library.custom_op("sparse24::dense", mutates_args=())
def dense(parts: list[Tensor], m: int, k: int) -> Tensor:
    """The packed matrix with its zeros."""
    with _foreign.stream_of(parts[0]):
        return _foreign.to_torch(unpack(parts, m, k).toarray())


@dense.register_fake
def _(parts, m, k):
    return parts[0].new_empty((m, k))


@torch.library.custom_op("sparse24::keep", mutates_args=())
def keep(x: Tensor, transposable: bool) -> Tensor:
    """Where `pack` keeps elements, as booleans; kept zeros included."""
    with _foreign.stream_of(x):
        return _prune.mask(x.detach(), transposable=transposable).contiguous()


@keep.register_fake
def _(x, transposable):
    return torch.empty_like(x, dtype=torch.bool, memory_format=torch.contiguous_format)


@torch.library.custom_op("sparse24::sample", mutates_args=())
def sample(x: Tensor, seed: int, clock: Tensor) -> Tensor:
    """`x` sampled to 2:4 along its last axis without bias (`sparse24.schedule.mvue_24`)."""
    return mvue_24(x, step=int(clock), seed=seed).contiguous()


@sample.register_fake
def _(x, seed, clock):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("sparse24::masked_gradient", mutates_args=())
def masked_gradient(
    parts: list[Tensor], m: int, k: int, gradient: Tensor, weight: Tensor | None, decay: float
) -> Tensor:
    """`gradient` where the packed matrix stores elements, elsewhere 0 or, with a `weight`,
    ``gradient + decay * weight``.
    """
    with _foreign.stream_of(gradient):
        record = _record(parts[0], parts[1], m, k)
        dense = _foreign.from_torch(gradient)
        decaying = None if weight is None else _foreign.from_torch(weight)
        if _arrays.is_cupy(dense):
            from sparse24.kernels import like

            result = like.masked_gradient(record, dense, weight=decaying, decay=decay)
        else:
            from sparse24.kernels import reference

            codes = _storage.canonical(record)
            result = reference.masked_gradient(codes, dense, decaying, decay)
        return _foreign.to_torch(result)


@masked_gradient.register_fake
def _(parts, m, k, gradient, weight, decay):
    return torch.empty_like(gradient, memory_format=torch.contiguous_format)
