"""Autograd of experts: what is saved, what is sparse in backward."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24._torch import grouped_ops as grouped
from sparse24._torch import ops
from sparse24._torch.autograd import through_mask
from sparse24._torch.transforms import first_derivative
from sparse24._train_rule import Rule


class SparseExpertsProduct(torch.autograd.Function):
    """``x[i0:i1] @ prune(weight[i]).T + bias[i]`` for x (t, k); packed once and used twice."""

    @staticmethod
    def forward(ctx, x, weight, bias, offsets, mask, rule: Rule):
        m, k = weight.shape[1:]
        parts = ops.pack(weight, mask, rule.transposable)
        ctx.rule = rule
        ctx.save_for_backward(x, weight, mask, offsets, *parts)
        return grouped.grouped_product(parts, m, k, x, bias, offsets, False, None, False)

    @staticmethod
    @first_derivative((1,), (0,), ())  # of x, weight and bias
    def backward(ctx, saved, dy):
        x, weight, mask, offsets, *parts = saved
        m, k = weight.shape[1:]
        dy = dy.contiguous()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = grouped.grouped_product(parts, m, k, dy, None, offsets, True, None, False)
        if ctx.needs_input_grad[1]:
            dw = grouped.grouped_gradient(dy, x, offsets)
            dw = _through_the_mask(dw, weight, mask, ctx.rule)
        if ctx.needs_input_grad[2]:
            db = grouped.grouped_sum(dy, offsets)
        return dx, dw, db, None, None, None


def _through_the_mask(dw: Tensor, weight: Tensor, mask: Tensor | None, rule: Rule) -> Tensor:
    """What of the gradient the dense weight receives."""
    if rule.straight and rule.decay == 0.0:
        return dw
    keep = ops.keep(weight, rule.transposable) if mask is None else mask
    return through_mask(dw, weight, keep, straight=rule.straight, decay=rule.decay)


class DenseExpertsProduct(torch.autograd.Function):
    """``x[i0:i1] @ weight[i].T + bias[i]`` for x (t, k)."""

    @staticmethod
    def forward(ctx, x, weight, bias, offsets):
        ctx.save_for_backward(x, weight, offsets)
        return grouped.grouped_dense(x, weight, bias, offsets)

    @staticmethod
    @first_derivative((1,), (0,), ())  # of x, weight and bias
    def backward(ctx, saved, dy):
        x, weight, offsets = saved
        dy = dy.contiguous()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = grouped.grouped_dense(dy, weight.mT, None, offsets)
        if ctx.needs_input_grad[1]:
            dw = grouped.grouped_gradient(dy, x, offsets)
        if ctx.needs_input_grad[2]:
            db = grouped.grouped_sum(dy, offsets)
        return dx, dw, db, None
