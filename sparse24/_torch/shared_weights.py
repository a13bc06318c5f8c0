"""Weights that several modules of a model use, as a tied embedding and head do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from sparse24._torch.pruned import PrunedLayer


class SharedWeights:
    """What of the weights of layers any module uses, before and after masks change.

    A weight that one layer prunes is alive while another module multiplies by it.  A module that
    is no layer with a mask uses all of its parameters.

    Parameters
    ----------
    model : Module
    layers : iterable of PrunedLayer
        Within it, those whose masks are to change.
    masks : mapping of PrunedLayer to Tensor
        The masks that layers have afterwards; others keep theirs.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Iterable[PrunedLayer],
        masks: Mapping[PrunedLayer, Tensor],
    ):
        self._masks = masks
        users: dict[Tensor, list[torch.nn.Module]] = {layer.weight: [] for layer in layers}
        for module in model.modules() if users else ():
            for parameter in module._parameters.values():
                if parameter in users:
                    users[parameter].append(module)
        self._users = {weight: found for weight, found in users.items() if len(found) > 1}
        # Now: masks are written in place, and that of one layer before it is the next one's turn.
        self._before = {w: _any_of([_mask(m) for m in found]) for w, found in self._users.items()}

    def change(self, layer: PrunedLayer, mask: Tensor) -> tuple[Tensor | None, Tensor]:
        """What is used of a layer's weight before and after its mask becomes `mask`; None: all."""
        users = self._users.get(layer.weight)
        if users is None:
            return layer.mask, mask
        after = _any_of([self._masks.get(module, _mask(module)) for module in users])
        return self._before[layer.weight], torch.ones_like(mask) if after is None else after


def _mask(module: torch.nn.Module) -> Tensor | None:
    """The mask by which a module multiplies by its weight; None if by all, or one of its own."""
    return module.mask if isinstance(module, PrunedLayer) else None


def _any_of(masks: list[Tensor | None]) -> Tensor | None:
    """Where one of the masks is true; None: everywhere."""
    found = None
    for mask in masks:
        if mask is None:
            return None
        found = mask.clone() if found is None else found | mask
    return found
