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

    def __init__(self, dtype: torch.dtype | None, tensors: list[Tensor]):
        self._dtype = dtype
        self._seen = [(weakref.ref(t), t.data_ptr(), t._version) for t in tensors]

    def are(self, dtype: torch.dtype | None, tensors: list[Tensor]) -> bool:
        """True if they are these, unchanged, and to be cast to the same type."""
        if dtype != self._dtype or len(tensors) != len(self._seen):
            return False
        return all(
            version == t._version and address == t.data_ptr() and seen() is t
            for (seen, address, version), t in zip(self._seen, tensors, strict=True)
        )
