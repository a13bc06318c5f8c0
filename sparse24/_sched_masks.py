"""`MaskScheduler`: the stateful face of the pure core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparse24 import _check, _sched_state
from sparse24 import _sched_core as core
from sparse24._errors import ArgumentError
from sparse24._sched_init import by_pattern, init
from sparse24._sched_records import Rules, State, Update
from sparse24._sched_telemetry import Telemetry, check_telemetry


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
        self._rules = by_pattern(rules)
        self._seed = _check.whole(seed, argument="seed", least=0)
        self._pending: dict[str, Any] | None = None
        self.telemetry = check_telemetry(telemetry)
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
        state = init(self._rules, named(weights) or {}, seed=self._seed)
        if self._pending is not None:
            state = _sched_state.from_dict(state, self._pending)
            self._pending = None
        self.state = state

    def step(self, gradients=None, *, weights=None) -> dict[str, Any]:
        """Advance by one training step and return the masks by layer.

        Parameters
        ----------
        weights, gradients : mapping of str to array, or sequence of arrays, optional
            Only what the recipes use must be given, by name; gradients alone may go by place.
            Sequences are named "0", "1", ….  A gradient may be None, as that of a frozen
            parameter in torch.

        Returns
        -------
        dict of str to array of bool
            Those that the scheduler goes on from: copy a mask before you write to it.
        """
        weights, gradients = self._named(weights, gradients)
        self._begin(weights, gradients)
        assert self.state is not None  # _begin made it
        self.state, masks, self.events = core.step(
            self.state,
            weights=weights,
            gradients=gradients,
            reduce=self.reduce,
            measure=self.telemetry is not None,
        )
        if self.telemetry is not None:
            self.telemetry.record(self.events)
        return dict(masks)

    def observe(self, gradients=None, *, weights=None) -> None:
        """Show a micro-batch to criteria that accumulate; the step goes on."""
        weights, gradients = self._named(weights, gradients)
        self._begin(weights, gradients)
        assert self.state is not None  # _begin made it
        self.state = core.observe(self.state, weights=weights, gradients=gradients)

    def _named(self, weights, gradients):
        """Both by name; gradients may be missing unless the layers are learnt from them."""
        learns = self.state is None and weights is None
        return named(weights), named(gradients, missing=not learns)

    def _begin(self, weights, gradients) -> None:
        if self.state is None:
            if gradients is None and weights is None:
                raise ArgumentError(
                    "the first step must see weights or gradients, to learn the layers"
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


def named(arrays, *, missing: bool = False) -> dict[str, Any] | None:
    """Arrays by name; a sequence is named by its places, a single array "0".

    What is None is refused or, with `missing`, left out.
    """
    if arrays is None:
        return None
    if isinstance(arrays, Mapping):
        found = dict(arrays)
    elif isinstance(arrays, list | tuple):
        found = {str(i): array for i, array in enumerate(arrays)}
    else:
        found = {"0": arrays}
    if missing:
        found = {name: array for name, array in found.items() if array is not None}
    for name, array in found.items():
        if not isinstance(name, str):
            raise ArgumentError(f"layers must have names that are strings, got {name!r}")
        _check.is_array(array, argument=f"the array of layer {name!r}")
    return found
