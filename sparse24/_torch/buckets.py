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

from sparse24 import _foreign, _foreign_streams, _spec, _storage
from sparse24._torch import bucket_check as looks
from sparse24._torch import ops
from sparse24._torch.linear import cast
from sparse24._torch.parts import dtype_of, record_of
from sparse24._torch.pruned import PrunedLayer


class PackedGradient(NamedTuple):
    """The gradient of a weight (..., m, k), and its elements where the weight is kept."""

    gradient: Tensor  # a view of the bucket's buffer
    values: Tensor  # (..., m, values_per_row(k))
    codes: Tensor


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
        wrong: Sequence[Tensor] | None,
    ):
        self._buffer, self._wrong = buffer, wrong
        known = zip(gradients, layers, strict=True)
        self._packed = [_packed(g, layer) for g, layer in known if layer is not None]
        self._rest = list(_runs(buffer, gradients, [layer is None for layer in layers]))
        self.flat = self._joined() if self._packed else buffer

    def _joined(self) -> Tensor:
        parts = [one.values.reshape(-1) for one in self._packed] + self._rest
        if self._wrong is not None:
            told = looks.told(*zip(*self._packed, strict=True))
            parts.append(told.to(self._buffer.dtype).reshape(-1))
        return torch.cat(parts)

    def unpack(self, future) -> Tensor:
        """The buffer with what has come back; called once the reduction is done."""
        flat = future.value()[0]  # raises what went wrong
        if not self._packed:
            return flat
        self._hold(flat)
        sizes = [one.values.numel() for one in self._packed] + [x.numel() for x in self._rest]
        *parts, told = flat.split([*sizes, flat.numel() - sum(sizes)])
        if self._wrong is not None:
            self._spoil(parts, *looks.heard(told.view(-1, looks.SIZE)))
        for one, values in zip(self._packed, parts):
            _spread(one, values)
        for run, part in zip(self._rest, parts[len(self._packed) :], strict=True):
            run.copy_(part)
        return self._buffer

    def _hold(self, flat: Tensor) -> None:
        """Memory of the backward pass's stream is read on the stream that this runs on."""
        for x in (flat, *(one.codes for one in self._packed)):
            if x.is_cuda:
                x.record_stream(torch.cuda.current_stream(x.device))

    def _spoil(self, parts: Sequence[Tensor], spoilt: Tensor, blamed: Tensor) -> None:
        """A gradient that is not right gets a NaN, for otherwise it would go unseen."""
        assert self._wrong is not None
        flags = zip(self._wrong, blamed.unbind(), spoilt.unbind(), strict=True)
        for values, (wrong, is_blamed, is_spoilt) in zip(parts, flags):
            wrong.logical_or_(is_blamed)
            values[:1].masked_fill_(is_spoilt, math.nan)


def _packed(gradient: Tensor, layer: PrunedLayer) -> PackedGradient:
    """The elements in the places that the forward pass has kept."""
    columns = _spec.values_per_row(gradient.shape[-1])
    if layer.mask is not None:
        values, codes = ops.pack(gradient, layer.mask, False)
    else:
        # In the type of the pass: autocast rounds, and magnitudes become equal.
        weight = cast(layer.weight.detach(), getattr(layer, "_cast_to", None))
        parts = ops.pack(weight, None, layer.rule.transposable)[:2]
        codes, (values,) = parts[1], ops.like(parts, *gradient.shape[-2:], gradient)
    return PackedGradient(gradient, values[..., :columns], codes)


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


def _spread(one: PackedGradient, values: Tensor) -> None:
    """Write values in their places of the gradient, and zeros in all others."""
    m, k = one.gradient.shape[-2:]
    with _foreign_streams.stream_of(values):
        record = record_of(values.view(one.values.shape), one.codes, m, k, dtype_of(values))
        _storage.decompress(record, _foreign.view_of(one.gradient))
