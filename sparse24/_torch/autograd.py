"""Autograd of 2:4 linear layers: what is saved, what is sparse in backward."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _spec
from sparse24._torch import ops
from sparse24._torch import samples as torch_samples
from sparse24._torch.parts import in_type
from sparse24._torch.transforms import first_derivative
from sparse24._torch.under_mask import under_mask
from sparse24._train_rule import Rule


class WeightLinear(torch.autograd.Function):
    """``x @ prune(weight).T + bias`` for x (t, k); the packing is made once and used twice."""

    @staticmethod
    def forward(ctx, x, weight, bias, mask, rule: Rule, clock):
        m, k = weight.shape
        parts = ops.pack(weight, mask, rule.transposable)
        ctx.rule = rule
        ctx.save_for_backward(x, weight, mask, clock, *parts)
        return ops.product(parts, m, k, x, bias, "x@At")

    @staticmethod
    @first_derivative((1,), (0,), ())  # of x, weight and bias
    def backward(ctx, saved, dy):
        x, weight, mask, clock, *parts = saved
        m, k = weight.shape
        dy = dy.contiguous()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = ops.product(parts, m, k, dy, None, "x@A")
        if ctx.needs_input_grad[1]:
            dw = _weight_gradient(dy, x, ctx.rule, clock)
            dw = _through_the_mask(dw, weight, mask, parts, ctx.rule)
        if ctx.needs_input_grad[2]:
            db = dy.sum(0)
        return dx, dw, db, None, None, None


def _weight_gradient(dy, x, rule: Rule, clock) -> Tensor:
    """``dy.T @ x``, dense or with dy sampled to 2:4 along the tokens."""
    if not rule.samples:
        return dy.t() @ in_type(x, dy.dtype)  # a narrower x has met a wider weight
    clock = torch.zeros((), dtype=torch.int64) if clock is None else clock
    parts = torch_samples.pack_sample(dy.t(), rule.seed, clock)
    return ops.product(parts, dy.shape[1], dy.shape[0], x, None, "A@b")


def _through_the_mask(dw, weight, mask, parts, rule: Rule) -> Tensor:
    """What of the gradient the dense weight receives."""
    if rule.straight and rule.decay == 0.0:
        return dw
    if mask is None and rule.transposable and weight.shape[1] % _spec.GROUP:
        mask = ops.keep(weight, True)  # rows of a cut tile may keep fewer than the two of a code
    if mask is not None:
        return through_mask(dw, weight, mask, straight=rule.straight, decay=rule.decay)
    m, k = weight.shape
    dw = in_type(dw, weight.dtype)  # that of a wider x, in which no packed matrix is read
    if not rule.straight:
        dw = ops.masked_gradient(parts, m, k, dw, None, 0.0)
    if rule.decay:
        dw = ops.masked_gradient(parts, m, k, dw, weight, rule.decay)
    return dw


def through_mask(
    dw: Tensor, weight: Tensor, mask: Tensor, *, straight: bool, decay: float
) -> Tensor:
    """What of the gradient of ``weight * mask`` the weight receives."""
    dw = dw if straight else under_mask(dw, mask)
    return dw if decay == 0.0 else torch.where(mask, dw, torch.add(dw, weight, alpha=decay))


def biased(y: Tensor, bias: Tensor) -> Tensor:
    """``y + bias`` in the type of y: a bias widens no sparse product."""
    if bias.is_floating_point() and bias.itemsize == 1:
        bias = bias.to(y.dtype)  # torch adds no fp8
    total = y + bias
    return in_type(total, y.dtype)  # torch 2.11 compiles idle `to` at an end without gradients


class ActivationLinear(torch.autograd.Function):
    """``prune(x) @ weight.T + bias`` for x (t, k): the activations are sparse."""

    @staticmethod
    def forward(ctx, x, weight, bias, rule: Rule):
        t, k = x.shape
        parts = ops.pack(x, None, rule.transposable)
        ctx.rule = rule
        ctx.save_for_backward(x.new_empty(0) if rule.straight else x, weight, *parts)
        ctx.shape = (t, k)
        y = ops.product(parts, t, k, weight.t(), None, "A@b")
        return y if bias is None else biased(y, bias)

    @staticmethod
    @first_derivative((1,), (0,), ())  # of x, weight and bias
    def backward(ctx, saved, dy):
        x, weight, *parts = saved
        t, k = ctx.shape
        dy = dy.contiguous()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = dy @ in_type(weight, dy.dtype)  # a narrower weight has met a wider x
            if not ctx.rule.straight:
                dx = ops.kept_gradient(dx, x, ctx.rule.transposable)
        if ctx.needs_input_grad[1]:
            dw = ops.product(parts, t, k, dy.t(), None, "x@A")
        if ctx.needs_input_grad[2]:
            db = dy.sum(0)
        return dx, dw, db, None
