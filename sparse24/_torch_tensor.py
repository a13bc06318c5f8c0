"""A tensor subclass for code written for xformers or torch's semi-structured tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparse24 import _foreign
from sparse24 import _torch_ops as ops
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._torch_parts import unpack
from sparse24._torch_transforms import differentiable
from sparse24.formats.two_four import Sparse24Array

_aten = torch.ops.aten


class Sparse24Tensor(torch.Tensor):
    """A 2:4 matrix that takes part in ``@``, ``torch.mm`` and ``torch.nn.functional.linear``.

    Made by `sparsify24` and `to_sparse_semi_structured`.  Other operations raise; use
    `to_dense` first.  ``torch.save`` stores it without the zeros, and ``torch.load`` checks it and
    takes it to any device, with ``weights_only`` once ``sparse24.torch`` is imported.

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
        m, k = self.shape[-2:]  # axes before them are those of expand
        return (k, m) if self.turned else (m, k)

    def to_dense(self) -> Tensor:  # type: ignore[override]
        """The matrix with its zeros; its gradient is this tensor's."""
        if torch.is_grad_enabled() and self.requires_grad:  # the parts belong to no graph
            return differentiable(_ToDense, self)
        return _whole(self)

    def to_array(self) -> Sparse24Array:
        """The matrix as an array of sparse24, to save or to multiply without torch.

        Shares the memory of this tensor; has no gradient.
        """
        if self.ndim != 2:
            raise ShapeError(
                f"to_array takes a matrix, got shape {tuple(self.shape)}; call it before expand"
            )
        with _foreign.stream_of(self.parts[0]):
            stored = unpack(self.parts, *self.stored_shape)
            return stored.T if self.turned else stored

    def __reduce_ex__(self, protocol):
        """Saved in the canonical form, checked when it is loaded."""
        from sparse24._torch_stored import restored, saved

        parameter = isinstance(self, torch.nn.Parameter)
        return restored, (*saved(self), self.turned, self.requires_grad, parameter)

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

    def _stable_hash_for_caching(self) -> str:
        """What compiled code depends on; torch keys its cache of such code by it."""
        parts = [
            (tuple(part.shape), part.stride(), part.storage_offset(), part.dtype, part.device)
            for part in self.parts
        ]
        key = repr((tuple(self.shape), self.turned, self.requires_grad, parts))
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        rule = _RULES.get(function)
        if rule is not None:
            return rule(*args, **kwargs)
        # Inference mode hands over what torch itself makes of simpler operations, as linear.
        parts = getattr(function, "decompose", None)
        made = NotImplemented if parts is None else parts(*args, **kwargs)
        if made is NotImplemented:
            raise _undefined(function)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl


def _whole(a: Sparse24Tensor) -> Tensor:
    stored = ops.dense(a.parts, *a.stored_shape)
    return (stored.t() if a.turned else stored).expand(a.shape)


class _ToDense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a: Sparse24Tensor) -> Tensor:
        return _whole(a)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


def _undefined(function) -> UnsupportedError:
    way_out = "call .to_dense() first"
    if function in (_aten._transformer_encoder_layer_fwd.default,
                    _aten._native_multi_head_attention.default):  # fmt: skip
        way_out = "switch torch's fused one off: torch.backends.mha.set_fastpath_enabled(False)"
    return UnsupportedError(f"{function} is not defined for a Sparse24Tensor; {way_out}")


def _seen(a: Sparse24Tensor, shape, turned: bool) -> Sparse24Tensor:
    """A view of the same parts."""
    if not torch.is_inference_mode_enabled() or a.is_inference():
        return Sparse24Tensor(a.parts, shape, turned=turned)
    with torch.inference_mode(False):  # a tensor from outside and its views share a version
        return Sparse24Tensor(a.parts, shape, turned=turned)


def _detach(a: Sparse24Tensor) -> Sparse24Tensor:
    return _seen(a, a.shape, a.turned)


def _kept_gradient(a: Sparse24Tensor, x: Tensor, transposable: bool) -> Tensor:
    """A compiler traces backward with the result of forward in place of its gradient."""
    return ops.kept_gradient(_whole(a), x, transposable)


def _check_axes(a: Sparse24Tensor, axes: list[int]) -> None:
    if not all(-a.ndim <= axis < a.ndim for axis in axes):
        span = f"-{a.ndim} to {a.ndim - 1}"
        raise ShapeError(
            f"axes of a Sparse24Tensor of shape {tuple(a.shape)} are {span}, got {axes}; give those"
        )


def _turn(a: Sparse24Tensor) -> Sparse24Tensor:
    if a.ndim != 2:
        raise _undefined(_aten.t.default)
    return _seen(a, a.shape[::-1], not a.turned)


def _transpose(a: Sparse24Tensor, first: int, second: int) -> Sparse24Tensor:
    axes = list(range(a.ndim))
    _check_axes(a, [first, second])
    axes[first], axes[second] = axes[second], axes[first]
    return _permute(a, axes)


def _permute(a: Sparse24Tensor, axes: list[int]) -> Sparse24Tensor:
    _check_axes(a, axes)
    given, axes = axes, [axis % a.ndim for axis in axes]
    if sorted(axes) != list(range(a.ndim)):
        raise ShapeError(
            f"axes must name each of the {a.ndim} axes once, got {given}; give {a.ndim} others"
        )
    if set(axes[-2:]) != {a.ndim - 2, a.ndim - 1}:  # an axis of expand would become one of m, k
        raise _undefined(_aten.permute.default)
    turned = a.turned != (axes[-1] != a.ndim - 1)
    return _seen(a, [a.shape[axis] for axis in axes], turned)


def _repeat(a: Sparse24Tensor, shape: list[int], **_) -> Sparse24Tensor:
    """The matrix at every place of leading axes, as torch's matmul asks for beside a stack."""
    new = len(shape) - a.ndim
    full = [*shape[:new], *(old if n == -1 else n for n, old in zip(shape[new:], a.shape))]
    if new < 0 or any(n != old != 1 for n, old in zip(full[new:], a.shape)):
        raise _undefined(_aten.expand.default)
    return _view(a, full, function=_aten.expand.default)


def _view(a: Sparse24Tensor, shape: list[int], *, function=_aten.view.default) -> Sparse24Tensor:
    """Of other leading axes, which all lead to the one matrix."""
    if len(shape) < 2 or tuple(shape[-2:]) != tuple(a.shape[-2:]) or -1 in shape:
        raise _undefined(function)
    return _seen(a, shape, a.turned)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """A stack times one matrix at every place is a single product."""
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ShapeError(f"bmm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    (count, m, k), n = a.shape, b.shape[2]
    if isinstance(b, Sparse24Tensor):
        rows = a if isinstance(a, Sparse24Tensor) else a.reshape(count * m, k)
        return _mm(rows, _view(b, [k, n])).view(count, m, n)
    columns = b.permute(1, 0, 2).reshape(k, count * n)
    return _mm(_view(a, [m, k]), columns).view(m, count, n).permute(1, 0, 2)


def _mm(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    if isinstance(a, Sparse24Tensor) and isinstance(b, Sparse24Tensor):
        raise UnsupportedError(
            "two Sparse24Tensors cannot be multiplied; call .to_dense() on one of them"
        )
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"mm: shapes {tuple(a.shape)} and {tuple(b.shape)} do not fit")
    if isinstance(a, Sparse24Tensor):
        y = ops.product(a.parts, *a.stored_shape, b, None, "At@b" if a.turned else "A@b")
        return y if bias is None else _sum(bias, y)
    form = "x@At" if b.turned else "x@A"
    fits = bias is not None and tuple(bias.shape) == (b.shape[1],)  # torch spreads others itself
    fused = bias if fits else None
    y = ops.product(b.parts, *b.stored_shape, a, fused, form)
    return y if bias is None or fused is not None else _sum(bias, y)


def _sum(bias: Tensor, product: Tensor, beta=1) -> Tensor:
    """Of the product's shape; torch would also spread the product over a larger bias."""
    shape = product.shape
    ends = zip(bias.shape[::-1], shape[::-1], strict=False)
    if bias.ndim > len(shape) or any(n not in (1, wanted) for n, wanted in ends):
        raise ShapeError(
            f"bias must broadcast to the product's shape {tuple(shape)}, got shape "
            f"{tuple(bias.shape)}; reshape it"
        )
    if not beta:  # a bias that is not read may hold NaN
        return product
    return product + (bias if beta == 1 else beta * bias)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta=1, alpha=1) -> Tensor:
    if beta == alpha == 1:
        return _mm(a, b, bias)
    return _sum(bias, alpha * _mm(a, b), beta)


def _mv(a: Tensor, vector: Tensor) -> Tensor:
    return _mm(a, vector[:, None])[:, 0]


def _clone(a: Sparse24Tensor, **_) -> Sparse24Tensor:
    return Sparse24Tensor([part.clone() for part in a.parts], a.shape, turned=a.turned)


def _refuse_copy(*_: Any) -> Tensor:
    raise UnsupportedError(
        "elements are not copied into or out of a Sparse24Tensor; pass assign=True to "
        "load_state_dict, or call .to_dense() first"
    )


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
    _aten.expand.default: _repeat,
    _aten.view.default: _view,
    _aten.bmm.default: _bmm,
    _aten.mm.default: _mm,
    _aten.mv.default: _mv,
    _aten.addmm.default: _addmm,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: _refuse_copy,
    ops.kept_gradient: _kept_gradient,
}
