"""The packed weight of a layer without gradients, and the products that are prepared with it.

A layer in inference is called with the same few layouts again and again.  With few tokens such a
call takes as long as what Python looks up, so little is.

The weight of experts is a stack (e, m, k), their bias (e, m).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse24 import _arrays, _replay, _settled
from sparse24._moved_layout import Last
from sparse24._options import NO_OPTIONS, Call, Epilogue
from sparse24._ready import Ready, ReadyProduct
from sparse24._records import Fused
from sparse24._torch import ops
from sparse24._torch import replay as torch_replay
from sparse24._torch.linear import cast, projected
from sparse24._torch.parts import unpack, vector_type
from sparse24._torch.sources import Sources
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import epilogue as _epilogue


class Origin(NamedTuple):
    """What the packed weight (..., m, k) and the bias of a layer are made of."""

    weight: Tensor
    mask: Tensor | None
    bias: Tensor | None
    scale: Tensor | None
    transposable: bool

    def tensors(self) -> list[Tensor]:
        return _there(*self[:4])

    def latent(self) -> Tensor:
        """The weight before pruning; of a soft layer its projection, which obeys 2:4 already."""
        return self.weight if self.scale is None else projected(self.weight, self.scale)

    def pack(self, dtype: torch.dtype | None) -> list[Tensor]:
        """The weight along its rows, in the places that a training step would keep.

        `dtype` is what autocast asks for.
        """
        in_tiles = self.mask is None and self.transposable
        return ops.pack(cast(self.latent(), dtype), self.mask, in_tiles)[:2]

    def vector(self, dtype: torch.dtype | None) -> Tensor | None:
        """The bias as (..., m)."""
        return None if self.bias is None else cast(self.bias, dtype).reshape(self.weight.shape[:-1])


def kept(layer, x: Tensor, dtype: torch.dtype | None) -> Packed | None:
    """A layer's own, for an operand x, if its tensors have not changed since.

    A graph that is captured reads it at every replay, so from then on the layer holds its memory;
    not `Packed` itself, whose weak references would stay with the weight.
    """
    packed = layer._packed  # once: another thread may drop it
    if packed is None or not packed.is_of(_tensors(layer), dtype):
        return None
    if not _arrays.captures_work_on(x):
        packed.await_on_stream_of(x)
    elif all(weight is not packed.weight for weight, _ in layer._captured):
        layer._captured.append((packed.weight, packed.tensors))
    return packed


class Packed:
    """The weight and the bias of a layer as kernels take them, as long as they are its own.

    Parameters
    ----------
    sources : Sources or None
        What they were made of; None if nothing tells of changes.
    transposable : bool
        Of the layer.
    weight : Sparse24Array, shape (..., m, k)
    bias : Tensor, shape (..., m), optional
        Of the type in which kernels add it.
    tensors : list of Tensor
        All that both are kept in.
    """

    def __init__(
        self,
        sources: Sources | None,
        transposable: bool,
        weight: Sparse24Array,
        bias: Tensor | None,
        tensors: list[Tensor],
    ):
        self.weight, self.bias, self.tensors = weight, bias, tensors
        self._sources, self.transposable = sources, transposable
        self._streams: set[int] = set()  # that come after its making, which ends with an event
        if tensors[0].is_cuda:
            self._streams.add(_arrays.torch_stream(tensors[0]))
            self._made = torch.cuda.Event()
            self._made.record(torch.cuda.current_stream(tensors[0].device))
        self._call = NO_OPTIONS if bias is None else Call(epilogue=Epilogue(bias=bias))
        self._plans: dict[tuple, Any] = {}  # without the address of the bias, which does not change

    @classmethod
    def of(cls, origin: Origin, dtype: torch.dtype | None) -> Packed:
        """Packed now; `dtype` is what autocast asks for."""
        sources = Sources.of(dtype, origin.tensors())  # first: others may write meanwhile
        tensors, bias = origin.pack(dtype), origin.vector(dtype)
        weight = unpack(tensors, *origin.weight.shape[-2:])
        if bias is not None:
            wanted = vector_type(tensors[0].dtype, on_gpu=tensors[0].is_cuda)
            bias = bias.detach().to(wanted)
            tensors = [*tensors, bias]
        return cls(sources, origin.transposable, weight, bias, tensors)

    def is_of(self, tensors: list[Tensor], dtype: torch.dtype | None) -> bool:
        """True if a layer's tensors have not changed since, and autocast asks for the same."""
        return self._sources is not None and self._sources.are(dtype, tensors)

    def gives_way_to(self, origin: Origin) -> bool:
        """True if it is an older one of the same tensors, or one of tensors that are gone."""
        return self._sources is None or self._sources.give_way_to(origin.tensors())

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
        key = _layout(x)
        plan = _replay.find(self._plans, key, x)
        return self._as_others(key) if plan is None and key is not None else plan

    def multiply(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias`` for x (..., k), which is prepared for the next one like it."""
        turned = self.weight.mT
        y = turned._multiply_from_left(x, None, self._call)
        key = _layout(x)
        if key is not None:
            whole = _replay.signature(x, None, self._call, from_left=True)
            plan = turned._plans.get(whole)
            if plan is not None and not plan.reads_options:
                _replay.keep(self._plans, key, plan)
                self._let_others_take(key, plan)
        return y

    # Layers of a model have weights of a few shapes.  What was prepared for the tokens of one
    # serves the others, with their addresses.  `_shared_plans` has that for all arrays and options,
    # which it looks at first; a layer has a bias at most, and its own.

    def _as_others(self, key: tuple) -> Ready | None:
        """The product that another layer has prepared, with the weight and the bias of this one."""
        settled = _settled.is_settled(self.weight._operand.stored)
        shared = torch_replay.find((self._kind, settled, key))
        if shared is None:
            return None
        plan = Ready(*shared, own=self._addresses, last=self._last)
        _replay.keep(self._plans, key, plan)
        return plan

    def _let_others_take(self, key: tuple, plan: Any) -> None:
        """Share a plan that is one launch, and reads the tensors of this layer as they are."""
        if type(plan) is not ReadyProduct or plan.waits or plan.own != self._addresses:
            return
        mine, its = (None if p is None else p.argument.tobytes() for p in (self._last, plan.last))
        if mine == its:
            torch_replay.keep((self._kind, plan.settled, key), (plan.layout, plan.allocate))

    @functools.cached_property
    def _kind(self) -> tuple:
        """All that the products of a layer depend on, but for addresses."""
        return self.weight.shape, *[torch_replay.layout(tensor) for tensor in self.tensors]

    @functools.cached_property
    def _addresses(self) -> tuple[int, ...]:
        return tuple(tensor.data_ptr() for tensor in self.tensors[:2])

    @functools.cached_property
    def _last(self) -> Last | None:
        """The bias as the last argument of a launch."""
        if self.bias is None:
            return None
        return Last.of(_epilogue.params(Fused(row_bias=torch_replay.view(self.bias))))


def _tensors(layer) -> list[Tensor]:
    return _there(*[_own(layer, name) for name in ("weight", "mask", "bias", "scale")])


def _own(layer, name: str) -> Tensor | None:
    """An attribute of a layer, mostly where a module keeps it: ``layer.weight`` takes ten times
    as long.  A weight that is made at each call, as by a parametrization, is no parameter.
    """
    for place in (layer._parameters, layer._buffers):
        if name in place:
            return place[name]
    return getattr(layer, name)


def _there(*tensors: Tensor | None) -> list[Tensor]:
    return [t for t in tensors if t is not None]


def _layout(x: Tensor) -> tuple | None:
    return _replay.signature(x, None, NO_OPTIONS, from_left=True)
