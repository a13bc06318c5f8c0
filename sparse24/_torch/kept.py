"""Packed weights that are kept, found by the tensors that they were made of.

Compiled code passes tensors and knows no layers.  Weights are held weakly, and what is kept goes
with them.
"""

from __future__ import annotations

import threading

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from sparse24._torch.packed import Origin, Packed

_of_weights = WeakTensorKeyDictionary()  # lists, for layers with other masks may share a weight
_lock = threading.Lock()


def found_or_packed(origin: Origin, dtype: torch.dtype | None) -> Packed:
    """The packed weight that is kept, or else a new one, which then is; `dtype` is autocast's."""
    tensors = origin.tensors()
    for packed in _of_weights.get(origin.weight, ()):
        if packed.transposable == origin.transposable and packed.is_of(tensors, dtype):
            return packed
    new = Packed.of(origin, dtype)
    with _lock:
        others = (p for p in _of_weights.get(origin.weight, ()) if not p.gives_way_to(origin))
        _of_weights[origin.weight] = [*others, new]
    return new


def forget(layer) -> None:
    """Drop the packed weight of a layer, also where compiled code uses it."""
    layer._packed = None
    weight = layer._parameters.get("weight")  # one that is made before each call is a new one
    if weight is not None and not torch.compiler.is_compiling():
        with _lock:
            _of_weights.pop(weight, None)


def will_change(layer) -> bool:
    """True if a layer with a packed weight learns: optimizers may write in ways not counted.

    Those that hold flat copies of all weights do.  False in compiled code, which cannot drop it.
    """
    if torch.compiler.is_compiling():
        return False
    if layer._packed is None and layer._parameters.get("weight") not in _of_weights:
        return False
    return any(p.requires_grad for p in layer.parameters())
