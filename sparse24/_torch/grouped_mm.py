"""Dense products of experts with their tokens: in one launch by torch, or one for each expert.

torch's grouped product reads offsets on the GPU.  All else takes them from the host, and waits for
those that are on the GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse24 import _arrays
from sparse24._errors import UnsupportedError
from sparse24._grouped import offsets as grouped_offsets

HOPPER = 9  # on later GPUs torch leaves the products of experts without tokens unwritten
MOST_EXPERTS = 1023
ALIGNED = 8  # elements of 16 bits: rows on the boundaries that the TMA wants

_grouped: Any = getattr(torch.nn.functional, "grouped_mm", getattr(torch, "_grouped_mm", None))


def in_one_launch(a: Tensor, b: Tensor, offsets: Tensor) -> bool:
    """Whether torch multiplies two operands of experts, whose rows are contiguous, at once."""
    if not a.is_cuda or _grouped is None or {a.dtype, b.dtype} != {torch.bfloat16}:
        return False
    if torch.cuda.get_device_capability(a.device)[0] != HOPPER:
        return False
    if not offsets.is_cuda and _arrays.captures_work_on(a):
        return False  # a graph cannot hold a copy from the host
    whole = a.shape[-1] % ALIGNED == b.shape[-1] % ALIGNED == 0
    return whole and 1 < len(offsets) <= MOST_EXPERTS + 1 and a.numel() > 0 < b.numel()


def products(x: Tensor, weight: Tensor, offsets: Tensor) -> Tensor:
    """``x[i0:i1] @ weight[i]``, shape (t, n), for x (t, m) and weight (e, m, n) of one type."""
    if in_one_launch(x, _by_rows(weight), offsets):
        rows = _by_rows(weight)
        fitting = _fitting(rows)
        turned = fitting if rows is weight else fitting.mT
        return _grouped(_fitting(x), turned, offs=_ends(offsets, x))
    y = x.new_empty(x.shape[0], weight.shape[-1])
    for expert, tokens in experts_with_tokens(x, offsets):
        torch.mm(x[tokens], weight[expert], out=y[tokens])
    return y


def add_rows(y: Tensor, bias: Tensor, offsets: Tensor) -> Tensor:
    """``y[i0:i1] + bias[i]`` in the memory and the type of y (t, m), for a bias (e, m)."""
    if offsets.is_cuda:
        rows = bias.repeat_interleave(offsets.diff(), 0, output_size=len(y))
        return y.add_(rows)
    for expert, tokens in experts_with_tokens(y, offsets):
        y[tokens] += bias[expert]
    return y


def gradients(dy: Tensor, x: Tensor, offsets: Tensor) -> Tensor:
    """``dy[i0:i1].T @ x[i0:i1]``, shape (e, m, k), for dy (t, m) and x (t, k) of one type."""
    if in_one_launch(dy, x, offsets):
        return _grouped(_fitting(dy).t(), _fitting(x), offs=_ends(offsets, dy))
    dw = x.new_zeros(len(offsets) - 1, dy.shape[1], x.shape[1])
    for expert, tokens in experts_with_tokens(x, offsets):
        torch.mm(dy[tokens].t(), x[tokens], out=dw[expert])
    return dw


def sums(dy: Tensor, offsets: Tensor) -> Tensor:
    """The rows of each expert's tokens added up: shape (e, m), for dy (t, m)."""
    if offsets.is_cuda and dy.numel():
        return sums_there(dy, offsets)
    total = dy.new_zeros(len(offsets) - 1, dy.shape[1])
    for expert, tokens in experts_with_tokens(dy, offsets):
        total[expert] = dy[tokens].sum(0)
    return total


def sums_there(dy: Tensor, offsets: Tensor) -> Tensor:
    """`sums` where the offsets are; torch adds in the type that it is given."""
    wide = torch.float64 if dy.dtype == torch.float64 else torch.float32
    total = torch.segment_reduce(dy.to(wide), "sum", offsets=offsets, axis=0, unsafe=True)
    return total.to(dy.dtype)


def experts_with_tokens(x: Tensor, offsets: Tensor) -> Iterator[tuple[int, slice]]:
    """Their numbers, and which rows of x belong to each; offsets come to the host."""
    if offsets.is_cuda and not len(x):
        return
    if offsets.is_cuda and _arrays.captures_work_on(x):
        raise UnsupportedError(
            "this grouped product runs expert by expert, for which offsets are copied to the host, "
            "and the capture of a CUDA graph cannot wait for that; pass offsets as a list or a "
            "tensor on the CPU, which the graph then keeps, or use bfloat16 on Hopper with sizes "
            f"that are multiples of {ALIGNED}"
        )
    on_host = offsets.cpu().numpy().astype(np.int64, copy=False)
    ends = grouped_offsets.validated(on_host, len(x)).tolist()
    for expert, (start, stop) in enumerate(itertools.pairwise(ends)):
        if start < stop:
            yield expert, slice(start, stop)


def _by_rows(weight: Tensor) -> Tensor:
    """A stack of matrices, or of their transposes, whichever has contiguous rows."""
    return weight.mT if weight.stride(-1) != 1 == weight.stride(-2) else weight


def _fitting(x: Tensor) -> Tensor:
    """`x` with contiguous rows on boundaries of 16 bytes; a copy where its own are not."""
    *outer, pitch, step = x.stride()
    in_rows = step == 1 and pitch >= x.shape[-1]
    aligned = x.data_ptr() % 16 == 0 and all(s % ALIGNED == 0 for s in (*outer, pitch))
    return x if in_rows and aligned else x.clone(memory_format=torch.contiguous_format)


def _ends(offsets: Tensor, x: Tensor) -> Tensor:
    """Where the tokens of each expert end, as torch takes it; copied without waiting."""
    return offsets[1:].to(x.device, torch.int32, non_blocking=True).contiguous()
