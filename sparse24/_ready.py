"""Prepared products of one signature, which repeat a call on the GPU without planning.

A signature is what decides how a call is launched: layouts and options (`_replay`).  A prepared
product holds the compiled kernel and its arguments, into which each call writes its addresses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from sparse24 import _arrays, _foreign_streams, _overlap
from sparse24 import _records as records
from sparse24._dispatch import OVERLAP, Launched
from sparse24._errors import ArgumentError
from sparse24._moved_layout import Last, MovedLayout
from sparse24._views import View
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels.launch import Launch, current_stream

Refusal = tuple[Callable[[int, int], bool], str]  # ``meets(b, out)`` by addresses, and a message


class Ready:
    """A prepared product of one signature: makes a result and launches.

    Parameters
    ----------
    layout : MovedLayout
        Of the addresses `own`, b, out and, where calls give one, a vector.
    allocate : callable
        Makes a result.
    captured : bool
        Whether a graph can hold it.
    own : tuple of int
        Addresses that come first in each launch.
    last : Last, optional
        The last argument of each launch.
    refusals : sequence of Refusal
        Where b and out must not lie, beside each on the other.
    always : bool
        Whether that is looked at also where the call gives no result.
    """

    reads_options = False  # at each call, as an epilogue that holds copies does

    def __init__(
        self, layout: MovedLayout, allocate: Callable[[], Any], *, captured: bool = True,
        own: tuple[int, ...] = (), last: Last | None = None, refusals: Sequence[Refusal] = (),
        always: bool = False,
    ):  # fmt: skip
        self.layout, self.allocate, self.captured = layout, allocate, captured
        self.own, self.last = own, last
        self._refusals, self._always = list(refusals), always

    def __call__(self, x: Any, out: Any, vector: Any = None) -> Any:
        return self.launch(x, out, vector, last=self.last)

    def launch(self, x: Any, out: Any, vector: Any = None, *, last: Last | None) -> Any:
        """Launch with this last argument; makes the result if `out` is None."""
        result = self.allocate() if out is None else out
        if of_cupy := _arrays.is_cupy(x):
            b, to, stream = x.data.ptr, result.data.ptr, current_stream()
        else:
            b, to, stream = x.data_ptr(), result.data_ptr(), _arrays.torch_stream(x)
        if out is not None or self._always:
            for meets, message in self._refusals:
                if meets(b, to):
                    raise ArgumentError(message)
        given = (*self.own, b, to)
        if vector is not None:
            given = (*given, _arrays.address(vector) or 0)
        _foreign_streams.make_current()
        if of_cupy:
            self._enqueue(given, stream, last)
        else:
            self._enqueue_for_torch(given, stream, last, x)
        return result

    def _asks_cupy(self) -> bool:
        """Whether a launch asks CuPy for the stream, as cuBLAS does, which no graph can hold."""
        return not self.captured

    def _enqueue(self, given: tuple[int, ...], stream: int, last: Last | None) -> None:
        """Launch on CuPy's current stream."""
        self.layout.enqueue(given, stream, last)

    def _enqueue_for_torch(
        self, given: tuple[int, ...], stream: int, last: Last | None, x: Any
    ) -> None:
        """Launch on torch's stream; as CuPy allocates nothing, less than `stream_of` is set up."""
        here = _is_on_current_device(x)
        if here and not self._asks_cupy():
            self.layout.enqueue(given, stream, last)
        elif here and _foreign_streams.is_current_device(x):
            with _arrays.cupy_stream(stream):
                self.layout.enqueue(given, stream, last)
        else:
            with _foreign_streams.stream_of(x):
                self.layout.enqueue(given, stream, last)


def bound(
    bind: Callable[..., Any], b: Any, out: Any, allocate: Callable[[], Any],
    *, captured: bool = True, values: Any = None,
) -> Ready:  # fmt: skip
    """A `Ready` of what ``bind(b, out, stream)`` lays out for views of b and out.

    Where calls give a vector, its address follows those of b and out.  Calls may not write over
    `values`, the array of the stored elements, if they are given.
    """
    layout, refusals = MovedLayout(by_address(bind, b, out)), [out_on_b(b, out)]
    if values is not None:
        refusals.append(out_on_values(out, values))
    return Ready(layout, allocate, captured=captured, refusals=refusals)


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
    in_place : bool
        Whether `c` is the result, wherever a call has that.
    """

    def __init__(
        self, launched: Launched, allocate: Callable[[], Any], layout: MovedLayout | None = None,
        *, in_place: bool = False,
    ):  # fmt: skip
        a, epilogue = launched.a, launched.epilogue
        if layout is None:
            layout = MovedLayout(product_by_address(launched))
        super().__init__(
            layout, allocate, own=(a.values.data.ptr, a.packed.data.ptr),
            last=None if epilogue.is_plain else Last.of(_epilogue.params(epilogue)),
            refusals=_refusals(launched, in_place=in_place), always=epilogue.aux is not None,
        )  # fmt: skip
        self._in_place = in_place and self.last is not None
        self._record = a  # kept alive, as the arrays of the epilogue are not
        self.settled, self.waits = launched.settled, launched.waits

    def __call__(self, x: Any, out: Any, vector: Any = None) -> Any:
        last = self._reading(out) if self._in_place else self.last
        return self.launch(x, out, vector, last=last)

    def _reading(self, out: Any) -> Last:
        """The last argument with `out` as `c`."""
        assert self.last is not None
        params = self.last.argument.copy()
        params.view(_epilogue.PARAMS)["c"] = _arrays.address(out)
        return Last.of(params)


def _refusals(launched: Launched, *, in_place: bool) -> list[Refusal]:
    """Where b and out must not lie: on other arrays that the product reads or writes."""
    b, out, c, aux = launched.b, launched.out, launched.epilogue.c, launched.epilogue.aux
    found = [out_on_b(b, out), out_on_values(out, launched.a.values)]
    if aux is not None:
        out_on_aux, b_on_aux = _over(out, aux), _over(b, aux)
        message = "aux shares memory with out; pass another array"
        found.append((lambda _, to: out_on_aux(to), message))
        found.append((lambda at, _: b_on_aux(at), OVERLAP.format("aux")))
    if c is not None and not in_place:
        out_on_c, there = _over(out, c), c.data.ptr if c.strides == out.strides else None
        message = "c overlaps out and is another array; pass out itself, or a copy"
        found.append((lambda _, to: to != there and out_on_c(to), message))
    return found


def out_on_b(b: Any, out: Any) -> Refusal:
    return _meeting(b, out), OVERLAP.format("out")


def out_on_values(out: Any, values: Any) -> Refusal:
    over = _over(out, values)
    return (lambda _, to: over(to)), OVERLAP.format("out")


def _over(x: Any, other: Any) -> Callable[[int], bool]:
    """``over(at)``: whether an array like x shares memory with the other one at this address."""
    meets, there = _meeting(x, other), other.data.ptr
    return lambda at: meets(at, there)


def _meeting(x: Any, y: Any) -> Callable[[int, int], bool]:
    """``meets(at_x, at_y)``: whether arrays like these share memory at these addresses."""
    if not x.size or not y.size:
        return lambda at_x, at_y: False
    (low_x, high_x), (low_y, high_y) = _overlap.extent(x), _overlap.extent(y)
    return lambda at_x, at_y: at_x + low_x < at_y + high_y and at_y + low_y < at_x + high_x


def by_address(bind: Callable[..., Any], *operands: Any) -> Callable[..., list[Any]]:
    """``bind(*views, stream, *vector)`` as a layout of addresses; it holds no array."""
    views = [View(x) for x in operands]

    def lay_out(*key: int) -> list[Any]:
        *addresses, stream = key
        placed = (view.at(x) for view, x in zip(views, addresses, strict=False))
        bound = bind(*placed, stream, *addresses[len(views) :])
        return [*getattr(bound, "launches", (bound,))]

    return lay_out


def product_by_address(launched: Launched) -> Callable[..., list[Launch]]:
    """A product with a plain epilogue as a layout of its values, codes, b, out and scratch."""
    record, bind = launched.a, launched.launcher.bind
    facts = record.shape, record.dtype, launched.settled

    def bind_views(values: View, codes: View, b: View, out: View, *others: int) -> Any:
        return bind(records.Compressed24(values, None, codes, *facts), b, out, *others)

    return by_address(bind_views, record.values, record.packed, launched.b, launched.out)


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
