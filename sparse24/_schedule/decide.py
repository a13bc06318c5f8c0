"""One decision: the layers that are chosen together, their scores, their new masks."""

from __future__ import annotations

from sparse24 import _check
from sparse24._errors import ArgumentError, ShapeError
from sparse24._schedule.arrays import check_layer, copied, namespace, ranked, working
from sparse24._schedule.criteria import Magnitude
from sparse24._schedule.criterion import Memory, Observation
from sparse24._schedule.growers import NoGrowth
from sparse24._schedule.patterns import Turnover
from sparse24._schedule.records import Array, Arrays, Recipe, State
from sparse24._schedule.tiles import Channel


def decisions(recipe: Recipe, names: tuple[str, ...]):
    """Groups of (layer, pattern) that are chosen together."""
    together = [tuple((n, recipe.pattern) for n in group) for group in recipe.shared]
    together += [tuple((n, Channel(axis)) for n, axis in group) for group in recipe.coupled]
    taken = {name for group in together for name, _ in group}
    missing = taken - set(names)
    if missing:
        raise ArgumentError(
            f"shared and coupled layers must be in the recipe's group, {sorted(missing)} are not"
        )
    return [*together, *(((name, recipe.pattern),) for name in names if name not in taken)]


def check_shapes(recipe: Recipe, names: tuple[str, ...], shapes) -> None:
    """Refuse layers whose shapes do not suit their patterns."""
    for members in decisions(recipe, names):
        for name, pattern in members:
            try:
                pattern.check_shape(shapes[name])
            except ShapeError as error:
                raise ShapeError(f"layer {name!r}: {error}") from error


def decide(state: State, recipe: Recipe, members, share: float, arrays, reduce) -> dict[str, Array]:
    """New masks of the layers of one decision."""
    leader, pattern = members[0]
    pattern.check(share)
    if share == 0:
        return {
            name: namespace(state.masks[name]).ones_like(state.masks[name]) for name, _ in members
        }
    first = leader not in state.updated
    criterion = recipe.initial if first and recipe.initial is not None else recipe.criterion
    grows = not first and not isinstance(recipe.grower, NoGrowth)
    if type(criterion) is Magnitude and len(members) == 1 and reduce is None and not grows:
        mask = pattern.of_magnitudes(
            observation(state, leader, *arrays).given("weight", "Magnitude")
        )
        if mask is not None:
            return {leader: mask}
    units = _pooled(recipe, criterion, state, members, arrays, reduce)
    turnover = None
    if grows:
        growth = _pooled(recipe, recipe.grower, state, members, arrays, reduce)
        active = pattern.units_of(state.masks[leader])
        turnover = Turnover(active, growth, float(recipe.grower.share(state.step)))
    chosen = pattern.choose(units, share, turnover)
    return {name: own.expand(chosen, state.shapes[name]) for name, own in members}


FIRST = "initial."  # before the keys of what a recipe's initial criterion remembers


def _first(memory: Memory) -> Memory:
    return {key.removeprefix(FIRST): v for key, v in memory.items() if key.startswith(FIRST)}


def forget_first(memory: Memory) -> Memory:
    """What is left when the initial criterion has done its work."""
    return {key: value for key, value in memory.items() if not key.startswith(FIRST)}


def observe_first(recipe: Recipe, memory: Memory, seen: Observation) -> Memory:
    """What to remember for the initial criterion too, apart from what is that of the others."""
    assert recipe.initial is not None  # else nothing looks back
    found = recipe.initial.observe(_first(memory), seen)
    return forget_first(memory) | {FIRST + key: value for key, value in found.items()}


def _pooled(recipe: Recipe, criterion, state: State, members, arrays, reduce) -> Array:
    """Unit scores of a decision: the members' pooled scores, added in order."""
    initial = recipe.initial if members[0][0] not in state.updated else None
    total = None
    for name, pattern in members:
        seen = observation(state, name, *arrays)
        memory = state.memory[name]
        scores = criterion.score(_first(memory) if criterion is initial else memory, seen)
        argument = f"the scores of layer {name!r}"
        _check.is_array(scores, argument=argument)
        if reduce is not None:  # it may write to what it gets, and scores may be memory or given
            scores = reduce(copied(scores))
            _check.is_array(scores, argument=argument)
        namespace(scores, state.masks[name])  # refuses another library, of which masks would be
        scores = working(scores)
        if tuple(scores.shape) != state.shapes[name]:
            raise ShapeError(
                f"scores of {name!r} must have the shape {state.shapes[name]}, "
                f"got {tuple(scores.shape)}"
            )
        units = pattern.pool(scores)
        if total is not None and total.shape != units.shape:
            raise ShapeError(
                f"layers {[n for n, _ in members]} are tied, but their units differ in shape, "
                f"{tuple(total.shape)} and {tuple(units.shape)}; tie layers of one shape, or axes "
                "of one length"
            )
        total = units if total is None else ranked(total + units)
    return total


def check_given(state: State, weights: Arrays | None, gradients: Arrays | None) -> None:
    """Refuse arrays of other layers or shapes, at every step, be they read there or not."""
    for what, arrays in (("weights", weights), ("gradients", gradients)):
        _check.by_name(arrays, argument=what, optional=True)
        if arrays is None:
            continue
        for name, shape in state.shapes.items():
            if getattr(arrays.get(name), "shape", None) != shape:
                observation(state, name, weights, gradients)  # says what is wrong, if anything


def observation(state: State, name: str, weights, gradients) -> Observation:
    if weights is not None and name not in weights:
        raise ArgumentError(
            f"weights has no layer {name!r}, only {sorted(weights)[:5]}; pass all of "
            f"{sorted(state.shapes)}"
        )
    weight = _pick(weights, name, state, "weights")
    gradient = _pick(gradients, name, state, "gradients")
    return Observation(name, state.step, state.seed, weight, gradient, state.masks[name])


def _pick(arrays: Arrays | None, name: str, state: State, what: str) -> Array | None:
    array = None if arrays is None else arrays.get(name)
    if array is None:
        return None
    check_layer(name, array)
    if tuple(array.shape) != state.shapes[name]:
        raise ShapeError(
            f"{what}[{name!r}] must have the shape {state.shapes[name]}, got {tuple(array.shape)}"
        )
    namespace(array, state.masks[name])  # refuses another library
    return array
