"""Prepared products that run a function: cuBLAS, with copies or conversions, several launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparse24 import _arrays, _foreign, _foreign_streams, _overlap, _streams
from sparse24._dispatch import OVERLAP
from sparse24._errors import ArgumentError
from sparse24._options import Call
from sparse24._records import Fused


class ReadyArrays:
    """A prepared product that runs a function of arrays.

    Parameters
    ----------
    run : callable
        ``run(x, out)`` multiplies CuPy arrays like those of the call that prepared it.
    allocate : callable
        Makes a result.
    captured : bool
        Whether a graph can hold it.
    held : cupy.ndarray, optional
        Another array that the result must not overlap.
    """

    reads_options = False

    def __init__(
        self, run: Callable[..., Any], allocate: Callable[[], Any], *, captured: bool = True,
        held: Any = None,
    ):  # fmt: skip
        self._run, self._allocate, self._held, self.captured = run, allocate, held, captured

    def __call__(self, x: Any, out: Any) -> Any:
        result = self._allocate() if out is None else out
        _foreign_streams.make_current()
        if _arrays.is_cupy(x):
            self._multiply(x, result, given=out is not None)
        else:
            with _foreign_streams.stream_of(x):
                views = _foreign.view_of(x), _foreign.view_of(result)
                self._multiply(*views, given=out is not None)
        return result

    def _multiply(self, x: Any, result: Any, *, given: bool) -> None:
        if given:
            self._check_apart(result, x, "out")
        _streams.hold_current()
        self._run(x, result)

    def _check_apart(self, written: Any, x: Any, name: str) -> None:
        held = self._held
        if _overlap.overlaps(written, x) or (held is not None and _overlap.overlaps(written, held)):
            raise ArgumentError(OVERLAP.format(name))


class ReadyArraysWithOptions(ReadyArrays):
    """A `ReadyArrays` for a call with options, which are read again at each call.

    ``run(x, out, epilogue)`` takes what `make_epilogue` makes of a call and its `out`, which
    refuses what does not fit.  No graph holds it.
    """

    reads_options = True

    def __init__(
        self, run: Callable[..., Any], allocate: Callable[[], Any],
        make_epilogue: Callable[[Call, Any], Fused], *, held: Any,
    ):  # fmt: skip
        super().__init__(run, allocate, captured=False, held=held)
        self._make_epilogue = make_epilogue

    def __call__(self, x: Any, out: Any, call: Call) -> Any:  # type: ignore[override]
        _foreign_streams.make_current()
        with _foreign_streams.stream_of(x):  # in whose order vectors are made, and freed
            result = self._allocate() if out is None else out
            epilogue = self._make_epilogue(call, out)
            b, to = (y if _arrays.is_cupy(y) else _foreign.view_of(y) for y in (x, result))
            if out is not None:
                self._check_apart(to, b, "out")
            if epilogue.aux is not None:
                self._check_apart(epilogue.aux, b, "aux")
            _streams.hold_current()
            self._run(b, to, epilogue)
        return result
