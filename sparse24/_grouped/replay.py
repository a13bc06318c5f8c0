"""Repeated grouped products on a GPU: prepared launches, by the layouts of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays, _overlap, _replay
from sparse24._grouped.product import Grouped
from sparse24._options import Call
from sparse24._ready import allocator, bound


def signature(
    x: Any, out: Any, offsets: Any, call: Call, *, by_rows: bool, gated: bool
) -> tuple | None:
    """A hashable key of all that decides how a call is launched; None if it is not remembered.

    Remembered are calls with all arrays of one library on a GPU.  The offsets may lie elsewhere at
    the next call; biases and scales may not.
    """
    kind = type(x)
    if kind is np.ndarray or type(offsets) is not kind:
        return None
    of_call = _replay.signature(x, out, call, from_left=by_rows)
    of_offsets = None if of_call is None else _replay.layout_of(offsets)
    if of_offsets is None or (out is not None and _overlap.overlaps(out, offsets)):
        return None
    return "experts", gated, of_call, of_offsets


def remember(
    plans: dict, key: tuple, bind: Callable[..., Any], used: Grouped, given: tuple[Any, ...],
    call: Call, *, by_rows: bool,
) -> None:  # fmt: skip
    """Keep the launch of a call for the next one of its signature, if that can be replayed.

    Parameters
    ----------
    bind : callable
        Of `dispatch.fill`.
    used : Grouped
        The arrays as the kernel took them.
    given : (array, array, array)
        The tokens, the result and the offsets as the caller has them.
    call : Call
        With biases and scales as the caller has them.
    by_rows : bool
        Whether tokens are the rows of the result, in whose order it is stored in any case.
    """
    of_kernel = [array.data.ptr for array in (used.b, used.out, used.offsets)]
    if of_kernel != [_arrays.address(array) for array in given]:
        return
    if not _replay.is_the_callers(used.epilogue, call):
        return
    result = given[1]
    make = allocator(result if by_rows else result.T)
    allocate = make if by_rows else lambda: make().T
    values = used.a.stored.values
    _replay.keep(plans, key, bound(bind, used.b, used.out, allocate, values=values))
