"""Arrays of other libraries: views of them as NumPy or CuPy arrays, and conversion back.

torch and JAX tensors, and anything else with ``__dlpack__``, become NumPy or CuPy
arrays that share memory; results go back the same way.  torch's bfloat16 and fp8 on the
CPU travel as bits, because NumPy's DLPack does not know them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign_streams, _host_tensors
from sparse24._errors import DTypeError, ShapeError, UnsupportedError


def identity(x: Any) -> Any:
    return x


def take(x: Any, *, argument: str = "x") -> tuple[Any, Callable[[Any], Any]]:
    """A NumPy or CuPy array that shares the memory of `x`, and the way back for results.

    Lists, scalars and subclasses, such as `numpy.matrix`, become NumPy arrays.
    """
    if type(x) is np.ndarray:
        return x, identity
    if isinstance(x, np.ndarray):
        _check.unmasked(x, argument=argument)
        return x.view(np.ndarray), identity
    if _arrays.is_cupy(x):
        return x, identity
    if _arrays.is_torch(x):
        return from_torch(x, argument=argument), to_torch
    if _arrays.is_jax(x):
        return _from_jax(x, argument), functools.partial(_to_jax, x)
    if hasattr(x, "__dlpack__") and not isinstance(x, type):
        return _from_dlpack(x), identity
    if _arrays.is_sparse_matrix(x):
        raise DTypeError(
            f"{argument} must be a dense array, got a {type(x).__name__}; use its .toarray(), or "
            "sparse24.hybrid, or sparse24.from_scipy if it is 2:4"
        )
    for way_out in ("toarray", "todense"):
        if hasattr(x, way_out):
            raise DTypeError(
                f"{argument} must be a dense array, got {type(x).__name__}; use its .{way_out}()"
            )
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ShapeError(f"{argument} must be an array: {error}") from error
    if array.dtype.kind in "OSU":  # mappings that have a length are read as the list of their keys
        _refuse_words(x, array, argument)
    return array, identity


def _refuse_words(x: Any, array: np.ndarray, argument: str) -> None:
    """Refuse what NumPy reads as objects, and as strings what is no list of them."""
    kind, way = type(x).__name__, _way_to_array(x)
    if way or not array.ndim:
        raise DTypeError(f"{argument} must be an array, got {kind}{way}")
    if array.dtype == object:
        way_out = "replace None, and integers beyond 64 bits"
        if hasattr(x, "to_numpy"):  # tables, whose columns may have types of their own
            way_out = "use its .to_numpy(dtype='float32'), without missing values"
        raise DTypeError(
            f"{argument} must hold numbers, got a {kind} that NumPy reads as objects; {way_out}"
        )


def _way_to_array(x: Any) -> str:
    """How to get at the arrays of what has some, or to do without: a file's name, a model."""
    if isinstance(x, str | bytes | os.PathLike):
        return "; read the file first, with the reader of its format"
    if hasattr(x, "matvec"):
        return "; multiply operators: wrap the sparse array by scipy.sparse.linalg.aslinearoperator"
    if isinstance(x, Mapping):
        return "; pass its arrays one by one"
    if hasattr(x, "weight"):
        return "; pass its .weight"
    if hasattr(x, "named_modules"):  # a model of torch
        return "; pass the .weight of each layer, or the model to sparse24.torch.sparsify"
    return ""


def goes_by_view(x: Any) -> bool:
    """True for what is multiplied as the array that `take` makes of it: JAX's, torch's on the CPU.

    Torch's on a GPU keep torch's memory and stream.
    """
    return not x.is_cuda if _arrays.is_torch(x) else _arrays.is_jax(x)


def float8_of(x: Any) -> str | None:
    """The type of an array of fp8 on a GPU, of torch or JAX, which the view does not tell."""
    if _arrays.is_torch(x):
        return str(x.dtype).removeprefix("torch.") if x.is_cuda and _is_float8(x) else None
    if not _arrays.is_jax(x) or not x.dtype.name.startswith("float8"):
        return None
    from sparse24._jax import arrays as jax_arrays

    return x.dtype.name if jax_arrays.is_on_gpu(x) else None


def with_float8(x: Any, named: Any) -> Any:
    """The type that a call has named for `x`, or if it names none what `float8_of` tells.

    Raises
    ------
    DTypeError
        If the array is of the other fp8 type than the one that is named.
    """
    own = float8_of(x)
    if own is None or named is None:
        return named if own is None else own
    refuse_other(own, named)
    return named


def refuse_other(own: str, named: Any) -> None:
    """Refuse to name a type for an operand that is of fp8 of another one, itself or as planned."""
    if _dtypes.lookup(named, argument="the named dtype").name != own:
        raise DTypeError(
            f"an operand has dtype {own}, which cannot carry {_check.shown(named)}; name its own "
            "type, or none, or view its bits as the other one"
        )


def of_float8(x: Any, name: str) -> Any:
    """Bits, as an array of torch or JAX, under the type of fp8 that they are."""
    if _arrays.is_torch(x):
        return x.view(getattr(sys.modules["torch"], name))
    from sparse24._jax import arrays as jax_arrays

    return jax_arrays.of_bits(x, _dtypes.TABLE[name].logical)


def _is_float8(x: Any) -> bool:
    return x.dtype.itemsize == 1 and x.dtype.is_floating_point


def _from_dlpack(x: Any) -> Any:
    device_type, _ = x.__dlpack_device__()
    read = np.from_dlpack if device_type == 1 else _arrays.cupy_module().from_dlpack  # kDLCPU
    try:
        return read(x)
    except (BufferError, RuntimeError) as error:  # a type that the library lacks
        raise DTypeError(f"a {type(x).__name__} cannot be read by DLPack: {error}") from error


def from_torch(x: Any, *, argument: str = "x") -> Any:
    """NumPy or CuPy view of a tensor; its gradient is not followed.

    CuPy's current stream waits for torch's if they differ.
    """
    _arrays.refuse_wrapper(x, argument=argument)
    if x.is_neg() or x.is_conj():
        raise _other_than_memory(x, argument)
    if x.is_cuda:
        _foreign_streams.order_after(x)
    try:
        return view_of(x)
    except (TypeError, RuntimeError) as error:
        raise _arrays.unread(x, error, argument=argument) from error


def _other_than_memory(x: Any, argument: str) -> DTypeError:
    """The error for a lazily negated or conjugated tensor: its memory holds other numbers."""
    if x.is_conj():
        return DTypeError(
            f"{argument} must hold real numbers, got {x.dtype}; pass for example {argument}.real"
        )
    return DTypeError(
        f"{argument} must have its elements in memory, got a view that negates them, as z.conj()"
        f".imag does; pass {argument}.resolve_neg(), which is a copy"
    )


def view_of(x: Any) -> Any:
    """`from_torch` inside `stream_of`, where the streams are the same already."""
    x = x.detach()
    if x.is_cuda:
        return _cuda_view(x)
    return _host_tensors.view(x)


def to_torch(x: Any) -> Any:
    """Tensor that shares the memory of a NumPy or CuPy array."""
    import torch

    if type(x) is np.ndarray and x.dtype.isbuiltin == 1:
        return torch.from_numpy(x)
    name = x.dtype.name
    if _foreign_streams.is_torchs(x):
        return _tensor_of(x, getattr(torch, name))
    if name not in _AS_BITS:
        return torch.from_dlpack(x) if _arrays.is_cupy(x) else torch.from_numpy(x)
    bits = x.view(np.int16 if x.dtype.itemsize == 2 else np.uint8)
    return to_torch(bits).view(getattr(torch, name))


_AS_BITS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _cuda_view(x):
    cupy = _arrays.cupy_module()
    dtype, size = _carrier(x.dtype), x.element_size()
    start = _foreign_streams.pointer_to(x)
    return cupy.ndarray(x.shape, dtype, start, [size * stride for stride in x.stride()])


@functools.cache
def _carrier(dtype) -> np.dtype:
    """The type in which CuPy sees a tensor of this type."""
    name = str(dtype).removeprefix("torch.")
    known = _dtypes.TABLE.get(name)
    return np.dtype(name) if known is None else known.carried


def _tensor_of(x, dtype):
    """The way back: a view of the tensor that owns the memory, so torch knows its lifetime."""
    whole, start = x.data.mem.tensor, x.data.mem.ptr
    is_all = x.data.ptr == start and x.nbytes == whole.nbytes and whole.ndim == 1
    if is_all and x.flags.c_contiguous:
        return whole.view(dtype).view(x.shape)
    flat = whole.as_strided((whole.untyped_storage().nbytes() // whole.element_size(),), (1,), 0)
    offset = (x.data.ptr - flat.data_ptr()) // x.itemsize
    strides = [stride // x.itemsize for stride in x.strides]
    return flat.view(dtype).as_strided(x.shape, strides, offset)


def _from_jax(x: Any, argument: str) -> Any:
    from sparse24._jax import arrays as jax_arrays

    try:
        return jax_arrays.view(x)
    except DTypeError:
        raise
    except TypeError as error:  # a tracer
        raise UnsupportedError(
            f"{argument} must be an array, got a tracer of JAX; use sparse24.jax.matmul, linear "
            "or mask, which JAX's transforms can follow, or any function by sparse24.jax.call, or "
            "work outside of jax.jit, jax.grad and jax.vmap"
        ) from error


def _to_jax(given: Any, x: Any) -> Any:
    """A result beside the operand that was given."""
    from sparse24._jax import arrays as jax_arrays

    return jax_arrays.back(x, given)
