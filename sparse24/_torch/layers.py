"""`SparseLinear`: a linear layer whose product is 2:4 sparse."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError
from sparse24._schedule.gradients import soft_threshold_scale
from sparse24._torch import samples as torch_samples
from sparse24._torch import state as torch_state
from sparse24._torch.check import check_linear, check_tensor, check_whole, whole
from sparse24._torch.compiled import by_packing, is_compiled, is_exported, layer_product
from sparse24._torch.encoders import watch_encoders
from sparse24._torch.kept import found_or_packed
from sparse24._torch.linear import (
    MODES,
    autocast_dtype,
    by_clock,
    cast,
    check_activation,
    check_seed,
    tokens,
    unfolded,
    unpruned,
)
from sparse24._torch.packed import kept
from sparse24._torch.pruned import PrunedLayer
from sparse24._torch.transforms import are_transformed, refuse_transforms
from sparse24._torch.ways import has_elements
from sparse24._train_rule import checked_rule

OPTIONS = ("sparse", "gradient", "transposable", "decay", "seed", "soft")


class SparseLinear(PrunedLayer, torch.nn.Linear):
    """A drop-in `torch.nn.Linear` whose product is 2:4 sparse; the weight stays a dense parameter.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in `torch.nn.Linear`.
    sparse, gradient, transposable, decay, seed
        See `linear`, also for `decay` where gradients accumulate or the loss is scaled.  `sparsify`
        gives each layer that samples a `seed` of its own.
    soft : bool
        S-STE [1]_: no mask, but a continuous projection of the weight to 2:4 that shrinks what
        it keeps.  Needs a sparse weight, straight-through gradients, no 4x4 tiles
        and no decay.

    Attributes
    ----------
    mask : Tensor of bool or None
        A buffer, saved with the model.  With None, the layer chooses its mask anew by magnitude
        at each call.  `set_mask`, `set_masks` and `update_masks` set it, and it then stays until
        the next update.  Some code knows only those entries that a model has at the time, such as
        ``torch.distributed.checkpoint.load`` and `torch.optim.swa_utils.AveragedModel`: set masks
        before it.  With ``use_buffers=True`` the latter averages masks as well, which torch refuses
        for booleans.  A state that holds the weight and no mask, as a dense layer's, takes it away.
    clock
        In the ``state_dict`` of a layer that samples gradients: how many samples it has drawn, so
        that resumed training, with the same `seed`, draws the same samples as uninterrupted
        training.  A pass that `torch.utils.checkpoint` recomputes draws its own.
    masked
        In the ``state_dict`` of a layer with a mask: whether it multiplies densely with it.  A mask
        of another pattern can be 2:4 by chance, and a sparse product would round differently.
    scale : Tensor of shape (), or None
        In a soft layer: the factor that brings the first projection nearest to the weight.  Fitted
        anew to the weight of a state that has none.

    Raises
    ------
    ArgumentError
        If an option is unknown or does not go with another; calls raise as `linear` does.

    Notes
    -----
    Without gradients the packed weight is kept from call to call, also by ``torch.compile``, until
    the weight changes: by a write that torch counts, a step of an optimizer, or a call with
    gradients to the weight that is not compiled.  Writes through ``.data``, by a collective of
    ``torch.distributed`` or by another process are not noticed: call ``eval()`` or ``train()``
    after them, which drop the packed weight.  A mask that was written in place, as by averages of
    models that copy buffers, is noticed by these two, and by calls without gradients that are not
    compiled.

    A CUDA graph that captures a call without gradients reads, at all replays, the packed weight
    that was kept at the time.  If none was kept, or the call has gradients or is compiled, as with
    ``mode="reduce-overhead"``, the graph packs the weight at each replay.  Exported code, and
    compiled code that writes the weight itself, packs it at each call.  If a weight is final, give
    an ordinary layer a packed one, made by `to_sparse_semi_structured`.  A graph reads new masks,
    but multiplies as when it was captured: capture anew where `masked` changes, or a phase begins.

    Only first derivatives are available; others, and the transforms of `torch.func`, are refused
    where the product is sparse.

    References
    ----------
    .. [1] Y. Hu, J. Zhu, J. Chen, *S-STE: Continuous Pruning Function for Efficient 2:4 Sparse
       Pre-training*, 2024.

    Examples
    --------
    >>> import torch, sparse24 as s24
    >>> layer = s24.torch.SparseLinear(8, 4)
    >>> layer(torch.ones(2, 8)).shape
    torch.Size([2, 4])
    >>> int(layer.current_mask().sum()), layer.to_dense()
    (16, Linear(in_features=8, out_features=4, bias=True))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype=None,
        *,
        sparse: str = "weight",
        gradient: str = "ste",
        transposable: bool = False,
        decay: float = 0.0,
        seed: int = 0,
        soft: bool = False,
    ):
        bias = _check.flag(bias, argument="bias")
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._configure(sparse, gradient, transposable, decay, seed, soft)

    def _configure(
        self, sparse="weight", gradient="ste", transposable=False, decay=0.0, seed=0, soft=False
    ) -> None:
        watch_encoders()
        _check.one_of(sparse, MODES, argument="sparse")
        self.sparse = sparse
        seed = _check.whole(seed, argument="seed", least=0)
        rule = checked_rule(gradient, transposable, decay, seed)
        check_seed(rule)
        check_activation(sparse, rule)
        self._begin(rule)
        self._clock = torch_samples.new_clock(rule)
        soft = _check.flag(soft, argument="soft")
        hard = sparse != "weight" or transposable or decay or not rule.straight
        if soft and hard:
            raise ArgumentError(
                "soft=True needs sparse='weight', a straight-through gradient ('ste' or "
                "'ste_sampled'), transposable=False and decay=0"
            )
        with torch.inference_mode(False):
            self.register_buffer("scale", soft_threshold_scale(self.weight) if soft else None)

    @classmethod
    def from_dense(cls, layer: torch.nn.Linear, **options) -> SparseLinear:
        """A sparse layer, by `options` of the class, that shares the parameters of a dense one."""
        for name in options:
            _check.one_of(name, OPTIONS, argument="an option of SparseLinear")
        torch_state.check_dense(layer)
        new = torch_state.sharing(cls, layer)
        new._configure(**options)
        torch_state.hand_on(layer, new)
        return new

    def to_dense(self) -> torch.nn.Linear:
        """A dense layer that shares the parameters.

        The weight of this layer, too, is pruned in place, for good: for a snapshot use
        ``copy.deepcopy(layer).to_dense()``.
        """
        check_whole(self.weight)
        new = torch_state.sharing(torch.nn.Linear, self)
        torch_state.hand_on(self, new)
        if self.sparse != "activation":
            with torch.no_grad():
                keep = self.current_mask()
                new.weight.copy_(self._origin().latent().masked_fill(~keep, 0.0))
                if self.scale is not None:
                    self.scale.fill_(1.0)  # the weight is projected, and stays as it is from now on
        return new

    def __setstate__(self, state) -> None:
        watch_encoders()  # a copy, or a layer of a file, may be the first one
        super().__setstate__(state)
        if not self._clock.ndim:  # of a file from before clocks showed the seed, too
            self._clock = torch_samples.new_clock(self.rule, int(self._clock))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if getattr(self, "scale", None) is not None:  # torch calls this before there is one
            self._rescale()

    def _rescale(self) -> None:
        """Fit the scale of a soft layer to its present weight."""
        assert self.scale is not None
        with torch.no_grad(), torch.inference_mode(False):
            fitting = soft_threshold_scale(whole(self.weight))
            if fitting.device == self.scale.device:
                self.scale.copy_(fitting)
            else:  # the weight was loaded by assign=True, the layer made on the meta device
                self.scale = fitting

    @property
    def takes_masks(self) -> bool:
        """True if a mask can be set: the layer's weight is pruned, and not by a projection."""
        return self.sparse != "activation" and self.scale is None

    @property
    def clock(self) -> Tensor:
        """Samples drawn so far; `torch.distributed.checkpoint` looks up entries of states here."""
        return self._clock[0]

    def _refuse_mask(self, mask: Tensor | None) -> None:
        if mask is not None and self.scale is not None:
            raise ArgumentError("a soft layer takes no mask; make it with soft=False")
        check_activation(self.sparse, self.rule, mask)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs (..., m) of inputs `x` (..., k)."""
        way, learns = self._way_of_pass(), torch.is_grad_enabled()
        if way == "dense":
            return unpruned(x, self.weight, self.bias)
        if way == "weight" and not learns:
            return self._inference(x)
        samples = self.rule.samples and way == "weight"  # after eval(), too: it may learn
        # Before backward, which may run late, and which exported code does not have.
        clock = torch_samples.tick(self._clock) if samples and not is_exported() else None
        origin, rule = self._origin(), self.rule
        return by_clock(
            x, origin.latent(), origin.bias, mask=origin.mask, sparse=way, clock=clock,
            gradient=rule.gradient, transposable=rule.transposable, decay=rule.decay,
        )  # fmt: skip

    def _inference(self, x: Tensor) -> Tensor:
        check_tensor(x, "x")
        if not has_elements(x) or x.is_neg():  # the bit stands for a sign that NumPy cannot see
            return self._followed(x)
        dtype = autocast_dtype(x)
        x = cast(x, dtype)
        packed = kept(self, x, dtype)
        if packed is not None and not are_transformed():
            product = packed.known(x)
            if product is not None:
                return product(x, None)
        check_linear(x, self.weight, self.bias)
        refuse_transforms(x, self.weight, self.bias)
        if packed is None:
            if _arrays.captures_work_on(x):
                return self._followed(x)  # what a graph packs is there at its replays only
            self._packed = packed = found_or_packed(self._origin(), dtype)
            packed.await_on_stream_of(x)
        return packed.multiply(x)

    def _followed(self, x: Tensor) -> Tensor:
        """By operators that torch can follow, such as its compiler.

        Compiled code keeps the packed weight; others pack it anew, exported code too, which may
        run where nothing tells of changes.
        """
        check_linear(x, self.weight, self.bias)
        refuse_transforms(x, self.weight, self.bias)
        dtype = autocast_dtype(x)
        x = cast(x, dtype)
        if is_compiled():
            y = layer_product(tokens(x), *self._origin(), dtype)
        else:
            y = by_packing(tokens(x), self._origin(), dtype)
        return unfolded(y, x)

    def extra_repr(self) -> str:
        rule = self.rule
        return (
            f"{super().extra_repr()}, sparse={self.sparse!r}, gradient={rule.gradient!r}, "
            f"transposable={rule.transposable}, decay={rule.decay:g}, "
            f"soft={self.scale is not None}"
        )
