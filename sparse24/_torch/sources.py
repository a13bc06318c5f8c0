"""The tensors that a packed weight was made of, and whether they have changed since."""

from __future__ import annotations

import functools
import operator
import threading
import weakref

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Sources:
    """Tensors as they were when a weight was packed.

    Held weakly: their addresses alone are soon those of other tensors, where weights are exchanged,
    as by `torch.func.functional_call`.
    """

    def __init__(self, dtype: torch.dtype | None, tensors: list[Tensor]):
        self._dtype = dtype
        self._seen = [(weakref.ref(t), t.data_ptr(), t._version) for t in tensors]
        _watch_optimizers()
        with _lock:
            _in_use.add(self)

    @classmethod
    def of(cls, dtype: torch.dtype | None, tensors: list[Tensor]) -> Sources | None:
        """None for tensors made in inference mode, of which nothing tells of changes."""
        return None if any(t.is_inference() for t in tensors) else cls(dtype, tensors)

    def are(self, dtype: torch.dtype | None, tensors: list[Tensor]) -> bool:
        """True if they are these, unchanged, and to be cast to the same type."""
        known = self._seen  # once: an optimizer in another thread may take them away
        if dtype != self._dtype or len(tensors) != len(known):
            return False
        for (seen, address, version), t in zip(known, tensors, strict=True):
            if version != t._version or address != t.data_ptr() or seen() is not t:
                return False
        return True

    def give_way_to(self, tensors: list[Tensor]) -> bool:
        """True if they are these, changed or not, or if one of them is gone."""
        known = [seen() for seen, _, _ in self._seen]
        same = len(known) == len(tensors) and all(map(operator.is_, known, tensors))
        return same or not known or any(t is None for t in known)

    def written(self, tensors: set[int]) -> None:
        """Those with these ids were written: if one is among the sources, they are no longer so."""
        if any(id(seen()) in tensors for seen, _, _ in self._seen):
            self._seen = []


_in_use: weakref.WeakSet[Sources] = weakref.WeakSet()
_lock = threading.Lock()


@functools.cache
def _watch_optimizers() -> None:
    """From the first packed weight on: fused optimizers write without counting that as a change."""
    register_optimizer_step_post_hook(_stepped)


@torch._disable_dynamo  # torch.compiler.disable, which imports the compiler only when called
def _stepped(optimizer: Optimizer, *_) -> None:
    with _lock:
        in_use = list(_in_use)
    if in_use:
        written = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for sources in in_use:
            sources.written(written)
