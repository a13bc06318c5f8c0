"""Model surgery, and masks from a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from sparse24 import _check
from sparse24 import schedule as S
from sparse24._errors import ArgumentError
from sparse24._sched_transition import POLICIES
from sparse24._torch_layers import SparseLinear


def sparsify(
    model: torch.nn.Module, rules: Mapping[str, Mapping[str, Any] | None]
) -> torch.nn.Module:
    """Replace linear layers by `SparseLinear`, in place.

    Parameters
    ----------
    model : Module
    rules : mapping of str to mapping or None
        Options of `SparseLinear` by name pattern of the layer (``"blocks.*.ffn.*"``); the
        first match counts and None keeps a layer dense.

    Returns
    -------
    Module
        `model`, or the new layer if the model itself is a linear layer.

    Raises
    ------
    ArgumentError
        If a pattern matches no linear layer, or an option is none.  The model is as it was then.

    Examples
    --------
    >>> import torch
    >>> from sparse24 import torch as st
    >>> model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
    >>> _ = st.sparsify(model, {"0": {"transposable": True}})
    >>> list(st.sparse_layers(model)), model(torch.ones(2, 16)).shape
    (['0'], torch.Size([2, 4]))
    """
    if not isinstance(rules, Mapping):
        raise ArgumentError(
            f"rules must map names to options, such as {{'*': {{}}}}, got {rules!r}"
        )
    for pattern, options in rules.items():
        if options is not None and not isinstance(options, Mapping):
            raise ArgumentError(
                f"rules[{pattern!r}] must be a mapping of options, such as {{}} or "
                f"{{'transposable': True}}, or None, got {options!r}"
            )
    unused = set(rules)

    def replaced(name: str, layer: torch.nn.Module) -> torch.nn.Module | None:
        if type(layer) is not torch.nn.Linear:
            return None
        pattern = next((p for p in rules if fnmatchcase(name, p)), None)
        unused.discard(pattern)
        options = rules.get(pattern) if pattern is not None else None
        return None if options is None else SparseLinear.from_dense(layer, **options)

    found = _replacements(model, replaced)
    if unused:
        raise ArgumentError(
            f"no linear layer is named {sorted(unused)}, or patterns before take them all; put "
            "narrow patterns first, or print the model for its layers' names"
        )
    model = _replace(model, found)
    _avoid_fused_inference(model)
    return model


def desparsify(model: torch.nn.Module) -> torch.nn.Module:
    """Put dense layers back, in place, with the pruned weights set to zero.

    Parameters
    ----------
    model : Module

    Returns
    -------
    Module
        `model`, or the new layer if the model itself is a sparse layer.

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
    found = _replacements(
        model, lambda _, layer: layer.to_dense() if isinstance(layer, SparseLinear) else None
    )
    return _replace(model, found)


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


def _avoid_fused_inference(model: torch.nn.Module) -> None:
    """torch's encoder layers pass their linear layers by in evaluation, and read their weights.

    For that its encoders put sequences with padding into nested tensors, which layers that are not
    passed by do not take.
    """
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and _is_sparse(layer):
            layer.activation_relu_or_gelu = 0  # what torch asks before it does
        if isinstance(layer, torch.nn.TransformerEncoder) and _is_sparse(layer):
            layer.use_nested_tensor = False


def _is_sparse(module: torch.nn.Module) -> bool:
    return any(isinstance(layer, SparseLinear) for layer in module.modules())


def sparse_layers(model: torch.nn.Module) -> dict[str, SparseLinear]:
    """The sparse layers of a model, by name.

    Parameters
    ----------
    model : Module

    Returns
    -------
    dict of str to SparseLinear

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import sparse_layers, sparsify
    >>> model = sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), {"*": {}})
    >>> list(sparse_layers(model))
    ['0']
    """
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, SparseLinear)}


def update_masks(
    model: torch.nn.Module,
    scheduler,
    optimizer=None,
    *,
    policy: str = "zero_changed",
    grown: str = "keep",
    lifted: str = "zero",
) -> dict[str, Tensor]:
    """Advance a scheduler by one step with the model's weights and gradients; set its masks.

    Parameters
    ----------
    model : Module
        Its `SparseLinear` layers are the scheduler's layers, but for soft ones and those with
        sparse activations, whose weights have no mask.  They multiply sparsely while
        their masks are 2:4, densely by other masks, and without a mask in dense phases.
    scheduler : MaskScheduler, DynamicScheduler or AsyncScheduler
    optimizer : torch.optim.Optimizer, optional
        Its state for weights whose masks changed is treated by `policy`.
    policy : str
        See `sparse24.schedule.mask_slots`.
    grown : {"keep", "zero"}
        What a weight that comes back within a sparse phase starts from: its latent value, or
        zero, as in RigL.
    lifted : {"zero", "keep"}
        What pruned weights start from where a mask is lifted for a dense phase.  From zero the
        model goes on as it was [1]_; latent values would disturb it.

    Returns
    -------
    dict of str to Tensor
        The masks.

    Raises
    ------
    ArgumentError
        If `grown`, `lifted` or `policy` is another word, the model has no layer to mask, or a
        recipe grows weights by gradients that do not reach pruned weights.

    References
    ----------
    .. [1] S. Han et al., *DSD: Dense-Sparse-Dense Training for Deep Neural Networks*, 2017.

    Examples
    --------
    >>> import torch
    >>> from sparse24 import schedule as S
    >>> from sparse24.torch import sparsify, update_masks
    >>> model = sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), {"*": {}})
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> masks = update_masks(model, S.MaskScheduler(S.Recipe(S.OneShot(0.5), pattern=S.NM(2, 4))))
    >>> [(name, float(mask.float().mean())) for name, mask in masks.items()]
    [('0', 0.5)]
    """
    _check.one_of(grown, ("keep", "zero"), argument="grown")
    _check.one_of(lifted, ("keep", "zero"), argument="lifted")
    _check.one_of(policy, POLICIES, argument="policy")
    layers = _masked_layers(model)
    weights = {name: layer.weight for name, layer in layers.items()}
    grads = {n: w.grad for n, w in weights.items() if w.grad is not None}
    _check_groups(scheduler, layers)
    masks = scheduler.step(grads or None, weights)
    groups = scheduler.state.groups
    patterns = {name: recipe.pattern for recipe, names in groups for name in names}
    for event in scheduler.events:
        layer, mask = layers[event.name], masks[event.name]
        if optimizer is not None:
            _treat_state(layer, mask, optimizer, policy)
        if layer.mask is not None and (lifted if event.sparsity == 0 else grown) == "zero":
            with torch.no_grad():
                layer.weight.masked_fill_(mask & ~layer.mask, 0.0)
        layer.set_mask(mask, way=_way(layer, patterns[event.name], event.sparsity))
    return masks


def _masked_layers(model: torch.nn.Module) -> dict[str, SparseLinear]:
    """The sparse layers whose weights take masks."""
    layers = {n: layer for n, layer in sparse_layers(model).items() if layer.takes_masks}
    if not layers:
        raise ArgumentError(
            "model has no sparse layer whose weight takes a mask; call sparsify(model, {'*': {}}), "
            "without soft=True and sparse='activation', first"
        )
    return layers


def _check_groups(scheduler, layers: dict[str, SparseLinear]) -> None:
    """Refuse layers that are not the model's, and growth by gradients that are not there.

    Where pruned weights have no gradient, a grower brings back what was just dropped.
    """
    for recipe, names in () if scheduler.state is None else scheduler.state.groups:
        unknown = [name for name in names if name not in layers]
        if unknown:
            raise ArgumentError(
                f"the scheduler's layers {unknown} are no sparse layers of the model whose weights "
                "take masks; make it with rules and weights of this model"
            )
        blind = [name for name in names if not layers[name].rule.straight]
        if blind and "grad" in recipe.grower.needs:
            raise ArgumentError(
                f"{type(recipe.grower).__name__} grows by gradients, and with "
                f"gradient={layers[blind[0]].rule.gradient!r} none reaches pruned weights of "
                f"layer {blind[0]!r}; sparsify it with gradient='ste' or 'ste_sampled'"
            )


def _treat_state(layer: SparseLinear, mask: Tensor, optimizer, policy: str) -> None:
    slots = optimizer.state.get(layer.weight)
    if slots:
        old = torch.ones_like(mask) if layer.mask is None else layer.mask
        optimizer.state[layer.weight] = S.mask_slots(slots, old, mask, policy=policy)


def _way(layer: SparseLinear, pattern: S.Pattern, sparsity: float) -> str:
    """How a layer multiplies by a mask of this pattern, without looking at the mask."""
    if sparsity == 0:
        return "dense"
    if isinstance(pattern, S.Transposable24):
        return "weight"
    if isinstance(pattern, S.NM):
        fits = (pattern.n, pattern.m) in ((1, 2), (1, 4), (2, 4))
    else:  # a ramp that has reached its end, 2:4 in every tile
        levels = getattr(pattern, "levels", (0,))
        fits = levels[0] == 2 and sparsity == 0.5
    return "weight" if fits and not layer.rule.transposable else "masked"
