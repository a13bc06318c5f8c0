"""Functions of NumPy and CuPy arrays as operations that JAX can trace.

Compiled code calls Python at such an operation, with the memory of its operands and results as it
lies on the device.  On a GPU the work goes to the stream of XLA, and the call does not wait for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sparse24 import _arrays, _devices
from sparse24._errors import UnsupportedError
from sparse24._jax_arrays import bits, carrier, of_bits, typed
from sparse24._jax_axes import vary, varying

buffer_callback: Any
try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # before JAX 0.6.1
    buffer_callback = None

_CPU = 1  # to DLPack


def is_traced(*arrays: Any) -> bool:
    """True if one of them stands for an array that is not there yet."""
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def traced(
    function: Callable[..., None], results: Sequence[jax.ShapeDtypeStruct], *arrays: Any
) -> list[Any]:
    """An operation that calls ``function(outs, *views)``, which writes to its `outs`.

    `views` and `outs` are arrays of NumPy, or of CuPy on a GPU, where fp8 is carried as bits.
    Under `jax.vmap` it is called for one element after the other.
    """
    if buffer_callback is None:
        raise UnsupportedError(
            "sparse24.jax within jax.jit, jax.vmap and other transforms needs JAX 0.6.1 or later, "
            f"got {jax.__version__}; call it outside of them, or update JAX"
        )
    kinds, wanted = [x.dtype for x in arrays], [np.dtype(r.dtype) for r in results]

    def call(context, outs, *buffers):
        memory = [_memory(buffer) for buffer in (*outs, *buffers)]
        with _on_stream(context, memory):
            views = [typed(x, kind) for x, kind in zip(memory, (*wanted, *kinds), strict=True)]
            function(views[: len(outs)], *views[len(outs) :])

    carried = [jax.ShapeDtypeStruct(r.shape, carrier(np.dtype(r.dtype))) for r in results]
    by_memory = buffer_callback(call, carried, vmap_method="sequential")

    @jax.custom_jvp  # around the conversions to bits, whose derivative is zero
    def operation(*arrays):
        made = by_memory(*map(bits, arrays))
        return [of_bits(x, dtype) for x, dtype in zip(made, wanted, strict=True)]

    operation.defjvp(_refuse_derivative)
    axes = varying(*arrays)
    return [vary(x, axes) for x in operation(*arrays)]


def _refuse_derivative(primals, tangents):
    raise UnsupportedError(
        "sparse24.jax has first derivatives of linear and matmul alone, none of call, and no "
        "gradients of gradients; keep them apart by jax.lax.stop_gradient, or give call one by "
        "jax.custom_vjp"
    )


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
