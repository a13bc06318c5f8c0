"""The functional layer and `SparseLinear`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparse24 import _check, _matmul
from sparse24 import _torch_ops as ops
from sparse24._errors import ShapeError
from sparse24._obeys import is_24
from sparse24._torch_autograd import ActivationLinear, WeightLinear, check_linear
from sparse24._train_rule import Rule
from sparse24.formats.two_four import Sparse24Array

_MODES = ("weight", "activation", "masked")


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    sparse: str = "weight",
    gradient: str = "ste",
    transposable: bool = False,
    decay: float = 0.0,
    seed: int = 0,
    clock: Tensor | None = None,
) -> Tensor:
    """A linear layer with a dense weight that is pruned on the way; differentiable.

    Parameters
    ----------
    x : Tensor, shape (..., k)
    weight : Tensor, shape (m, k)
    bias : Tensor, shape (m,), optional
    mask : Tensor of bool, shape (m, k), optional
        2:4 mask of the weight; without it the largest magnitudes are kept.
    sparse : {"weight", "activation", "masked"}
        The operand that is 2:4; ``"masked"`` multiplies densely with any `mask`.
    gradient : {"ste", "24dense", "24sparse", "ste_sampled"}
        What reaches the pruned operand: its whole gradient or that of kept elements; in the
        latter two from an output gradient that is sampled to 2:4 without bias.
    transposable : bool
        4x4 masks: the product in backward is sparse too.  A given `mask` must then be 2:4
        along both axes.
    decay : float
        SR-STE's factor: decay of the pruned weights, added to the gradient.
    seed : int
    clock : Tensor of int64 on the CPU, shape (), optional
        The samples are a pure function of both; count `clock` up from call to call.

    Returns
    -------
    Tensor, shape (..., m)

    Raises
    ------
    ShapeError, ArgumentError
    """
    _check.one_of(sparse, _MODES, argument="sparse")
    check_linear(x, weight)
    rule = Rule(gradient, transposable, decay, seed)
    x, weight, bias = _autocast(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if sparse == "activation":
        y = ActivationLinear.apply(rows, weight, bias, rule)
    elif sparse == "masked":
        y = torch.nn.functional.linear(rows, _Masked.apply(weight, mask, rule), bias)
    else:
        y = WeightLinear.apply(rows, weight, bias, mask, rule, clock)
    return y.reshape(*x.shape[:-1], weight.shape[0])


class _Masked(torch.autograd.Function):
    """``weight * mask`` with the rule's gradient; any mask."""

    @staticmethod
    def forward(ctx, weight, mask, rule: Rule):
        ctx.rule = rule
        mask = torch.ones_like(weight, dtype=torch.bool) if mask is None else mask
        ctx.save_for_backward(weight, mask)
        return torch.where(mask, weight, 0.0)

    @staticmethod
    def backward(ctx, dw):
        weight, mask = ctx.saved_tensors
        dw = dw if ctx.rule.straight else dw * mask
        decay = ctx.rule.decay
        return (dw if decay == 0.0 else dw + decay * (weight * ~mask)), None, None


def _autocast(x: Tensor, weight: Tensor, bias: Tensor | None):
    """What torch's own linear does under ``torch.autocast``."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    cast = lambda t: t if t is None or t.dtype == torch.float64 else t.to(dtype)  # noqa: E731
    return cast(x), cast(weight), cast(bias)


class SparseLinear(torch.nn.Linear):
    """A drop-in `torch.nn.Linear` whose product is 2:4 sparse; the weight stays a dense parameter.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in `torch.nn.Linear`.
    sparse, gradient, transposable, decay, seed
        See `linear`.

    Attributes
    ----------
    mask : Tensor of bool or None
        A buffer, saved with the model.  None: the mask follows the magnitudes at each call.
        `set_mask` and `update_masks` set it; a scheduler that updates in every 40 steps, say,
        keeps the places in between.

    Notes
    -----
    Without gradients the packed weight is kept from call to call until the weight changes.
    """

    mask: Tensor | None

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
    ):
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self._configure(sparse, gradient, transposable, decay, seed)

    def _configure(
        self, sparse="weight", gradient="ste", transposable=False, decay=0.0, seed=0
    ) -> None:
        _check.one_of(sparse, _MODES, argument="sparse")
        self.sparse = sparse
        self.rule = Rule(gradient, transposable, decay, seed)
        # A tensor on the CPU, so that compiled code reads it anew and nothing waits for a device.
        self._clock = torch.zeros((), dtype=torch.int64)
        self._packed: tuple[Any, Sparse24Array, Tensor | None] | None = None
        self._way = sparse  # how the present mask is multiplied by: `sparse`, "masked" or "dense"
        self.register_buffer("mask", None)

    @classmethod
    def from_dense(cls, layer: torch.nn.Linear, **options) -> SparseLinear:
        """A sparse layer that shares the parameters of a dense one."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new.in_features, new.out_features = layer.in_features, layer.out_features
        new.weight, new.bias = layer.weight, layer.bias
        new.training = layer.training
        new._configure(**options)
        return new

    def to_dense(self) -> torch.nn.Linear:
        """A dense layer that shares the parameters, the weight pruned for good."""
        new = torch.nn.Linear.__new__(torch.nn.Linear)
        torch.nn.Module.__init__(new)
        new.in_features, new.out_features = self.in_features, self.out_features
        new.weight, new.bias = self.weight, self.bias
        new.training = self.training
        if self.sparse != "activation":
            with torch.no_grad():
                new.weight.masked_fill_(~self.current_mask(), 0.0)
        return new

    def current_mask(self) -> Tensor:
        """The mask that a forward pass would use now."""
        if self.mask is not None:
            return self.mask
        if self.sparse == "masked":
            return torch.ones_like(self.weight, dtype=torch.bool)
        return ops.keep(self.weight, self.rule.transposable)

    def set_mask(self, mask: Tensor | None, *, way: str | None = None) -> None:
        """Use this mask from now on; None goes back to magnitudes.

        Parameters
        ----------
        mask : Tensor of bool, shape of the weight, or None
            A mask that is not 2:4 (in both directions, for a transposable layer) is
            multiplied by densely, until one comes that is.
        way : {"weight", "masked", "dense"}, optional
            Says which of these it is: 2:4, any mask, or all true.  Without it the mask is
            looked at, which waits for the device.
        """
        if mask is not None and tuple(mask.shape) != tuple(self.weight.shape):
            raise ShapeError(
                f"mask must have the weight's shape, {tuple(self.weight.shape)}, "
                f"got {tuple(mask.shape)}"
            )
        if mask is None or self.mask is None:
            self.mask = None if mask is None else mask.to(self.weight.device, torch.bool).clone()
        else:
            self.mask.copy_(mask)
        self._choose_way(way)

    def _choose_way(self, way: str | None) -> None:
        if self.mask is None or self.sparse != "weight":
            self._way = self.sparse
        else:
            both = self.rule.transposable
            self._way = way or ("weight" if _is_two_four(self.mask, both) else "masked")

    def forward(self, x: Tensor) -> Tensor:
        if self._way == "dense":
            return torch.nn.functional.linear(x, self.weight, self.bias)
        if self._way == "weight" and not torch.is_grad_enabled():
            return self._inference(x)
        clock = None
        if self.training and self.rule.samples:
            clock = self._clock.clone()  # of this call, whenever its backward runs
            self._clock.add_(1)
        return linear(
            x, self.weight, self.bias, mask=self.mask, sparse=self._way, clock=clock,
            gradient=self.rule.gradient, transposable=self.rule.transposable,
            decay=self.rule.decay, seed=self.rule.seed,
        )  # fmt: skip

    def _inference(self, x: Tensor) -> Tensor:
        check_linear(x, self.weight)
        x, weight, bias = _autocast(x, self.weight, self.bias)
        if not torch.compiler.is_compiling():
            array, bias = self._kept(weight, bias)
            return _matmul.linear(x, array, bias)
        parts = ops.pack(weight, self.mask, False)
        rows = x.reshape(-1, x.shape[-1])
        y = ops.product(parts, *self.weight.shape, rows, bias, "x@At")
        return y.reshape(*x.shape[:-1], self.out_features)

    def _kept(self, weight: Tensor, bias: Tensor | None) -> tuple[Sparse24Array, Tensor | None]:
        """The packed weight and the bias as kernels take it, until a parameter changes."""
        sources = [t for t in (self.weight, self.mask, self.bias) if t is not None]
        key = (weight.dtype, *((t.data_ptr(), t._version) for t in sources))
        if self._packed is None or self._packed[0] != key:
            array = ops.unpack(ops.pack(weight, self.mask, False), *weight.shape)
            wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
            self._packed = (key, array, None if bias is None else bias.detach().to(wide))
        return self._packed[1:]

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        if f"{prefix}mask" in state_dict and self.mask is None:
            self.mask = torch.empty_like(self.weight, dtype=torch.bool)
        elif f"{prefix}mask" not in state_dict:
            self.mask = None
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._choose_way(None)

    def extra_repr(self) -> str:
        rule = self.rule
        return (
            f"{super().extra_repr()}, sparse={self.sparse!r}, gradient={rule.gradient!r}, "
            f"transposable={rule.transposable}"
        )


def _is_two_four(mask: Tensor, both: bool) -> bool:
    """True if at most two of every four are kept along rows (and columns)."""
    return bool(is_24(mask.to(torch.int8))) and (
        not both or bool(is_24(mask.mT.to(torch.int8).contiguous()))
    )
