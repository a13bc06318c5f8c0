"""A bucket of gradients as one flat tensor that holds kept elements only, and the way back.

What travels: the values of the packed gradients, then the others as they are, then what ranks tell
each other.  Ranks have the same weights and masks, hence the same places, and no code travels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparse24 import _spec
from sparse24._torch import bucket_check as looks
from sparse24._torch.gathering import gather, spread
from sparse24._torch.kept_places import KeptPlaces, Places
from sparse24._torch.pruned import PrunedLayer


class PackedGradient(NamedTuple):
    """The gradient of a weight (..., m, k), and where the weight is kept."""

    gradient: Tensor  # a view of the bucket's buffer
    places: Places

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values that travel."""
        *rows, k = self.gradient.shape
        return *rows, _spec.values_per_row(k)


class PackedBucket:
    """The gradients of a bucket, packed.

    Parameters
    ----------
    buffer : Tensor, shape (n,)
        All gradients, one after the other.
    gradients : list of Tensor
        Views of it, in this order.
    layers : list of PrunedLayer or None
        The layer whose weight has this gradient, if it is to be packed.
    kept : KeptPlaces
    wrong : list of Tensor of bool, shape (), or None
        For each packed gradient what is set if it has lost elements, or if ranks have packed it
        differently; with None nobody looks.

    Attributes
    ----------
    flat : Tensor, shape (n,)
        What travels; `buffer` itself if nothing is packed.
    """

    def __init__(
        self,
        buffer: Tensor,
        gradients: Sequence[Tensor],
        layers: Sequence[PrunedLayer | None],
        kept: KeptPlaces,
        wrong: Sequence[Tensor] | None,
    ):
        self._buffer, self._wrong = buffer, wrong
        known = ((g, layer) for g, layer in zip(gradients, layers) if layer is not None)
        self._packed = [PackedGradient(g, kept.of(layer)) for g, layer in known]
        self._rest = list(_runs(buffer, gradients, [layer is None for layer in layers]))
        self.flat = self._joined() if self._packed else buffer

    def _joined(self) -> Tensor:
        flat = self._buffer.new_empty(sum(self._sizes()))
        *parts, told = flat.split(self._sizes())
        seen = [None] * len(self._packed) if self._wrong is None else self._told(told)
        for one, values, found in zip(self._packed, parts, seen):
            gather(one.gradient, one.places.codes, values.view(one.shape), found)
        for run, part in zip(self._rest, parts[len(self._packed) :], strict=True):
            part.copy_(run)
        return flat

    def _told(self, told: Tensor) -> list[Tensor]:
        """Write what is told of places; the result is where to write what is seen of gradients."""
        rows = told.view(-1, looks.SIZE).unbind()
        for one, row in zip(self._packed, rows, strict=True):
            row.copy_(one.places.hashed)
        return [row[:2] for row in rows]

    def _sizes(self) -> list[int]:
        """Elements of each part of what travels: values, what is not packed, what ranks tell."""
        told = 0 if self._wrong is None else looks.SIZE * len(self._packed)
        return [*(math.prod(one.shape) for one in self._packed), *map(len, self._rest), told]

    def unpack(self, future) -> Tensor:
        """The buffer with what has come back; called once the reduction is done."""
        flat = future.value()[0]  # raises what went wrong
        if not self._packed:
            return flat
        self._hold(flat)
        *parts, told = flat.split(self._sizes())
        if self._wrong is not None:
            self._spoil(parts, *looks.heard(told.view(-1, looks.SIZE)))
        for one, values in zip(self._packed, parts):
            spread(values.view(one.shape), one.places.codes, one.gradient)
        for run, part in zip(self._rest, parts[len(self._packed) :], strict=True):
            run.copy_(part)
        return self._buffer

    def _hold(self, flat: Tensor) -> None:
        """Memory of the backward pass's stream is read on the stream that this runs on."""
        if flat.is_cuda:
            here = torch.cuda.current_stream(flat.device)
            for x in (flat, *(one.places.codes for one in self._packed)):
                x.record_stream(here)

    def _spoil(self, parts: Sequence[Tensor], spoilt: Tensor, blamed: Tensor) -> None:
        """A gradient that is not right gets a NaN, for otherwise it would go unseen."""
        assert self._wrong is not None
        flags = zip(self._wrong, blamed.unbind(), spoilt.unbind(), strict=True)
        for values, (wrong, is_blamed, is_spoilt) in zip(parts, flags):
            wrong.logical_or_(is_blamed)
            values[:1].masked_fill_(is_spoilt, math.nan)


def as_in_memory(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a weight that a bucket's view shows as if the weight were contiguous.

    DDP writes it in the order in which the weight lies in memory, if that has no gaps.
    """
    if weight.is_contiguous():
        return gradient
    strides = torch.empty_like(weight, device="meta").stride()  # those of a weight without gaps
    return gradient.as_strided(weight.shape, strides) if strides == weight.stride() else gradient


def _runs(buffer: Tensor, gradients: Sequence[Tensor], is_whole: list[bool]) -> Iterable[Tensor]:
    """The parts of the buffer that travel as they are, as few as there can be."""
    start = end = 0
    for gradient, whole in zip(gradients, is_whole, strict=True):
        if not whole:
            if end > start:
                yield buffer[start:end]
            start = end + gradient.numel()
        end += gradient.numel()
    if end > start:
        yield buffer[start:end]
