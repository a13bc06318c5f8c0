"""Saving and restoring the scheduler: a versioned dictionary of arrays on the host and numbers.

Masks are packed to bits.  The random state is the seed and the step: the generator is
counter-based.  What criteria remember in mid-update is saved too, so resuming equals no
interruption, bit for bit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import array_api_compat
import numpy as np

from sparse24 import _arrays
from sparse24._errors import FormatError, Sparse24Error
from sparse24._schedule.adaptive import Adaptive
from sparse24._schedule.arrays import namespace, to_host
from sparse24._schedule.criteria import Accumulated, Movement
from sparse24._schedule.decide import FIRST
from sparse24._schedule.growers import MomentumGrowth
from sparse24._schedule.records import Recipe, State, Update, check_state

VERSION = 1
KEYS = {"fingerprint", "seed", "step", "frozen", "missed", "updated", "masks", "memory"}
FORMAT = "sparse24.schedule"
# The key under which each part remembers an array, as large as its layer but for the mean square.
REMEMBERED = {
    Accumulated: "accumulated", Movement: "movement", MomentumGrowth: "momentum",
    Adaptive: "grad_square",
}  # fmt: skip


def pack_mask(mask: Any) -> dict[str, Any]:
    """A mask as bits, eight a byte, low index in the low bit."""
    host = to_host(mask)
    bits = np.packbits(host.ravel(), bitorder="little")
    return {"shape": tuple(host.shape), "bits": _saved_as(bits, mask)}


def _saved_as(host: np.ndarray, like: Any) -> Any:
    """The array as it is saved: `torch.load` takes tensors, but by default no NumPy arrays."""
    if not _arrays.is_torch(like):
        return host
    import torch

    return torch.from_numpy(host)


def pack_event(event: Update) -> dict[str, Any]:
    """An update as numbers and strings."""
    record = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    return {**record, "flips": float(event.flips), "kept_norm": float(event.kept_norm)}


def unpack_mask(packed: dict[str, Any], like: Any) -> Any:
    """A boolean array of the library and device of `like`."""
    shape = tuple(int(x) for x in packed["shape"])
    bits, count = to_host(packed["bits"]), math.prod(shape)
    if shape != tuple(like.shape) or bits.dtype != np.uint8 or bits.size != -(-count // 8):
        raise FormatError(
            f"a packed mask of shape {shape} with {bits.size} bytes does not fit a layer of shape "
            f"{tuple(like.shape)}; load the state into a scheduler of the same layers"
        )
    host = np.unpackbits(bits, count=count, bitorder="little").astype(bool).reshape(shape)
    return _move(host, like)


def _move(host: np.ndarray, like: Any) -> Any:
    return namespace(like).asarray(host, device=array_api_compat.device(like))


def fingerprint(state: State) -> str:
    """A digest of the recipes and layers, to refuse the state of another scheduler."""
    text = repr([(_words(recipe), names) for recipe, names in state.groups]) + repr(state.shapes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def matching(state: State, saved: Mapping[str, Any]) -> State | None:
    """A fresh state with its layers in the order of the saved one; None if that is of others.

    Dictionaries come back in another order from JAX, which sorts them.
    """
    if set(saved["masks"]) != set(state.masks):
        return None
    place = {name: number for number, name in enumerate(saved["masks"])}
    groups = tuple((recipe, tuple(sorted(n, key=place.__getitem__))) for recipe, n in state.groups)
    shapes = {name: state.shapes[name] for name in place}
    masks = {name: state.masks[name] for name in place}
    ordered = replace(state, groups=groups, shapes=shapes, masks=masks)
    return next((s for s in (state, ordered) if fingerprint(s) == saved["fingerprint"]), None)


def _words(part: Any) -> str:
    """A part of a recipe in words; arrays and callables inside count by their kind alone."""
    part = _number(part)
    if dataclasses.is_dataclass(part):
        inside = (f"{f.name}={_words(getattr(part, f.name))}" for f in dataclasses.fields(part))
        return f"{type(part).__name__}({', '.join(inside)})"
    if isinstance(part, Mapping):
        return repr([(_number(key), _words(value)) for key, value in part.items()])
    if isinstance(part, tuple | list):
        return repr([_words(value) for value in part])
    plain = part is None or isinstance(part, float | int | str)
    return repr(part) if plain else type(part).__name__


def _number(part: Any) -> Any:
    """Python's number for one of NumPy, or in an array without axes; all else as it is."""
    return part.item() if getattr(part, "ndim", None) == 0 else part


def to_dict(state: State) -> dict[str, Any]:
    """The state as plain numbers, strings and arrays on the host.

    Parameters
    ----------
    state : State

    Returns
    -------
    dict
        Masks as packed bits.  NumPy arrays, or tensors where the layers are torch's, so
        that `torch.load` takes them.  Waits for the device.

    Raises
    ------
    ArgumentError
        If `state` is not a `State`.

    See Also
    --------
    from_dict

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> state = S.init(S.rigl(0.5, total_steps=100), {"w": np.ones((4, 8))})
    >>> saved = S.to_dict(state)
    >>> S.from_dict(state, saved).step == state.step
    True
    """
    check_state(state)
    memory = {
        name: {key: _saved_as(to_host(value), value) for key, value in entries.items()}
        for name, entries in state.memory.items()
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint(state),
        "seed": state.seed,
        "step": state.step,
        "frozen": state.frozen,
        "missed": sorted(state.missed),
        "updated": dict(state.updated),
        "masks": {name: pack_mask(mask) for name, mask in state.masks.items()},
        "memory": memory,
    }


def from_dict(state: State, saved: dict[str, Any]) -> State:
    """Restore a state that `to_dict` saved.

    Parameters
    ----------
    state : State
        A state that `init` made of the same recipes and layers.
    saved : dict
        What `to_dict` gave; its tensors may be on any device, as `torch.load` puts them.

    Returns
    -------
    State
        With the saved contents, and its arrays on the devices of those of `state`.

    Raises
    ------
    FormatError
        If `saved` is not a saved state, is damaged, or is of another version, other recipes or
        other layers.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> fresh = schedule.init(schedule.sr_ste(), {"w": np.ones((4, 8))})
    >>> after, _, _ = schedule.step(fresh, weights={"w": np.ones((4, 8))})
    >>> schedule.from_dict(fresh, schedule.to_dict(after)).step
    1
    """
    check_state(state)
    check(saved)
    with reading():
        return _restored(state, saved)


@contextlib.contextmanager
def reading():
    """What a damaged state does to the code that reads it, as a `FormatError`."""
    try:
        yield
    except Sparse24Error:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"the saved state is damaged ({type(error).__name__}: {error}); load another one"
        ) from error


def _restored(state: State, saved: Mapping[str, Any]) -> State:
    fitting = matching(state, saved)
    if fitting is None:
        raise FormatError(
            "the saved state belongs to other recipes or layers; build the scheduler as it was "
            "built when the state was saved"
        )
    state = fitting
    masks = {name: unpack_mask(saved["masks"][name], mask) for name, mask in state.masks.items()}
    given = saved["memory"]
    if given.keys() != masks.keys():
        raise FormatError(
            f"the saved state remembers layers {sorted(given)}, and has masks of {sorted(masks)}; "
            "it is damaged"
        )
    memory = {
        name: {key: _move(_remembered(recipe, key, value, masks[name]), masks[name])
               for key, value in given[name].items()}
        for recipe, names in state.groups for name in names
    }  # fmt: skip
    memory = {name: memory[name] for name in given}
    return replace(
        state,
        masks=masks,
        memory=memory,
        seed=_whole(saved["seed"]),
        step=_whole(saved["step"]),
        frozen=bool(saved["frozen"]),
        missed=frozenset(_whole(number) for number in saved["missed"]),
        updated=unpack_steps(saved["updated"]),
    )


def unpack_steps(saved: Mapping[str, Any]) -> dict[str, int]:
    """The steps of the layers' updates, as they were saved."""
    return {name: _whole(at) for name, at in saved.items()}


def _whole(value: Any) -> int:
    """A number as it was saved, be it in an array."""
    number = int(value)
    if number != value or number < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return number


def _remembered(recipe: Recipe, key: str, value: Any, mask: Any) -> np.ndarray:
    """What a part of the recipe remembers of a layer, if it can be that."""
    host = to_host(value)
    parts = [recipe.criterion, recipe.grower, recipe.initial, recipe.distribution]
    parts += [getattr(part, "inner", None) for part in parts]
    own = {REMEMBERED[type(part)] for part in parts if type(part) in REMEMBERED}
    name, shape = key.removeprefix(FIRST), host.shape  # parts of your own may remember any shape
    if name in own:
        shape = () if name == REMEMBERED[Adaptive] else tuple(mask.shape)
    if host.shape != shape or host.dtype.kind in "OSU":
        raise ValueError(f"{key} is an array of {host.dtype} of shape {host.shape}")
    if name in own and name == REMEMBERED[Adaptive] and host < 0:
        raise ValueError(f"{key} is {host}, which no mean of squares is")
    return host


def check(saved: Any) -> None:
    """Refuse what is no whole state of this version, whatever its layers are."""
    if not isinstance(saved, Mapping):
        raise FormatError(
            f"a saved state must be a mapping, as state_dict gives it, got {type(saved).__name__}"
        )
    if not isinstance(saved.get("format"), str) or saved["format"] != FORMAT:
        raise FormatError(f"this is not a {FORMAT} state: its format is {saved.get('format')!r}")
    version = saved.get("version")
    if getattr(version, "ndim", 0) or version != VERSION:
        raise FormatError(
            f"the saved state has version {version!r}, this library reads {VERSION}; load it with "
            "the release of sparse24 that saved it"
        )
    missing = KEYS - saved.keys()
    if missing:
        raise FormatError(f"the saved state misses {sorted(missing)}; it is damaged")
