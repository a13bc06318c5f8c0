"""Masks from a scheduler, set in the sparse layers of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparse24 import _check, _spec
from sparse24 import schedule as S
from sparse24._errors import ArgumentError
from sparse24._schedule.transition import POLICIES
from sparse24._torch.check import check_whole
from sparse24._torch.model import sparse_layers
from sparse24._torch.pruned import PrunedLayer
from sparse24._torch.shared_weights import SharedWeights


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
        Its `SparseLinear` and `SparseExperts` layers are the scheduler's layers, except soft ones
        and those with sparse activations, whose weights have no mask.  They multiply sparsely
        while their masks are 2:4, densely with other masks, and without a mask in dense phases.
        To the scheduler the weight (e, m, k) of experts is one layer.
    scheduler : MaskScheduler, DynamicScheduler or AsyncScheduler
    optimizer : torch.optim.Optimizer, or list or tuple of them, optional
        Its state is adapted to the changed masks, as `policy` says, in place; that of a
        `ZeroRedundancyOptimizer` on the rank that has it.
    policy : str
        See `sparse24.schedule.mask_slots`.
    grown : {"keep", "zero"}
        The value from which a weight that comes back within a sparse phase starts: its latent
        value, or zero, as in RigL.
    lifted : {"zero", "keep"}
        The value from which pruned weights start where a mask is lifted for a dense phase.  With
        zero the model's output does not change [1]_; latent values would disturb it.

    Returns
    -------
    dict of str to Tensor
        The masks, now set in the layers.  Waits for the device where a layer had no mask and its
        own is not of this step.

    Raises
    ------
    ArgumentError
        If `grown`, `lifted` or `policy` is unknown, the model has no layer to mask, a weight is
        parametrized, the optimizer is of other parameters, or a recipe needs gradients that are
        missing, or grows weights by gradients that do not reach pruned weights.
    UnsupportedError
        If the model is sharded.

    Notes
    -----
    Of a weight that other modules use as well, as of an embedding that is tied to an output head,
    only what none of them used before comes back from zero, and only the state of that, and of
    what none of them uses any more, is adapted.

    See Also
    --------
    set_masks : Before the first pass, where a recipe begins densely.

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
    _check_scheduler(scheduler)
    layers, weights = _masked_layers(model)
    optimizers = _optimizers(optimizer, weights)
    gradients = {n: w.grad for n, w in weights.items() if w.grad is not None}
    _check_groups(_state(scheduler, weights), layers)
    masks = scheduler.step(weights=weights, gradients=gradients or None)
    assert scheduler.state is not None  # the step made it
    groups = scheduler.state.groups
    patterns = {name: recipe.pattern for recipe, names in groups for name in names}
    changing = [layers[event.name] for event in scheduler.events]
    shared = SharedWeights(model, changing, {layers[name]: mask for name, mask in masks.items()})
    for event in scheduler.events:
        layer, mask = layers[event.name], masks[event.name]
        old, new = shared.change(layer, mask)
        for own in optimizers:
            _treat_state(layer.weight, old, new, own, policy)
        if old is not None and (lifted if event.sparsity == 0 else grown) == "zero":
            with torch.no_grad():
                layer.weight.masked_fill_(new & ~old, 0.0)
        layer.set_mask(mask, way=_way(layer, patterns[event.name], event.sparsity))
    for name, mask in masks.items():
        if layers[name].mask is None:  # its first one is under way, or came with a loaded state
            layers[name].set_mask(mask)
    return masks


def set_masks(model: torch.nn.Module, scheduler) -> dict[str, Tensor]:
    """Set a scheduler's present masks in a model's layers, without a step of the scheduler.

    Before the first step they are all true, and layers without a mask prune by magnitude.  So call
    this before training where a recipe begins with a dense phase or a ramp: else the first forward
    pass, which comes before the first `update_masks`, is pruned to 2:4.

    Parameters
    ----------
    model : Module
    scheduler : MaskScheduler, DynamicScheduler or AsyncScheduler
        See `update_masks`.

    Returns
    -------
    dict of str to Tensor
        The masks, now set in the layers.  Waits for the device, to look at them.

    Raises
    ------
    ArgumentError
        If the model has no layer to mask, a weight is parametrized, or the scheduler is of other
        layers.
    UnsupportedError
        If the model is sharded.

    See Also
    --------
    update_masks

    Examples
    --------
    >>> import torch
    >>> from sparse24 import schedule as S
    >>> from sparse24.torch import set_masks, sparsify
    >>> model = sparsify(torch.nn.Sequential(torch.nn.Linear(64, 64)), {"*": {}})
    >>> scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5, at=100), pattern=S.NM(2, 4)))
    >>> masks = set_masks(model, scheduler)    # dense until step 100, the first pass too
    >>> bool(masks["0"].all())
    True
    """
    _check_scheduler(scheduler)
    layers, weights = _masked_layers(model)
    state = _state(scheduler, weights)
    _check_groups(state, layers)
    masks = scheduler.masks or dict(state.masks)  # the former only once it has begun
    for name, mask in masks.items():
        layers[name].set_mask(mask)
    return masks


def _check_scheduler(scheduler) -> None:
    if not isinstance(scheduler, S.MaskScheduler | S.AsyncScheduler):  # an optimizer steps as well
        raise ArgumentError(
            "scheduler must be a scheduler of sparse24.schedule, such as MaskScheduler(recipe), "
            f"got {_check.shown(scheduler)}"
        )


def _optimizers(given, weights: Mapping[str, Tensor]) -> Sequence:
    """One optimizer, several or none, as a sequence; with weights of the sparse layers."""
    optimizers = given if isinstance(given, list | tuple) else () if given is None else (given,)
    for optimizer in optimizers:
        if not isinstance(getattr(optimizer, "state", None), Mapping):
            shown = _check.shown(optimizer)
            raise ArgumentError(f"optimizer must be one of torch.optim, got {shown}")
    groups: list[Any] = [getattr(optimizer, "param_groups", None) for optimizer in optimizers]
    if not optimizers or None in groups:  # of another library
        return optimizers
    own = {id(parameter) for part in groups for group in part for parameter in group["params"]}
    if all(id(weight) not in own for weight in weights.values()):
        raise ArgumentError(
            "optimizer must have weights of the model's sparse layers, and has none; make it anew "
            "where these are other parameters now, as after load_state_dict(assign=True)"
        )
    return optimizers


def _masked_layers(
    model: torch.nn.Module,
) -> tuple[dict[str, PrunedLayer], dict[str, torch.nn.Parameter]]:
    """The sparse layers whose weights take masks, and these weights."""
    layers = {n: layer for n, layer in sparse_layers(model).items() if layer.takes_masks}
    if not layers:
        raise ArgumentError(
            "model has no sparse layer whose weight takes a mask; call sparsify(model, {'*': {}}), "
            "without soft=True and sparse='activation', first"
        )
    made = [name for name, layer in layers.items() if "weight" not in layer._parameters]
    if made:
        raise ArgumentError(
            f"the weights of layers {made} must be parameters, and are made before each call, so "
            "that they cannot be set; fold them first, as with "
            "torch.nn.utils.parametrize.remove_parametrizations, or call set_mask"
        )
    weights = {name: layer._parameters["weight"] for name, layer in layers.items()}
    for weight in weights.values():
        check_whole(weight)
    return layers, weights


def _state(scheduler, weights) -> S.State:
    """The scheduler's state, or the one that its first step would begin from."""
    state = scheduler.state
    return scheduler._begun(weights, None) if state is None else state


def _check_groups(state: S.State, layers: dict[str, PrunedLayer]) -> None:
    """Refuse layers that are not the model's, and growth by gradients that are not there.

    Where pruned weights have no gradient, a grower brings back what was just dropped.
    """
    for recipe, names in state.groups:
        unknown = [name for name in names if name not in layers]
        if unknown:
            raise ArgumentError(
                f"the scheduler's layers {unknown} are not sparse layers of the model whose "
                "weights take masks; make it with rules and weights of this model"
            )
        blind = [name for name in names if not layers[name].rule.straight]
        if blind and "gradient" in recipe.grower.needs:
            raise ArgumentError(
                f"{type(recipe.grower).__name__} grows by gradients, and with "
                f"gradient={layers[blind[0]].rule.gradient!r} none reaches pruned weights of "
                f"layer {blind[0]!r}; sparsify it with gradient='ste' or 'ste_sampled'"
            )


def _treat_state(weight: Tensor, old: Tensor | None, new: Tensor, optimizer, policy: str) -> None:
    """Write the optimizer's state of a weight in place: compiled steps and CUDA graphs hold it."""
    slots = _states(optimizer).get(weight)
    if not slots:
        return
    old = torch.ones_like(new) if old is None else old
    with torch.no_grad():
        for key, now in S.mask_slots(slots, old, new, policy=policy).items():
            if now is not slots[key]:
                slots[key].copy_(now)


def _states(optimizer) -> Mapping:
    """What an optimizer remembers of weights; `ZeroRedundancyOptimizer` lets another one do so."""
    inner = getattr(getattr(optimizer, "optim", None), "state", None)
    return inner if isinstance(inner, Mapping) else optimizer.state


def _way(layer: PrunedLayer, pattern: S.Pattern, sparsity: float) -> str:
    """How a layer multiplies by a mask of this pattern, without looking at the mask."""
    if sparsity == 0:
        return "dense"
    if isinstance(pattern, S.Transposable24):
        # Its tiles are those of the experts' rows one below the other.
        apart = layer.weight.ndim == 2 or layer.weight.shape[1] % _spec.GROUP == 0
        return "weight" if apart or not layer.rule.transposable else "masked"
    if isinstance(pattern, S.NM):
        along_k = pattern.axis in (-1, layer.weight.ndim - 1)
        fits = along_k and (pattern.n, pattern.m) in ((1, 2), (1, 4), (2, 4))
    else:  # a ramp that has reached its end, 2:4 in every tile
        levels = getattr(pattern, "levels", (0,))
        fits = levels[0] == 2 and sparsity == 0.5
    return "weight" if fits and not layer.rule.transposable else "masked"
