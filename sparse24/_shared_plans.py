"""Products with arrays that lie in memory like another one, whose plan serves them as well.

The layers of a model have weights of a few shapes.  With a number of tokens that was not there
before, the first of them is planned, and the others take what it has found: what differs are the
addresses, and the vectors of epilogues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from sparse24 import _foreign_streams, _replay
from sparse24._bounded import remember
from sparse24._dispatch import Launched
from sparse24._moved_layout import MovedLayout
from sparse24._options import NO_OPTIONS, Call
from sparse24._ready import ReadyProduct
from sparse24._records import PLAIN, Fused, Operand24
from sparse24._views import View

MOST = 512


class _Shared(NamedTuple):
    """What a plan has of its own; no array is kept alive by it."""

    launched: Launched  # with views, and without the sparse operand
    allocate: Callable[[], Any]
    make_epilogue: Callable[[Call, Any], Fused]
    layout: MovedLayout


_known: dict[tuple, _Shared] = {}


def key_of(
    a: Operand24, x: Any, out: Any, call: Call, key: tuple | None,
    *, from_left: bool, settled: bool = False,
) -> tuple | None:  # fmt: skip
    """All that a plan depends on but for addresses; None where none is shared, as on the CPU.

    `key` is the signature of the call; `settled` as of `Launched`.
    """
    record = a.multiplied(from_left=from_left)
    if type(x) is np.ndarray or record is None or record.packed is None:
        return None
    if call is not NO_OPTIONS:  # it may have addresses of vectors
        key = _replay.signature(x, out, call, from_left=from_left, placed=False)
    parts = (_replay.layout_of(part) for part in (record.values, record.packed))
    return key and (*key, settled, a.dense is None, record.shape, record.dtype.name, *parts)


def find(
    key: tuple | None, a: Operand24, x: Any, out: Any, call: Call, *, from_left: bool
) -> ReadyProduct | None:
    """The prepared product of an array like one that was planned; None if there was none."""
    shared = None if key is None else _known.get(key)
    if shared is None:
        return None
    epilogue = PLAIN
    if call is not NO_OPTIONS:
        with _foreign_streams.stream_of(x):
            epilogue = shared.make_epilogue(call, out)
        epilogue = epilogue.transposed() if from_left else epilogue
        if epilogue.c is not None or epilogue.aux is not None:  # perhaps to be folded
            return None
    launched = shared.launched._replace(a=a.multiplied(from_left=from_left), epilogue=epilogue)
    return _replay.of_launched(
        launched, shared.allocate, call, shared.make_epilogue,
        transposed=from_left, layout=shared.layout,
    )  # fmt: skip


def share(
    key: tuple | None, plan: Any, launched: Launched,
    make_epilogue: Callable[[Call, Any], Fused],
) -> bool:  # fmt: skip
    """Let other arrays take what was planned for one, if that is a single launch; says whether."""
    if key is None or not isinstance(plan, ReadyProduct):
        return False
    b, out = View(launched.b), View(launched.out)
    bare = launched._replace(a=None, b=b, out=out, epilogue=PLAIN)
    shared = _Shared(bare, plan.allocate, make_epilogue, plan.layout)
    remember(_known, key, shared, MOST)
    return True
