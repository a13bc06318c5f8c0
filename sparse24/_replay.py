"""Repeated calls: signatures of calls, and the prepared products that they find.

Choosing and preparing a kernel takes a hundred microseconds of Python, while a product with few
tokens may take five on the GPU.  So every sparse array remembers prepared products (`_ready`) by
the signature of the call: layouts and options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _autotune,
    _bounded,
    _devices,
    _dtypes,
    _overlap,
    _ready_cpu,
    _ready_stacks,
    _tuning_cache,
)
from sparse24._dispatch import Launched
from sparse24._moved_layout import MovedLayout, laying_out
from sparse24._options import NO_OPTIONS, Call, Epilogue
from sparse24._ready import ReadyProduct, allocator, bound
from sparse24._ready_arrays import ReadyArrays, ReadyArraysWithOptions
from sparse24._ready_converted import ReadyConverted
from sparse24._ready_pieces import ReadyInPieces
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24.kernels import pieces
from sparse24.kernels.launch import Launcher
from sparse24.kernels.sparse_split import InPieces

MOST_SIGNATURES = 256
IN_PLACE = "out"  # what stands for `c` in a signature if it is the result itself, anywhere


class _Unknown(Exception):
    """An option of a call that cannot be compared cheaply."""


def signature(
    x: Any, out: Any, call: Call, *, from_left: bool, placed: bool = True
) -> tuple | None:
    """A hashable key of all that decides how a call is launched; None if it is not remembered.

    It holds the layouts of the operands and all options, whether `out` is `c`, or holds a vector
    of the epilogue, which is then copied, and, if `placed`, the addresses of these vectors.  For
    NumPy arrays it leaves out the options that are read again at each call.
    """
    if _autotune.active.get() and _autotune.is_on():
        return None
    layout = layout_of(x)
    if layout is None:
        return None
    if out is None and call is NO_OPTIONS:
        return from_left, _tuning_cache.generation(), layout
    target = None if out is None else layout_of(out)
    if out is not None and (target is None or type(out) is not type(x)):
        return None
    if call is NO_OPTIONS:
        return from_left, _tuning_cache.generation(), layout, target
    if call.c is not None and call.c is out:
        call = call._replace(c=IN_PLACE)
    options = (call.dtype, call.algorithm, call.other_dtype) if type(x) is np.ndarray else call
    try:
        facts = tuple([v if type(v) in _PLAIN_TYPES else _fact(v, placed) for v in options])
    except _Unknown:
        return None
    if out is not None and type(x) is not np.ndarray and _holds_vector(out, call):
        facts = (*facts, "vectors in out")
    return from_left, _tuning_cache.generation(), layout, target, facts


# Types that are compared by value; `_fact` handles the others.
_PLAIN_TYPES = frozenset((type(None), str, float, int, bool, type))


def layout_of(x: Any) -> tuple | None:
    """Shape, strides, type and, on the GPU, alignment to 16 bytes and device of an array.

    None for what is not remembered: on the CPU arrays of other libraries than NumPy, which are
    converted at each call; CuPy's on another device than the current one; tensors without memory,
    which are refused, also beside a launch that would serve their layout.
    """
    if type(x) is np.ndarray:
        return x.shape, x.strides, x.dtype
    if _arrays.is_cupy(x):
        if _devices.is_elsewhere(x):
            return None
        return x.shape, x.strides, x.dtype, x.data.ptr & 15, x.data.device_id
    if _arrays.is_torch(x) and x.is_cuda and not x.is_neg():  # else the call is to be refused
        place, device = _address(x), x.device.index
        if not place:
            return None
        # Work goes to torch's stream, whose arguments may differ from another stream's.
        return x.shape, x.stride(), x.dtype, place & 15, device, _arrays.torch_stream(x)
    return None


def _address(x: Any) -> int:
    """Where the elements of a tensor begin; 0 if it has none of its own, as one that wraps others.

    torch raises that of a sparse tensor, and of one that stands for others in `torch.func`.
    """
    try:
        return x.data_ptr()
    except RuntimeError:
        return 0


def _fact(value: Any, placed: bool) -> Any:
    if type(value) in _PLAIN_TYPES or isinstance(value, np.generic | np.dtype):
        return value
    if _dtypes.is_torchs(value):
        return value
    if isinstance(value, Epilogue):
        own = vars(value).values()
        return tuple([v if type(v) in _PLAIN_TYPES else _fact(v, placed) for v in own])
    if isinstance(value, tuple):
        return tuple([_fact(v, placed) for v in value])
    if _arrays.is_cupy(value):
        return _place(value.data.ptr, placed), value.shape, value.strides, value.dtype
    on_gpu = _arrays.is_torch(value) and value.is_cuda and not value.is_neg()
    address = _address(value) if on_gpu else 0
    if not address:
        raise _Unknown
    return _place(address, placed), value.shape, value.stride(), value.dtype


def _holds_vector(out: Any, call: Call) -> bool:
    """Whether a result shares memory with a scale or a bias of the call, all on a GPU."""
    own = {} if call.epilogue is None else vars(call.epilogue)
    vectors = (*(call.scales or ()), *(own[name] for name in own if name != "aux"))
    return any(_arrays.address(v) is not None and _overlap.overlaps(v, out) for v in vectors)


def _place(address: int, placed: bool) -> int:
    return address if placed else address % _arrays.VECTOR


def of_run(run: Any, lay: Callable[..., Any], x: Any, result: Any, product: Any) -> Any:
    """A prepared product that repeats a call in which ``run(*lay(x, result))`` multiplied.

    Parameters
    ----------
    run : callable
        Called with ``(b, out)``, matrices; says by `captured` whether a graph can hold it.  With
        `bind`, as that of `_ready.bound`, it is one launch; its `ready`, if there is one, may know
        better than to repeat its copies (`_hybrid.staged.Staged`).
    lay : callable
        Makes the matrices from CuPy arrays like `x` and `result`.
    product : array
        The result as the caller got it.
    """
    allocate, (b, out) = allocator(product), lay(x, result)
    in_place = b.data.ptr == x.data.ptr  # else a graph would not keep the copy
    if in_place and hasattr(run, "bind"):
        return bound(run.bind, b, out, allocate, captured=run.captured)
    if in_place and hasattr(run, "ready") and (prepared := run.ready(b, out, allocate)):
        return prepared
    captured = in_place and run.captured

    def multiply(x: Any, out: Any) -> None:
        with laying_out:
            run(*lay(x, out))

    return ReadyArrays(multiply, allocate, captured=captured)


def remember(
    plans: dict, key: tuple, launched: Launched, x: Any, result: Any, call: Call,
    make_epilogue: Callable[[Call, Any], Fused], *, from_left: bool,
) -> ReadyProduct | None:  # fmt: skip
    """Keep what a call launched for the next one of its signature, if that can be replayed.

    `make_epilogue` makes the epilogue of a later call with options, and of its `out`.  Returns a
    plan of a single launch.
    """
    if type(x) is np.ndarray:
        if x.ndim == result.ndim <= 2:
            make = None if call is NO_OPTIONS else make_epilogue
            keep(plans, key, _ready_cpu.of_launched(launched, result, make, transposed=from_left))
        elif x.ndim > 1 and call is NO_OPTIONS and _ready_stacks.takes(launched):
            stack = _ready_stacks.ReadyStack(launched, result, transposed=from_left)
            _ready_stacks.make_room(plans, stack.matrices)
            keep(plans, key, stack)
        return None
    allocate = allocator(result)
    in_pieces = isinstance(launched.launcher, InPieces) and launched.launcher.is_whole
    if in_pieces or isinstance(launched.launcher, Launcher):
        if not _operands_are_the_callers(launched, x, result):
            return None
        in_place = call.c is not None and call.c is result
        plan = of_launched(
            launched, allocate, call, make_epilogue, transposed=from_left, in_place=in_place
        )
        if plan is not None:
            keep(plans, key, plan)
        return plan
    if x.ndim == result.ndim <= 2:
        run = _run(launched, vector=x.ndim == 1, transposed=from_left)
        held = launched.a.values if isinstance(launched.a, Compressed24) else launched.a
        if launched.epilogue is PLAIN:
            keep(plans, key, of_arrays(run, result, held))
        else:
            keep(plans, key, ReadyArraysWithOptions(run, allocate, make_epilogue, held=held))
    return None


def of_arrays(run: Callable[[Any, Any], None], result: Any, held: Any = None) -> ReadyArrays:
    """What repeats ``run(x, out)`` of arrays as the caller has them, with the result `result`.

    Results must not overlap `held`, if that is given.  No graph holds it: what `run` allocates
    would not live as long (see `_cuda_graphs.keeping`).
    """
    return ReadyArrays(run, allocator(result), captured=False, held=held)


def _run(launched: Launched, *, vector: bool, transposed: bool) -> Callable[..., None]:
    """``run(x, out, epilogue)`` with what a call launched."""
    launcher, a = launched.launcher, launched.a  # not the operands of the call
    lay = _ready_cpu.as_matrices(vector=vector, transposed=transposed)

    def run(x: Any, out: Any, epilogue: Fused = PLAIN) -> None:
        epilogue = epilogue.transposed() if transposed else epilogue
        launcher(a, *(lay(x, out) if lay else (x, out)), epilogue)

    return run


def of_launched(
    launched: Launched, allocate: Callable[[], Any], call: Call,
    make_epilogue: Callable[[Call, Any], Fused], *, transposed: bool,
    layout: MovedLayout | None = None, in_place: bool = False,
) -> ReadyProduct | None:  # fmt: skip
    """What repeats a product on the caller's operands; the last two are those of `ReadyProduct`.

    None if its epilogue has matrices that are not the caller's, or if pieces of A may still be
    in the making.
    """
    epilogue = launched.epilogue
    if isinstance(launched.launcher, InPieces):
        made = pieces.settled(launched.a)
        if made is None or not is_the_callers(epilogue, call):
            return None
        return ReadyInPieces(launched, made, allocate, layout, in_place=in_place)
    if is_the_callers(epilogue, call):
        return ReadyProduct(launched, allocate, layout, in_place=in_place)
    if not _are_the_callers((epilogue.c, epilogue.aux), call):
        return None
    return ReadyConverted(launched, allocate, make_epilogue, transposed=transposed, layout=layout)


def repeat(plan: Any, x: Any, out: Any, call: Call) -> Any:
    """Repeat a call with options, which are part of the plan unless it reads them again."""
    return plan(x, out, call) if plan.reads_options else plan(x, out)


def keep(plans: dict, key: tuple, plan: Any) -> None:
    """Remember a prepared product; if there are too many, all others are forgotten."""
    _bounded.remember(plans, key, plan, MOST_SIGNATURES)


def find(plans: dict, key: tuple | None, x: Any) -> Any:
    """The prepared product of a call; None if it is unknown, or a captured graph cannot hold it."""
    plan = None if key is None else plans.get(key)
    return plan if plan is not None and can_repeat(plan, x) else None


def can_repeat(plan: Any, x: Any) -> bool:
    """Whether a prepared product may run now: some cannot be held by a captured graph."""
    return plan.captured or not _arrays.captures_work_on(x)


def _operands_are_the_callers(launched: Launched, x: Any, result: Any) -> bool:
    """Whether no operand was copied or converted on the way to the kernel."""
    used, given = (launched.b, launched.out), (x, result)
    return [part.data.ptr for part in used] == [_arrays.address(array) for array in given]


def is_the_callers(e: Fused, call: Call) -> bool:
    """Whether an epilogue reads the arrays that the caller gave, not copies of them."""
    vectors = e.row_scale, e.column_scale, e.row_bias, e.column_bias
    return _are_the_callers((e.c, e.aux, *vectors), call)


def _are_the_callers(parts: tuple, call: Call) -> bool:
    used = {part.data.ptr for part in parts if part is not None}
    own = vars(call.epilogue).values() if call.epilogue is not None else ()
    return used <= {_arrays.address(value) for value in (call.c, *own, *(call.scales or ()))}
