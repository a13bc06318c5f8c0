"""The packed weight of a layer without gradients, and the products that are prepared with it.

A layer in inference is called with the same few layouts again and again.  With few tokens such a
call takes as long as what Python looks up, so little is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparse24 import _arrays, _replay
from sparse24._fuse import PLAIN, Epilogue
from sparse24._torch_linear import cast
from sparse24._torch_parts import unpack
from sparse24._torch_sources import Sources
from sparse24.formats.two_four import Sparse24Array


def kept(layer, x: Tensor, dtype: torch.dtype | None) -> Packed | None:
    """A layer's own, for an operand x, if its tensors have not changed since.

    A graph that is captured reads it at every replay, so from then on the layer holds its memory;
    not `Packed` itself, whose weak references would stay with the weight.
    """
    packed = layer._packed  # once: another thread may drop it
    if packed is None or not packed.is_of(layer, dtype):
        return None
    if not _replay.capturing(x):
        packed.await_on_stream_of(x)
    elif not packed.captured:
        packed.captured = True
        layer._captured.append((packed.weight, packed.tensors))
    return packed


class Packed:
    """The weight (m, k) and the bias of a layer as kernels take them, as long as they are its own.

    Parameters
    ----------
    sources : Sources or None
        What they were made of; None if nothing tells of changes.
    weight : Sparse24Array, shape (m, k)
    bias : Tensor, shape (m,), optional
        Of float64 for such a weight, of float32 for others.
    tensors : list of Tensor
        All that both are kept in.

    Attributes
    ----------
    captured : bool
        Whether a CUDA graph reads it.
    """

    def __init__(
        self,
        sources: Sources | None,
        weight: Sparse24Array,
        bias: Tensor | None,
        tensors: list[Tensor],
    ):
        self.weight, self.tensors, self._sources = weight, tensors, sources
        self.captured = False
        self._streams: set[int] = set()  # that come after its making, which ends with an event
        if tensors[0].is_cuda:
            self._streams.add(_arrays.torch_stream(tensors[0]))
            self._made = torch.cuda.Event()
            self._made.record(torch.cuda.current_stream(tensors[0].device))
        self._call = PLAIN if bias is None else PLAIN._replace(epilogue=Epilogue(bias=bias))
        self._again: dict[tuple, Any] = {}  # without the address of the bias, which does not change

    @classmethod
    def of(cls, layer, dtype: torch.dtype | None) -> Packed:
        """A layer's own; `dtype` is what autocast asks for."""
        sources = Sources.of(dtype, _tensors(layer))  # first: others may write meanwhile
        latent, bias = cast(layer._latent(), dtype), layer.bias
        tensors = layer._rows(latent)
        weight = unpack(tensors, *latent.shape)
        if bias is not None:
            wide = torch.float64 if latent.dtype == torch.float64 else torch.float32
            bias = cast(bias.detach(), dtype).to(wide).reshape(len(latent))
            tensors = [*tensors, bias]
        return cls(sources, weight, bias, tensors)

    def is_of(self, layer, dtype: torch.dtype | None) -> bool:
        """True if the layer's tensors have not changed, and autocast asks for the same."""
        return self._sources is not None and self._sources.are(dtype, _tensors(layer))

    def await_on_stream_of(self, x: Tensor) -> None:
        """Let torch's stream for x wait, once, until all is made, if another stream makes it."""
        if not self._streams or not x.is_cuda or _arrays.torch_stream(x) in self._streams:
            return
        stream = torch.cuda.current_stream(x.device)
        stream.wait_event(self._made)
        for tensor in self.tensors:  # so that nobody else gets their memory before it has read
            tensor.record_stream(stream)
        self._streams.add(stream.cuda_stream)

    def known(self, x: Tensor) -> Any:
        """The prepared product ``x @ weight.T + bias`` for tensors like x (..., k), if any."""
        return _replay.find(self._again, _layout(x), x)

    def multiply(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias`` for x (..., k), which is prepared for the next one like it."""
        turned = self.weight.mT
        y = turned._multiply_from_left(x, None, self._call)
        key = _layout(x)
        if key is not None:
            whole = _replay.signature(x, None, self._call, from_left=True)
            plan = turned._plans.get(whole)
            if plan is not None:
                _replay.keep(self._again, key, plan)
        return y


def _tensors(layer) -> list[Tensor]:
    """What a layer's packed weight and bias are made of."""
    return [t for t in (layer.weight, layer.mask, layer.bias, layer.scale) if t is not None]


def _layout(x: Tensor) -> tuple | None:
    return _replay.signature(x, None, PLAIN, from_left=True)
