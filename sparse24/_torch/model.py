"""Model surgery: sparse layers in the places of linear ones, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import random_key
from sparse24._torch import state as torch_state
from sparse24._torch.encoders import avoid_fused_inference
from sparse24._torch.experts import SparseExperts
from sparse24._torch.layers import SparseLinear
from sparse24._torch.linear import INT64_MAX
from sparse24._train_rule import Rule


def sparsify(
    model: torch.nn.Module, rules: Mapping[str, Mapping[str, Any] | None]
) -> torch.nn.Module:
    """Replace linear layers by `SparseLinear`, in place.

    Parameters
    ----------
    model : Module
    rules : mapping of str to mapping or None
        Options of `SparseLinear` by name pattern of the layer (``"blocks.*.ffn.*"``).  The
        first match decides; None, or no match, keeps a layer dense.  Layers that sample gradients
        get a `seed` each, made of the given one, or 0, and their names, so that it is the same in
        each run, whatever other layers there are; one given by a layer's full name is its own.

    Returns
    -------
    Module
        `model`, or the new layer if the model itself is a linear layer.

    Raises
    ------
    ArgumentError
        If a pattern matches no linear layer, or an option is unknown.  The model is then unchanged.

    Notes
    -----
    Layers whose class is derived from `torch.nn.Linear`, such as those that torch has
    parametrized, stay as they are, because what else they do would be lost.

    Pass the whole model.  In a `torch.nn.TransformerEncoder` within it, `use_nested_tensor` is set
    to False: in evaluation the encoder would otherwise put padded sequences into nested tensors,
    which sparse layers refuse.  If you pass parts of an encoder, or put sparse layers in by hand,
    set that yourself.  Encoder layers with sparse layers do not take torch's fused inference path.
    A `torch.nn.MultiheadAttention` reads the weight of its `out_proj` itself and would multiply
    densely by that of a sparse layer, so `sparsify` leaves it as it is.

    Examples
    --------
    >>> import torch
    >>> from sparse24 import torch as st
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
    >>> _ = st.sparsify(model, {"0": {"transposable": True}})
    >>> list(st.sparse_layers(model)), model(torch.ones(2, 16)).shape
    (['0'], torch.Size([2, 4]))
    """
    _check_module(model)
    _check_rules(rules)
    unused = set(rules)

    def replaced(name: str, layer: torch.nn.Module) -> torch.nn.Module | None:
        if type(layer) is not torch.nn.Linear:
            return None
        pattern = next((p for p in rules if fnmatchcase(name, p)), None)
        unused.discard(pattern)
        options = rules.get(pattern) if pattern is not None else None
        if options is None:
            return None
        return SparseLinear.from_dense(layer, **_seeded(options, name, alone=pattern == name))

    found = _replacements(model, replaced)
    if unused:
        raise _unused(model, unused)
    model = _replace(model, found)
    avoid_fused_inference(model)
    return model


def _seeded(options: Mapping[str, Any], name: str, *, alone: bool) -> Mapping[str, Any]:
    """Options with a seed of the layer's own, if it draws samples and was not given one alone."""
    if not Rule(options.get("gradient", "ste")).samples or (alone and "seed" in options):
        return options
    seed = _check.whole(options.get("seed", 0), argument="seed", least=0)
    return {**options, "seed": random_key(seed, name, "layer") & INT64_MAX}


def _check_rules(rules) -> None:
    if not isinstance(rules, Mapping) or not all(isinstance(name, str) for name in rules):
        raise ArgumentError(
            f"rules must map names to options, such as {{'*': {{}}}}, got {_check.shown(rules)}"
        )
    for pattern, options in rules.items():
        named = isinstance(options, Mapping) and all(isinstance(name, str) for name in options)
        if options is not None and not named:
            raise ArgumentError(
                f"rules[{pattern!r}] must be a mapping of options, such as {{}} or "
                f"{{'transposable': True}}, or None, got {_check.shown(options)}"
            )


def _unused(model: torch.nn.Module, patterns: set[str]) -> ArgumentError:
    """The error of patterns that no layer is left for."""
    if not any(isinstance(layer, torch.nn.Linear) for layer in model.modules()):
        return ArgumentError(
            f"model must have a torch.nn.Linear to replace, got a {type(model).__name__} without "
            "one; layers of other types stay dense"
        )
    named = (m for name, m in model.named_modules() if any(fnmatchcase(name, p) for p in patterns))
    kinds = {type(layer) for layer in named if isinstance(layer, torch.nn.Linear)}
    others = ", ".join(sorted(kind.__name__ for kind in kinds - {torch.nn.Linear}))
    left = f"; layers of type {others} stay as they are" if others else ""
    return ArgumentError(
        f"no linear layer is named {sorted(patterns)}, or patterns before take them all{left}; put "
        "narrow patterns first, or print the model for its layers' names"
    )


def desparsify(model: torch.nn.Module) -> torch.nn.Module:
    """Put dense layers back, in place, with the pruned weights set to zero.

    What else reads a model can take it then, such as ``torch.onnx.export``.

    Parameters
    ----------
    model : Module
        Its `SparseExperts` stay: torch has no layer for their place.

    Returns
    -------
    Module
        `model`, or the new layer if the model itself is a sparse layer.

    Raises
    ------
    ArgumentError
        If a weight that would be pruned is also that of a layer which is not sparse, as of an
        embedding that is tied to an output head, or of one that prunes it differently, or if it is
        parametrized.  The model is then unchanged.

    See Also
    --------
    sparsify

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import desparsify, sparsify
    >>> model = sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), {"*": {}})
    >>> type(desparsify(model)[0]).__name__
    'Linear'
    """
    _check_module(model)
    for name, layer in sparse_layers(model).items():
        if isinstance(layer, SparseLinear):
            torch_state.check_handed(layer, f"layer {name!r}")
    _check_untied(model)
    projected: set[torch.nn.Parameter] = set()

    def replaced(_: str, layer: torch.nn.Module) -> torch.nn.Module | None:
        if not isinstance(layer, SparseLinear):
            return None
        if layer.scale is not None:
            if layer.weight in projected:  # of a layer before, with which it shares the weight
                layer.scale.fill_(1.0)
            projected.add(layer.weight)
        return layer.to_dense()

    return _replace(model, _replacements(model, replaced))


def _check_untied(model: torch.nn.Module) -> None:
    """Refuse to prune what another layer multiplies by as a whole, or prunes differently."""
    modules = dict(model.named_modules())
    pruning: dict[torch.nn.Parameter, tuple[str, SparseLinear]] = {}
    for name, layer in modules.items():
        if isinstance(layer, SparseLinear) and layer.sparse != "activation":
            first, other = pruning.setdefault(layer.weight, (name, layer))
            if not _prune_alike(layer, other):
                raise ArgumentError(
                    f"the sparse layers {first!r} and {name!r} share a weight and prune it "
                    f"differently; {_untie(name)}"
                )
    for name, module in modules.items():
        if isinstance(module, SparseLinear) and module.sparse != "activation":
            continue
        for own, parameter in module.named_parameters(recurse=False):
            if parameter in pruning:
                first, place = pruning[parameter][0], f"{name}.{own}".lstrip(".")
                raise ArgumentError(
                    f"the weight of the sparse layer {first!r} is also {place!r}, which would be "
                    f"pruned with it; {_untie(first)}"
                )


def _prune_alike(layer: SparseLinear, other: SparseLinear) -> bool:
    """Whether two layers with one weight multiply by the same pruned one."""
    if layer is other:
        return True
    if layer.scale is None or other.scale is None:
        hard = layer.scale is None and other.scale is None
        return hard and torch.equal(layer.current_mask(), other.current_mask())
    return torch.equal(layer.scale, other.scale)


def _untie(name: str) -> str:
    return (
        f"untie them first: model.{name}.weight = "
        f"torch.nn.Parameter(model.{name}.weight.detach().clone())"
    )


Replacements = dict[torch.nn.Module, torch.nn.Module]


def _replacements(
    model: torch.nn.Module, replaced: Callable[[str, torch.nn.Module], torch.nn.Module | None]
) -> Replacements:
    """The new layer of each that is to be replaced, by ``replaced(name, layer)``."""
    news = ((layer, replaced(name, layer)) for name, layer in model.named_modules())
    return {layer: new for layer, new in news if new is not None}


def _replace(model: torch.nn.Module, found: Replacements) -> torch.nn.Module:
    """Put the new layers in, or return the one that takes the place of the model itself."""
    if model in found:
        return found[model]
    for name, layer in list(model.named_modules(remove_duplicate=False)):  # in all its places
        if layer in found:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, found[layer])
    return model


def sparse_layers(model: torch.nn.Module) -> dict[str, SparseLinear | SparseExperts]:
    """The sparse layers of a model, by name.

    Parameters
    ----------
    model : Module

    Returns
    -------
    dict of str to SparseLinear or SparseExperts

    Raises
    ------
    ArgumentError
        If `model` is not a `torch.nn.Module`.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import sparse_layers, sparsify
    >>> model = sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), {"*": {}})
    >>> list(sparse_layers(model))
    ['0']
    """
    _check_module(model)
    kinds = SparseLinear, SparseExperts
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, kinds)}


def _check_module(model) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {_check.shown(model)}")
