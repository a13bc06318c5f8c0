"""The functional layer of experts, and what happens to its operands on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._torch.check import check_experts
from sparse24._torch.experts_autograd import DenseExpertsProduct, SparseExpertsProduct
from sparse24._torch.finish import check_halves, checked_finish, finished
from sparse24._torch.grouped_ops import grouped_dense
from sparse24._torch.linear import autocast, masked
from sparse24._torch.matrix import PackedMatrix
from sparse24._torch.transforms import differentiable, refuse_transforms
from sparse24._train_rule import Rule, checked_rule


def grouped_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    offsets,
    mask: Tensor | None = None,
    gradient: str = "ste",
    transposable: bool = False,
    decay: float = 0.0,
    activation: str | None = None,
    gated: bool = False,
) -> Tensor:
    """The linear layers of experts, whose dense weights are pruned at each call; differentiable.

    ``y[i0:i1] = x[i0:i1] @ prune(weight[i]).T + bias[i]`` with
    ``i0, i1 = offsets[i], offsets[i + 1]``.

    Parameters
    ----------
    x : Tensor, shape (t, k)
        Tokens, sorted by expert; float16, bfloat16, float32 or float64.
    weight : Tensor, shape (e, m, k)
        A matrix for each of e experts; of these types, too.  A `Sparse24Tensor` or a
        `Quantised24Tensor` is not pruned again, and multiplies as in `sparse24.grouped_linear`; it
        takes no `mask`, and none of `gradient`, `transposable` and `decay`.
    bias : Tensor, shape (e, m), optional
    offsets : Tensor or list of integers, shape (e + 1,)
        Tokens ``offsets[i]`` to ``offsets[i + 1]`` belong to expert i, which may have none.  The
        first one is 0, the last one t, and none is less than the one before.  On the device of x,
        then int32 or int64 on a GPU, or on the host.
    mask : Tensor of bool, shape (e, m, k), optional
        2:4 masks of the weights; without them the largest magnitudes are kept.
    gradient : {"ste", "24dense"}
        The gradient of the weight: the whole one (straight-through), or that of the kept elements
        only.  Weights of experts without tokens get zeros.
    transposable : bool
        Prune by 4x4 tiles, so that the backward product with the weight is sparse too.  A given
        `mask` must then be 2:4 along both of its last axes.
    decay : float
        SR-STE's factor: this times the pruned weights is added to the gradient, once in each
        backward pass; the notes of `linear` say what to do where that is not once a step.
    activation : {None, "relu", "relu2", "gelu", "gelu_tanh", "silu"}
        Applied to y.
    gated : bool
        Give ``activation(y[:, :m // 2]) * y[:, m // 2:]``, as in layers with SwiGLU.

    Returns
    -------
    Tensor, shape (t, m), or (t, m / 2) if gated
        In the type to which those of x and the weight are promoted; under ``torch.autocast`` its
        type.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        If an operand, the offsets or an option do not fit.
    UnsupportedError
        If `gradient` samples, as ``"24sparse"`` does, a second derivative or a transform of
        `torch.func` is asked for, or a CUDA graph that is captured would have to copy offsets from
        or to the host.
    PatternError
        If `mask` is not 2:4 where it must be.  On the GPU this is not checked, and the excess
        elements of a group are dropped.

    See Also
    --------
    sparse24.grouped_linear : For weights that are compressed already; without gradients.
    Sparse24Tensor : Weights that are packed once, for inference and for tokens that learn.
    Quantised24Tensor : Such weights of 4 or 8 bits.

    Notes
    -----
    Forward, and backward with ``transposable=True``, are one sparse launch on Hopper in 16 bits,
    and the gradient of the weight, dense, is one of torch's in bfloat16, if m and k are multiples
    of 8.  These read offsets on the GPU by themselves, and nothing waits.  Whatever else runs
    expert by expert: other types, sizes and GPUs.  For that, offsets on the GPU are copied to the
    host, which waits for the device; offsets on the host make nothing wait.

    With a weight that is packed already and no gradients, activation and gate are part of the
    product, and are applied before it is rounded.  The gradient of x is a dense product, unless the
    weight is packed along both axes, as by `sparsify24`.

    Offsets on the host are validated.  On the GPU they are not where nothing waits: those that do
    not split the tokens give undefined results and gradients, or a failed assertion of torch.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import grouped_linear
    >>> weight = torch.tensor([[[1.0, 2, 3, 4]], [[8, 7, 6, 5]]], requires_grad=True)
    >>> y = grouped_linear(torch.ones(3, 4), weight, offsets=[0, 1, 3])    # 1 and 2 tokens
    >>> y.sum().backward()
    >>> y.detach().T, weight.grad
    (tensor([[ 7., 15., 15.]]), tensor([[[1., 1., 1., 1.]],
            [[2., 2., 2., 2.]]]))
    """
    offsets = check_experts(x, weight, bias, mask, offsets)
    rule = experts_rule(gradient, transposable, decay)
    activation, gated = checked_finish(activation, gated)
    if gated:
        check_halves(weight)
    x, weight, bias = autocast(x, weight, bias)
    if isinstance(weight, PackedMatrix):
        _refuse_training(mask, rule)
        return _packed_linear(x, weight, bias, offsets, activation, gated)
    y = differentiable(SparseExpertsProduct, x, weight, bias, offsets, mask, rule)
    return finished(y, activation, gated)


def _packed_linear(
    x: Tensor, weight: PackedMatrix, bias: Tensor | None, offsets: Tensor,
    activation: str | None, gated: bool,
) -> Tensor:  # fmt: skip
    """`grouped_linear` of a weight that is packed already; without gradients in one product."""
    learns = any(t is not None and t.requires_grad for t in (x, weight, bias))
    if learns and torch.is_grad_enabled():
        y = differentiable(DenseExpertsProduct, x, weight, bias, offsets)
        return finished(y, activation, gated)
    refuse_transforms(x, weight, bias)
    return grouped_dense(x, weight, bias, offsets, activation, gated)


def _refuse_training(mask: Tensor | None, rule: Rule) -> None:
    """Options of weights that are pruned at each call."""
    if mask is not None or rule.gradient != "ste" or rule.transposable or rule.decay:
        raise ArgumentError(
            "mask, gradient, transposable and decay are of dense weights, which are pruned at each "
            "call, and weight is packed already; drop them"
        )


def masked_grouped_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, offsets, mask: Tensor | None, rule: Rule
) -> Tensor:
    """The same by dense products, with any mask, or none."""
    offsets = check_experts(x, weight, bias, mask, offsets)
    x, weight, bias = autocast(x, weight, bias)
    return differentiable(DenseExpertsProduct, x, masked(weight, mask, rule), bias, offsets)


def experts_rule(gradient: str, transposable: bool, decay: float) -> Rule:
    """The rule of these options, or the error that names the wrong one."""
    rule = checked_rule(gradient, transposable, decay, 0)
    if rule.samples:
        raise UnsupportedError(
            f"gradient={gradient!r} samples along the tokens, whose numbers experts do not know "
            "beforehand; use 'ste' or '24dense'"
        )
    return rule
