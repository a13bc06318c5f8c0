"""Arrays of other libraries: in as views, out as what came in.

torch and JAX tensors, and anything else with ``__dlpack__``, become NumPy or CuPy
arrays that share memory; results go back the same way.  torch's bfloat16 and fp8
travel as bits, because NumPy's DLPack does not know them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes
from sparse24._errors import DTypeError


def identity(x: Any) -> Any:
    return x


def take(x: Any, *, argument: str = "x") -> tuple[Any, Callable[[Any], Any]]:
    """A NumPy or CuPy array that shares the memory of `x`, and the way back for results.

    Lists and scalars become NumPy arrays.
    """
    if isinstance(x, np.ndarray) or _arrays.is_cupy(x):
        return x, identity
    if _arrays.is_torch(x):
        return from_torch(x), to_torch
    if _arrays.is_jax(x):
        return np.asarray(x), _to_jax
    if hasattr(x, "__dlpack__"):
        return _from_dlpack(x), identity
    array = np.asarray(x)
    if array.dtype == object:
        raise DTypeError(f"{argument} must be an array, got {type(x).__name__}")
    return array, identity


def _from_dlpack(x: Any) -> Any:
    device_type, _ = x.__dlpack_device__()
    if device_type == 1:  # kDLCPU
        return np.from_dlpack(x)
    return _arrays.cupy_module().from_dlpack(x)


def from_torch(x: Any) -> Any:
    """NumPy or CuPy view of a tensor; its gradient is not followed."""
    import torch

    x = x.detach()
    name = str(x.dtype).removeprefix("torch.")
    bits = {2: torch.int16, 1: torch.uint8}.get(x.element_size())
    as_bits = name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    carried = x.view(bits) if as_bits else x
    if x.device.type == "cuda":
        view = _arrays.cupy_module().from_dlpack(carried)
        return view.view(_dtypes.TABLE[name].logical) if name == "bfloat16" else view
    view = carried.numpy()
    return view.view(_dtypes.TABLE[name].logical) if as_bits else view


def to_torch(x: Any) -> Any:
    """Tensor that shares the memory of a NumPy or CuPy array."""
    import torch

    name = x.dtype.name
    if name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return torch.from_dlpack(x) if _arrays.is_cupy(x) else torch.from_numpy(x)
    bits = x.view(np.int16 if x.dtype.itemsize == 2 else np.uint8)
    return to_torch(bits).view(getattr(torch, name))


def _to_jax(x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x)


@contextlib.contextmanager
def stream_of(x: Any):
    """Enqueue CuPy's work where a torch tensor's own work goes."""
    if not (_arrays.is_torch(x) and x.is_cuda):
        yield
        return
    import torch

    cupy = _arrays.cupy_module()
    stream = _CudaStream(torch.cuda.current_stream(x.device).cuda_stream)
    with cupy.cuda.Device(x.device.index), cupy.cuda.Stream.from_external(stream):
        yield


class _CudaStream:
    """A stream's handle behind the ``__cuda_stream__`` protocol."""

    def __init__(self, handle: int):
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def torch_function(function: Callable, args: tuple, kwargs: dict) -> Any:
    """``torch.matmul``, ``torch.mm`` and ``torch.nn.functional.linear`` with a sparse operand."""
    import torch

    products = (torch.matmul, torch.mm, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__)
    if function in products:
        return _multiply(*args)
    if function is torch.nn.functional.linear:
        x, weight, *rest = args
        bias = rest[0] if rest else kwargs.get("bias")
        y = _multiply(x, weight.mT)
        return y if bias is None else y + bias
    return NotImplemented


def _multiply(a: Any, b: Any) -> Any:
    """``a @ b`` without asking torch again: the sparse operand multiplies."""
    return b.__rmatmul__(a) if _arrays.is_torch(a) else a.__matmul__(b)
