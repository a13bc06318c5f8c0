"""The beginning of a schedule: which layers have which recipe, all of them dense."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from sparse24 import _check
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._schedule.arrays import check_layer, namespace, plain
from sparse24._schedule.decide import check_shapes
from sparse24._schedule.records import Array, Arrays, Recipe, Rules, State


def init(rules: Rules, weights: Arrays, *, seed: int = 0) -> State:
    """Make the state before step 0, in which all layers are dense.

    Parameters
    ----------
    rules : Recipe, or mapping of str to Recipe or None
        One recipe for every non-empty layer with at least two axes, or recipes by name pattern
        (``"encoder.*"``), of which the first match decides; None keeps a layer dense.
    weights : mapping of str to array
    seed : int
        Seed of the counter-based generator; the same on every rank.

    Returns
    -------
    State

    Raises
    ------
    ArgumentError
        If `rules` are something else, a name is not a string, or a name pattern matches no weight,
        be it because an earlier, wider one takes all that it matches.
    ShapeError
        If a layer's shape does not suit the pattern, or no layer with a recipe has two axes.
    DTypeError
        If a layer's weights are not an array, or are complex.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> weights = {"w1": np.ones((4, 8)), "b": np.ones(4)}
    >>> state = S.init({"w*": S.rigl(0.5, total_steps=100)}, weights)
    >>> list(state.shapes)
    ['w1']
    """
    _check.by_name(weights, argument="weights")
    for name, weight in weights.items():
        check_layer(name, weight)
    recipes = list(by_pattern(rules).items())
    if isinstance(rules, Mapping):
        _check_patterns(rules, weights)
    for _, recipe in recipes:
        _check_parts_patterns(recipe, weights)
    names = _names(recipes, weights)
    chosen = ((recipes[i][1], tuple(names[i])) for i in sorted(names))
    groups = tuple((recipe, inside) for recipe, inside in chosen if recipe is not None)
    shapes = {n: tuple(weights[n].shape) for _, inside in groups for n in inside}
    for recipe, inside in groups:
        check_shapes(recipe, inside, shapes)
    for name in shapes:
        _check_real(name, weights[name])
    masks = {n: _ones(weights[n]) for n in shapes}
    seed = _check.whole(seed, argument="seed", least=0)
    return State(groups, shapes, masks, seed, memory={n: {} for n in masks})


def _names(recipes: list[tuple[str, Recipe | None]], weights: Arrays) -> dict[int, list[str]]:
    """The layers with a mask, by the number of their recipe."""
    names: dict[int, list[str]] = {}
    flat = None
    for name, weight in weights.items():
        matches = (i for i, (pattern, _) in enumerate(recipes) if fnmatchcase(name, pattern))
        number = next(matches, None)
        if number is None or recipes[number][1] is None:
            continue
        if len(weight.shape) < 2:
            flat = name
        elif 0 not in weight.shape:
            names.setdefault(number, []).append(name)
    if flat is not None and not names:
        raise ShapeError(
            "weights must hold a layer with two axes or more for the recipe, got "
            f"{_check.shown(weights[flat])} for {flat!r}; reshape it to (rows, k), or keep it "
            "dense, with None as the recipe for its name"
        )
    return names


def _check_patterns(rules: Mapping[str, Recipe | None], weights: Arrays) -> None:
    """Refuse name patterns that are slips of the pen: they fit no weight, or come too late."""
    fits = {p: {name for name in weights if fnmatchcase(name, p)} for p in rules}
    for number, (pattern, names) in enumerate(fits.items()):
        if rules[pattern] is not None and not names:
            raise _fits_none(pattern, weights)
        before = next((p for p in list(fits)[:number] if names and fits[p] > names), None)
        if before is not None:
            raise ArgumentError(
                f"the name pattern {pattern!r} comes after {before!r}, which takes all its weights "
                "and others; put it before that"
            )


def _check_parts_patterns(recipe: Recipe | None, weights: Arrays) -> None:
    """Refuse the same slips in the parts that treat some layers otherwise."""
    for pattern in () if recipe is None else recipe.distribution.patterns:
        if not any(fnmatchcase(name, pattern) for name in weights):
            raise _fits_none(pattern, weights)


def _fits_none(pattern: str, weights: Arrays) -> ArgumentError:
    if not weights:
        return ArgumentError("weights must hold at least one layer, got none; pass them by name")
    some = ", ".join(map(repr, list(weights)[:4]))
    return ArgumentError(
        f"the name pattern {pattern!r} fits none of the {len(weights)} weights; "
        f"their names are such as {some}"
    )


def by_pattern(rules: Rules) -> Mapping[str, Recipe | None]:
    """The recipes by name pattern; refuses what is none."""
    found = {"*": rules} if isinstance(rules, Recipe) else rules
    if not isinstance(found, Mapping) or not all(
        isinstance(pattern, str) and (recipe is None or isinstance(recipe, Recipe))
        for pattern, recipe in found.items()
    ):
        raise ArgumentError(
            "rules must be a Recipe, or a mapping of name patterns to recipes or None, "
            f"got {_check.shown(rules)}; of a schedule make one with Recipe(schedule)"
        )
    return found


def _check_real(name: str, weight: Array) -> None:
    if "complex" in str(weight.dtype):
        raise DTypeError(
            f"layer {name!r} must hold real numbers, got {weight.dtype}; keep it dense, with None "
            "as the recipe for its name"
        )


def _ones(weight: Array) -> Array:
    xp = namespace(weight)
    return xp.ones_like(plain(weight), dtype=xp.bool)
