"""``torch.cat`` and ``torch.stack`` of packed matrices, by way of their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparse24._errors import UnsupportedError
from sparse24._torch.matrix import PackedMatrix
from sparse24.formats import joining

_aten = torch.ops.aten


def cat(tensors: Sequence[Tensor], axis: int = 0) -> PackedMatrix:
    return _joined(joining.concatenate, tensors, axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> PackedMatrix:
    """A stack of matrices, such as the weights of experts that are stored one by one."""
    return _joined(joining.stack, tensors, axis)


def _joined(join: Callable[..., Any], tensors: Sequence[Tensor], axis: int) -> PackedMatrix:
    from sparse24._torch.stored import tensor_of

    if torch.compiler.is_compiling():
        raise UnsupportedError(
            "a compiler does not trace torch.cat and torch.stack of Sparse24Tensors, whose arrays "
            "are joined; join them before the compiled code"
        )
    arrays = [x.to_array() if isinstance(x, PackedMatrix) else x for x in tensors]
    joined = tensor_of(join(arrays, axis=axis))
    joined.lent = False  # nothing else has the memory
    return joined


RULES: dict[Any, Callable[..., Any]] = {_aten.cat.default: cat, _aten.stack.default: stack}
