"""A call like an earlier one goes straight to the kernel that was prepared for it.

Choosing and preparing a kernel is a hundred microseconds of Python; a product of few
tokens takes the GPU five.  So every array remembers, by the signature of a call, what
launches it, and by the addresses of the operands the laid-out arguments.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays, _autotune, _foreign, _tuning_cache
from sparse24 import _records as records
from sparse24._dispatch import OVERLAP, Launched
from sparse24._errors import ArgumentError
from sparse24._fuse import PLAIN, Call, Epilogue
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import Launch, Launcher, current_stream

MOST_SIGNATURES = 256
MOST_ADDRESSES = 256  # a signature


class _Unknown(Exception):
    """Something in a call whose identity cannot be told cheaply."""


def signature(x: Any, out: Any, call: Call, *, from_left: bool) -> tuple | None:
    """What decides how a call is launched, hashable; None for calls that are not remembered.

    Layouts of the operands, all options, and the addresses of the epilogue's vectors.
    """
    if _autotune.active.get():
        return None
    layout = layout_of(x)
    if layout is None:
        return None
    if out is None and call is PLAIN:
        return from_left, _tuning_cache.generation(), layout
    target = None if out is None else layout_of(out)
    if out is not None and (target is None or type(out) is not type(x)):
        return None
    try:
        facts = tuple([v if type(v) in _PLAIN_TYPES else _fact(v) for v in call])
    except _Unknown:
        return None
    return from_left, _tuning_cache.generation(), layout, target, facts


# Told apart by value; all else of a call is looked at more closely.
_PLAIN_TYPES = frozenset((type(None), str, float, int, bool, type))


def layout_of(x: Any) -> tuple | None:
    """How an array on the GPU lies there, its address but for 16 bytes; None for others."""
    if _arrays.is_cupy(x):
        return x.shape, x.strides, x.dtype, x.data.ptr & 15, x.data.device_id
    if _arrays.is_torch(x) and x.is_cuda:
        device = x.device.index
        # Work goes to torch's stream, whose arguments may differ from another stream's.
        stream = _arrays.torch_stream(x)
        return x.shape, x.stride(), x.dtype, x.data_ptr() & 15, device, stream
    return None


def _fact(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES or isinstance(value, np.generic | np.dtype):
        return value
    if isinstance(value, Epilogue):
        return tuple([v if type(v) in _PLAIN_TYPES else _fact(v) for v in vars(value).values()])
    if isinstance(value, tuple):
        return tuple(map(_fact, value))
    if _arrays.is_cupy(value):
        return value.data.ptr, value.shape, value.strides, value.dtype
    if _arrays.is_torch(value) and value.is_cuda:
        return value.data_ptr(), value.shape, value.stride(), value.dtype
    raise _Unknown


class View:
    """An address and a layout: what a `Launcher` needs of an array."""

    __slots__ = ("dtype", "itemsize", "ndim", "ptr", "shape", "size", "strides")

    def __init__(self, array: Any):
        self.ptr, self.shape, self.strides = array.data.ptr, array.shape, array.strides
        self.dtype, self.itemsize = array.dtype, array.dtype.itemsize
        self.ndim, self.size = array.ndim, array.size

    @property
    def data(self) -> View:
        """Itself, so that ``view.data.ptr`` reads as that of a CuPy array."""
        return self

    def at(self, address: int) -> View:
        """The same layout elsewhere."""
        moved = copy.copy(self)
        moved.ptr = address
        return moved


def _same(x: View, y: View) -> bool:
    return (x.ptr, x.strides) == (y.ptr, y.strides)


class Ready:
    """A prepared product of one signature: makes a result and launches.

    Parameters
    ----------
    bind : callable
        ``bind(b, out, stream)`` lays out the arguments of a `Launch`.
    b, out : array
        Of the call that prepared it.
    allocate : callable
        Makes a result.
    captured : bool
        Whether a graph can hold it.
    """

    def __init__(
        self, bind: Callable[..., Any], b: Any, out: Any, allocate: Callable[[], Any],
        *, captured: bool = True,
    ):  # fmt: skip
        self._bind, self._allocate, self.captured = bind, allocate, captured
        self._b, self._out = View(b), View(out)
        self._launches: dict[tuple[int, int, int], Any] = {}

    def __call__(self, x: Any, out: Any) -> Any:
        result = self._allocate() if out is None else out
        if _arrays.is_cupy(x):
            key = (x.data.ptr, result.data.ptr, current_stream())
        else:
            key = (x.data_ptr(), result.data_ptr(), _arrays.torch_stream(x))
        launch = self._launches.get(key)
        if launch is None:
            launch = self._remember(*key)
        _foreign.make_current()
        if self.captured or _arrays.is_cupy(x):
            launch(key[2])
        else:
            with _foreign.stream_of(x):  # cuBLAS asks CuPy for the stream
                launch(key[2])
        return result

    def _remember(self, b_address: int, out_address: int, stream: int) -> Launch:
        launch = self._lay_out(self._b.at(b_address), self._out.at(out_address), stream)
        if len(self._launches) >= MOST_ADDRESSES:
            self._launches.clear()
        self._launches[b_address, out_address, stream] = launch
        return launch

    def _lay_out(self, b: View, out: View, stream: int) -> Launch:
        if _arrays.overlaps(out, b):
            raise ArgumentError(OVERLAP.format("out"))
        return self._bind(b, out, stream)


class ReadyProduct(Ready):
    """The same with a 2:4 operand and an epilogue."""

    def __init__(self, launched: Launched, allocate: Callable[[], Any]):
        self._record = launched.a
        bind = functools.partial(launched.launcher.bind, launched.a)
        super().__init__(bind, launched.b, launched.out, allocate)
        self._params = None
        if launched.epilogue is not records.PLAIN:
            self._params = _epilogue.params(launched.epilogue)
        c, aux = launched.epilogue.c, launched.epilogue.aux
        self._c = None if c is None else View(c)
        self._aux = None if aux is None else View(aux)

    def _lay_out(self, b: View, out: View, stream: int) -> Launch:
        if _arrays.overlaps(out, self._record.values):
            raise ArgumentError(OVERLAP.format("out"))
        if self._aux is not None and _arrays.overlaps(self._aux, out):
            raise ArgumentError("aux shares memory with out; pass another array")
        if self._c is not None and _arrays.overlaps(self._c, out) and not _same(self._c, out):
            raise ArgumentError("c overlaps out without being out; pass a copy of c")
        launch = super()._lay_out(b, out, stream)
        return launch if self._params is None else launch.with_last(self._params)


class ReadyArrays:
    """The same for launchers that want arrays, such as cuBLAS: plain products of matrices."""

    def __init__(self, launched: Launched, allocate: Callable[[], Any], *, from_left: bool):
        self._launcher, self._a = launched.launcher, launched.a
        self._allocate, self._from_left = allocate, from_left

    def __call__(self, x: Any, out: Any) -> Any:
        result = self._allocate() if out is None else out
        if out is not None and _arrays.overlaps(out, x):
            raise ArgumentError(OVERLAP.format("out"))
        b, target = (x.T, result.T) if self._from_left else (x, result)
        self._launcher(self._a, b, target, records.PLAIN)
        return result


def remember(plans: dict, key: tuple, launched: Launched, x: Any, result: Any, call: Call) -> None:
    """Keep what a call launched for the next one of its signature, if that can be replayed."""
    make_room(plans)
    allocate = allocator(result)
    if isinstance(launched.launcher, Launcher):
        if _addresses_are_the_callers(launched, x, result, call):
            plans[key] = ReadyProduct(launched, allocate)
    elif launched.epilogue is records.PLAIN and _arrays.is_cupy(x) and x.ndim == result.ndim == 2:
        plans[key] = ReadyArrays(launched, allocate, from_left=key[0])


def capturing(x: Any) -> bool:
    """Whether a graph is captured from the stream in which work on `x` goes."""
    if _arrays.is_torch(x):
        import torch

        return torch.cuda.is_current_stream_capturing()
    return _arrays.cupy_module().cuda.get_current_stream().is_capturing()


def make_room(plans: dict) -> None:
    """Forget all signatures where there are too many."""
    if len(plans) >= MOST_SIGNATURES:
        plans.clear()


def allocator(result: Any) -> Callable[[], Any]:
    """Makes arrays like a result, which is not kept alive."""
    if _arrays.is_cupy(result):
        return functools.partial(_arrays.cupy_module().empty, result.shape, result.dtype)
    import torch

    kind = {"dtype": result.dtype, "device": result.device}
    return functools.partial(torch.empty, tuple(result.shape), **kind)


def _addresses_are_the_callers(launched: Launched, x: Any, result: Any, call: Call) -> bool:
    """Whether nothing was copied or converted on the way to the kernel."""
    e = launched.epilogue
    parts = (e.c, e.aux, e.row_scale, e.column_scale, e.row_bias, e.column_bias)
    used = {part.data.ptr for part in parts if part is not None}
    asked = vars(call.epilogue).values() if call.epilogue is not None else ()
    given = {_address(value) for value in (call.c, *asked, *(call.scales or ()))}
    same = launched.b.data.ptr == _address(x) and launched.out.data.ptr == _address(result)
    return same and used <= given


def _address(value: Any) -> int | None:
    if _arrays.is_cupy(value):
        return value.data.ptr
    return value.data_ptr() if _arrays.is_torch(value) else None
