"""What a packed weight was made of, and whether that is still what a layer holds."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


class Sources:
    """Tensors as they were when a weight was packed.

    Held weakly: their addresses alone are soon those of other tensors, where weights are exchanged,
    as by `torch.func.functional_call`.
    """

    def __init__(self, dtype: torch.dtype, tensors: list[Tensor]):
        self._dtype = dtype
        self._seen = [(weakref.ref(t), t.data_ptr(), t._version) for t in tensors]

    def are(self, dtype: torch.dtype, tensors: list[Tensor]) -> bool:
        """True if they are these, unchanged."""
        if dtype != self._dtype or len(tensors) != len(self._seen):
            return False
        if not all(seen() is t for (seen, _, _), t in zip(self._seen, tensors, strict=True)):
            return False
        then = [(address, version) for _, address, version in self._seen]
        return then == [(t.data_ptr(), t._version) for t in tensors]
