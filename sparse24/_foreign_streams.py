"""On which stream and device, and in whose memory, work on arrays of other libraries goes."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from sparse24 import _arrays, _devices


@functools.cache
def _torch_memory() -> type:
    """CuPy's view of memory that a tensor owns: no copy, and the tensor can be had back."""

    class TorchMemory(_arrays.cupy_module().cuda.UnownedMemory):  # type: ignore[misc]
        def __init__(self, tensor):
            super().__init__(tensor.data_ptr(), tensor.nbytes, tensor, tensor.device.index)
            self.tensor = tensor

    return TorchMemory


def is_torchs(x: Any) -> bool:
    """Whether a tensor owns the memory of an array."""
    return _arrays.is_cupy(x) and isinstance(x.data.mem, _torch_memory())


def pointer_to(x: Any) -> Any:
    """The memory of a tensor as CuPy's arrays have it, which keep the tensor alive."""
    return _arrays.cupy_module().cuda.MemoryPointer(_torch_memory()(x), 0)


def join(x: Any) -> None:
    """Let CuPy's current stream wait for work that went to a tensor's, as within `stream_of`."""
    if _orders_streams(x):
        order_after(x)


def follow(x: Any) -> None:
    """Let work that goes to a tensor's stream wait for that of CuPy's current one."""
    apart = _apart(x) if _orders_streams(x) else None
    if apart is not None:
        ours, theirs = apart
        theirs.wait_stream(ours)


def _orders_streams(x: Any) -> bool:
    """Whether a tensor has a stream, and no graph is captured, which orders its own work."""
    if not _arrays.is_torch(x) or not x.is_cuda:
        return False
    return not _arrays.captures_work_on(x) and not _arrays.is_capturing()


@contextlib.contextmanager
def makes_of(x: Any) -> Iterator[None]:
    """`stream_of` for code that makes an array, after which CuPy's current stream waits for it.

    Then methods of the array may run on that stream.
    """
    with stream_of(x):
        yield
    join(x)


def order_after(x) -> None:
    """Order CuPy's current stream after torch's, which may be that of another device."""
    apart = _apart(x)
    if apart is not None:
        ours, theirs = apart
        ours.wait_stream(theirs)


def _apart(x: Any) -> tuple[Any, Any] | None:
    """CuPy's current stream and torch's for a tensor, as torch has them; None if they are one."""
    torch, cuda = sys.modules["torch"], _arrays.cupy_module().cuda
    ours, here = cuda.get_current_stream().ptr, cuda.runtime.getDevice()
    theirs = torch.cuda.current_stream(x.device)
    if (ours, here) == (theirs.cuda_stream, x.device.index):
        return None
    return _arrays.torch_stream_at(ours, torch.device("cuda", here)), theirs


@contextlib.contextmanager
def stream_of(x: Any):
    """Enqueue CuPy's work on the device of an array; for torch's where its own work goes.

    There also in memory from torch's pool: one pool instead of two that cannot use each other's
    free memory; and what torch captures into a CUDA graph finds its memory in the graph's own pool.
    """
    if not (_arrays.is_torch(x) and x.is_cuda):
        with _devices.on_device_of(x):
            yield
        return

    make_current()
    cuda, device = _arrays.cupy_module().cuda, x.device
    allocator = cuda.using_allocator(functools.partial(_allocate, device))
    with cuda.Device(device.index), _arrays.cupy_stream(_arrays.torch_stream(x)), allocator:
        yield


_thread = threading.local()


def make_current() -> None:
    """Give this thread a context: launches by the driver want one, and a new thread has none."""
    if not getattr(_thread, "has_context", False):
        runtime = _arrays.cupy_module().cuda.runtime
        runtime.setDevice(runtime.getDevice())
        _thread.has_context = True


def is_current_device(x: Any) -> bool:
    """Whether CuPy's work goes to the device of a tensor."""
    return _arrays.cupy_module().cuda.runtime.getDevice() == x.device.index


def torch_memory(device, size: int):
    """So many bytes of torch's pool, in the order of its stream for a device, as a tensor."""
    import torch

    return torch.empty(size, dtype=torch.uint8, device=device)


def _allocate(device, size: int):
    return pointer_to(torch_memory(device, size))
