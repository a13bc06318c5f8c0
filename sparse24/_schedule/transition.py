"""What a change of masks does to weights and to the optimizer's state."""

from __future__ import annotations

from sparse24 import _check
from sparse24._schedule.arrays import Array, namespace, select


def transition(weight: Array, old: Array, new: Array, *, grown: str = "keep") -> Array:
    """Return the weight after a change of masks.

    Parameters
    ----------
    weight, old, new : array
        The weight and its masks before and after.
    grown : {"keep", "zero"}
        Whether weights that come back keep their latent value or start from zero, as in RigL.

    Returns
    -------
    array, shape of `weight`

    Raises
    ------
    ArgumentError
        If `grown` is unknown.
    DTypeError, ShapeError
        If the masks are not boolean, or the three differ in shape or library.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> old, new = np.array([True, False, False]), np.array([True, True, False])
    >>> S.transition(np.array([1.0, 2, 3]), old, new, grown="zero")
    array([1., 0., 3.])
    """
    _check.one_of(grown, ("keep", "zero"), argument="grown")
    _check.is_array(weight, argument="weight")
    _check_masks(old, new)
    _check.same_shape(weight.shape, new.shape, argument="weight", other="new")
    xp = namespace(weight, old, new)
    if grown == "zero":
        weight = select(new & ~old, xp.zeros_like(weight), weight)
    return weight


def _check_masks(old: Array, new: Array) -> None:
    for name, mask in (("old", old), ("new", new)):
        _check.is_array(mask, argument=name)
        _check.boolean(mask, argument=name)
    _check.same_shape(old.shape, new.shape, argument="old", other="new")


# Entries that are not momenta, by the names of torch, optax and others.  Magnitudes: running means,
# sums and maxima of squares, estimates of curvature, step sizes and what these are estimated from.
SIZES = (
    "exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "sum_of_squares", "nu", "v",
    "e_g", "e_x", "step_size", "exp_inf", "variance", "exp_avg_var", "max_exp_avg_var", "state2",
    "nu_max", "n", "hessian", "exp_hessian_diag_sq", "step_sizes", "alphak", "s", "sk", "grad_sum",
    "row_var", "col_var",
)  # fmt: skip
# And copies of the weights: averages, starting points, the sequence of a schedule-free optimizer.
WEIGHTS = (
    "ax", "z", "p0", "params0", "x0", "ema", "slow_buffer", "slow_param", "lookahead_slow_buff",
    "cached_params", "swa_buffer", "master_param",
)  # fmt: skip


# What of the optimizer's state is cleared after a change of masks.
POLICIES = ("keep", "zero_dropped", "zero_grown", "zero_changed")


def mask_slots(slots, old: Array, new: Array, *, policy: str = "zero_changed"):
    """Optimizer state after a change of masks.

    Means of squares (`exp_avg_sq`, `square_avg`, `nu` and similar) are never cleared: starting
    from zero while the step counter goes on, Adam's next step would be ``(1 - beta1) /
    sqrt(1 - beta2)`` times the learning rate, three times too long, for every changed weight.
    Nor are Rprop's step sizes, which would take long to grow again, and copies of the weights,
    such as ASGD's average `ax` or the `z` of schedule-free optimizers.  All these are known by
    their names, as torch, optax and widespread other optimizers give them, and 8-bit codes by
    their type; whatever else has the shape of the mask is taken for a momentum.

    Parameters
    ----------
    slots : mapping of str to array
        One weight's state, e.g. momentum and second moment; entries that are no momentum, or whose
        shape differs from the mask's (step counters), are returned unchanged.
    old, new : array of bool
        The masks before and after.
    policy : {"keep", "zero_dropped", "zero_grown", "zero_changed"}
        Clear the state of no weights, of those that were pruned, of those that came back, or of
        both.

    Returns
    -------
    dict of str to array

    Raises
    ------
    ArgumentError
        If `policy` is unknown, or `slots` is not a mapping.
    DTypeError, ShapeError
        If the masks are not boolean, differ in shape, or are of another library than the slots.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> slots = {"momentum": np.array([1.0, 2, 3]), "step": 7}
    >>> old, new = np.array([True, True, False]), np.array([True, False, True])
    >>> S.mask_slots(slots, old, new)
    {'momentum': array([1., 0., 0.]), 'step': 7}
    """
    _check.one_of(policy, POLICIES, argument="policy")
    _check.by_name(slots, argument="slots")
    _check_masks(old, new)
    clear = {
        "keep": None,
        "zero_dropped": old & ~new,
        "zero_grown": new & ~old,
        "zero_changed": old ^ new,
    }[policy]
    if clear is None:
        return dict(slots)
    return {
        key: select(clear, namespace(slot, clear).zeros_like(slot), slot)
        if _is_momentum(key, slot, tuple(new.shape))
        else slot
        for key, slot in slots.items()
    }


def _is_momentum(key: str, slot, shape: tuple[int, ...]) -> bool:
    """Whether an entry of the state is for each weight what is lost with its mask."""
    if key in SIZES or key in WEIGHTS or tuple(getattr(slot, "shape", ())) != shape:
        return False
    return not str(slot.dtype).endswith("uint8")  # codes, of which 0 need not stand for zero
