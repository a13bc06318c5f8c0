"""Launch a compiled kernel through the driver, with arguments laid out beforehand.

CuPy converts every argument at every launch, which costs about 30 microseconds for a
dozen structures.  A `Launch` converts them once; enqueueing it is one foreign call.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparse24._errors import DeviceError
from sparse24._records import PLAIN, Compressed24, Fused
from sparse24.kernels import epilogue as _epilogue


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute (cuda.h): an identifier and a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class _Configuration(ctypes.Structure):
    """CUlaunchConfig (cuda.h)."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_memory", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("number", ctypes.c_uint),
    )


MOST_STREAMS = 64  # that a launch remembers
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CUlaunchAttributeID (cuda.h)
_EARLY = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)


@functools.cache
def _driver_launch():
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    launch.argtypes = (ctypes.POINTER(_Configuration), *(ctypes.c_void_p,) * 3)
    launch.restype = ctypes.c_int
    return launch


class Launch:
    """A kernel, its one-dimensional grid and block, and its arguments; calling it enqueues.

    Parameters
    ----------
    kernel : cupy.RawKernel
    grid, block : int
    shared_memory : int
        Dynamic shared memory in bytes.
    arguments : sequence of ndarray of size 1
        Passed by value from where they lie; they must not change.
    early : bool, default False
        Start blocks as soon as those of the kernel before it in the stream make room.  The
        kernel must wait by itself (``cuda/include/programmatic.cuh``); sm_90 and later.
    """

    __slots__ = (
        "_addresses", "_configurations", "_early", "_function", "_kernel", "_launch", "_sizes",
        "arguments",
    )  # fmt: skip

    def __init__(
        self,
        kernel: Any,
        grid: int,
        block: int,
        shared_memory: int,
        arguments: Sequence[np.ndarray],
        *,
        early: bool = False,
    ):
        self._kernel = kernel  # keeps the module loaded
        self._function = kernel.kernel.ptr
        self._sizes = ((grid, 1, 1), (block, 1, 1), shared_memory)
        self._early = early
        self._configurations: dict[int, _Configuration] = {}  # by stream
        self._launch = _driver_launch()
        self.arguments = tuple(arguments)  # kept alive
        addresses = [argument.ctypes.data for argument in self.arguments]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)

    def with_last(self, argument: np.ndarray) -> Launch:
        """The same launch with another last argument."""
        other = object.__new__(Launch)
        other._kernel, other._function = self._kernel, self._function
        other._sizes, other._launch = self._sizes, self._launch
        other._early, other._configurations = self._early, self._configurations
        other.arguments = (*self.arguments[:-1], argument)
        other._addresses = type(self._addresses).from_buffer_copy(self._addresses)
        other._addresses[-1] = argument.ctypes.data
        return other

    def __call__(self, stream: int) -> None:
        """Enqueue on the stream of this address, without waiting."""
        if not self._sizes[0][0]:
            return  # an empty grid
        configuration = self._configurations.get(stream)
        if configuration is None:
            configuration = self._configure(stream)
        status = self._launch(configuration, self._function, self._addresses, None)
        if status:
            raise DeviceError(
                f"cuLaunchKernelEx returned CUresult {status}; see the driver's manual"
            )

    def _configure(self, stream: int) -> _Configuration:
        early = (ctypes.pointer(_EARLY), 1) if self._early else (None, 0)
        configuration = _Configuration(*self._sizes, stream, *early)
        if len(self._configurations) >= MOST_STREAMS:
            self._configurations.clear()
        self._configurations[stream] = configuration
        return configuration


def current_stream() -> int:
    """Address of CuPy's current stream."""
    import cupy

    return cupy.cuda.get_current_stream().ptr


def pointer(array: Any) -> np.ndarray:
    """The address of a CuPy array as an argument; it does not keep the array alive."""
    return np.array([array.data.ptr], np.uint64)


class Launcher:
    """What ``prepare`` of a product kernel returns: a compiled kernel, ready for operands.

    Called with ``(a, b, out, epilogue)``, it enqueues ``out = epilogue(a @ b)`` on CuPy's
    current stream and does not wait.  A subclass says by `bind` what the arguments are.
    Those of recent launches are remembered by address; they keep no operand alive.
    """

    REMEMBERED = 1024
    per_stream = False  # whether the arguments depend on the stream

    def __init__(self) -> None:
        self._launches: dict[tuple, Launch] = {}

    def bind(self, a: Compressed24, b: Any, out: Any, stream: int) -> Launch:
        """Lay out the arguments for these operands, with a plain epilogue as the last one."""
        raise NotImplementedError

    def __call__(self, a: Compressed24, b: Any, out: Any, epilogue: Fused) -> None:
        stream = current_stream()
        key = (
            a.values.data.ptr, a.packed.data.ptr, b.data.ptr, out.data.ptr,
            a.values.strides, b.strides, out.strides, stream if self.per_stream else 0,
        )  # fmt: skip
        launch = self._launches.get(key)
        if launch is None:
            launch = self.bind(a, b, out, stream)
            while len(self._launches) >= self.REMEMBERED:
                self._launches.pop(next(iter(self._launches)), None)
            self._launches[key] = launch
        if epilogue is not PLAIN:
            launch = launch.with_last(_epilogue.params(epilogue))
        launch(stream)
