"""Whether a graph that is compiled writes a tensor that it multiplies by."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

# What stands for a graph's operands in the first pass of their tracing, by their fake tensors; in
# the second pass, whether the graph writes them.
_operands = WeakTensorKeyDictionary()


def may_be_written(x: Tensor) -> bool:
    """True if the graph that is traced writes `x`, before or after, or where that is not known.

    torch's AOT autograd traces a graph twice, with the same fake tensors.  What stands for them in
    the first pass counts writes; in the second pass, which decides, all of them are known.
    """
    from torch._subclasses.functional_tensor import FunctionalTensor
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    decides = get_proxy_mode() is not None
    if not isinstance(x, FunctionalTensor):
        return decides or torch._is_functional_tensor(x)
    if _in_a_part():
        return True
    fake = torch._from_functional_tensor(x.elem)
    if not decides:
        _remember(fake, x.elem)
        return False
    seen = _operands.get(fake, True)
    if isinstance(seen, Tensor):
        seen = _operands[fake] = torch._functionalize_has_data_mutation(seen)
    return seen


def _remember(fake, stand_in: Tensor) -> None:
    """Of one graph at a time: what is remembered holds its fake tensors."""
    if any(other.fake_mode is not fake.fake_mode for other in _operands):
        _operands.clear()
    _operands[fake] = stand_in


def _in_a_part() -> bool:
    """Whether a part of a graph is traced, as of a condition, that does not see other parts."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    entered = getattr(mode, "enter_stack", None)
    return entered is None or len(entered) > 1
