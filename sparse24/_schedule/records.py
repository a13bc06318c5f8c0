"""The records of the scheduler: what a recipe is, what a state holds, what an update tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparse24 import _check
from sparse24._errors import ArgumentError, PatternError
from sparse24._schedule.arrays import check_part
from sparse24._schedule.criteria import Magnitude
from sparse24._schedule.criterion import Criterion, Memory
from sparse24._schedule.distributions import Distribution, Uniform
from sparse24._schedule.growers import Grower, NoGrowth
from sparse24._schedule.patterns import Pattern, Unstructured
from sparse24._schedule.schedules import ConstantScheduler, Schedule
from sparse24._schedule.tiles import Channel

Array = Any
Arrays = Mapping[str, Array]

# The parts of a recipe: name, kind, and an example for who gives something else.
_KINDS = (
    ("schedule", Schedule, "OneShot(0.5)"),
    ("criterion", Criterion, "Magnitude()"),
    ("pattern", Pattern, "NM(2, 4)"),
    ("distribution", Distribution, "Uniform()"),
    ("grower", Grower, "NoGrowth()"),
    ("initial", Criterion, "RandomScores()"),
)


@dataclass(frozen=True)
class Recipe:
    """How a group of layers is made sparse, by one part of each kind.

    Parameters
    ----------
    schedule : Schedule
        How sparse at which step, and when masks change.
    criterion : Criterion
        What a weight is worth.
    pattern : Pattern
        Which weights may be kept together.
    distribution : Distribution
        How the layers share the zeros.
    grower : Grower
        Which pruned weights come back.
    initial : Criterion, optional
        The criterion at step 0, when it differs (RigL and SET begin at random).
    shared : sequence of sequences of str
        Layers of one shape that have one mask; their scores are added in this order.
    coupled : sequence of sequences of (str, int)
        Channels that are kept or pruned together, e.g. ``(("fc1", 0), ("fc2", 1))``: the output
        channels of ``fc1`` are the input channels of ``fc2``.  Needs a `Channel` pattern.
        A layer has one mask, so it may be in one group only.  The layers of a group have the mean
        of the sparsities that `distribution` gives them.

    Raises
    ------
    ArgumentError
        If a part is of the wrong kind, or a layer in more than one group.
    PatternError
        If the pattern cannot meet the schedule's sparsities, or does not work with the grower.

    Examples
    --------
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(
    ...     schedule.CubicScheduler(0.5, stop=1_000, every=50),
    ...     pattern=schedule.Elastic(least=2),
    ... )
    >>> recipe.schedule.sparsity(1_000)
    0.5
    """

    schedule: Schedule = field(default_factory=lambda: ConstantScheduler(0.5))
    criterion: Criterion = field(default_factory=Magnitude)
    pattern: Pattern = field(default_factory=Unstructured)
    distribution: Distribution = field(default_factory=Uniform)
    grower: Grower = field(default_factory=NoGrowth)
    initial: Criterion | None = None
    shared: tuple[tuple[str, ...], ...] = ()
    coupled: tuple[tuple[tuple[str, int], ...], ...] = ()

    def __post_init__(self):
        self._check_kinds()
        for sparsity in self.schedule.values():
            self.pattern.check(sparsity)
        if not isinstance(self.grower, NoGrowth) and not self.pattern.grows:
            raise PatternError(
                f"{self.pattern!r} chooses all weights together and cannot follow a grower; "
                "use NoGrowth(), or Unstructured(), NM(), Block() or Channel()"
            )
        if self.pattern.fixed and not self.distribution.even:
            raise PatternError(
                f"{self.pattern!r} has one sparsity, and {type(self.distribution).__name__}() "
                "gives layers different ones; use Uniform(), or Custom() to leave layers dense"
            )
        self._check_ties()
        if self.coupled and not isinstance(self.pattern, Channel):
            raise PatternError(f"coupled layers need a Channel() pattern, got {self.pattern!r}")

    def _check_ties(self) -> None:
        """Refuse ties that are no groups, and layers whose mask two groups would choose."""
        ties = [(name,) for name in _members(self.shared, "shared")]
        ties += _members(self.coupled, "coupled")
        names = [name for name, *_ in ties]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ArgumentError(
                f"a layer may be in one group of shared and coupled layers, {twice} are in more, "
                "of which only the last would count; leave them out of the others"
            )

    def _check_kinds(self) -> None:
        for name, kind, example in _KINDS:
            part = getattr(self, name)
            if not (name == "initial" and part is None):
                check_part(part, kind, name, example)

    @property
    def observers(self) -> tuple[Any, ...]:
        """The parts that must see every step."""
        parts = (self.criterion, self.grower, self.distribution)
        return tuple(part for part in parts if part.remembers)

    @property
    def looks_back(self) -> bool:
        """True if `initial` must see what comes before the first update."""
        return self.initial is not None and self.initial.remembers


def _members(groups, argument: str) -> list[Any]:
    """All members of groups of tied layers; a name, whose letters would pass, is no group."""
    fits = _is_pair if argument == "coupled" else lambda tie: isinstance(tie, str)
    for group in groups if isinstance(groups, tuple | list) else (groups,):
        if not isinstance(group, tuple | list) or not all(map(fits, group)):
            form = '(("fc1", 0), ("fc2", 1))' if argument == "coupled" else '("fc1", "fc2")'
            raise ArgumentError(
                f"{argument} must be a sequence of groups such as {form}, got {_check.shown(group)}"
            )
    return [tie for group in groups for tie in group]


def _is_pair(tie) -> bool:
    """True for (layer, axis)."""
    fits = isinstance(tie, tuple | list) and len(tie) == 2
    return fits and isinstance(tie[0], str) and _check.is_index(tie[1])


@dataclass(frozen=True)
class Update:
    """What happened to one layer at one step.

    Attributes
    ----------
    name : str
        The layer.
    step : int
    sparsity : float
        The sparsity (share of zeros) that the schedule asked of the layer.
    size, nnz : int
        Number of elements of the mask, and of those that it keeps.
    flips : 0-d array, or NaN
        Number of elements that the update changed; NaN if not measured.
    kept_norm : 0-d array, or NaN
        Euclidean norm of the kept weights; NaN if not measured.
    age : int
        Steps since the previous update.
    seconds : float
        Time on the host: on a GPU, that of launching the work.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> weights = {"w": np.arange(16.0).reshape(4, 4)}
    >>> recipe = schedule.Recipe(schedule.OneShot(0.5))
    >>> *_, (update,) = schedule.step(schedule.init(recipe, weights), weights=weights)
    >>> update.name, update.nnz
    ('w', 8)
    """

    name: str
    step: int
    sparsity: float
    size: int
    nnz: int
    flips: Any
    kept_norm: Any
    age: int
    seconds: float


@dataclass(frozen=True)
class State:
    """Everything that a step depends on besides its arguments.

    Made by `init`; `to_dict` and `from_dict` save it.

    Attributes
    ----------
    groups : tuple of (Recipe, tuple of str)
        Each recipe and the names of its layers.
    shapes : mapping of str to tuple of int
        Of the weights.
    masks : mapping of str to array of bool
        The masks in use.
    seed : int
        Of all that is drawn at random.
    step : int
        How many steps were made.
    frozen : bool
    memory : mapping of str to dict
        What criteria and growers remember of each layer.
    updated : mapping of str to int
        The step of each mask's last update.
    missed : frozenset of int
        Groups that missed an update while frozen.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> state = schedule.init(schedule.Recipe(), {"w": np.ones((4, 8))})
    >>> state.step, state.names
    (0, ('w',))
    """

    groups: tuple[tuple[Recipe, tuple[str, ...]], ...]
    shapes: Mapping[str, tuple[int, ...]]
    masks: Arrays
    seed: int = 0
    step: int = 0
    frozen: bool = False
    memory: Mapping[str, Memory] = field(default_factory=dict)
    updated: Mapping[str, int] = field(default_factory=dict)
    missed: frozenset[int] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all layers."""
        return tuple(self.shapes)

    def due(self, number: int) -> bool:
        """True if the masks of group `number` are to be chosen anew, now or once it thaws."""
        return number in self.missed or self.groups[number][0].schedule.updates(self.step)

    @property
    def changing(self) -> tuple[tuple[Recipe, tuple[str, ...]], ...]:
        """The groups whose masks may change now or later."""
        lasts = [recipe.schedule.last_change() for recipe, _ in self.groups]
        return tuple(
            group
            for number, (group, last) in enumerate(zip(self.groups, lasts, strict=True))
            if last is None or self.step <= last or number in self.missed
        )

    def needs_arrays(self) -> bool:
        """True if the next `step` reads weights or gradients."""
        busy = any(self.due(number) for number in range(len(self.groups)))
        return (busy and not self.frozen) or any(
            recipe.observers or (recipe.looks_back and not self.updated.keys() >= set(names))
            for recipe, names in self.changing
        )


def check_state(state) -> None:
    """Refuse what is not a `State`, such as the three results of a step together."""
    if not isinstance(state, State):
        raise ArgumentError(
            "state must be a State, as init returns it and step returns first, got "
            f"{_check.shown(state)}"
        )


Rules = Recipe | Mapping[str, Recipe | None]
