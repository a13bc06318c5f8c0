"""`SparseExperts`: the linear layers of a mixture of experts, whose products are 2:4 sparse."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError
from sparse24._grouped_matmul import grouped_linear as packed_grouped_linear
from sparse24._torch import state as torch_state
from sparse24._torch.check import check_experts, check_whole
from sparse24._torch.compiled import is_compiled
from sparse24._torch.experts_compiled import by_packing, experts_product
from sparse24._torch.experts_linear import experts_rule, grouped_linear, masked_grouped_linear
from sparse24._torch.finish import checked_finish, finished
from sparse24._torch.kept import found_or_packed
from sparse24._torch.linear import autocast_dtype, cast
from sparse24._torch.packed import kept
from sparse24._torch.pruned import PrunedLayer
from sparse24._torch.transforms import refuse_transforms
from sparse24._torch.ways import has_elements

OPTIONS = ("gradient", "transposable", "decay", "activation")


class SparseExperts(PrunedLayer):
    """The linear layers of experts, 2:4 sparse; their weights stay one dense parameter.

    Parameters
    ----------
    experts : int
        How many there are.
    in_features, out_features, bias, device, dtype
        Of each expert, as in `torch.nn.Linear`, which also says how they are initialised.
    gradient, transposable, decay, activation
        See `grouped_linear`.
    gated : bool
        Each expert has a gate as well, with as many features, and gives
        ``activation(gate) * up``, as in layers with SwiGLU.

    Attributes
    ----------
    weight : Parameter, shape (e, m, k)
        With e experts, m output features and k input features.  With a gate m is twice as many,
        those of the gate first.
    bias : Parameter, shape (e, m), or None
    mask : Tensor of bool, shape (e, m, k), or None
        A buffer, saved with the model.  With None, the layer chooses its mask anew by magnitude at
        each call.  `set_mask` and `update_masks` set it, and it then stays until the next update.
    masked
        In the ``state_dict`` of a layer with a mask: whether it multiplies densely with it.

    Notes
    -----
    A call ``layer(x, offsets)`` takes tokens x (t, k) that are sorted by expert and where those of
    each expert begin, and gives (t, out_features): see `grouped_linear`, also for when it waits.
    Without gradients activation and gate are part of the product, and are applied before it is
    rounded; with gradients torch applies them to the rounded product.

    Without gradients the packed weight is kept from call to call, also by ``torch.compile``, until
    the weight or the mask changes: what is seen as a change, and what CUDA graphs read, is as in
    `SparseLinear`.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import SparseExperts
    >>> layer = SparseExperts(4, 16, 8)
    >>> layer(torch.ones(5, 16), offsets=[0, 2, 2, 4, 5]).shape    # 2, 0, 2 and 1 tokens
    torch.Size([5, 8])
    >>> int(layer.current_mask().sum()), len(layer.to_dense())
    (256, 4)
    """

    scale = None  # no projection takes the place of a mask

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device=None,
        dtype=None,
        *,
        gradient: str = "ste",
        transposable: bool = False,
        decay: float = 0.0,
        activation: str | None = None,
        gated: bool = False,
    ):
        super().__init__()
        self.experts = _check.whole(experts, argument="experts", least=1)
        self.in_features = _check.whole(in_features, argument="in_features", least=0)
        self.out_features = _check.whole(out_features, argument="out_features", least=0)
        bias = _check.flag(bias, argument="bias")
        self.activation, self.gated = checked_finish(activation, gated)
        rows = out_features * (2 if self.gated else 1)
        shape, place = (experts, rows, in_features), {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(torch.empty(shape, **place))
        self.bias = torch.nn.Parameter(torch.empty(shape[:2], **place)) if bias else None
        self._begin(experts_rule(gradient, transposable, decay))
        self.reset_parameters()

    @classmethod
    def from_dense(
        cls, layers: Iterable[torch.nn.Linear], *, gates: Iterable[torch.nn.Linear] | None = None,
        **options,
    ) -> SparseExperts:  # fmt: skip
        """Experts with copies of the parameters of linear layers of one shape.

        Parameters
        ----------
        layers : iterable of torch.nn.Linear
            Such as a `torch.nn.ModuleList`; all of one shape and type, with a bias or without.
            Their weights all train, or none does, which the experts' then does not either; so for
            their biases.
        gates : iterable of torch.nn.Linear, optional
            Like them, one for each: the experts are gated.
        **options
            `gradient`, `transposable`, `decay` and `activation`.
        """
        for name in options:
            _check.one_of(name, OPTIONS, argument="an option of SparseExperts")
        ups = _listed(layers, "layers")
        gated = [] if gates is None else _listed(gates, "gates")
        _check_alike([*ups, *gated])
        if gates is not None and len(gated) != len(ups):
            raise ArgumentError(
                f"gates must be as many as layers, one for each expert, got {len(gated)} gates for "
                f"{len(ups)} layers"
            )
        first = ups[0]
        new = cls(
            len(ups), first.in_features, first.out_features, first.bias is not None,
            first.weight.device, first.weight.dtype, gated=gates is not None, **options,
        )  # fmt: skip
        with torch.no_grad():
            for i, of_expert in enumerate(zip(gated, ups) if gated else zip(ups)):
                new.weight[i].copy_(torch.cat([layer.weight for layer in of_expert]))
                if new.bias is not None:
                    new.bias[i].copy_(torch.cat([layer.bias for layer in of_expert]))
        new.weight.requires_grad_(first.weight.requires_grad)
        if new.bias is not None:
            new.bias.requires_grad_(first.bias.requires_grad)
        return new.train(first.training)

    def to_dense(self) -> torch.nn.ModuleList:
        """A dense layer for each expert, with copies of its pruned weight and its bias.

        It gives the product alone: the rows of a gate are still over the others.
        """
        check_whole(self.weight)
        pruned = self.weight.detach().masked_fill(~self.current_mask(), 0.0)
        layers = torch.nn.ModuleList()
        for i, weight in enumerate(pruned):
            layer = torch.nn.Linear(*weight.shape[::-1], self.bias is not None, device="meta")
            layer.weight = torch.nn.Parameter(weight.clone(), self.weight.requires_grad)
            if self.bias is not None:
                bias = self.bias[i].detach().clone()
                layer.bias = torch.nn.Parameter(bias, self.bias.requires_grad)
            layers.append(layer)
        return layers.train(self.training)

    def reset_parameters(self) -> None:
        """As the layers of the experts, one after the other, would be initialised.

        With other numbers of the same distribution where `fully_shard` has split the parameters:
        then a part of one is a copy, and to write to it would change nothing.
        """
        bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
        both = [p for p in (self.weight, self.bias) if p is not None]
        if not hasattr(self.weight, "full_tensor"):
            both = [p[i] for i in range(self.experts) for p in both]
        for part in both:
            torch.nn.init.uniform_(part, -bound, bound)

    def forward(self, x: Tensor, offsets) -> Tensor:
        way, learns = self._way_of_pass(), torch.is_grad_enabled()
        if way != "weight":
            mask = self.mask if way == "masked" else None
            y = masked_grouped_linear(x, self.weight, self.bias, offsets, mask, self.rule)
            return finished(y, self.activation, self.gated)
        if not learns:
            return self._inference(x, offsets)
        return grouped_linear(
            x, self.weight, self.bias, offsets=offsets, mask=self.mask,
            gradient=self.rule.gradient, transposable=self.rule.transposable,
            decay=self.rule.decay, activation=self.activation, gated=self.gated,
        )  # fmt: skip

    def _inference(self, x: Tensor, offsets) -> Tensor:
        offsets = check_experts(x, self.weight, self.bias, self.mask, offsets)
        refuse_transforms(x, self.weight, self.bias)
        dtype = autocast_dtype(x)
        x = cast(x, dtype)
        if not has_elements(x) or x.is_neg():  # the bit stands for a sign that NumPy cannot see
            return self._by_packing(x, offsets, dtype)
        packed = kept(self, x, dtype)
        if packed is None:
            if _arrays.captures_work_on(x):
                return self._by_packing(x, offsets, dtype)  # so that a graph does at its replays
            self._packed = packed = found_or_packed(self._origin(), dtype)
            packed.await_on_stream_of(x)
        return packed_grouped_linear(
            x, packed.weight, packed.bias, offsets=offsets, activation=self.activation,
            gated=self.gated,
        )  # fmt: skip

    def _by_packing(self, x: Tensor, offsets: Tensor, dtype: torch.dtype | None) -> Tensor:
        """By operators that torch can follow; compiled code keeps the packed weight."""
        origin = self._origin()
        if is_compiled():
            weight, mask, bias, _, transposable = origin
            given = x, weight, mask, bias, transposable, offsets, dtype
            return experts_product(*given, self.activation, self.gated)
        return by_packing(x, origin, offsets, dtype, self.activation, self.gated)

    def extra_repr(self) -> str:
        rule = self.rule
        return (
            f"experts={self.experts}, in_features={self.in_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}, "
            f"gradient={rule.gradient!r}, transposable={rule.transposable}, decay={rule.decay:g}, "
            f"activation={self.activation!r}, gated={self.gated}"
        )


def _listed(layers: Iterable[torch.nn.Linear], argument: str) -> list[torch.nn.Linear]:
    """Linear layers, one for each expert; refuses a single one, and modules around them."""
    found = list(layers) if isinstance(layers, Iterable) else [None]
    if not all(isinstance(x, torch.nn.Linear) for x in found):
        raise ArgumentError(
            f"{argument} must be torch.nn.Linear layers, one for each expert, got "
            f"{_check.shown(layers)}; of modules that hold them pass for example "
            "[expert.w1 for expert in experts]"
        )
    return found


def _check_alike(layers: list) -> None:
    """Refuse layers that cannot be the experts of one weight."""
    for layer in layers:
        torch_state.check_dense(layer)
    if not layers:
        raise ArgumentError("layers must hold one torch.nn.Linear or more, a layer for each expert")
    kinds = {(*x.weight.shape, x.weight.dtype, x.weight.device, x.bias is None) for x in layers}
    if len(kinds) > 1:
        raise ArgumentError(
            "layers must be alike in shape, type, device and whether they have a bias, got "
            f"{len(kinds)} kinds among {len(layers)}; make experts of each kind"
        )
    for what in ("weight", "bias"):
        kept = [getattr(x, what) for x in layers]
        if len({p is not None and p.requires_grad for p in kept}) > 1:
            raise ArgumentError(
                f"layers must all train their {what} or all keep it, since the experts hold it as "
                f"one parameter, got {sum(p.requires_grad for p in kept)} that train among "
                f"{len(kept)}; set requires_grad alike first"
            )
