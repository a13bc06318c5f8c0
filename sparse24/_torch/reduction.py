"""`reduce_packed`: data-parallel training that sends the kept elements of gradients only."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from sparse24 import _check
from sparse24._errors import ArgumentError, PatternError
from sparse24._torch.buckets import PackedBucket, as_in_memory
from sparse24._torch.kept_places import KeptPlaces
from sparse24._torch.packable import agreed, backend_for
from sparse24._torch.pass_types import PassTypes
from sparse24._torch.pruned import PrunedLayer


def reduce_packed(
    ddp: torch.nn.parallel.DistributedDataParallel,
    *,
    layers: Iterable[str] | None = None,
    check: bool = True,
) -> PackedReduction:
    """Let data-parallel training send only the kept elements of sparse layers' gradients.

    Parameters
    ----------
    ddp : torch.nn.parallel.DistributedDataParallel
        Around a model with `SparseLinear` or `SparseExperts` layers; before its first pass, for
        code that was compiled earlier does not tell to which type autocast casts the weights.
        This registers its communication hook, and there can be one only.
    layers : iterable of str, optional
        Names of the layers whose gradients are packed, as `sparse_layers` of the model gives them.
        By default all whose gradient is zero at pruned places: ``gradient="24dense"`` or
        ``"24sparse"``, ``decay=0`` and sparse weights that learn.
    check : bool
        Whether ranks look for non-zero gradients at pruned places, which would be lost, and for
        places that differ from rank to rank.  They then send 66 elements more for each layer, which
        is more than packing saves for a weight of fewer than 132.

    Returns
    -------
    PackedReduction
        The layers' names, and the bytes of the last backward pass with and without packing.

    Raises
    ------
    ArgumentError
        If `ddp` is something else, or `check` no bool; and on all ranks, if on some rank `ddp` has
        a communication hook already or averages gradients on GPUs by gloo, a named layer cannot be
        packed, or no layer can, or if ranks pack other layers or another `check`.

    Notes
    -----
    All ranks have the same weights and masks, so that the kept places are the same, and their
    values alone are averaged over the ranks: half the bytes of a weight.  The gradients are those
    of DDP's own average, up to the order in which ranks are added.  Buckets without such
    layers, other parameters, layers while their mask is not 2:4, and those that `desparsify` has
    replaced since are sent whole.  Which they are must be the same on all ranks: else these send
    different numbers of elements, for which torch waits, or aborts the process.

    The mask is that of the layer at the time of the backward pass: change masks between steps
    only, as `update_masks` does, and not between passes whose gradients are added up.  If a
    gradient has non-zeros elsewhere (a mask was changed too early, `torch.autocast` differed
    between those passes, or a loss uses the weight directly), or ranks have other masks or weights
    (as those that `torch.distributed.algorithms.Join` has let stop), its first kept element becomes
    NaN on all ranks, and ``PackedReduction.check()`` names the layer.  After an overflow that
    leaves NaN at pruned places it becomes NaN too, and no layer is named.  With ``check=False``
    nobody looks: elements elsewhere then count as zeros, and values of other places are added.

    The call itself waits for the other ranks, to compare what they pack.  Afterwards nothing here
    waits for the device, and the packed bucket needs memory beside the bucket.  Each gradient is
    read once to be packed, on a GPU checked in the same pass, and written once to be unpacked; what
    else a bucket holds is copied twice.  With ``forward_sync_buffers=False``, in older releases of
    torch ``broadcast_buffers=False``, the codes of a mask's places (`SparseLinear.set_mask`), half
    a byte for every four weights, are kept until the mask is written or replaced: after a write
    that torch does not count, by a collective or through ``.data``, go through ``eval()`` and
    ``train()``.  Otherwise, as `ddp` may have written the mask, they are found in each step, by one
    more pass over the weight; so are those of a layer without a mask, with 4x4 tiles by the search
    for the best masks.  Whether this is less than the bytes save depends on the links between the
    devices, and on how long the backward pass is.

    Where each rank chooses places of its own, codes travel too and sums fill up [1]_.

    References
    ----------
    .. [1] S. Li and T. Hoefler, *Near-Optimal Sparse Allreduce for Distributed Deep Learning*,
       2022.

    Examples
    --------
    In each of the processes:

    >>> import tempfile, torch, sparse24 as s24
    >>> file = f"file://{tempfile.mkdtemp()}/meeting"
    >>> torch.distributed.init_process_group("gloo", file, rank=0, world_size=1)
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 4))
    >>> model = s24.torch.sparsify(model, {"0": {"gradient": "24dense"}})
    >>> ddp = torch.nn.parallel.DistributedDataParallel(model)
    >>> reduction = s24.torch.reduce_packed(ddp)
    >>> ddp(torch.ones(8, 64)).sum().backward()
    >>> reduction
    PackedReduction(layers=('0',), sent=9496, whole=17424)
    >>> torch.distributed.destroy_process_group()
    """
    check = _check.flag(check, argument="check")
    if not isinstance(ddp, torch.nn.parallel.DistributedDataParallel):
        raise ArgumentError(
            "ddp must be a torch.nn.parallel.DistributedDataParallel, got "
            f"{type(ddp).__name__}; wrap the model in one first"
        )
    chosen = agreed(ddp, layers, check)
    reduction = PackedReduction(ddp, chosen, check)
    try:
        ddp.register_comm_hook(reduction, _reduce)
    except RuntimeError as error:
        raise ArgumentError(
            "ddp must have no communication hook yet, for torch takes one only; wrap the model "
            f"anew without the other: {error}"
        ) from error
    reduction._types.watch()
    return reduction


class PackedReduction:
    """What `reduce_packed` does in a model.  Made by it.

    Attributes
    ----------
    layers : tuple of str
        The layers whose gradients are packed.
    sent, whole : int
        Bytes that this rank gave to be averaged in the last backward pass that did, and what they
        would have been without packing; 0 before the first one.

    Examples
    --------
    >>> import tempfile, torch, sparse24 as s24
    >>> file = f"file://{tempfile.mkdtemp()}/meeting"
    >>> torch.distributed.init_process_group("gloo", file, rank=0, world_size=1)
    >>> layer = s24.torch.SparseLinear(64, 64, bias=False, gradient="24dense")
    >>> ddp = torch.nn.parallel.DistributedDataParallel(layer)
    >>> reduction = s24.torch.reduce_packed(ddp, check=False)
    >>> ddp(torch.ones(8, 64)).sum().backward()
    >>> reduction.sent / reduction.whole
    0.5
    >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        ddp: torch.nn.parallel.DistributedDataParallel,
        layers: dict[str, PrunedLayer],
        check: bool,
    ):
        self.layers = tuple(layers)
        self.sent = self.whole = 0
        self._group = ddp.process_group
        self._layers = {layer.weight: layer for layer in layers.values()}
        self._types = PassTypes(ddp.module, layers.values())
        self._places = {layer: _place(ddp, name) for name, layer in layers.items()}
        self._kept = KeptPlaces(check, self._types.of, uncounted=ddp.broadcast_buffers)
        self._backend = backend_for(ddp, next(iter(self._layers)).device)
        self._wrong: dict[Tensor, Tensor] = {}
        if check:  # there from the beginning to the end, so that any stream may write to them
            self._wrong = {
                w: torch.zeros((), dtype=torch.bool, device=w.device) for w in self._layers
            }

    def check(self) -> None:
        """Raise if a gradient could not be packed without loss.  Waits for the device.

        Raises
        ------
        PatternError
            If, in any earlier pass, a gradient had non-zeros at pruned places, or ranks packed it
            differently; names the layers.  Never with ``check=False``.
        """
        found = zip(self.layers, self._wrong.values(), strict=False)
        wrong = [name for name, flag in found if bool(flag)]
        if wrong:
            raise PatternError(
                f"the gradients of layers {wrong} had non-zeros where their masks prune, or ranks "
                "had other masks or weights; set the same masks on all ranks, between steps only, "
                "use a layer's weight in that layer only, or leave these layers out of "
                "reduce_packed(ddp, layers=...)"
            )

    def _packs(self, weight: Tensor) -> PrunedLayer | None:
        """The layer of a weight whose gradient is packed now; the same on all ranks.

        None once another layer has taken its place, as those of `desparsify` do.
        """
        layer = self._layers.get(weight)
        if layer is None or layer._way != "weight":
            return None
        parent, name = self._places[layer]
        if getattr(parent(), "_modules", {}).get(name) is not layer:
            return None
        return layer

    def _flags(self, weights: Iterable[Tensor]) -> list[Tensor] | None:
        """What is set where packing goes wrong; None: nobody looks."""
        return [self._wrong[weight] for weight in weights] if self._wrong else None

    def _average(self, flat: Tensor) -> torch.futures.Future:
        """The average of a tensor over the ranks; each divides first, as sums may overflow.

        A share is rounded as by DDP, which multiplies, too.
        """
        operation, ranks = torch.distributed.ReduceOp.AVG, self._group.size()
        if not _divides(self._backend, ranks, flat.dtype):
            flat, operation = flat.mul_(1 / ranks), torch.distributed.ReduceOp.SUM
        work = torch.distributed.all_reduce(flat, operation, group=self._group, async_op=True)
        return work.get_future()

    def __repr__(self) -> str:
        return f"PackedReduction(layers={self.layers}, sent={self.sent}, whole={self.whole})"


@torch.no_grad()
def _reduce(reduction: PackedReduction, bucket):
    """The communication hook: a future of the bucket's buffer, averaged over the ranks."""
    weights, buffer = bucket.parameters(), bucket.buffer()
    if bucket.index() == 0:
        reduction.sent = reduction.whole = 0
        reduction._types.begin()
    layers = [reduction._packs(weight) for weight in weights]
    wrong = reduction._flags(weight for weight, layer in zip(weights, layers) if layer is not None)
    gradients = [as_in_memory(*pair) for pair in zip(bucket.gradients(), weights, strict=True)]
    packed = PackedBucket(buffer, gradients, layers, reduction._kept, wrong)
    reduction.sent += packed.flat.nbytes
    reduction.whole += buffer.nbytes
    return reduction._average(packed.flat).then(packed.unpack)


def _divides(backend: str | None, ranks: int, dtype: torch.dtype) -> bool:
    """Whether an average by the backend itself is right.

    NCCL multiplies by 1 / ranks as the type of the elements has it: one of 16 bits rounds that by
    up to two in a thousand, always to the same side, except for powers of two.
    """
    return backend == "nccl" and (dtype.itemsize > 2 or ranks & (ranks - 1) == 0)


def _place(ddp: torch.nn.Module, name: str) -> tuple[weakref.ref, str]:
    """The module that holds a layer, and the layer's name there.

    Held weakly: it may be `ddp`, which holds its communication hook where no collector looks.
    """
    parent, _, last = f"module.{name}".rstrip(".").rpartition(".")
    return weakref.ref(ddp.get_submodule(parent)), last
