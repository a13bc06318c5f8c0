"""torch's fused attention and encoder layer, where a weight that they read is a `Sparse24Tensor`.

They pass the linear layers of a module by.  Here their steps run one by one, each linear layer by
the product that its weight has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# What torch's `mask_type` says of a mask.
_OF_QUERIES, _OF_PADDING = 0, 1  # (L, L), (batch, L); otherwise (batch, heads, L, L)


def attention(
    query: Tensor, key: Tensor, value: Tensor, width: int, heads: int,
    qkv: Tensor, qkv_bias: Tensor, out: Tensor, out_bias: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Of sequences (batch, L, width) to themselves, for which alone torch fuses it."""
    if query.is_nested:
        padded, padding = _padded(query)
        y, weights = attention(
            padded, padded, padded, width, heads, qkv, qkv_bias, out, out_bias,
            padding, need_weights, average, _OF_PADDING,
        )  # fmt: skip
        return _nested(y, padding), weights
    masks: dict[str, Any] = {}
    if mask is not None and mask_type == _OF_PADDING:
        masks["key_padding_mask"] = mask
    elif mask is not None:
        masks["attn_mask"] = mask if mask_type == _OF_QUERIES else mask.flatten(0, 1)
    x = query.transpose(0, 1)
    y, weights = F.multi_head_attention_forward(
        x, x, x, width, heads, qkv, qkv_bias, None, None, False, 0.0, out, out_bias,
        training=False, need_weights=need_weights, average_attn_weights=average, **masks,
    )  # fmt: skip
    return y.transpose(0, 1), weights


def encoder_layer(
    x: Tensor, width: int, heads: int, qkv: Tensor, qkv_bias: Tensor, out: Tensor, out_bias: Tensor,
    gelu: bool, norm_first: bool, eps: float, scale1: Tensor, shift1: Tensor, scale2: Tensor,
    shift2: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    """Of sequences (batch, L, width), without dropout."""
    if x.is_nested:
        padded, padding = _padded(x)
        y = encoder_layer(
            padded, width, heads, qkv, qkv_bias, out, out_bias, gelu, norm_first, eps,
            scale1, shift1, scale2, shift2, weight1, bias1, weight2, bias2, padding, _OF_PADDING,
        )  # fmt: skip
        return _nested(y, padding)

    def attend(x: Tensor) -> Tensor:
        return attention(
            x, x, x, width, heads, qkv, qkv_bias, out, out_bias, mask, False, True, mask_type
        )[0]

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, weight1, bias1)
        return F.linear(F.gelu(hidden) if gelu else F.relu(hidden), weight2, bias2)

    for step, scale, shift in ((attend, scale1, shift1), (feed, scale2, shift2)):
        if norm_first:
            x = x + step(F.layer_norm(x, (width,), scale, shift, eps))
        else:
            x = F.layer_norm(x + step(x), (width,), scale, shift, eps)
    return x


def _padded(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences as one tensor (batch, L, width), and True (batch, L) where it is filled up."""
    x = torch.nested.to_padded_tensor(nested, 0.0)
    lengths = torch.tensor([len(sequence) for sequence in nested.unbind()], device=x.device)
    return x, torch.arange(x.shape[1], device=x.device) >= lengths[:, None]


def _nested(x: Tensor, padding: Tensor) -> Tensor:
    lengths = (~padding).sum(1).tolist()
    return torch.nested.as_nested_tensor([y[:n] for y, n in zip(x, lengths, strict=True)])
