"""Functions of NumPy and CuPy arrays as operations that JAX can trace.

Compiled code calls Python at such an operation, with the memory of its operands and results as it
lies on the device.  On a GPU the work goes to the stream of XLA, and the call does not wait for it.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse24 import _arrays, _devices
from sparse24._errors import UnsupportedError
from sparse24._jax.arrays import bits, carrier, of_bits, typed
from sparse24._jax.axes import vary, varying

buffer_callback: Any
try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # before JAX 0.6.1
    buffer_callback = None

_CPU = 1  # to DLPack


class Work(abc.ABC):
    """What an operation does: it writes to `outs` what it makes of `views`.

    Both are arrays of NumPy, or of CuPy on a GPU, where fp8 is carried as bits.  A subclass is a
    frozen dataclass, because JAX compiles equal ones once, and holds none of JAX's tracers, which
    would live as long as the compiled code.
    """

    @abc.abstractmethod
    def __call__(self, outs: Sequence[Any], *views: Any) -> None: ...

    def together(self, lead: int, outs: Sequence[Any], *views: Any) -> bool:
        """The work for all elements of `jax.vmap` at once; False if they must be done in turn.

        The first `lead` axes of each array are those of maps, of length 1 where a view is the same
        for all elements.
        """
        return False


def elements(lead: int, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """The arrays at each place of their first `lead` axes, which are broadcast; None stays."""
    shapes = (x.shape[:lead] for x in arrays if x is not None)
    for place in np.ndindex(np.broadcast_shapes(*shapes)):
        yield tuple(None if x is None else x[_within(x, place)] for x in arrays)


def _within(x: Any, place: tuple[int, ...]) -> tuple[Any, ...]:
    """The ellipsis keeps an element without axes an array."""
    return (*(min(i, n - 1) for i, n in zip(place, x.shape, strict=False)), ...)


def is_traced(*arrays: Any) -> bool:
    """True if one of them stands for an array that is not there yet."""
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def traced(work: Work, results: Sequence[jax.ShapeDtypeStruct], *arrays: Any) -> list[Any]:
    """An operation that does this work, in compiled code by a call of Python."""
    if buffer_callback is None:
        raise UnsupportedError(
            "sparse24.jax within jax.jit, jax.vmap and other transforms needs JAX 0.6.1 or later, "
            f"got {jax.__version__}; call it outside of them, or update JAX"
        )
    operands = [jnp.asarray(x) for x in arrays]  # which may leave JAX no float64
    kinds = tuple(np.dtype(x.dtype) for x in operands)
    wanted = tuple(np.dtype(jax.dtypes.canonicalize_dtype(r.dtype)) for r in results)
    shapes = zip(results, wanted, strict=True)
    carried = [jax.ShapeDtypeStruct(r.shape, carrier(dtype)) for r, dtype in shapes]
    callback = _Callback(work, wanted, kinds, operands[0].ndim)
    by_memory = buffer_callback(callback, carried, vmap_method="expand_dims")

    @jax.custom_jvp  # around the conversions to bits, whose derivative is zero
    def operation(*arrays):
        made = by_memory(*map(bits, arrays))
        return [of_bits(x, dtype) for x, dtype in zip(made, wanted, strict=True)]

    operation.defjvp(_refuse_derivative)
    axes = varying(*operands)
    return [vary(x, axes) for x in operation(*operands)]


def _refuse_derivative(primals, tangents):
    raise UnsupportedError(
        "sparse24.jax has only first derivatives, of linear and matmul: none of call, and no "
        "gradients of gradients; stop them with jax.lax.stop_gradient, or give call one with "
        "jax.custom_vjp"
    )


@dataclass(frozen=True)
class _Callback:
    """What compiled code calls: work on memory of these types."""

    work: Work
    wanted: tuple[np.dtype, ...]
    kinds: tuple[np.dtype, ...]
    rank: int  # of the first operand without the axes of maps

    def __call__(self, context: Any, outs: Sequence[Any], *buffers: Any) -> None:
        memory = [_memory(buffer) for buffer in (*outs, *buffers)]
        with _on_stream(context, memory):
            kinds = (*self.wanted, *self.kinds)
            arrays = [typed(x, kind) for x, kind in zip(memory, kinds, strict=True)]
            made, views = arrays[: len(outs)], arrays[len(outs) :]
            lead = views[0].ndim - self.rank
            if lead and self.work.together(lead, made, *views):
                return
            for element in elements(lead, *arrays):
                self.work(element[: len(outs)], *element[len(outs) :])


def _memory(buffer: Any) -> Any:
    """Of compiled code, as NumPy or CuPy sees it."""
    kind, _ = buffer.__dlpack_device__()
    return np.asarray(buffer) if kind == _CPU else _arrays.cupy_module().asarray(buffer)


def _on_stream(context: Any, memory: list[Any]) -> contextlib.AbstractContextManager:
    """The device of the memory, and XLA's stream on it, are CuPy's current ones."""
    stack = contextlib.ExitStack()
    if any(map(_arrays.is_cupy, memory)):
        stack.enter_context(_devices.on_device_of(*memory))
        stack.enter_context(_arrays.cupy_stream(context.stream))
    return stack
