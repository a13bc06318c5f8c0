"""Products of layers without gradients in code of ``torch.compile``.

Such code is traced once.  Whether a packed weight still serves is seen at each call, by an operator
to which the tensors are passed as the layer holds them.
"""

from __future__ import annotations

import functools
import sys

import torch
from torch import Tensor

from sparse24 import _arrays
from sparse24._torch import ops
from sparse24._torch.kept import found_or_packed
from sparse24._torch.operators import meaning_for_tracing, operator
from sparse24._torch.packed import Origin
from sparse24._torch.traced import may_be_written


def is_compiled() -> bool:
    """Whether code is traced to be compiled, not to be exported: that may run anywhere."""
    # The flag itself: to the compiler of torch 2.8 is_exporting() is always true.
    return torch.compiler.is_compiling() and not getattr(torch.compiler, "_is_exporting_flag", True)


def is_exported() -> bool:
    """Whether code is traced to be exported, without what backward would need."""
    return torch.compiler.is_compiling() and getattr(torch.compiler, "_is_exporting_flag", False)


def by_packing(x: Tensor, origin: Origin, dtype: torch.dtype | None) -> Tensor:
    """``x @ prune(weight).T + bias`` for x (t, k), by operators that pack the weight anew."""
    return _product(origin.pack(dtype), x, origin, dtype)


def _product(parts: list[Tensor], x: Tensor, origin: Origin, dtype: torch.dtype | None) -> Tensor:
    return ops.product(parts, *origin.weight.shape, x, origin.vector(dtype), "x@At")


@operator
def kept_product(
    x: Tensor,
    weight: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    transposable: bool,
    dtype: torch.dtype | None,
) -> Tensor:
    """The product of `by_packing`, by a packed weight that is kept until its tensors change."""
    origin = Origin(weight, mask, bias, scale, transposable)
    with torch.no_grad():
        if keeps_nothing(x, origin):
            return by_packing(x, origin, dtype)
        packed = found_or_packed(origin, dtype)
        packed.await_on_stream_of(x)
        product = packed.known(x)
        if product is not None:
            return product(x, None)
        if x.is_cuda:  # so that a graph, which packs the weight itself, finds a prepared product
            _product(packed.tensors[:2], x, origin, dtype)
        return packed.multiply(x)


@meaning_for_tracing("kept_product")
def _(x, weight, mask, bias, scale, transposable, dtype):
    return by_packing(x, Origin(weight, mask, bias, scale, transposable), dtype)


@functools.partial(operator, keys=("CompositeImplicitAutograd",), like=kept_product)
def layer_product(x: Tensor, *facts) -> Tensor:
    """What a compiler traces: `kept_product`, or `by_packing` where the graph may write a tensor.

    Such a graph counts the versions of what it writes before it runs, not at the writes.
    """
    *parts, dtype = facts
    origin = Origin(*parts)
    if any(may_be_written(t) for t in origin.tensors()):
        return by_packing(x, origin, dtype)
    return kept_product(x, *facts)


def keeps_nothing(x: Tensor, origin: Origin) -> bool:
    """Whether nothing would tell later that a packed weight does not serve any more."""
    return _for_a_graph(x) or any(t.is_inference() for t in origin.tensors())


def _for_a_graph(x: Tensor) -> bool:
    """Whether a CUDA graph is captured, whose replays do not ask what has changed, or will be."""
    if not x.is_cuda:
        return False
    return _arrays.captures_work_on(x) or _in_graph_trees(x)


def _in_graph_trees(x: Tensor) -> bool:
    """Whether torch's trees of CUDA graphs run this code, as ``mode="reduce-overhead"`` has them.

    They run it once in the memory of a graph, on a stream of their own, before it is captured.
    What is kept there is soon overwritten by other tensors.
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    of_thread = getattr(trees, "local", None)
    if of_thread is None:
        return True  # a torch that we do not know
    container = getattr(of_thread, "tree_manager_containers", {}).get(x.device.index)
    manager = None if container is None else container.tree_manager
    if manager is None:
        return False
    stream = getattr(manager, "stream", None)
    return stream is None or torch.cuda.current_stream(x.device) == stream
