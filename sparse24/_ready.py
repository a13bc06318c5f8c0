"""Prepared products of one signature, which repeat a call on the GPU without planning.

A signature is what decides how a call is launched: layouts and options (`_replay`).  A prepared
product holds the compiled kernel and, for recent addresses of operands, its laid-out arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sparse24 import _arrays, _foreign
from sparse24 import _records as records
from sparse24._dispatch import OVERLAP, Launched
from sparse24._errors import ArgumentError
from sparse24._moved import MovedLayout
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import Launch, current_stream

MOST_ADDRESSES = 256  # a signature


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
        moved = object.__new__(View)  # a tenth of the time of `copy.copy`
        moved.ptr, moved.shape, moved.strides = address, self.shape, self.strides
        moved.dtype, moved.itemsize = self.dtype, self.itemsize
        moved.ndim, moved.size = self.ndim, self.size
        return moved

    def matrix(self, index: tuple[int, ...]) -> View:
        """One matrix of a stack."""
        lead = zip(index, self.strides, strict=False)
        part = self.at(self.ptr + sum(i * stride for i, stride in lead))
        part.shape, part.strides, part.ndim = self.shape[-2:], self.strides[-2:], 2
        part.size = part.shape[0] * part.shape[1]
        return part

    def repeated(self, rows: int) -> View:
        """A matrix each of whose rows is this vector."""
        full = self.at(self.ptr)
        full.shape, full.strides, full.ndim = (rows, *self.shape), (0, *self.strides), 2
        full.size = rows * self.size
        return full


def _same(x: View, y: View) -> bool:
    return (x.ptr, x.strides) == (y.ptr, y.strides)


class Ready:
    """A prepared product of one signature: makes a result and launches.

    Parameters
    ----------
    layout : callable
        ``layout(b, out, stream)`` gives one launch for these addresses, ``layout(b, out, vector,
        stream)`` where calls give a vector; see `bound`.
    b, out : array
        Of the call that prepared it.
    allocate : callable
        Makes a result.
    captured : bool
        Whether a graph can hold it.
    """

    def __init__(
        self, layout: Callable[..., Sequence[Any]], b: Any, out: Any, allocate: Callable[[], Any],
        *, captured: bool = True,
    ):  # fmt: skip
        self._layout, self.allocate, self.captured = layout, allocate, captured
        self._b, self._out = View(b), View(out)
        self._launches: dict[tuple[int, ...], Any] = {}

    def __call__(self, x: Any, out: Any, vector: Any = None) -> Any:
        result = self.allocate() if out is None else out
        key: tuple[int, ...]
        if _arrays.is_cupy(x):
            key = (x.data.ptr, result.data.ptr, current_stream())
        else:
            key = (x.data_ptr(), result.data_ptr(), _arrays.torch_stream(x))
        if vector is not None:
            key = (*key, _arrays.address(vector) or 0)
        _foreign.make_current()
        if _arrays.is_cupy(x):
            self._launch(key)
        else:
            self._launch_for_torch(key, x)
        return result

    def _launch(self, key: tuple[int, ...]) -> None:
        """Launch for these addresses; unknown ones are laid out first, for the current device."""
        launch = self._launches.get(key)
        if launch is None:
            launch = self._remember(*key)
        launch(key[2])

    def _remember(self, b_address: int, out_address: int, *rest: int) -> Launch:
        launch = self._lay_out(self._b.at(b_address), self._out.at(out_address), *rest)
        if len(self._launches) >= MOST_ADDRESSES:
            self._launches.clear()
        self._launches[b_address, out_address, *rest] = launch
        return launch

    def _launch_for_torch(self, key: tuple[int, ...], x: Any) -> None:
        """Launch on torch's stream; as nothing is allocated, less than `stream_of` is set up."""
        here = _is_on_current_device(x)
        if here and self.captured:
            self._launch(key)
        elif here and _foreign.is_current_device(x):
            with _arrays.cupy_stream(key[2]):  # cuBLAS asks CuPy for the stream
                self._launch(key)
        else:
            with _foreign.stream_of(x):
                self._launch(key)

    def _lay_out(self, b: View, out: View, stream: int, *vector: int) -> Launch:
        if _arrays.overlaps(out, b):
            raise ArgumentError(OVERLAP.format("out"))
        (launch,) = self._layout(b.ptr, out.ptr, *vector, stream)
        return launch


def bound(
    bind: Callable[..., Any], b: Any, out: Any, allocate: Callable[[], Any],
    *, captured: bool = True,
) -> Ready:  # fmt: skip
    """A `Ready` of what ``bind(b, out, stream)`` lays out for views of b and out.

    With the address of a vector behind them where calls give one.
    """
    return Ready(MovedLayout(by_address(bind, b, out)), b, out, allocate, captured=captured)


class ReadyProduct(Ready):
    """A `Ready` with a 2:4 operand and an epilogue.

    Parameters
    ----------
    launched : Launched
        The call that prepared it.
    allocate : callable
        Makes a result.
    layout : MovedLayout, optional
        That of a product whose operands lie in memory in the same way.
    """

    def __init__(
        self, launched: Launched, allocate: Callable[[], Any], layout: MovedLayout | None = None
    ):
        a = self._record = launched.a
        self.layout = MovedLayout(product_by_address(launched)) if layout is None else layout
        here = functools.partial(self.layout, a.values.data.ptr, a.packed.data.ptr)
        super().__init__(here, launched.b, launched.out, allocate)
        self._params = None
        if launched.epilogue is not records.PLAIN:
            self._params = _epilogue.params(launched.epilogue)
        c, aux = launched.epilogue.c, launched.epilogue.aux
        self._c = None if c is None else View(c)
        self._aux = None if aux is None else View(aux)

    def _lay_out(self, b: View, out: View, stream: int, *vector: int) -> Launch:
        if _arrays.overlaps(out, self._record.values):
            raise ArgumentError(OVERLAP.format("out"))
        if self._aux is not None and _arrays.overlaps(self._aux, out):
            raise ArgumentError("aux shares memory with out; pass another array")
        if self._c is not None and _arrays.overlaps(self._c, out) and not _same(self._c, out):
            raise ArgumentError("c overlaps out and is another array; pass out itself, or a copy")
        launch = super()._lay_out(b, out, stream, *vector)
        return launch if self._params is None else launch.with_last(self._params)


def by_address(bind: Callable[..., Any], *operands: Any) -> Callable[..., list[Any]]:
    """``bind(*views, stream, *vector)`` as a layout of addresses; it holds no array."""
    views = [View(x) for x in operands]

    def lay_out(*key: int) -> list[Any]:
        *addresses, stream = key
        placed = (view.at(x) for view, x in zip(views, addresses, strict=False))
        return [bind(*placed, stream, *addresses[len(views) :])]

    return lay_out


def product_by_address(launched: Launched) -> Callable[..., list[Launch]]:
    """A product with a plain epilogue as a layout of its values, codes, b and out."""
    record, bind = launched.a, launched.launcher.bind
    facts = record.shape, record.dtype

    def bind_views(values: View, codes: View, b: View, out: View, stream: int) -> Launch:
        return bind(records.Compressed24(values, None, codes, *facts), b, out, stream)

    return by_address(bind_views, record.values, record.packed, launched.b, launched.out)


class ReadyArrays:
    """A prepared product that runs a function of arrays: cuBLAS, copies, several products.

    Parameters
    ----------
    run : callable
        ``run(x, out)`` multiplies CuPy arrays like those of the call that prepared it.
    allocate : callable
        Makes a result.
    captured : bool
        Whether a graph can hold it.
    """

    def __init__(
        self, run: Callable[[Any, Any], Any], allocate: Callable[[], Any], *, captured: bool = True
    ):
        self._run, self._allocate, self.captured = run, allocate, captured

    def __call__(self, x: Any, out: Any) -> Any:
        result = self._allocate() if out is None else out
        _foreign.make_current()
        if _arrays.is_cupy(x):
            self._multiply(x, result, given=out is not None)
        else:
            with _foreign.stream_of(x):
                views = _foreign.view_of(x), _foreign.view_of(result)
                self._multiply(*views, given=out is not None)
        return result

    def _multiply(self, x: Any, result: Any, *, given: bool) -> None:
        if given and _arrays.overlaps(result, x):
            raise ArgumentError(OVERLAP.format("out"))
        self._run(x, result)


class ReadyInTurn:
    """Two prepared steps of one call: the result of the first is finished by the second.

    Parameters
    ----------
    first : callable
        ``first(x, None)`` gives the array that the second takes.
    second : Ready
    convert : callable, optional
        Makes the vector that the second reads from the one of the call.
    """

    captured = False  # a graph would not keep what the first one makes

    def __init__(self, first: Any, second: Ready, convert: Callable[[Any], Any] | None = None):
        self._first, self._second, self._convert = first, second, convert

    def __call__(self, x: Any, vector: Any) -> Any:
        product = self._first(x, None)
        if self._convert is None:
            return self._second(product, None)
        return self._second(product, None, self._convert(vector))


def _is_on_current_device(x: Any) -> bool:
    """Whether this thread launches where a tensor lies: a kernel belongs to one device."""
    import torch

    return torch.cuda.current_device() == x.device.index


def allocator(result: Any) -> Callable[[], Any]:
    """Makes arrays like a result, which is not kept alive."""
    if _arrays.is_cupy(result):
        return functools.partial(_arrays.cupy_module().empty, result.shape, result.dtype)
    import torch

    kind = {"dtype": result.dtype, "device": result.device}
    return functools.partial(torch.empty, tuple(result.shape), **kind)
