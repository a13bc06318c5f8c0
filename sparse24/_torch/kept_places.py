"""Where layers keep the elements of their weights, for gradients that are packed in each step."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sparse24 import _arrays
from sparse24._torch import bucket_check as looks
from sparse24._torch import ops
from sparse24._torch.linear import cast
from sparse24._torch.pruned import PrunedLayer
from sparse24._torch.ways import version_of


class Places(NamedTuple):
    """Codes of a weight, and what other ranks are told of them."""

    codes: Tensor
    hashed: Tensor | None


class _OfMask(NamedTuple):
    mask: Tensor
    version: int | None
    places: Places


class KeptPlaces:
    """Finds the places of layers: those of a mask once, those by magnitude at each call.

    Parameters
    ----------
    check : bool
        Whether other ranks are told of them.
    """

    def __init__(self, check: bool):
        self._check = check
        self._known: dict[PrunedLayer, _OfMask] = {}

    def of(self, layer: PrunedLayer) -> Places:
        """The places that the latest forward pass of a layer has kept."""
        mask = layer.mask
        if mask is None:
            # In the type of the pass: autocast rounds, and magnitudes become equal.
            weight = cast(layer.weight.detach(), getattr(layer, "_cast_to", None))
            return self._found(ops.pack(weight, None, layer.rule.transposable)[1])
        version, known = version_of(mask), self._known.get(layer)
        lasts = version is not None and not _arrays.captures_work_on(mask)  # replays read it anew
        if lasts and known is not None and known.mask is mask and known.version == version:
            return known.places
        places = self._found(ops.pack(layer.weight.detach(), mask, False)[1])
        if lasts:
            self._known[layer] = _OfMask(mask, version, places)
        return places

    def _found(self, codes: Tensor) -> Places:
        return Places(codes, looks.hashed(codes) if self._check else None)
