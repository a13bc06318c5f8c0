"""`apply_masks`: weights with their masks applied."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._schedule.arrays import Array, level, namespace, select


def apply_masks(weights, masks):
    """Weights with zeros where the masks are false; layers without a mask pass unchanged.

    Parameters
    ----------
    weights : array, mapping of str to array, or sequence of arrays
    masks : the same form
        Booleans, or numbers of which those that are not zero count as true.

    Returns
    -------
    The same form: new arrays of the weights' dtype; layers without a mask are the given arrays.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError
        If masks and weights differ in number, shape or library, or no name is that of both.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24.schedule import apply_masks
    >>> apply_masks({"w": np.array([1.0, 2.0])}, {"w": np.array([True, False])})
    {'w': array([1., 0.])}
    """
    if isinstance(weights, Mapping):
        if not isinstance(masks, Mapping):
            raise ArgumentError(f"masks must be a mapping, as weights, got {_check.shown(masks)}")
        _check_names(weights, masks)
        return {n: _masked(w, masks[n], n) if n in masks else w for n, w in weights.items()}
    if isinstance(weights, list | tuple):
        if isinstance(masks, Mapping):
            places = [str(i) for i in range(len(weights))]
            _check_names(places, masks)
            masks = [masks.get(place) for place in places]
        if not isinstance(masks, list | tuple):
            raise ArgumentError(f"masks must be a sequence, as weights, got {_check.shown(masks)}")
        if len(masks) != len(weights):
            raise ArgumentError(
                f"masks must be as many as weights, {len(weights)}, got {len(masks)}"
            )
        make = getattr(type(weights), "_make", type(weights))  # named tuples take no iterable
        return make(
            w if m is None else _masked(w, m, str(i))
            for i, (w, m) in enumerate(zip(weights, masks, strict=True))
        )
    return _masked(weights, masks, "0")


def _check_names(names: Collection[str], masks: Mapping) -> None:
    """Refuse masks of other weights; none at all are those before the first step."""
    if masks and not masks.keys() & set(names):
        raise ArgumentError(
            f"masks must be of these weights, {_names(names)}, got those of {_names(masks)}"
        )


def _names(arrays: Collection[str]) -> str:
    return ", ".join(map(repr, list(arrays)[:4])) or "none"


def _masked(weight: Array, mask: Array, name: str) -> Array:
    for what, given in (("weight", weight), ("mask", mask)):
        _check.is_array(given, argument=f"the {what} of layer {name!r}")
        _check.unmasked(given, argument=f"the {what} of layer {name!r}")
    if tuple(weight.shape) != tuple(mask.shape):
        raise ShapeError(
            f"the mask of layer {name!r} must have its weight's shape, {tuple(weight.shape)}, got "
            f"{tuple(mask.shape)}"
        )
    if _arrays.is_torch(weight) != _arrays.is_torch(mask):
        raise DTypeError(
            f"the mask of layer {name!r} must be an array of its weight's library, "
            f"{type(weight).__name__}, got {type(mask).__name__}; convert it first"
        )
    xp = namespace(weight)
    return select(xp.astype(mask, xp.bool, copy=False), weight, level(weight, 0))
