"""A feed-forward layer whose activations are 2:4: four of its six products are sparse."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _check
from sparse24._errors import DTypeError, ShapeError
from sparse24._torch import ops
from sparse24._torch.autograd import biased
from sparse24._torch.check import check_device, check_float, check_real, check_tensor, check_type
from sparse24._torch.linear import autocast, tokens, unfolded
from sparse24._torch.parts import in_type
from sparse24._torch.squared_relu import pack_squared_relu, squared_relu_gradient
from sparse24._torch.transforms import differentiable, first_derivative


class SquaredRelu(torch.autograd.Function):
    """``prune(relu(x @ up.T + b) ** 2) @ down.T`` for x (t, d).

    Pruned activations have no gradient, so the gradient of the hidden layer is non-zero in the
    same 2:4 positions only, and both its products are sparse, too.  The derivative of the squared
    relu is twice the relu, the square root of the stored value, so backward needs nothing dense
    of the hidden layer.
    """

    @staticmethod
    def forward(ctx, x, up, up_bias, down):
        hidden = torch.nn.functional.linear(x, up, up_bias)
        parts = pack_squared_relu(hidden)
        ctx.save_for_backward(x, up, down, up_bias, *parts)
        return ops.product(parts, *hidden.shape, down.t(), None, "A@b")

    @staticmethod
    @first_derivative((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 3))
    def backward(ctx, saved, dy):
        x, up, down, _, *parts = saved
        dy, shape = dy.contiguous(), (x.shape[0], up.shape[0])
        dx = d_up = d_bias = d_down = None
        if ctx.needs_input_grad[3]:
            d_down = ops.product(parts, *shape, dy.t(), None, "x@A")
        if any(ctx.needs_input_grad[:3]):
            down = in_type(down, dy.dtype)  # a narrower one has met wider activations
            rows, columns = squared_relu_gradient(parts, *shape, dy @ down)
            inner = [rows, parts[1], columns, parts[3]]
            dx = ops.product(inner, *shape, up, None, "A@b")
            d_up = ops.product(inner, *shape, x, None, "At@b")
            if ctx.needs_input_grad[2]:
                d_bias = ops.dense(inner, *shape).sum(0)
        return dx, d_up, d_bias, d_down


def feed_forward(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """``prune(relu(x @ up.T + up_bias) ** 2) @ down.T + down_bias``, differentiable.

    The activations are pruned to 2:4 by 4x4 tiles.  Squared relu leaves most of them zero, so
    little is lost [1]_.  The second product is sparse, and so are all but one in backward.

    Parameters
    ----------
    x : Tensor, shape (..., d)
    up : Tensor, shape (k, d)
    down : Tensor, shape (m, k)
        The dense weights of the two layers.
    up_bias : Tensor, shape (k,) or (1, k), optional
    down_bias : Tensor, shape (m,) or (1, m), optional

    Returns
    -------
    Tensor, shape (..., m)

    Raises
    ------
    ShapeError, DTypeError, DeviceError
        If the operands do not fit.

    Notes
    -----
    Does not wait for the device.  Backward computes the derivative of the squared relu, twice the
    relu, from the root of the stored square.  In float16 squares lose precision where the relu is
    below 2**-7, are zero and have no gradient below 2**-12.5, and are infinite from 256 on.  Prefer
    bfloat16, which has the range of float32.

    References
    ----------
    .. [1] D. Haziza et al., *Accelerating Transformer Inference and Training with 2:4
       Activation Sparsity*, 2025.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import feed_forward
    >>> feed_forward(torch.ones(2, 8), torch.ones(16, 8), torch.ones(4, 16))
    tensor([[512., 512., 512., 512.],
            [512., 512., 512., 512.]])
    """
    for name, given in (("x", x), ("up", up), ("down", down)):
        check_tensor(given, name)
    for name, given in (("up_bias", up_bias), ("down_bias", down_bias)):
        if given is not None:
            check_tensor(given, name)
    if up.ndim != 2 or x.ndim < 1 or x.shape[-1] != up.shape[1]:
        shapes = f"{tuple(x.shape)} and {tuple(up.shape)}"
        raise ShapeError(f"x must have shape (..., d) and up (k, d), got {shapes}")
    if down.ndim != 2 or down.shape[1] != up.shape[0]:
        shapes = f"{tuple(up.shape)} and {tuple(down.shape)}"
        raise ShapeError(f"up must have shape (k, d) and down (m, k), got {shapes}")
    up_bias = _check.bias(up_bias, up.shape[0], argument="up_bias")
    down_bias = _check.bias(down_bias, down.shape[0], argument="down_bias")
    check_device(x, up=up, down=down, up_bias=up_bias, down_bias=down_bias)
    check_type(down, "down")
    check_real(down_bias, "down_bias")
    x, up, up_bias = autocast(x, up, up_bias)
    types = [x.dtype, up.dtype] + ([] if up_bias is None else [up_bias.dtype])
    if len(set(types)) > 1:
        raise DTypeError(
            "x, up and up_bias must be of one floating-point type, got "
            f"{', '.join(map(str, types))}; convert them, or use torch.autocast"
        )
    check_float(x, "x")
    _, down, down_bias = autocast(x, down, down_bias)
    y = differentiable(SquaredRelu, tokens(x), up, up_bias, down)
    y = y if down_bias is None else biased(y, down_bias)
    return unfolded(y, x)
