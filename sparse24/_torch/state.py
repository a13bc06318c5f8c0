"""The state of a sparse layer: saved, loaded, and passed on when another layer replaces it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from sparse24 import _check
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._torch.kept import forget
from sparse24._torch.matrix import PackedMatrix

OWN = ("clock", "masked")  # entries of a state_dict that are no parameters or buffers


def check_dense(layer) -> None:
    """Refuse what is no linear layer with a weight of its own."""
    if not isinstance(layer, torch.nn.Linear):
        raise ArgumentError(f"layer must be a torch.nn.Linear, got {_check.shown(layer)}")
    if is_parametrized(layer, "weight"):
        check_handed(layer)  # names the function that folds it
    if "weight" not in layer._parameters:  # of torch.nn.utils.prune, say: made in a hook
        sources = ", ".join(n for n in layer._parameters if n != "bias")
        raise ArgumentError(
            f"the weight of layer must be a parameter, and is made of {sources} before each call; "
            "fold it first, as with torch.nn.utils.prune.remove(layer, 'weight') or "
            "remove_weight_norm"
        )
    if "forward" in vars(layer):
        raise ArgumentError(
            "layer must compute as a torch.nn.Linear does, and its forward was replaced, as by "
            "hooks of accelerate; put its own back first: del layer.forward"
        )
    if torch.nn.parameter.is_lazy(layer.weight):
        raise ArgumentError(
            "layer must have a weight, and a LazyLinear has none yet; call it once before"
        )
    if isinstance(layer.weight, PackedMatrix):
        raise ArgumentError(
            "layer must have a dense weight, and this one is packed, a Sparse24Tensor; leave it as "
            "it is, by None in the rules of sparsify, or give it weight.to_dense() first"
        )


def check_handed(layer: torch.nn.Module, name: str = "layer") -> None:
    """Refuse what is made before each call: another layer would lose it, or not keep its zeros."""
    made = [part for part in ("weight", "bias") if is_parametrized(layer, part)]
    if getattr(layer, "sparse", "activation") != "activation" and "weight" not in layer._parameters:
        made = ["weight"]
    if made:
        raise ArgumentError(
            f"the {made[0]} of {name} must be a parameter, and is made before each call; fold it "
            f"first, as with torch.nn.utils.parametrize.remove_parametrizations(layer, {made[0]!r})"
        )


def saved(layer) -> dict[str, Tensor]:
    """What the state_dict of a layer holds beside its parameters and buffers."""
    found = {}
    if layer.rule.samples:
        found["clock"] = layer.clock.clone()
    if layer.mask is not None:
        found["masked"] = torch.tensor(layer._way == "masked")
    return found


@contextlib.contextmanager
def loading(layer, state_dict: dict[str, Any], prefix: str) -> Iterator[dict[str, Any]]:
    """What torch is to load of a state; then the layer multiplies as it did when it was saved.

    A state that holds the weight and no mask takes the mask away; one of other layers alone, as
    with ``strict=False``, leaves all as it is.
    """
    forget(layer)  # torch swaps no tensor that something refers to weakly
    weight, mask = (state_dict.get(f"{prefix}{key}") for key in ("weight", "mask"))
    clock, masked = (state_dict.get(f"{prefix}{key}") for key in OWN)
    _refuse_packed(weight, prefix)
    if mask is not None and masked is not None:
        number = masked.squeeze() if isinstance(masked, Tensor) else masked
        masked = _check.flag(number, argument=f"{prefix}masked")
    made = mask is not None and layer.mask is None and layer.takes_masks
    if made:
        with torch.inference_mode(False):  # else the layer could not learn with it
            layer._buffers["mask"] = torch.empty(
                layer.weight.shape, dtype=torch.bool, device=mask_device(layer.weight)
            )
    elif mask is None and masked is None and weight is not None:
        layer._buffers["mask"] = None
    if clock is not None and layer.rule.samples:
        layer.clock.copy_(clock)
    others = {k: v for k, v in state_dict.items() if k not in {f"{prefix}{key}" for key in OWN}}
    if mask is not None:
        others[f"{prefix}mask"] = mask.bool()  # assign=True would take numbers as they are
    yield others
    if made and mask is not None and mask.shape != layer.weight.shape:
        layer._buffers["mask"] = None  # torch refuses the saved one, and ours was never written
    if mask is not None:
        layer._choose_way("masked" if masked else None, mask.bool())
    elif weight is not None:
        layer._choose_way(None)


def _refuse_packed(weight: Any, prefix: str) -> None:
    if isinstance(weight, PackedMatrix):
        raise UnsupportedError(
            f"{prefix}weight is packed, and the weight of a sparse layer is dense, so that it can "
            f"learn; load {prefix}weight.to_dense(), or keep a torch.nn.Linear there and pass "
            "assign=True"
        )


def complete(layer, state_dict: dict[str, Any], prefix: str, missing: list[str]) -> None:
    """What a state does not say, once torch has loaded it; `missing` holds names, as torch's.

    A state of a dense layer has no scale: then it is that of the weight, as in `from_dense`.  One
    that tells of a mask which is not there has lost it.
    """
    weight, mask, masked, scale = (
        f"{prefix}{key}" in state_dict for key in ("weight", "mask", "masked", "scale")
    )
    if layer.scale is not None and weight and not scale:
        layer._rescale()
        missing[:] = [name for name in missing if name != f"{prefix}scale"]
    if masked and not mask and f"{prefix}mask" not in missing:
        missing.append(f"{prefix}mask")


def mask_device(weight: Tensor) -> torch.device:
    """Where the mask of a weight is needed: where passes are.

    A weight that `fully_shard` splits may wait for them elsewhere, on the host say.
    """
    mesh = getattr(weight, "device_mesh", None)
    return weight.device if mesh is None or weight.is_meta else torch.device(mesh.device_type)


def sharing(kind: Any, layer: torch.nn.Linear) -> Any:
    """A layer of a kind with the parameters of another; its constructor would make new ones."""
    new = kind.__new__(kind)
    torch.nn.Module.__init__(new)
    new.in_features, new.out_features = layer.in_features, layer.out_features
    new.weight, new.bias = layer.weight, layer.bias
    new.training = layer.training
    return new


def hand_on(old: torch.nn.Module, new: torch.nn.Module) -> None:
    """What else a layer has goes to the new one: hooks of forward and backward, and what is
    registered beside the weight, which only hooks can use.  Handles remove hooks there.
    """
    check_handed(old)
    for name, hooks in vars(old).items():
        if "hook" in name and ("forward" in name or "backward" in name):
            setattr(new, name, hooks)
    known = {"weight", "bias", "mask", "scale", "parametrizations"}
    for kind in ("_parameters", "_buffers", "_modules"):
        more = {name: x for name, x in getattr(old, kind).items() if name not in known}
        getattr(new, kind).update(more)
    new._non_persistent_buffers_set |= old._non_persistent_buffers_set - known
