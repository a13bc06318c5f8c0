"""Custom operators of squared relu whose values are kept 2:4: packing them, and their gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _foreign_streams
from sparse24._records import Compressed24
from sparse24._torch import ops
from sparse24._torch import repack as torch_repack
from sparse24._torch import replay as torch_replay
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.parts import empty_parts, in_type, parts_of
from sparse24._torch.settled import made
from sparse24.kernels import like


@operator
def pack_squared_relu(x: Tensor) -> list[Tensor]:
    """`ops.pack` of ``relu(x) ** 2`` for x (m, k), by 4x4 tiles.

    On a GPU in one pass for 16-bit elements and sides that are multiples of four.
    """
    key = torch_repack.packing_key(x, None, True, squared=True)
    known = torch_replay.find(key)
    if known is None and key is not None:
        with _foreign_streams.stream_of(x):
            known = torch_repack.Packing.of(x, None, True, squared=True)
            torch_replay.keep(key, known)
    return ops.pack(x.relu().square(), None, True) if known is None else made(known(x, None))


@meaning_for_tracing("pack_squared_relu")
def _(x):
    return [part for shape in (x.shape, x.mT.shape) for part in empty_parts(x, *shape)]


@operator
def squared_relu_gradient(parts: list[Tensor], m: int, k: int, gradient: Tensor) -> list[Tensor]:
    """Values of the gradient before the squared relu whose values `parts` holds, both ways.

    The derivative is twice the relu, the root of its square.
    """
    gradient = in_type(gradient, parts[0].dtype)
    if gradient.is_cuda:
        return ops.each_way(_times_derivative, parts, m, k, gradient)
    gathered = zip(ops.like(parts, m, k, gradient), parts[::2], strict=True)
    return [values * (2 * squares.sqrt()) for values, squares in gathered]


def _times_derivative(squares: Compressed24, gradient):
    return parts_of(like.launch(squares, gradient, derivative=True))[0]


@meaning_for_tracing("squared_relu_gradient")
def _(parts, m, k, gradient):
    return [torch.empty_like(squares) for squares in parts[::2]]
