"""What layers that prune their weight at each call share: masks, what is kept, their state."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from sparse24 import _arrays, _check
from sparse24._errors import DTypeError, UnsupportedError
from sparse24._torch import ops
from sparse24._torch import state as torch_state
from sparse24._torch.check import check_mask, check_whole
from sparse24._torch.kept import forget, will_change
from sparse24._torch.packed import Origin, Packed
from sparse24._torch.transforms import are_transformed
from sparse24._torch.ways import WAYS, has_elements, version_of, way_of
from sparse24._train_rule import Rule


class Look:
    """A mask, and how often it was written when it was looked at.

    No tuple, which ``torch.jit.trace`` would take for a part of the model.
    """

    def __init__(self, mask: Tensor | None):
        self.mask, self.version = mask, version_of(mask)


class PrunedLayer(torch.nn.Module):
    """The part of a layer that knows its mask, and how to multiply by it.

    A layer has a `weight` (..., m, k) and a `bias` (..., m) or None, and calls `_begin` once it has
    both.
    """

    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None
    scale: Tensor | None  # of a projection that takes the place of a mask
    rule: Rule
    sparse = "weight"  # how to multiply where no mask says otherwise

    def _begin(self, rule: Rule) -> None:
        self.rule = rule
        self._packed: Packed | None = None
        self._captured: list[tuple] = []  # memory that CUDA graphs read
        self._way = self.sparse  # how the present mask is multiplied by: `sparse` or one of WAYS
        self._looked_at = Look(None)  # what the way was chosen for
        self.register_buffer("mask", None)

    def _refuse_mask(self, mask: Tensor | None) -> None:
        """Raise if this layer takes no such mask."""

    @property
    def takes_masks(self) -> bool:
        """True if a mask can be set."""
        return True

    @property
    def masked(self) -> bool:
        """True if the layer multiplies densely, with its mask."""
        return self._way == "masked"

    def set_mask(self, mask: Tensor | None, *, way: str | None = None) -> None:
        """Use this mask from now on; None returns to masks chosen by magnitude.

        Parameters
        ----------
        mask : Tensor of bool, shape of the weight, or None
            With a mask that is not 2:4 (along both axes, for a transposable layer) the layer
            multiplies densely.
        way : {"weight", "masked", "dense"}, optional
            How to multiply: sparsely, with a 2:4 mask; densely, with any mask; or without the
            mask, if all of it is true.  By default the mask is inspected, which waits for the
            device.
        """
        self._refuse_mask(mask)
        _check.one_of(way, (None, *WAYS), argument="way")
        if mask is not None and not isinstance(mask, Tensor):
            kind = type(mask).__name__
            raise DTypeError(f"mask must be a torch.Tensor, got {kind}; use torch.as_tensor")
        if hasattr(mask, "full_tensor"):
            raise UnsupportedError(
                f"mask must be whole, as each process keeps all of it, got a "
                f"{type(mask).__name__}; pass mask.full_tensor()"
            )
        if mask is not None:
            check_mask(mask, self.weight)
        if mask is None or self.mask is None:
            with torch.inference_mode(False):  # else the layer could not learn with it
                place = torch_state.mask_device(self.weight)
                self._buffers["mask"] = None if mask is None else mask.to(place).clone()
        else:
            self.mask.copy_(mask)
        self._choose_way(way, mask)

    def _choose_way(self, way: str | None, given: Tensor | None = None) -> None:
        """By the layer's mask, or the one that it was given, if its own is on the meta device."""
        if self.mask is None or self.sparse != "weight":
            self._way = self.sparse
        else:
            seen = given if self.mask.is_meta and given is not None else self.mask
            self._way = way or way_of(seen, self.rule.transposable)
        self._looked_at = Look(self.mask)

    def _look_again(self) -> None:
        """A mask that was written in place may be multiplied by in another way."""
        mask = self._buffers["mask"]
        if mask is None or self._way == "masked" or not has_elements(mask):
            return  # that way serves any mask
        if self._looked_at.mask is mask and self._looked_at.version != version_of(mask):
            self._choose_way(None)

    def _origin(self) -> Origin:
        """What its packed weight is made of."""
        return Origin(self.weight, self.mask, self.bias, self.scale, self.rule.transposable)

    def current_mask(self) -> Tensor:
        """The mask that a forward pass would use now (with autocast, rounding may change ties)."""
        if self.mask is not None:
            return self.mask
        check_whole(self.weight)
        if self.sparse == "masked":
            return torch.ones_like(self.weight, dtype=torch.bool)
        return ops.keep(self._origin().latent(), self.rule.transposable)

    def _way_of_pass(self) -> str:
        """How to multiply in the pass that begins; what changed, or is about to, is seen first."""
        if not torch.is_grad_enabled():
            self._look_again()
        elif will_change(self):
            forget(self)
        return self._way_now()

    def _way_now(self) -> str:
        """How to multiply at this call, for which `torch.func.functional_call` may lend a mask."""
        if torch.compiler.is_compiling() or self._buffers["mask"] is self._looked_at.mask:
            return self._way
        mask = self._buffers["mask"]
        if mask is None or self.sparse != "weight":
            return self.sparse
        followed = are_transformed() or not has_elements(mask)
        if followed or _arrays.captures_work_on(mask) or getattr(self, "_is_replica", False):
            return self._way  # nobody can look at it, or it is a copy of the layer's own
        return way_of(mask, self.rule.transposable)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # fully_shard does that before and after each call, for new values
            forget(self)
        # Replicas of DataParallel are given copies of the masks in each pass.
        if name != "mask" or "_looked_at" not in vars(self) or "_is_replica" in vars(self):
            super().__setattr__(name, value)
            return
        self._refuse_mask(value)
        if isinstance(value, Tensor):
            check_mask(value, self.weight)
        super().__setattr__(name, value)
        self._choose_way(None)

    def _apply(self, *args, **kwargs):
        forget(self)  # it is of another type or device; torch swaps no tensor with weak references
        known = self._buffers["mask"] is self._looked_at.mask
        applied = super()._apply(*args, **kwargs)
        if known:
            self._looked_at = Look(self.mask)
        return applied

    def train(self, mode: bool = True):
        forget(self)  # weights may have been exchanged through `.data`
        self._look_again()
        if mode != self.training:
            self._looked_at = copy.copy(self._looked_at)  # and masks: what is made of them is anew
        return super().train(mode)

    def __prepare_scriptable__(self):
        raise UnsupportedError(
            "torch.jit.script cannot compile sparse layers; use torch.jit.trace within "
            "torch.no_grad(), torch.export or torch.compile"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None, "_captured": []}  # a copy packs its own weight

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({f"{prefix}{key}": v for key, v in torch_state.saved(self).items()})

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing_keys, *rest):
        with torch_state.loading(self, state_dict, prefix) as others:
            super()._load_from_state_dict(others, prefix, metadata, strict, missing_keys, *rest)
        torch_state.complete(self, state_dict, prefix, missing_keys)
