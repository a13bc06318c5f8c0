"""Which library an array belongs to, and how to move between them.

No framework is imported here unless its array is already in hand.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from sparse24 import _dtypes, _host_tensors
from sparse24._errors import DeviceError, DTypeError

VECTOR = 16  # bytes that kernels copy at a time, on such a boundary
LINE = 128  # bytes of a line of the GPU's L2 cache
_INSTALL_CUPY = (
    "install the extra that matches the driver: pip install 'sparse24[cuda13]' or "
    "'sparse24[cuda12]'"
)


# A library that another thread is importing may lack its types yet; then nothing is of them.
def is_cupy(x: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, getattr(cupy, "ndarray", ()))


def is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, getattr(torch, "Tensor", ()))


def is_jax(x: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, getattr(jax, "Array", ()))


def is_scipy_sparse(x: Any) -> bool:
    issparse = getattr(sys.modules.get("scipy.sparse"), "issparse", None)
    return issparse is not None and issparse(x)


def is_cupyx_sparse(x: Any) -> bool:
    issparse = getattr(sys.modules.get("cupyx.scipy.sparse"), "issparse", None)
    return issparse is not None and issparse(x)


def torch_stream(x: Any) -> int:
    """Address of the stream on which torch enqueues work for a CUDA tensor."""
    torch = sys.modules["torch"]
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # no object for the stream is made
    if raw is not None:
        return raw(x.device.index)
    return torch.cuda.current_stream(x.device).cuda_stream


def torch_stream_at(address: int, device: Any) -> Any:
    """torch's stream for one of CuPy; an address of 0 would give it a stream of its own."""
    cuda = sys.modules["torch"].cuda
    if not address:
        return cuda.default_stream(device)
    return cuda.ExternalStream(address, device=device)


def cupy_stream(address: int) -> Any:
    """CuPy's stream for one that another library made on the current device."""
    return _cupy_stream(address, cupy_module().cuda.runtime.getDevice())


@functools.lru_cache(maxsize=64)
def _cupy_stream(address: int, device: int) -> Any:
    return cupy_module().cuda.Stream.from_external(_CudaStream(address))


class _CudaStream:
    """A stream's address behind the ``__cuda_stream__`` protocol."""

    def __init__(self, address: int):
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


def address(x: Any) -> int | None:
    """Where the elements of an array on the GPU begin; None for others."""
    if is_cupy(x):
        return x.data.ptr
    return x.data_ptr() if is_torch(x) else None


def is_sparse_matrix(x: Any) -> bool:
    """True for the sparse matrices and arrays of SciPy and cupyx."""
    return is_scipy_sparse(x) or is_cupyx_sparse(x)


def namespace(x: Any):
    """NumPy or CuPy, by the array's type."""
    if is_cupy(x):
        import cupy

        return cupy
    return np


def cupy_module():
    """CuPy, or a `DeviceError` that says how to get it."""
    try:
        import cupy
    except (ImportError, OSError) as error:
        raise DeviceError(f"this needs CuPy; {_why_not_imported(error)}") from error
    return cupy


def _why_not_imported(error: ImportError | OSError) -> str:
    """What keeps CuPy from being imported, and what helps."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cupy":
        return f"sparse24 finds no CUDA device without CuPy; {_INSTALL_CUPY}"
    way_out = "name a folder for its kernels by CUPY_CACHE_DIR"  # which it makes at its import
    if isinstance(error, ImportError):
        way_out = "install it anew, for one CUDA version"
    return f"CuPy cannot be imported ({error.__cause__ or error}); {way_out}"


def is_capturing() -> bool:
    """True if a CUDA graph is captured from CuPy's current stream."""
    return cupy_module().cuda.get_current_stream().is_capturing()


def captures_work_on(x: Any) -> bool:
    """True if a CUDA graph is captured from the stream in which work on an array goes."""
    if is_torch(x):
        cuda = sys.modules["torch"].cuda
        return x.is_cuda and cuda.is_current_stream_capturing()
    return is_capturing()


def settle(x: Any) -> None:
    """Wait for what makes something of a CuPy array `x`, so that every stream may read it.

    A graph that is captured orders its own work.
    """
    if is_cupy(x) and not is_capturing():
        cupy_module().cuda.get_current_stream().synchronize()


def cuda_available() -> bool:
    """True if CuPy can be imported and sees a device."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except (ImportError, OSError, RuntimeError):  # CuPy absent, its folder, or the driver
        return False


def why_no_cuda() -> str:
    """Where `cuda_available` is false: what is missing, as the end of an error's sentence."""
    try:
        import cupy  # noqa: F401
    except (ImportError, OSError) as error:
        return _why_not_imported(error)
    return "CuPy finds no CUDA device; nvidia-smi shows whether the driver has one"


def device_of(x: Any) -> str:
    """``"cpu"`` or ``"cuda:<index>"``."""
    return f"cuda:{x.device.id}" if is_cupy(x) else "cpu"


def logical_dtype(x: Any, dtype=None, *, argument: str = "x") -> _dtypes.DType:
    """The element type of an array; `dtype` names the logical type of ``uint8`` fp8 bits."""
    if dtype is not None:
        named = _dtypes.lookup(dtype, argument=f"{argument}_dtype")
        if np.dtype(x.dtype) not in (named.logical, named.storage):
            raise DTypeError(
                f"{argument} has dtype {x.dtype}, which cannot carry {named.name}; "
                f"pass an array of {named.logical} or of its bits, {named.storage}"
            )
        return named
    return _dtypes.lookup(x.dtype, argument=f"{argument}.dtype")


def as_storage(x: Any, dtype: _dtypes.DType) -> Any:
    """The array as its kernels take it: fp8 on the GPU as ``uint8``, all else unchanged."""
    wanted = np.dtype(np.uint8) if is_cupy(x) and dtype.is_float8 else dtype.logical
    return x if x.dtype == wanted else x.view(wanted)


def check_real(x: Any, *, argument: str) -> None:
    """Refuse an array of anything but real numbers, such as complex ones or text."""
    if x.dtype.kind not in "biuf" and x.dtype not in _dtypes.LOGICAL:
        way_out = f"pass for example {argument}.real" if x.dtype.kind == "c" else "convert it first"
        raise DTypeError(f"{argument} must hold real numbers, got {x.dtype}; {way_out}")


def not_zero(x: Any, dtype: _dtypes.DType) -> Any:
    """Where the elements are not zero, of either sign.

    Narrow floats are seen as bits: NumPy compares them slowly, and CuPy has no fp8.  CuPy takes
    subnormal float32 for zeros.
    """
    if dtype.name in ("int8", "float64") or (dtype.name == "float32" and not is_cupy(x)):
        return x != 0
    magnitude = dtype.storage.type((1 << 8 * dtype.itemsize - 1) - 1)
    return x.view(dtype.storage) & magnitude != 0


def row_pitch(columns: int, itemsize: int, boundary: int = VECTOR) -> int:
    """Smallest number of elements >= `columns` so that rows start on multiples of `boundary`."""
    step = boundary // itemsize
    return -(-columns // step) * step


def empty_rows(xp, shape: tuple[int, ...], dtype, boundary: int = VECTOR) -> Any:
    """An uninitialised array whose rows are aligned on the GPU, plain on the CPU.

    The TMA can only address rows that start on 16-byte boundaries, so storage on a GPU may be
    wider than the view that is returned.
    """
    dtype = np.dtype(dtype)
    if xp is np or not shape[-1]:
        return xp.empty(shape, dtype)
    pitch = row_pitch(shape[-1], dtype.itemsize, boundary)
    return xp.empty((*shape[:-1], pitch), dtype)[..., : shape[-1]]


def one_batch(x: Any) -> Any:
    """An array (..., rows, columns) with one batch axis; a copy where one stride is not enough."""
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def read_only(x: Any) -> Any:
    """A view that cannot be written to, as of a part of something immutable; CuPy has none."""
    if not isinstance(x, np.ndarray):
        return x
    view = x.view()
    view.flags.writeable = False
    return view


def unflatten_rows(x: Any, shape: tuple[int, ...]) -> Any:
    """View (rows, columns) with a row pitch as (..., columns); nothing is copied."""
    xp = namespace(x)
    if len(shape) == 1:
        return x[0]
    strides = [x.strides[-1], x.strides[0]]
    for size in reversed(shape[1:-1]):
        strides.append(strides[-1] * size)
    strides_ = tuple(reversed(strides))
    return xp.lib.stride_tricks.as_strided(x, shape, strides_)


def to_numpy(x: Any, *, argument: str = "x") -> np.ndarray:
    """A NumPy copy or view of a NumPy, CuPy, torch or other DLPack array."""
    if isinstance(x, np.ndarray):
        return x
    if is_cupy(x):
        return x.get()
    if is_torch(x):
        return _torch_to_numpy(x, argument)
    return np.asarray(x)


def _torch_to_numpy(x, argument: str) -> np.ndarray:
    refuse_wrapper(x, argument=argument)
    if x.device.type == "meta":
        raise no_memory("it is on the device 'meta', which holds none", argument=argument)
    try:
        return _host_tensors.view(x.detach().cpu().resolve_conj().resolve_neg())
    except (TypeError, RuntimeError) as error:  # a layout or type of torch's own, or a stand-in
        raise unread(x, error, argument=argument) from error


def refuse_wrapper(x: Any, *, argument: str) -> None:
    """Refuse a subclass of tensors that wraps others: its own address has no elements."""
    if hasattr(type(x), "__tensor_flatten__"):
        way = ".full_tensor()" if hasattr(x, "full_tensor") else ".to_dense()"
        ours = ", or an array of sparse24 with .to_array()" if hasattr(x, "to_array") else ""
        raise DTypeError(
            f"{argument} must be a dense tensor with memory, got a {type(x).__name__}; make it a "
            f"plain tensor first, as with {way}{ours}"
        )


def no_memory(why: Any, *, argument: str) -> DTypeError:
    return DTypeError(f"{argument} must be a dense tensor with memory: {why}")


def unread(x: Any, error: Exception, *, argument: str) -> DTypeError:
    """The error for a tensor that NumPy or CuPy could not view, as `error` says."""
    strided = str(x.layout) == "torch.strided" and not x.is_nested
    if strided and isinstance(error, TypeError) and x.device.type in ("cpu", "cuda"):
        way = ".dequantize()" if x.is_quantized else ".to(torch.float32)"
        return DTypeError(
            f"{argument} must have a type that NumPy has as well, got {x.dtype}; convert it first, "
            f"with {way}"
        )
    return no_memory(lacking(x, error), argument=argument)


def lacking(x: Any, error: Exception) -> str:
    """Why a tensor has no elements in rows; of a sparse one torch only says how to fill memory."""
    if x.is_nested:
        return "it is nested; take the tensors of its .unbind() one by one"
    if str(x.layout).startswith("torch.sparse"):
        return (
            f"its layout is {x.layout}; call .to_dense(), or t = x.to_sparse().to_sparse_csr(), "
            "of which sparse24.hybrid takes scipy.sparse.csr_array((t.values(), t.col_indices(), "
            "t.crow_indices()), t.shape)"
        )
    stand_in = isinstance(error, RuntimeError)
    more = " (within torch.func's transforms there is none; multiply outside)" if stand_in else ""
    return f"{error}{more}"
