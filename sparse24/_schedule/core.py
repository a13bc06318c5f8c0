"""The pure core: ``step(state, weights=, gradients=) -> state, masks, events``.

Nothing here is changed in place.  Arrays may be of any array API library; the layers of one
state should share one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sparse24 import _check
from sparse24._schedule.arrays import euclidean_norm, namespace, working
from sparse24._schedule.decide import (
    check_given,
    decide,
    decisions,
    forget_first,
    observation,
    observe_first,
)
from sparse24._schedule.records import Array, Arrays, Recipe, State, Update, check_state


def observe(
    state: State, *, weights: Arrays | None = None, gradients: Arrays | None = None
) -> State:
    """Show a micro-batch to the parts that accumulate scores, without ending the step.

    Parameters
    ----------
    state : State
    weights, gradients : mapping of str to array, optional
        As for `step`.

    Returns
    -------
    State
        With the same step.

    Raises
    ------
    ArgumentError, DTypeError, ShapeError
        As `step`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> weights = {"w": np.ones((4, 8))}
    >>> state = S.init(S.rigl(0.5, total_steps=100), weights)
    >>> S.observe(state, weights=weights, gradients=weights).step == state.step
    True
    """
    check_state(state)
    check_given(state, weights, gradients)
    memory = dict(state.memory)
    for recipe, names in state.changing:
        for part in recipe.observers:
            for name in names:
                seen = observation(state, name, weights, gradients)
                memory[name] = part.observe(memory[name], seen)
        for name in names if recipe.looks_back else ():
            if name not in state.updated:
                seen = observation(state, name, weights, gradients)
                memory[name] = observe_first(recipe, memory[name], seen)
    return replace(state, memory=memory)


def step(
    state: State,
    *,
    weights: Arrays | None = None,
    gradients: Arrays | None = None,
    reduce: Callable[[Array], Array] | None = None,
    measure: bool = True,
) -> tuple[State, Arrays, tuple[Update, ...]]:
    """One training step: observe and, at the steps that a schedule names, choose masks anew.

    Parameters
    ----------
    state : State
    weights, gradients : mapping of str to array, optional
        Only those that the recipes use must be given, for every layer of `state`.
    reduce : callable, optional
        Applied to the scores of a layer before masks are chosen, and to the statistics of
        distributions; an all-reduce makes the masks of ranks with different data agree.  It gets a
        copy, which it may write to and return.
    measure : bool, default True
        Count flips and kept norm for the events; False saves a pass over the weights.

    Returns
    -------
    state : State
        With ``step`` one higher.
    masks : mapping of str to boolean array
        Those of `state`: copy a mask before you write to it.
    events : tuple of Update
        One for each layer that was updated.

    Raises
    ------
    ArgumentError
        If `state` is not a `State`, or a layer or an array that a recipe needs is missing.
    DTypeError
        If an array is not of the library that the masks are of.
    ShapeError
        If the shape of an array is not that of its layer.

    Notes
    -----
    Counts in the events are 0-d arrays.  Waits for a device only at updates, and only where a
    grower counts the kept elements, or a distribution uses statistics of gradients.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> weights = {"w": np.array([[4.0, 3.0, 2.0, 1.0]])}
    >>> recipe = schedule.Recipe(schedule.OneShot(0.5), pattern=schedule.NM(2, 4))
    >>> state, masks, events = schedule.step(schedule.init(recipe, weights), weights=weights)
    >>> masks["w"]
    array([[ True,  True, False, False]])
    >>> state.step, events[0].nnz
    (1, 2)
    """
    if reduce is not None:
        _check.function(reduce, argument="reduce")
    state = observe(state, weights=weights, gradients=gradients)
    masks, memory, updated = dict(state.masks), dict(state.memory), dict(state.updated)
    events: list[Update] = []
    for number, (recipe, names) in enumerate(state.groups):
        if state.frozen or not state.due(number):
            continue
        shapes = {name: state.shapes[name] for name in names}
        sparsity = float(recipe.schedule.sparsity(state.step))
        shares = _shares(recipe, sparsity, shapes, memory, reduce)
        for members in decisions(recipe, names):
            began = time.perf_counter()
            share = _of_all([name for name, _ in members], shares, shapes)
            new = decide(state, recipe, members, share, (weights, gradients), reduce)
            seconds = (time.perf_counter() - began) / len(members)
            for member in members:
                name = member[0]
                events.append(_event(state, member, share, new[name], weights, seconds, measure))
                masks[name], updated[name] = new[name], state.step
                memory[name] = recipe.criterion.forget(forget_first(memory[name]))
    after = replace(advance(state), masks=masks, memory=memory, updated=updated)
    return after, masks, tuple(events)


def _shares(recipe: Recipe, sparsity: float, shapes, memory, reduce) -> dict[str, float]:
    """The sparsity of each layer, by statistics that ranks agree on."""
    given = recipe.distribution
    seen = {n: memory[n] if reduce is None else given.agreed(memory[n], reduce) for n in shapes}
    return given.shares(sparsity, shapes, seen, recipe.pattern.most)


def _of_all(names: Sequence[str], shares: dict[str, float], shapes) -> float:
    """The one sparsity of layers that are chosen together: the mean, which keeps the total."""
    if len({shares[name] for name in names}) == 1:
        return shares[names[0]]
    sizes = {name: math.prod(shapes[name]) for name in names}
    return sum(shares[name] * sizes[name] for name in names) / sum(sizes.values())


def advance(state: State) -> State:
    """The state one step on, its masks and memory untouched: only to look at the schedule."""
    due = (number for number in range(len(state.groups)) if state.due(number))
    missed = frozenset(due) if state.frozen else frozenset()
    return replace(state, step=state.step + 1, missed=missed)


def undone(state: State, masks: Arrays, updated: dict[str, int], layers: set[str]) -> State:
    """The state with masks of these updates, as if later ones of `layers` were still to be made."""
    missed = {i for i, (_, names) in enumerate(state.groups) if layers & set(names)}
    return replace(state, masks=masks, updated=updated, missed=state.missed | missed)


def freeze(state: State) -> State:
    """Keep the masks as they are until `thaw`; steps are still counted.

    Parameters
    ----------
    state : State

    Returns
    -------
    State

    Raises
    ------
    ArgumentError
        If `state` is not a `State`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> S.freeze(S.init(S.rigl(0.5, total_steps=100), {"w": np.ones((4, 8))})).frozen
    True
    """
    check_state(state)
    return replace(state, frozen=True)


def thaw(state: State) -> State:
    """Let masks follow the schedule again; an update missed while frozen is made at the next step.

    Parameters
    ----------
    state : State

    Returns
    -------
    State

    Raises
    ------
    ArgumentError
        If `state` is not a `State`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> S.thaw(S.freeze(S.init(S.rigl(0.5, total_steps=100), {"w": np.ones((4, 8))}))).frozen
    False
    """
    check_state(state)
    return replace(state, frozen=False)


def _event(
    state: State, member, share: float, mask, weights, seconds: float, measure: bool
) -> Update:
    name, pattern = member
    flips = norm = math.nan
    if measure:
        xp = namespace(mask)
        flips = xp.sum(xp.astype(mask != state.masks[name], xp.int32))
        if weights is not None:
            weight = working(weights[name])
            norm = euclidean_norm(xp.where(mask, weight, xp.zeros_like(weight)))
    shape = state.shapes[name]
    nnz, age = pattern.kept(shape, share), state.step - state.updated.get(name, 0)
    return Update(name, state.step, share, math.prod(shape), nnz, flips, norm, age, seconds)
