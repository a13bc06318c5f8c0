"""`MaskScheduler`: the pure core, with its state kept in an object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError, DTypeError
from sparse24._schedule import core
from sparse24._schedule import state as schedule_state
from sparse24._schedule.arrays import check_layer
from sparse24._schedule.initial import by_pattern, init
from sparse24._schedule.records import Rules, State, Update
from sparse24._schedule.telemetry import Telemetry, check_telemetry


class MaskScheduler:
    """Masks for training, step by step, from one recipe or one for each group of layers.

    Parameters
    ----------
    rules : Recipe, or mapping of str to Recipe or None
        See `sparse24.schedule.init`.
    seed : int, default 0
        Of all that is drawn at random; the same on every rank.
    telemetry : Telemetry, optional
        Records the events; without it, flips and norms are not measured.
    reduce : callable, optional
        Makes scores agree across ranks before masks are chosen: see `step`.

    Attributes
    ----------
    masks : dict of str to boolean array
    events : tuple of Update
        Of the latest step.

    Raises
    ------
    ArgumentError
        If `rules` are no recipes, as a schedule alone is none, or another argument is of the
        wrong kind.

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
        if reduce is not None:
            _check.function(reduce, argument="reduce")
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
        """The masks in use, by layer; empty before there are layers."""
        return {} if self.state is None else dict(self.state.masks)

    @property
    def frozen(self) -> bool:
        """Whether the masks stay as they are, after `freeze`."""
        return self.state is not None and self.state.frozen

    def start(self, weights) -> None:
        """Define the layers by the names and shapes of these arrays, before the first `step`.

        Raises
        ------
        ArgumentError
            After a step or a micro-batch, as what came of them would be lost, or without weights.
        """
        if self.state is not None and (self.state.step or any(self.state.memory.values())):
            raise ArgumentError(
                "start must come before the first step and micro-batch, and this is "
                f"{self!r}; make another scheduler to begin anew"
            )
        found = named(weights)
        if found is None:
            raise ArgumentError("weights must be given, to learn the layers, got None")
        self._go_on(self._initial(found))

    def step(self, gradients=None, *, weights=None) -> dict[str, Any]:
        """Advance by one training step and return the masks by layer.

        Parameters
        ----------
        weights, gradients : mapping of str to array, or sequence of arrays, optional
            Only what the recipes use must be given.  The one positional argument is
            `gradients`.  Layers of a sequence are named "0", "1", ….  A gradient may be None, as
            that of a frozen parameter in torch.

        Returns
        -------
        dict of str to array of bool
            The scheduler's own masks: copy a mask before you write to it.

        Raises
        ------
        ArgumentError, DTypeError, ShapeError
            If arrays do not fit the layers or recipes, or parameters of torch are given as
            gradients.  The scheduler is then unchanged.
        """
        weights, gradients = self._named(weights, gradients)
        state, masks, self.events = core.step(
            self._begun(weights, gradients),
            weights=weights,
            gradients=gradients,
            reduce=self.reduce,
            measure=self.telemetry is not None,
        )
        self._go_on(state)
        if self.telemetry is not None:
            self.telemetry.record(self.events)
        return dict(masks)

    def observe(self, gradients=None, *, weights=None) -> None:
        """Show a micro-batch to criteria that accumulate, without ending the step.

        Takes `weights` and `gradients` as `step` does.
        """
        weights, gradients = self._named(weights, gradients)
        state = self._begun(weights, gradients)
        self._go_on(core.observe(state, weights=weights, gradients=gradients))

    def _named(self, weights, gradients):
        """Both by name; gradients may be missing unless the layers are learnt from them."""
        learns = self.state is None and weights is None
        return named(weights), named_gradients(gradients, missing=not learns)

    def _begun(self, weights, gradients) -> State:
        """The state to go on from; a first one is not kept, in case that its step fails."""
        if self.state is not None:
            return self.state
        if gradients is None and weights is None:
            raise ArgumentError("the first step must see weights or gradients, to learn the layers")
        return self._initial(weights if weights is not None else gradients)

    def _initial(self, arrays: Mapping[str, Any]) -> State:
        state = init(self._rules, arrays, seed=self._seed)
        return state if self._pending is None else schedule_state.from_dict(state, self._pending)

    def _go_on(self, state: State) -> None:
        self.state, self._pending = state, None

    def freeze(self) -> None:
        """Keep the masks as they are until `thaw`; an ArgumentError before there are layers."""
        self.state = core.freeze(self._started())

    def thaw(self) -> None:
        """Let the masks follow the schedule again, and make up an update missed meanwhile."""
        self.state = core.thaw(self._started())

    def _started(self) -> State:
        if self.state is None:
            raise ArgumentError(
                "the scheduler has no layers yet; call start(weights) or step() first"
            )
        return self.state

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from, as numbers, strings and arrays on the host.

        Raises
        ------
        ArgumentError
            Before the layers are known, from `start` or the first `step`.
        """
        if self.state is None and self._pending is not None:
            return dict(self._pending)  # was loaded, and is not in use yet
        return schedule_state.to_dict(self._started())

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, `saved`; if layers are not known yet, once they are."""
        schedule_state.check(saved)
        if self.state is None:
            self._pending = dict(saved)
        else:
            self.state = schedule_state.from_dict(self.state, dict(saved))


def named(arrays, *, missing: bool = False) -> dict[str, Any] | None:
    """Arrays by name; a sequence is named by its places, a single array "0".

    What is None is refused or, with `missing`, left out.
    """
    if arrays is None:
        return None
    if isinstance(arrays, Mapping):
        found = dict(arrays)
    elif isinstance(arrays, list | tuple) and not any(isinstance(x, tuple) for x in arrays):
        found = {str(i): array for i, array in enumerate(arrays)}
    elif isinstance(arrays, Iterable) and not hasattr(arrays, "shape"):
        raise DTypeError(
            "weights and gradients must be a mapping of names to arrays, a list of arrays, or one "
            f"array, got {type(arrays).__name__}; write for example dict(model.named_parameters())"
        )
    else:
        found = {"0": arrays}
    if missing:
        found = {name: array for name, array in found.items() if array is not None}
    for name, array in found.items():
        check_layer(name, array)
    return found


def named_gradients(arrays, *, missing: bool) -> dict[str, Any] | None:
    """Gradients by name; refuses torch's weights, which show that they are to learn."""
    found = named(arrays, missing=missing)
    for name, array in () if found is None else found.items():
        if _arrays.is_torch(array) and array.is_leaf and array.requires_grad:
            raise ArgumentError(
                f"the gradient of layer {name!r} must not be a weight, got a "
                f"{type(array).__name__} that requires a gradient itself; call step(weights=..., "
                "gradients=...), with the .grad of each weight as its gradient"
            )
    return found
