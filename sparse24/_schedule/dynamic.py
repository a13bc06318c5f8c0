"""`DynamicScheduler`: a global schedule over layers that adapt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule import state as schedule_state
from sparse24._schedule.adaptive import Adaptive, LayerWiseAdapter
from sparse24._schedule.arrays import check_part, check_share
from sparse24._schedule.criteria import GradientMagnitude, Magnitude
from sparse24._schedule.criterion import Criterion
from sparse24._schedule.distributions import Distribution
from sparse24._schedule.growers import Grower, NoGrowth
from sparse24._schedule.initial import init
from sparse24._schedule.masks import MaskScheduler
from sparse24._schedule.patterns import Pattern, Unstructured
from sparse24._schedule.records import Recipe, State
from sparse24._schedule.schedules import CosineScheduler, Schedule
from sparse24._schedule.telemetry import Telemetry


class DynamicScheduler(MaskScheduler):
    """A two-level scheduler: a global sparsity, and layers that adapt to their gradients.

    A global schedule sets how sparse the model is at each step.  A `LayerWiseAdapter` per layer
    moves that layer's threshold with its gradients, within limits; the model's total stays exact
    with `Unstructured`.

    Parameters
    ----------
    init_sparsity : float, default 0.3
        Sparsity from which a ramp begins, also as the first of several `Phases`, unless it names
        its own; other schedules have their own sparsity at step 0.
    scheduler : Schedule, optional
        ``CosineScheduler(target_sparsity=0.6)`` by default.
    adapter : LayerWiseAdapter, mapping of str to LayerWiseAdapter, or None
        One for all layers, or by name pattern; None follows the global schedule everywhere, and
        each layer rounds its zeros down.
    criterion : Criterion, optional
        By default `Magnitude` if the first step has weights, else `GradientMagnitude`;
        micro-batches shown to `observe` do not decide it.
    pattern : Pattern, optional
        `Unstructured` by default.  `Elastic` and `TileHybrid` meet any target too, rounded down in
        each layer to steps of a part of a tile; a fixed N:M pattern takes only its own sparsity,
        in all layers alike.
    grower, distribution : optional
        `distribution` replaces the adapters.
    dense : sequence of str
        Name patterns of layers that stay dense.
    seed, telemetry, reduce
        As in `MaskScheduler`.

    Raises
    ------
    PatternError
        If the pattern cannot meet the schedule's sparsities.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24.schedule import CosineScheduler, DynamicScheduler, apply_masks
    >>> rng = np.random.default_rng(0)
    >>> weights = {"fc1": rng.normal(size=(8, 8)), "fc2": rng.normal(size=(4, 8))}
    >>> scheduler = DynamicScheduler(init_sparsity=0.3, scheduler=CosineScheduler(0.6, stop=10))
    >>> for _ in range(11):
    ...     gradients = {name: rng.normal(size=w.shape) for name, w in weights.items()}
    ...     masks = scheduler.step(weights=weights, gradients=gradients)
    >>> sum(int((~mask).sum()) for mask in masks.values())  # floor(0.6 * 96)
    57
    >>> sparse = apply_masks(weights, masks)
    """

    def __init__(
        self,
        init_sparsity: float = 0.3,
        scheduler: Schedule | None = None,
        *,
        adapter: LayerWiseAdapter | Mapping[str, LayerWiseAdapter] | None = LayerWiseAdapter(),  # noqa: B008
        criterion: Criterion | None = None,
        pattern: Pattern | None = None,
        grower: Grower | None = None,
        distribution: Distribution | None = None,
        dense: tuple[str, ...] = (),
        seed: int = 0,
        telemetry: Telemetry | None = None,
        reduce=None,
    ):
        check_share(init_sparsity, "init_sparsity")
        schedule = CosineScheduler() if scheduler is None else scheduler
        if hasattr(schedule, "with_init"):
            schedule = schedule.with_init(init_sparsity)
        self.scheduler = schedule
        self._dense = _patterns(dense)
        self._parts: dict[str, Any] = {
            "schedule": schedule,
            "pattern": Unstructured() if pattern is None else pattern,
            "grower": NoGrowth() if grower is None else grower,
        }
        check_part(self._parts["pattern"], Pattern, "pattern", "Elastic()")
        even = self._parts["pattern"].fixed  # nothing to adapt then
        if distribution is None and not even:
            distribution = _distribution(adapter)
        if distribution is not None:
            self._parts["distribution"] = distribution
        self._criterion = criterion
        # Refuses impossible parts now, not at the first step.
        rules = self._rules_by(Magnitude())
        super().__init__(rules, seed=seed, telemetry=telemetry, reduce=reduce)

    def _rules_by(self, default: Criterion) -> dict[str, Recipe | None]:
        criterion = default if self._criterion is None else self._criterion
        recipe = Recipe(**self._parts, criterion=criterion)
        return {**dict.fromkeys(self._dense, None), "*": recipe}

    def _begun(self, weights, gradients) -> State:
        seen = gradients if weights is None else weights
        if self.state is None and seen is not None:
            self._rules = self._rules_by(self._default(seen, weights is not None))
        state = super()._begun(weights, gradients)
        if self._criterion is None and state.step == 0 and seen is not None:
            # `start` had weights only, and micro-batches may have shown other arrays than this.
            state = _scored_by(state, _defaults(weights is not None)[0])
        return state

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """As that of `MaskScheduler`, whichever criterion was the default of the saved one."""
        schedule_state.check(saved)
        if self.state is not None and self._criterion is None:
            states = [_scored_by(self.state, choice) for choice in _defaults(True)]
            with schedule_state.reading():
                fitting = [s for s in states if schedule_state.matching(s, saved) is not None]
            if fitting:
                self.state = schedule_state.from_dict(fitting[0], dict(saved))
                return
        super().load_state_dict(saved)

    def _default(self, seen, has_weights: bool) -> Criterion:
        """What a loaded state scores by, if one waits; else magnitude if there are weights."""
        choices = _defaults(has_weights)
        for choice in choices if self._pending else ():
            state = init(self._rules_by(choice), seen, seed=self._seed)
            with schedule_state.reading():
                saved = schedule_state.matching(state, self._pending or {})
            if saved is not None:
                return choice
        return choices[0]

    @property
    def sparsity(self) -> float:
        """The global sparsity of the latest step."""
        return self.scheduler.sparsity(max(0, self.state.step - 1) if self.state else 0)


def _defaults(has_weights: bool) -> tuple[Criterion, ...]:
    """The criteria where none was given, first that of a first step with or without weights."""
    return (Magnitude(), GradientMagnitude())[:: 1 if has_weights else -1]


def _scored_by(state: State, criterion: Criterion) -> State:
    """The state with this criterion in place of another that does not remember anything."""
    groups = ((replace(recipe, criterion=criterion), names) for recipe, names in state.groups)
    return replace(state, groups=tuple(groups))


def _patterns(dense) -> tuple[str, ...]:
    """Name patterns of layers; a single one, whose letters would pass for several, is none."""
    several = isinstance(dense, Iterable) and not isinstance(dense, str | Mapping)
    found = tuple(dense) if several else (None,)
    if not all(isinstance(pattern, str) for pattern in found):
        raise ArgumentError(
            f"dense must be a sequence of name patterns, got {_check.shown(dense)}; write it as "
            "('head',)"
        )
    return found


def _distribution(adapter) -> Adaptive | None:
    if adapter is None:
        return None
    if not isinstance(adapter, Mapping):
        check_part(adapter, LayerWiseAdapter, "adapter", "LayerWiseAdapter()")
        return Adaptive(adapter)
    for name, one in adapter.items():
        check_part(one, LayerWiseAdapter, f"adapter[{name!r}]", "LayerWiseAdapter()")
    return Adaptive(overrides=dict(adapter))
