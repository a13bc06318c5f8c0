"""`DynamicScheduler`: the stateful face of the pure core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparse24 import _check, _sched_state
from sparse24 import _sched_core as core
from sparse24._errors import ArgumentError
from sparse24._sched_adaptive import Adaptive, LayerWiseAdapter
from sparse24._sched_arrays import check_part, check_share
from sparse24._sched_criteria import Criterion, GradientMagnitude, Magnitude
from sparse24._sched_distributions import Distribution
from sparse24._sched_growers import Grower, NoGrowth
from sparse24._sched_patterns import Pattern, Unstructured
from sparse24._sched_records import Recipe, Rules, State, Update
from sparse24._sched_schedules import CosineScheduler, Schedule
from sparse24._sched_telemetry import Telemetry


class MaskScheduler:
    """Masks for training, step by step, from one recipe or one for each group of layers.

    Parameters
    ----------
    rules : Recipe, or mapping of str to Recipe or None
        See `sparse24.schedule.init`.
    seed : int, default 0
    telemetry : Telemetry, optional
        Records the events; without it the flips and norms are not even counted.
    reduce : callable, optional
        Makes scores agree across ranks before masks are chosen.

    Attributes
    ----------
    masks : dict of str to boolean array
    events : tuple of Update
        Of the latest step.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> recipe = schedule.Recipe(schedule.OneShot(0.5), pattern=schedule.NM(2, 4))
    >>> masks = schedule.MaskScheduler(recipe).step(weights={"w": np.array([[1., -4., 3., 2.]])})
    >>> masks["w"]
    array([[False,  True,  True, False]])
    """

    def __init__(
        self, rules: Rules, *, seed: int = 0, telemetry: Telemetry | None = None, reduce=None
    ):
        self._rules = core.by_pattern(rules)
        self._seed = _check.whole(seed, argument="seed", least=0)
        self._pending: dict[str, Any] | None = None
        self.telemetry = telemetry
        self.reduce = reduce
        self.state: State | None = None
        self.events: tuple[Update, ...] = ()

    def __repr__(self) -> str:
        if self.state is None:
            return f"<{type(self).__name__}: no layers yet>"
        frozen = ", frozen" if self.frozen else ""
        return f"<{type(self).__name__}: step {self.state.step}, {len(self.masks)} layers{frozen}>"

    @property
    def masks(self) -> dict[str, Any]:
        return {} if self.state is None else dict(self.state.masks)

    @property
    def frozen(self) -> bool:
        return self.state is not None and self.state.frozen

    def start(self, weights) -> None:
        """Fix the layers, by the shapes of these arrays; the first `step` does it otherwise."""
        state = core.init(self._rules, named(weights) or {}, seed=self._seed)
        if self._pending is not None:
            state = _sched_state.from_dict(state, self._pending)
            self._pending = None
        self.state = state

    def step(self, gradients=None, weights=None) -> dict[str, Any]:
        """Advance by one training step and return the masks by layer.

        Parameters
        ----------
        gradients, weights : mapping of str to array, or sequence of arrays, optional
            Only what the recipes use must be given.  Sequences are named "0", "1", ….

        Returns
        -------
        dict of str to array of bool
            Those that the scheduler goes on from: copy a mask before you write to it.
        """
        gradients, weights = named(gradients), named(weights)
        self._begin(gradients, weights)
        assert self.state is not None  # _begin made it
        self.state, masks, self.events = core.step(
            self.state, weights, gradients, reduce=self.reduce, measure=self.telemetry is not None
        )
        if self.telemetry is not None:
            self.telemetry.record(self.events)
        return dict(masks)

    def observe(self, gradients=None, weights=None) -> None:
        """Show a micro-batch to criteria that accumulate; the step goes on."""
        gradients, weights = named(gradients), named(weights)
        self._begin(gradients, weights)
        assert self.state is not None  # _begin made it
        self.state = core.observe(self.state, weights, gradients)

    def _begin(self, gradients, weights) -> None:
        if self.state is None:
            if gradients is None and weights is None:
                raise ArgumentError(
                    "the first step must see gradients or weights, to learn the layers"
                )
            self.start(weights if weights is not None else gradients)

    def freeze(self) -> None:
        """Keep the masks as they are until `thaw`."""
        self.state = core.freeze(self._started())

    def thaw(self) -> None:
        """Let the masks follow the schedule again; an update that fell due is made at once."""
        self.state = core.thaw(self._started())

    def _started(self) -> State:
        if self.state is None:
            raise ArgumentError(
                "the scheduler has no layers yet; call start(weights) or step() first"
            )
        return self.state

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on later, as numbers, strings and arrays on the host."""
        if self.state is None and self._pending is not None:
            return dict(self._pending)  # was loaded, and is not in use yet
        return _sched_state.to_dict(self._started())

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take over a saved state; before the first step it waits until the layers are known."""
        _sched_state.check(saved)
        if self.state is None:
            self._pending = dict(saved)
        else:
            self.state = _sched_state.from_dict(self.state, dict(saved))


class DynamicScheduler(MaskScheduler):
    """A global schedule over layers that adapt: the two-level controller.

    A global scheduler sets how sparse the model is at each step.  A `LayerWiseAdapter` per layer
    moves that layer's threshold with its gradients, within limits; the model's total stays exact.

    Parameters
    ----------
    init_sparsity : float, default 0.3
        Sparsity at step 0, unless the scheduler names its own.
    scheduler : Schedule, optional
        ``CosineScheduler(target_sparsity=0.6)`` by default.
    adapter : LayerWiseAdapter, mapping of str to LayerWiseAdapter, or None
        One for all layers, or by name pattern; None follows the global schedule everywhere.
    criterion : Criterion, optional
        Magnitude if the first step sees weights, else gradient magnitude.
    pattern : Pattern, optional
        `Unstructured` by default.  `Elastic` and `TileHybrid` meet any target too; a fixed N:M
        pattern takes only its own sparsity, in all layers alike.
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
    ...     masks = scheduler.step(gradients, weights)
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
        if isinstance(dense, str):  # whose letters would pass for patterns
            raise ArgumentError(f"dense must be a sequence of name patterns, got {dense!r}")
        self._dense = tuple(dense)
        self._parts: dict[str, Any] = {
            "schedule": schedule,
            "pattern": pattern or Unstructured(),
            "grower": grower or NoGrowth(),
        }
        check_part(self._parts["pattern"], Pattern, "pattern", "Elastic()")
        even = self._parts["pattern"].fixed  # nothing to adapt then
        spread = distribution or (None if even else _distribution(adapter))
        if spread is not None:
            self._parts["distribution"] = spread
        self._criterion = criterion
        # Refuses impossible parts now, not at the first step.
        rules = self._rules_by(Magnitude())
        super().__init__(rules, seed=seed, telemetry=telemetry, reduce=reduce)

    def _rules_by(self, default: Criterion) -> dict[str, Recipe | None]:
        recipe = Recipe(**self._parts, criterion=self._criterion or default)
        return {**dict.fromkeys(self._dense, None), "*": recipe}

    def _begin(self, gradients, weights) -> None:
        if self.state is None and weights is None:
            self._rules = self._rules_by(GradientMagnitude())
        super()._begin(gradients, weights)

    @property
    def sparsity(self) -> float:
        """The global sparsity of the latest step."""
        return self.scheduler.sparsity(max(0, self.state.step - 1) if self.state else 0)


def _distribution(adapter) -> Adaptive | None:
    if adapter is None:
        return None
    if not isinstance(adapter, Mapping):
        check_part(adapter, LayerWiseAdapter, "adapter", "LayerWiseAdapter()")
        return Adaptive(adapter)
    for name, one in adapter.items():
        check_part(one, LayerWiseAdapter, f"adapter[{name!r}]", "LayerWiseAdapter()")
    return Adaptive(overrides=dict(adapter))


def named(arrays) -> dict[str, Any] | None:
    """Arrays by name; a sequence is named by its places, a single array "0"."""
    if arrays is None:
        return None
    if isinstance(arrays, Mapping):
        found = dict(arrays)
    elif isinstance(arrays, list | tuple):
        found = {str(i): array for i, array in enumerate(arrays)}
    else:
        found = {"0": arrays}
    for name, array in found.items():
        if not isinstance(name, str):
            raise ArgumentError(f"layers must have names that are strings, got {name!r}")
        _check.is_array(array, argument=f"the array of layer {name!r}")
    return found
