"""To which types autocast casts the weights of layers, which may decide their places."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import torch

from sparse24._torch.linear import autocast_dtype
from sparse24._torch.pruned import PrunedLayer


class PassTypes:
    """The types of the latest passes through layers of a model, also of those it has left out.

    Of a layer that this rank leaves out, another one may average gradients, at places that depend
    on its type there.  That is taken to be the one of earlier passes or, where none came since
    autocast around the model was another, the one that most layers have here: autocast may be
    around the model, or within it.

    Parameters
    ----------
    model : Module
    layers : iterable of PrunedLayer
        Within it.
    """

    def __init__(self, model: torch.nn.Module, layers: Iterable[PrunedLayer]):
        self._model, self._layers = model, list(layers)
        self._around: torch.dtype | None = None  # what autocast asks for before the model's pass
        self._known: dict[PrunedLayer, torch.dtype | None] = {}

    def watch(self) -> None:
        """Note the types of all passes from now on."""
        for module in {self._model, *self._layers}:
            module.register_forward_pre_hook(_note)

    def begin(self) -> None:
        """Read what has been noted, before the first gradient of a backward pass is packed."""
        around = getattr(self._model, "_noted", self._around)  # also of a compiled one
        if around != self._around:
            self._around = around
            self._known.clear()
        for layer in self._layers:
            self._read(layer)

    def of(self, layer: PrunedLayer) -> torch.dtype | None:
        """The type to which the weight of a layer is cast; None: autocast casts nothing."""
        self._read(layer)  # passes that are computed anew in backward come late
        if layer in self._known:
            return self._known[layer]
        return statistics.mode([*self._known.values(), self._around])

    def _read(self, layer: PrunedLayer) -> None:
        if "_noted" in layer.__dict__:
            self._known[layer] = layer.__dict__.pop("_noted")


def _note(module, args) -> None:
    """Before each pass: to which type autocast casts weights.

    In the module itself, for compiled code.  A pass without gradients may come between forward and
    backward, and counts for nothing.
    """
    if torch.is_grad_enabled():
        module._noted = autocast_dtype(next(module.parameters()))
