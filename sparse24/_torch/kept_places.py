"""Where layers keep the elements of their weights, for gradients that are packed in each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sparse24 import _arrays
from sparse24._torch import bucket_check as looks
from sparse24._torch import ops
from sparse24._torch.linear import cast
from sparse24._torch.pruned import Look, PrunedLayer
from sparse24._torch.ways import version_of
from sparse24._train_rule import Rule


class Places(NamedTuple):
    """Codes of a weight, and what other ranks are told of them."""

    codes: Tensor
    hashed: Tensor | None


class _OfMask(NamedTuple):
    mask: Tensor
    version: int | None
    look: Look  # of the layer: another one once it changes between training and evaluation
    places: Places

    def is_of(self, mask: Tensor, look: Look) -> bool:
        same = self.mask is mask and self.look is look
        return same and self.version == version_of(mask)


def _to_none(layer: PrunedLayer) -> None:
    """Of layers outside of autocast."""


class KeptPlaces:
    """Finds the places of layers: those of a mask once, those by magnitude at each call.

    Parameters
    ----------
    check : bool
        Whether other ranks are told of them.
    cast_to : callable, optional
        To which type autocast casts the weight of a layer; by default to none.
    uncounted : bool
        Whether masks may be written without torch counting it, as by DDP that sends buffers: then
        those of a mask are found at each call, too.
    """

    def __init__(
        self, check: bool, cast_to: Callable[[PrunedLayer], torch.dtype | None] = _to_none,
        *, uncounted: bool = False,
    ):  # fmt: skip
        self._check, self._cast_to, self._uncounted = check, cast_to, uncounted
        self._known: dict[PrunedLayer, _OfMask] = {}

    def of(self, layer: PrunedLayer) -> Places:
        """The places that the latest forward pass of a layer has kept."""
        mask = layer.mask
        if mask is None:
            self._known.pop(layer, None)  # with the mask that the layer had
            # In the type of the pass: autocast rounds, and magnitudes become equal.
            weight = cast(layer.weight.detach(), self._cast_to(layer))
            return self._found(_by_magnitude(weight, layer.rule))
        look, known = layer._looked_at, self._known.get(layer)
        # Replays of a graph read a mask anew.
        changes = self._uncounted or mask.is_inference() or _arrays.captures_work_on(mask)
        if not changes and known is not None and known.is_of(mask, look):
            return known.places
        places = self._found(ops.pack(layer.weight.detach(), mask, False)[1])
        if not changes:
            self._known[layer] = _OfMask(mask, version_of(mask), look, places)
        return places

    def _found(self, codes: Tensor) -> Places:
        return Places(codes, looks.hashed(codes) if self._check else None)


def _by_magnitude(weight: Tensor, rule: Rule) -> Tensor:
    """Codes of the places to which the gradient of a layer without a mask goes.

    Experts pass it through `ops.keep`, which keeps other zeros of a group than the packed weight
    does, unless both keep the best 4x4 masks.
    """
    if weight.ndim == 2 or rule.transposable:
        return ops.pack(weight, None, rule.transposable)[1]
    return ops.pack(weight, ops.keep(weight, False), False)[1]
