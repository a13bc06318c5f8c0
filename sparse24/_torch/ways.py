"""How a layer multiplies (sparsely, masked or densely), and whether its tensors have elements."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24._is_24 import is_24

WAYS = ("weight", "masked", "dense")  # by a mask that is 2:4, by any mask, by one that is all true


def way_of(mask: Tensor, both: bool) -> str:
    """How to multiply by a mask: is it 2:4 along its rows (and columns), or all true?"""
    if mask.is_meta:
        return "masked"  # which serves any mask
    sides = (mask, mask.mT.contiguous())[: 1 + both]
    if all(is_24(side.to(torch.int8)) for side in sides):
        return "weight"
    return "dense" if mask.all() else "masked"


def version_of(mask: Tensor | None) -> int | None:
    """How often a mask was written; None where torch does not count it."""
    return None if mask is None or mask.is_inference() else mask._version


def has_elements(x: Tensor) -> bool:
    """False where torch follows which operators are called, mostly with tensors without elements.

    So do the modes of `torch.utils._python_dispatch`, such as those of make_fx.
    """
    follows = torch.compiler.is_compiling() or torch.jit.is_tracing()
    follows = follows or torch._C._len_torch_dispatch_stack() > 0
    return not follows and not x.is_meta and type(x) in (Tensor, torch.nn.Parameter)
