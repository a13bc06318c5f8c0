"""A tensor subclass for code written for xformers or torch's semi-structured tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24 import _check, _foreign, _obeys
from sparse24 import _torch_ops as ops
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._torch_check import check_tensor
from sparse24._torch_transforms import differentiable

_aten = torch.ops.aten


class Sparse24Tensor(torch.Tensor):
    """A 2:4 matrix that takes part in ``@``, ``torch.mm`` and ``torch.nn.functional.linear``.

    Made by `sparsify24` and `to_sparse_semi_structured`.  Other operations raise; use
    `to_dense` first.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import to_sparse_semi_structured
    >>> a = to_sparse_semi_structured(torch.eye(4))
    >>> a
    Sparse24Tensor(shape=(4, 4), dtype=torch.float32, device=cpu, transposable=False)
    >>> torch.ones(1, 4) @ a.T
    tensor([[1., 1., 1., 1.]])
    """

    @staticmethod
    def __new__(cls, parts, shape, *, turned: bool = False, requires_grad: bool = False):
        values = parts[0]
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device, requires_grad=requires_grad
        )

    def __init__(self, parts, shape, *, turned: bool = False, requires_grad: bool = False):
        self.parts = list(parts)
        self.turned = turned  # True: the tensor is the transpose of what the parts hold

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Shape of the packed matrix."""
        m, k = self.shape
        return (k, m) if self.turned else (m, k)

    def to_dense(self) -> Tensor:  # type: ignore[override]
        """The matrix with its zeros."""
        whole = ops.dense(self.parts, *self.stored_shape)
        return whole.t() if self.turned else whole

    def __repr__(self, *, tensor_contents=None) -> str:
        return (
            f"Sparse24Tensor(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, "
            f"transposable={len(self.parts) == 4})"
        )

    def share_memory_(self) -> Sparse24Tensor:
        """Move the values and codes to shared memory, as for other processes."""
        for part in self.parts:
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        return all(part.is_shared() for part in self.parts)

    def __dlpack__(self, **_):  # torch would hand out an address without elements
        raise UnsupportedError(
            "a Sparse24Tensor has no dense memory to share by DLPack; call .to_dense() first"
        )

    def __tensor_flatten__(self):
        names = [f"_part{i}" for i in range(len(self.parts))]
        for name, part in zip(names, self.parts, strict=True):
            setattr(self, name, part)
        return names, (tuple(self.shape), self.turned)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        shape, turned = context
        return cls([inner[name] for name in sorted(inner)], shape, turned=turned)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        rule = _RULES.get(function)
        if rule is None:
            raise UnsupportedError(
                f"{function} is not defined for a Sparse24Tensor; call .to_dense() first"
            )
        return rule(*args, **(kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


def _detach(a: Sparse24Tensor) -> Sparse24Tensor:
    return Sparse24Tensor(a.parts, a.shape, turned=a.turned)


def _turn(a: Sparse24Tensor) -> Sparse24Tensor:
    return Sparse24Tensor(a.parts, a.shape[::-1], turned=not a.turned)


def _transpose(a: Sparse24Tensor, first: int, second: int) -> Sparse24Tensor:
    return _detach(a) if first % 2 == second % 2 else _turn(a)


def _permute(a: Sparse24Tensor, axes: list[int]) -> Sparse24Tensor:
    return _transpose(a, 0, axes[0])


def _mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(a, Sparse24Tensor) and isinstance(b, Sparse24Tensor):
        raise UnsupportedError(
            "two Sparse24Tensors cannot be multiplied; call .to_dense() on one of them"
        )
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"mm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    if isinstance(a, Sparse24Tensor):
        y = ops.product(a.parts, *a.stored_shape, b, None, "At@b" if a.turned else "A@b")
        return y if bias is None else y + bias
    form = "x@At" if b.turned else "x@A"
    fits = bias is not None and tuple(bias.shape) == (b.shape[1],)  # torch spreads others itself
    fused = bias if fits else None
    y = ops.product(b.parts, *b.stored_shape, a, fused, form)
    return y if bias is None or fused is not None else y + bias


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    if beta == alpha == 1:
        return _mm(a, b, bias)
    product = alpha * _mm(a, b)
    return beta * bias + product if beta else product


def _mv(a: Tensor, vector: Tensor) -> Tensor:
    return _mm(a, vector[:, None])[:, 0]


def _clone(a: Sparse24Tensor, **_) -> Sparse24Tensor:
    return Sparse24Tensor([part.clone() for part in a.parts], a.shape, turned=a.turned)


def _to_copy(a: Sparse24Tensor, *, dtype=None, device=None, **_) -> Sparse24Tensor:
    """Packed anew, as the layout depends on the device and the size of an element."""
    stored = ops.dense(a.parts, *a.stored_shape).to(dtype=dtype, device=device)
    return Sparse24Tensor(ops.pack(stored, None, len(a.parts) == 4), a.shape, turned=a.turned)


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.detach.default: _detach,
    _aten.alias.default: _detach,
    _aten.t.default: _turn,
    _aten.transpose.int: _transpose,
    _aten.permute.default: _permute,
    _aten.mm.default: _mm,
    _aten.mv.default: _mv,
    _aten.matmul.default: _mm,
    _aten.addmm.default: _addmm,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
}


class _Sparsify(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gradient: str, transposable: bool):
        ctx.gradient, ctx.transposable = gradient, transposable
        if gradient != "ste":
            ctx.save_for_backward(x)
        return Sparse24Tensor(ops.pack(x, None, transposable), x.shape)

    @staticmethod
    def backward(ctx, grad):
        if ctx.gradient != "ste":
            (x,) = ctx.saved_tensors
            grad = grad * ops.keep(x, ctx.transposable)
        return grad, None, None


def sparsify24(
    x: Tensor, algo: str = "", gradient: str = "24sparse", backend: str = "sparse24"
) -> Sparse24Tensor:
    """Prune a matrix to 2:4 by 4x4 tiles; stands in for ``xformers.ops.sp24.sparsify24``.

    Parameters
    ----------
    x : Tensor, shape (m, k)
    algo : str
        Taken for compatibility: every name gives the exact optimum of the 90 tile masks.
    gradient : {"24sparse", "24dense", "ste"}
        Both 2:4 forms give `x` the gradient of its kept elements, as a dense tensor;
        ``"ste"`` gives it all of it.
    backend : str
        Taken for compatibility.

    Returns
    -------
    Sparse24Tensor, shape (m, k)
        Differentiable; its products with either side are sparse.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import sparsify24
    >>> x = torch.randn(8, 8)
    >>> (sparsify24(x) @ torch.ones(8, 2)).shape
    torch.Size([8, 2])
    """
    _check.one_of(gradient, ("24sparse", "24dense", "ste"), argument="gradient")
    check_tensor(x, "x")
    if x.ndim != 2:
        raise ShapeError(f"x must be a matrix (m, k), got shape {tuple(x.shape)}; reshape it")
    return differentiable(_Sparsify, x, gradient, True)


def to_sparse_semi_structured(original_tensor: Tensor, transposed: bool = False) -> Sparse24Tensor:
    """Pack a matrix that is 2:4; stands in for ``torch.sparse.to_sparse_semi_structured``.

    Parameters
    ----------
    original_tensor : Tensor, shape (m, k)
    transposed : bool
        Taken for compatibility; must be False, as in torch.

    Returns
    -------
    Sparse24Tensor, shape (m, k)

    Raises
    ------
    PatternError
        If a group holds more than two non-zeros.  (torch drops the others silently.)
        The check waits for the device.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import to_sparse_semi_structured
    >>> w = to_sparse_semi_structured(torch.tensor([[0.0, 1, 0, 2]]))
    >>> w @ torch.ones(4, 1)
    tensor([[3.]])
    """
    if transposed:
        raise UnsupportedError("transposed=True is not supported; transpose the result with .t()")
    check_tensor(original_tensor, "original_tensor")
    if original_tensor.ndim != 2:
        shape = tuple(original_tensor.shape)
        raise ShapeError(f"original_tensor must be a matrix, got shape {shape}")
    with _foreign.stream_of(original_tensor):
        _obeys.check_24(original_tensor.detach())
    parts = ops.pack(original_tensor.detach(), None, False)  # else they would belong to its graph
    return Sparse24Tensor(parts, original_tensor.shape)
