"""The functional layer, and what happens to its operands on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._torch.autograd import ActivationLinear, WeightLinear, through_mask
from sparse24._torch.check import check_linear, check_mask
from sparse24._torch.transforms import differentiable, refuse_tangents
from sparse24._train_rule import Rule, checked_rule, constant

MODES = ("weight", "activation", "masked")
INT64_MAX = 2**63 - 1


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    sparse: str = "weight",
    gradient: str = "ste",
    transposable: bool = False,
    decay: float = 0.0,
    seed: int = 0,
    clock: Tensor | None = None,
) -> Tensor:
    """A linear layer that prunes its dense weight at each call; differentiable.

    Parameters
    ----------
    x : Tensor, shape (..., k)
    weight : Tensor, shape (m, k)
    bias : Tensor, shape (m,) or (1, m), optional
    mask : Tensor of bool, shape (m, k), optional
        2:4 mask of the weight; without it the largest magnitudes are kept.
    sparse : {"weight", "activation", "masked"}
        The operand that is 2:4; ``"masked"`` multiplies densely with any `mask`.
    gradient : {"ste", "24dense", "24sparse", "ste_sampled"}
        The gradient of the pruned operand: the whole one (``"ste"``, straight-through, and
        ``"ste_sampled"``), or that of the kept elements only (``"24dense"`` and
        ``"24sparse"``).  ``"24sparse"`` and ``"ste_sampled"`` compute it from an output
        gradient that is sampled to 2:4 without bias.
    transposable : bool
        Prune by 4x4 tiles, so that the backward product with the weight is sparse too.  A
        given `mask` must then be 2:4 along both axes.
    decay : float
        SR-STE's factor: this times the pruned weights is added to the gradient, once in each
        backward pass: see Notes.
    seed : int
        Seed of the samples.  Layers with the same seed draw the same numbers: each gradient is
        unbiased, but their errors are correlated, so give each layer a seed of its own, as
        `sparsify` does.
    clock : Tensor of int64 on the CPU, shape (), optional
        Number of the call.  The samples are a pure function of `seed` and `clock`, so count
        `clock` up from call to call.

    Returns
    -------
    Tensor, shape (..., m)

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        If an operand or an option does not fit.
    PatternError
        If `mask` is not 2:4 where it must be.  On the GPU this is not checked, and the excess
        elements of a group are dropped.

    Notes
    -----
    Does not wait for the device.

    With ``"24dense"`` or ``"24sparse"`` and no `mask`, a group of the weight with a single non-zero
    has a second place that receives a gradient, which is not always that of `sparse24.mask`, and
    which a last group of fewer than four elements may lack.

    The size of `decay` is fixed: where gradients accumulate over micro-batches it counts once for
    each, where a weight is used twice it counts twice, and where the loss is scaled, as by
    `torch.amp.GradScaler`, it is divided by the scale and all but vanishes.  In these cases leave
    it at 0, and pass the unscaled ``weight.grad`` through
    `sparse24.schedule.masked_decay_gradient` before the step of the optimizer.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import linear
    >>> weight = torch.tensor([[1.0, 2, 3, 4]], requires_grad=True)
    >>> y = linear(torch.ones(1, 4), weight)
    >>> y.backward()
    >>> float(y.detach()), weight.grad
    (7.0, tensor([[1., 1., 1., 1.]]))
    """
    _check_clock(clock)
    return by_clock(
        x, weight, bias, mask=mask, sparse=sparse, gradient=gradient, transposable=transposable,
        decay=decay, seed=seed, clock=clock,
    )  # fmt: skip


def by_clock(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, mask: Tensor | None, sparse: str,
    gradient: str, transposable: bool, decay: float, clock: Tensor | None, seed: int = 0,
) -> Tensor:  # fmt: skip
    """`linear`, also by a clock that shows a seed beside the number of the call."""
    _check.one_of(sparse, MODES, argument="sparse")
    bias = check_linear(x, weight, bias, mask)
    rule = checked_rule(gradient, transposable, decay, seed)
    check_seed(rule)
    check_activation(sparse, rule, mask)
    x, weight, bias = autocast(x, weight, bias)
    rows = tokens(x)
    if sparse == "activation":
        y = differentiable(ActivationLinear, rows, weight, bias, rule)
    elif sparse == "masked":
        y = _promoted(rows, masked(weight, mask, rule), bias)
    else:
        y = differentiable(WeightLinear, rows, weight, bias, mask, rule, clock)
    return unfolded(y, x)


def unpruned(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's linear, for operands that sparse products take."""
    return _promoted(x, weight, check_linear(x, weight, bias))


def _promoted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """torch's linear, which takes one type only, in the type of the sparse product."""
    dtype = torch.promote_types(x.dtype, weight.dtype)
    bias = None if bias is None else bias.to(dtype)
    return torch.nn.functional.linear(x.to(dtype), weight.to(dtype), bias)


def check_seed(rule: Rule) -> None:
    """Refuse a seed of samples that no tensor holds."""
    if rule.samples and rule.seed > INT64_MAX:
        raise ArgumentError(f"seed must be less than 2**63, got {rule.seed}; take its remainder")


def _check_clock(clock) -> None:
    if clock is None:
        return
    if not isinstance(clock, Tensor) or clock.ndim or clock.dtype != torch.int64:
        raise ArgumentError(
            "clock must be a tensor of int64 with shape (), such as torch.tensor(0), got "
            f"{_check.shown(clock)}"
        )


def tokens(x: Tensor) -> Tensor:
    """A tensor (..., k) as a matrix (t, k), in a way that holds for any t, and for k = 0."""
    if x.ndim == 2:
        return x
    return x.flatten(0, -2) if x.ndim > 1 else x[None]


def unfolded(y: Tensor, x: Tensor) -> Tensor:
    """The product y (t, m) with the axes that x had before `tokens`.

    Like the result of torch's own layer it is not a view to autograd: a write in place to a view
    would lose the hooks of ``fully_shard``.
    """
    if torch.jit.is_tracing():  # which follows sizes into methods, and into no operator
        return y.view([*x.shape[:-1], y.shape[-1]])
    if x.ndim == 2:
        return y
    return torch.ops.aten._unsafe_view(y, [*x.shape[:-1], y.shape[-1]])


def check_activation(sparse: str, rule: Rule, mask: Tensor | None = None) -> None:
    """Refuse what only sparse weights have: a mask, a decay of the pruned, sampled gradients."""
    if sparse != "activation":
        return
    if mask is not None:
        raise ArgumentError(
            "mask applies to a sparse weight, and sparse='activation' leaves it dense; drop it"
        )
    for option, value in (("decay", rule.decay), ("gradient", rule.samples and rule.gradient)):
        if value:
            raise ArgumentError(
                f"{option}={value!r} applies to sparse weights, and sparse='activation' leaves "
                "them dense; use decay=0 and gradient='ste' or '24dense'"
            )


def masked(weight: Tensor, mask: Tensor | None, rule: Rule) -> Tensor:
    """``weight * mask`` with the rule's gradient; any mask."""
    if mask is None:
        return weight
    check_mask(mask, weight)
    if rule.decay:
        refuse_tangents(weight, rule.decay)
        return _Decayed.apply(weight, mask, rule.straight, constant(rule.decay))
    kept = torch.where(mask, weight, 0.0)
    return _straight(kept, weight) if rule.straight else kept


def _straight(value: Tensor, weight: Tensor) -> Tensor:
    """`value`, whose gradient passes to `weight` unchanged.

    The sum adds exact zeros, also where the weight is infinite.  Not an autograd.Function that
    returns its incoming gradient: within ``torch.compile``, torch 2.11 loses that gradient.
    """
    return value.detach() + (weight - weight.detach()).nan_to_num(0.0)


class _Decayed(torch.autograd.Function):
    """``weight * mask``; pruned weights also decay, as in SR-STE."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight, mask, straight: bool, decay: float):
        return torch.where(mask, weight, 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        weight, mask, ctx.straight, ctx.decay = inputs
        ctx.save_for_backward(weight, mask)

    @staticmethod
    def backward(ctx, dw):
        weight, mask = ctx.saved_tensors
        dw = dw if ctx.straight else torch.where(mask, dw, 0.0)  # which has a derivative
        dw = through_mask(dw, weight, mask, straight=True, decay=ctx.decay)
        return dw, None, None, None


def autocast(x: Tensor, weight: Tensor, bias: Tensor | None):
    """What torch's own linear does under ``torch.autocast``."""
    dtype = autocast_dtype(x)
    return cast(x, dtype), cast(weight, dtype), None if bias is None else cast(bias, dtype)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """To which type ``torch.autocast`` casts operands where `x` is; None outside of it."""
    kind = x.device.type
    # Older releases of torch.compile cannot follow torch.amp.is_autocast_available.
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def cast(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """An operand in the type of `autocast_dtype`; float64 and what is no float are left alone."""
    if dtype is None or x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(dtype)


def projected(weight: Tensor, scale: Tensor) -> Tensor:
    """S-STE's continuous projection of a weight (m, k) to 2:4; its gradient passes straight.

    The same as ``scale * schedule.soft_threshold_24(weight)``, in operations that
    ``torch.compile`` fuses.
    """
    k = weight.shape[-1]
    groups = torch.nn.functional.pad(weight.detach(), (0, -k % 4)).unflatten(-1, (-1, 4))
    size = groups.abs()
    a, b, c, d = size.unbind(-1)
    least = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
    threshold = torch.minimum(least, torch.minimum(torch.maximum(a, b), torch.maximum(c, d)))
    shrunk = scale * groups.sign() * (size - threshold[..., None]).clamp_min(0)
    return _straight(shrunk.to(weight.dtype).flatten(-2)[..., :k].contiguous(), weight)
