"""What the check of an array found, on the device or waited for: its first bad group is named."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24 import _spec
from sparse24._errors import PatternError


class Whole(NamedTuple):
    """The deferred check of an array, as a part of it keeps it; `shape` has the groups last."""

    status: Any
    shape: tuple[int, ...]
    argument: str  # what was looked at


def of_whole(status, shape: tuple[int, ...], argument: str = "x") -> Whole | None:
    """The deferred check of an array of this shape, for a part of it; waits for nothing."""
    return status if status is None or isinstance(status, Whole) else Whole(status, shape, argument)


def found(status) -> tuple[int, int]:
    """First bad group, or -1, and number of bad groups, of a kernel's check; waits for the device.

    There the first is stored inverted, so that a status of zeros means that there are none.
    """
    if isinstance(status, tuple):
        return status
    inverted, count = status.get().tolist()
    return ~inverted, count


def waited(status):
    """A check's result on the host; waits for the device."""
    if isinstance(status, Whole):
        return status._replace(status=found(status.status))
    return None if status is None else found(status)


def refuse(
    status,
    shape: tuple[int, ...],
    *,
    axis: int = -1,
    argument: str = "x",
    prune: str = "sparse24.prune",
    within: str = "",
    turned: bool = False,
) -> None:
    """Raise `PatternError` if a check found a bad group; waits for the device.

    `status` is that of a kernel's check; `shape` that of the array with the groups along
    its last axis; `prune` the call that would make it fit; `within` where groups were counted,
    if not in all of the array; `turned` whether it is known to fit along its other axis.
    """
    if status is None:
        return
    if isinstance(status, Whole):
        status, shape, argument = status
    first, count = found(status)
    if count == 0:
        return
    fault = "has more than 2 non-zeros"
    way_out = f"prune it first ({prune}), or compress with on_excess='prune'"
    if argument == "x" and len(shape) == 2:
        way_out += "; sparse24.hybrid keeps every element"
    if argument in ("mask", "like"):
        fault, way_out = "keeps more than 2 elements", "keep at most 2, as sparse24.mask(x) does"
    if argument == "like" or (turned and argument == "x"):
        way_out = f"its groups run along the other axis: pass axis={-3 - axis}"
    place = place_of_group(first, shape, _spec.GROUP, axis)
    raise PatternError(
        f"{argument}[{place}] {fault}, the first of {count} such groups{within}; {way_out}"
    )


def place_of_group(number: int, shape: tuple[int, ...], size: int, axis: int) -> str:
    """Where a group of `size` elements is, as an index of the array whose groups run along `axis`.

    Groups are numbered in the order of `shape`, that of the array with the axis moved to the end.
    """
    *place, group = map(int, np.unravel_index(number, (*shape[:-1], -(-shape[-1] // size))))
    span = f"{size * group}:{min(size * (group + 1), shape[-1])}"
    places = [str(i) for i in place]
    places.insert(axis % len(shape), span)
    return ", ".join(places)
