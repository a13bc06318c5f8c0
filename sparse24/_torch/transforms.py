"""What derivatives sparse products have: first ones, by backward; all else is refused.

torch itself would raise errors that do not say what works or, worse, give zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sparse24._errors import UnsupportedError
from sparse24._torch.check import refuse_onnx

_WHOLE = (Tensor, torch.nn.Parameter)  # most tensors; to ask these for an attribute takes long


def differentiable(function: type[torch.autograd.Function], *operands):
    """The function, or the message that torch would not give."""
    if _within_transforms():
        raise _not_by_transforms()
    if not torch.compiler.is_compiling() and _has_tangents(operands):
        raise _not_by_transforms()
    refuse_onnx()
    refuse_split(operands)
    return function.apply(*operands)


def refuse_tangents(weight: Tensor, decay: float) -> None:
    """For masked weights that decay: what backward adds to a gradient has no forward mode."""
    if torch.compiler.is_compiling() or not _has_tangents([weight]):
        return
    raise UnsupportedError(
        f"decay={decay:g} is added to gradients by backward(), torch.autograd.grad and "
        "torch.func.grad, and has no derivative in forward mode or torch.func.jvp; use decay=0"
    )


def refuse_split(operands: Iterable) -> None:
    """Of tensors on several processes torch says only that an operator has no strategy."""
    for x in operands:
        if isinstance(x, Tensor) and type(x) not in _WHOLE and hasattr(x, "full_tensor"):
            raise UnsupportedError(
                f"sparse products take whole tensors, got a {type(x).__name__}, which lies on "
                "several processes; call sparsify before fully_shard, and the module that was "
                "sharded, not a part of it; for tensor parallelism give each process a sparse "
                "layer of its own part, or use sparse='masked'"
            )


def refuse_transforms(*tensors: Tensor | None) -> None:
    """For products without gradients: torch's transforms would lose what they follow."""
    refuse_onnx()
    refuse_split(tensors)
    if torch.compiler.is_compiling():
        if _within_transforms():  # a compiler does not tell which tensors they follow
            raise _not_by_transforms()
        return
    given = [x for x in tensors if x is not None]
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    if any(wrapped(x) for x in given) or _has_tangents(given):
        raise _not_by_transforms()


def are_transformed() -> bool:
    """Whether any of torch's transforms is active, which `refuse_transforms` looks at closely."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _within_transforms() -> bool:
    """Whether this code runs, or is traced by a compiler, within a transform of torch.func."""
    return torch._C._are_functorch_transforms_active()


# So that torch.compile asks while it traces, for compiled code is of one stack of transforms.  This
# is what torch.compiler.assume_constant_result sets, which would import the compiler.
_within_transforms._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _has_tangents(operands) -> bool:
    """Whether derivatives in forward mode are asked for."""
    if forward_ad._current_level < 0:
        return False
    tensors = (x for x in operands if isinstance(x, Tensor))
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def _refuse_batches(gradients) -> None:
    """Of ``is_grads_batched=True``, or vmap around a backward, which operators cannot take."""
    functorch = torch._C._functorch
    if any(map(functorch.is_legacy_batchedtensor, gradients)) or any(
        map(functorch.is_functorch_wrapped_tensor, gradients)
    ):
        raise _not_by_transforms()


def _not_by_transforms() -> UnsupportedError:
    return UnsupportedError(
        "products that are sparse have derivatives by backward() and torch.autograd.grad only, "
        "not by torch.func's transforms (grad, jvp, vmap, ...), batched gradients or forward "
        "mode; use those, or sparse='masked' in linear layers"
    )


def first_derivative(*needs: tuple[int, ...]):
    """Decorates ``backward(ctx, saved, *gradients)``, whose results have no derivatives.

    `needs` names for each result the saved tensors that it is made of, beside the gradients.  With
    torch's own `once_differentiable` a Hessian is zero, and a result that depends on saved tensors
    alone is a constant, both without an error.
    """

    def decorate(backward):
        @functools.wraps(backward)
        def once(ctx, *gradients):
            if not torch.compiler.is_compiling():
                _refuse_batches(gradients)
            saved = ctx.saved_tensors  # once: torch.utils.checkpoint allows no more
            if not torch.is_grad_enabled():
                return backward(ctx, saved, *gradients)
            with torch.no_grad():
                found = backward(ctx, saved, *gradients)
            made_of = [[saved[i] for i in places] for places in needs]
            ends = zip(found[: len(needs)], made_of, strict=True)
            last = (None if g is None else _Last.apply(g, *gradients, *own) for g, own in ends)
            return *last, *found[len(needs) :]

        return once

    return decorate


class _Last(torch.autograd.Function):
    """A gradient as it is, which depends on the other operands in a way that raises."""

    @staticmethod
    def forward(ctx, gradient: Tensor, *made_of):
        return gradient.clone()

    @staticmethod
    def backward(ctx, *_):
        raise UnsupportedError(
            "products that are sparse have first derivatives only, and a gradient of their "
            "gradients was asked for; use sparse='masked' in linear layers"
        )
