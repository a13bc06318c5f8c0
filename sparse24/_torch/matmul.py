"""Products of a `Sparse24Tensor`, and sums of a bias."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24._errors import ShapeError, UnsupportedError
from sparse24._product import if_transposed
from sparse24._torch import functions
from sparse24._torch.check import check_factor, check_type, refuse_onnx
from sparse24._torch.matrix import PackedMatrix
from sparse24._torch.parts import result_type
from sparse24._torch.views import view


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """A stack times one matrix at every place is a single product."""
    check_bmm(a, b)
    (count, m, k), n = a.shape, b.shape[2]
    if isinstance(b, PackedMatrix):
        rows = a if isinstance(a, PackedMatrix) else a.reshape(count * m, k)
        return mm(rows, view(b, [k, n])).view(count, m, n)
    columns = b.permute(1, 0, 2).reshape(k, count * n)
    return mm(view(a, [m, k]), columns).view(m, count, n).permute(1, 0, 2)


def check_bmm(a: Tensor, b: Tensor) -> None:
    _refuse_two(a, b)
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(f"bmm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")


def _refuse_two(a: Tensor, b: Tensor) -> None:
    if isinstance(a, PackedMatrix) and isinstance(b, PackedMatrix):
        raise UnsupportedError(
            "two Sparse24Tensors cannot be multiplied; call .to_dense() on one of them"
        )


def mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    refuse_onnx()
    _refuse_two(a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        way_out = if_transposed(a.shape, b.shape) if a.ndim == b.ndim == 2 else ""
        raise ShapeError(f"mm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit{way_out}")
    if isinstance(a, PackedMatrix):
        check_factor(b, a, None)
        y = a.times(b, None, "At@b" if a.turned else "A@b")
        return y if bias is None else _sum(bias, y)
    form = "x@At" if b.turned else "x@A"
    fits = bias is not None and tuple(bias.shape) == (b.shape[1],)  # torch spreads others itself
    fused = bias if fits else None
    check_factor(a, b, fused)
    y = b.times(a, fused, form)
    return y if bias is None or fused is not None else _sum(bias, y)


def mm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    return functions.written(mm(a, b), out)


def _sum(bias: Tensor, product: Tensor, beta=1) -> Tensor:
    """Of the product's shape; torch would also spread the product over a larger bias."""
    functions.check_bias(bias, product.shape)
    if not beta:  # a bias that is not read may hold NaN
        return product
    return product + (bias if beta == 1 else beta * bias)


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    if beta == alpha == 1:
        return mm(a, b, bias)
    if alpha == 1:
        return _sum(bias, mm(a, b), beta)
    check_type(b if isinstance(a, PackedMatrix) else a, "x")
    if result_type(a.dtype, b.dtype) != torch.float16:
        return _sum(bias, alpha * mm(a, b), beta)
    # Before it is scaled, a product may be beyond float16.
    a, b = (x if isinstance(x, PackedMatrix) else x.float() for x in (a, b))
    wide = alpha * mm(a, b)
    narrow = wide.new_empty((1, 1), dtype=torch.float16)
    return _sum(bias, wide, beta).to(torch.result_type(bias, narrow) if beta else narrow.dtype)


def mv(a: Tensor, vector: Tensor) -> Tensor:
    if vector.ndim != 1 or a.ndim != 2 or a.shape[1] != vector.shape[0]:
        raise ShapeError(f"mv: shapes {tuple(a.shape)} and {tuple(vector.shape)} do not fit")
    return mm(a, vector[:, None])[:, 0]
