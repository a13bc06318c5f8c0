"""Arrays of JAX outside of compiled code, as NumPy or CuPy arrays, and back.

Neither library waits for the streams of the other: JAX may use the memory of an array again as soon
as nobody holds it, and so may CuPy.  What goes back is a copy of JAX's own, which has been made
when `back` returns; by then everything that CuPy's stream did before is done as well.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._errors import DTypeError


def is_on_gpu(x: Any) -> bool:
    """True if CuPy can see the memory of an array: as a whole on one GPU, and there is CuPy."""
    if not _is_there(x):
        return False
    platforms = [device.platform for device in x.devices()]
    return platforms == ["gpu"] and _arrays.cuda_available()


def is_on_cpu(x: Any) -> bool:
    """True if NumPy can read an array, of however many CPU devices."""
    return _is_there(x) and {device.platform for device in x.devices()} == {"cpu"}


def view(x: Any) -> Any:
    """An array of JAX as NumPy or CuPy sees it; fp8 is bits on a GPU.

    Keep `x` until the work on the view is done.
    """
    if _is_there(x):
        check_numbers(x)
    if is_on_gpu(x):
        with jax.ensure_compile_time_eval():  # a constant of code that is being traced stays one
            return typed(_arrays.cupy_module().from_dlpack(bits(x)), x.dtype)
    array = np.asarray(x)
    if array.dtype == object:
        raise DTypeError(f"arrays must hold numbers, got {type(x).__name__}")
    return array


def check_numbers(x: Any) -> None:
    """Refuse keys of ``jax.random``, whose type NumPy does not know."""
    if jnp.issubdtype(x.dtype, jax.dtypes.extended):
        raise DTypeError(f"arrays must hold numbers, got {x.dtype}")


def back(x: Any, *near: Any) -> jax.Array:
    """A copy of an array of NumPy or CuPy as one of JAX; bits of fp8 stay bits.

    One of NumPy goes where the first of the arrays `near` is that was put on a device.  Waits for
    CuPy's current stream.
    """
    with jax.ensure_compile_time_eval():  # the memory is there, whatever is being traced
        if not _arrays.is_cupy(x):
            return jnp.asarray(x, device=home(*near))
        if x.dtype == jnp.bfloat16:
            copy = jax.lax.bitcast_convert_type(_copied(x.view(np.uint16)), jnp.bfloat16)
        else:
            copy = _copied(x)
        return copy.block_until_ready()


def home(*arrays: Any) -> Any:
    """The device on which the first of them was put that was put on one, or None."""
    for x in arrays:
        if _is_there(x) and _was_put(x) and len(x.devices()) == 1:
            return next(iter(x.devices()))
    return None


def _was_put(x: Any) -> bool:
    """Whether it was put on its device: JAX 0.4.34 has no public name for that."""
    return x.committed if hasattr(x, "committed") else x._committed


def at(device: Any, x: Any) -> Any:
    """An array on a device, if there is one; what is traced stays where it is.

    Where JAX begins a derivative it puts it on the default device.
    """
    return jax.device_put(x, device) if device is not None and _is_there(x) else x


def _is_there(x: Any) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def _copied(x: Any) -> jax.Array:
    return jnp.array(jnp.from_dlpack(x))  # XLA for GPUs has no from_dlpack with a copy of its own


def carrier(dtype: np.dtype) -> np.dtype:
    """The type in which elements travel: NumPy's own as they are, all others as bits.

    CuPy, or the protocol by which it sees the memory of other libraries, does not know the others.
    """
    known = _dtypes.TABLE.get(dtype.name)
    return dtype if known is None or dtype.isbuiltin == 1 else known.storage


def bits(x: Any) -> jax.Array:
    """The array under the type as which it travels."""
    carried = carrier(np.dtype(x.dtype))
    return jnp.asarray(x) if carried == x.dtype else jax.lax.bitcast_convert_type(x, carried)


def of_bits(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """The array under its own type again."""
    return x if x.dtype == dtype else jax.lax.bitcast_convert_type(x, dtype)


def typed(x: Any, dtype: Any) -> Any:
    """Memory under the type that it holds, if its library has that."""
    dtype = np.dtype(dtype)
    if x.dtype == dtype or (_arrays.is_cupy(x) and dtype.name.startswith("float8")):
        return x
    return x.view(dtype)
