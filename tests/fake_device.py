"""A GPU of NumPy memory: what products of hybrid matrices do before a kernel, without one.

`Device` puts its own parts in the place of CuPy's arrays, streams and kernels.  A launch reads and
writes by address, as a kernel does, so whoever mixes up addresses gets wrong numbers.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

from sparse24 import _arrays, _dtypes, _foreign, _foreign_streams, _ready
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import finish as hybrid_finish
from sparse24.formats.hybrid import HybridArray
from sparse24.kernels import epilogue, hybrid_launch, loader, transpose_bound


class Place:
    """A device of CuPy: within its context it is the current one."""

    current, compute_capability = 0, "90"

    def __init__(self, number: int):
        self.id = number

    def __enter__(self):
        self.before, Place.current = Place.current, self.id

    def __exit__(self, *error):
        Place.current = self.before


RUNTIME = SimpleNamespace(getDevice=lambda: Place.current)


class Array(np.ndarray):
    """As much of a CuPy array as is asked for; `number` is that of its device."""

    number = 0

    def __array_finalize__(self, other):
        self.number = getattr(other, "number", 0)

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data, device_id=self.number)

    @property
    def device(self):
        return Place(self.number)


def array(x, number: int = 0) -> Array:
    made = np.array(x).view(Array)
    made.number = number
    return made


def at_address(x) -> np.ndarray:
    """The elements of an array, or of a view by address and layout, read where it says."""
    low = sum(min(0, s * (n - 1)) for s, n in zip(x.strides, x.shape))
    high = sum(max(0, s * (n - 1)) for s, n in zip(x.strides, x.shape)) + x.itemsize
    memory = (ctypes.c_char * (high - low)).from_address(x.data.ptr + low)
    return np.ndarray(x.shape, x.dtype, memory, -low, x.strides)


class Product:
    """What a launcher's `bound` gives: counts the arguments that it lays out."""

    def __init__(self, weight: np.ndarray, path: str, *, captured: bool):
        self.weight, self.path, self.captured, self.streams = weight, path, captured, []

    def bind(self, b, out, stream: int):
        self.streams.append(stream)
        b, out = at_address(b), at_address(out)

        def launch(stream: int) -> None:
            out[...] = self.weight.astype(np.float64) @ b.astype(np.float64)

        return launch

    def __call__(self, b, out) -> None:
        self.bind(b, out, 0)(0)


class Device:
    """The stand-ins, and what a test may set and read.

    Attributes
    ----------
    times : dict
        Predicted seconds by path; the least is chosen.
    stream : int
        The current one.
    capturing : bool
    ran : list of Product
        What was found by planning, not by a replay.
    """

    def __init__(self, monkeypatch):
        self.times = {"gather": 1.0, "scatter": 2.0, "cublas": 9.0}
        self.stream, self.capturing, self.ran = 7, False, []
        self.allocator = lambda size: SimpleNamespace(mem=SimpleNamespace(size=size))
        put = monkeypatch.setattr
        put(_arrays, "is_cupy", lambda x: isinstance(x, Array))
        put(_arrays, "namespace", lambda x: self if isinstance(x, Array) else np)
        put(_arrays, "cupy_module", lambda: self)
        put(_foreign_streams, "make_current", lambda: None)
        take = _foreign.take
        put(
            _foreign,
            "take",
            lambda x, **how: (x, _foreign.identity) if isinstance(x, Array) else take(x, **how),
        )
        put(_ready, "current_stream", lambda: self.stream)
        put(_arrays, "captures_work_on", lambda x: self.capturing)
        put(_arrays, "is_capturing", lambda: self.capturing)
        put(hybrid_choice, "predictions", lambda h, n, copied=None: dict(self.times))
        put(hybrid_dispatch, "layout", lambda h, path: SimpleNamespace(rows=None))
        put(hybrid_dispatch, "_bound", self._bound)
        put(loader, "function", lambda stem, name, defines: Finish(dict(defines)))
        put(hybrid_finish, "Launch", Launch)
        put(transpose_bound, "Launch", Turn)
        put(transpose_bound, "chip", lambda: SimpleNamespace(launches_early=True))
        put(hybrid_launch, "rows_contiguous", rows_contiguous)
        put(HybridArray, "device", "cuda:0")

    def _bound(self, path: str, h, b, out, balance: bool):
        weight = np.asarray(h.toarray())
        self.ran.append(Product(weight, path, captured=path != "cublas"))
        return self.ran[-1], rows_contiguous(b) if path == "scatter" else b

    # The parts of CuPy's module that are asked for.

    moveaxis, expand_dims = staticmethod(np.moveaxis), staticmethod(np.expand_dims)
    asarray = staticmethod(np.asanyarray)

    @staticmethod
    def broadcast_to(x, shape):
        return np.broadcast_to(x, shape, subok=True)

    ndarray = Array

    @property
    def cuda(self):
        return SimpleNamespace(
            get_allocator=lambda: self.allocator,
            using_allocator=lambda made: _Using(self, made),
            get_current_stream=lambda: SimpleNamespace(ptr=self.stream),
            runtime=RUNTIME,
            Device=Place,
            Stream=None,
            alloc=self.alloc,
        )

    def alloc(self, size: int) -> SimpleNamespace:
        self.allocator(size)
        memory = np.full(size + 512, 99, np.uint8)
        return SimpleNamespace(ptr=-(-memory.ctypes.data // 512) * 512, memory=memory)

    def empty(self, shape, dtype) -> Array:
        made = np.full(shape, 99, dtype).view(Array)
        self.allocator(made.nbytes)
        return made

    @staticmethod
    def ascontiguousarray(x):
        return x if x.flags.c_contiguous else x.copy()


class _Using:
    """CuPy's context in which another allocator serves."""

    def __init__(self, device: Device, allocator):
        self.device, self.allocator = device, allocator

    def __enter__(self):
        self.before, self.device.allocator = self.device.allocator, self.allocator

    def __exit__(self, *exception):
        self.device.allocator = self.before


def rows_contiguous(b):
    return b if b.strides[1] == b.itemsize else np.ascontiguousarray(b).view(Array)


class Finish:
    """`cuda/apply_epilogue.cu` with a bias, by itself or as `c`, and relu."""

    def __init__(self, defines: dict):
        self.defines = defines

    def __call__(self, grid, block, arguments) -> None:
        acc, out, *numbers, params = arguments
        self.run(acc.data.ptr, out.data.ptr, *numbers, params.view(epilogue.PARAMS)[0])

    def run(self, acc, out, row, column, of_batch, m, n, batch, params) -> None:
        bits, kind = self.defines["EPILOGUE"], _dtypes.numpy_dtype(self.defines["OUTPUT"])
        sums = _dtypes.numpy_dtype(self.defines["ACCUMULATOR"])
        x = matrix(acc, sums, (batch, m, n), (m * n, n, 1)).astype(np.float64)
        if bits & epilogue.C:
            of_c = params["c_batch"], params["c_row"], params["c_column"]
            x = x + params["beta"] * matrix(params["c"], kind, (batch, m, n), of_c)
        real = np.dtype(np.float64 if kind == np.float64 else np.float32)
        if bits & epilogue.ROW_BIAS:
            x = x + matrix(params["row_bias"], real, (m, 1), (1, 0))
        if bits & epilogue.COLUMN_BIAS:
            x = x + matrix(params["column_bias"], real, (n,), (1,))
        if epilogue.ACTIVATIONS[self.defines["ACTIVATION"]] == "relu":
            x = np.maximum(x, 0)
        matrix(out, kind, (batch, m, n), (of_batch, row, column))[...] = x


class Launch:
    """A launch of `Finish`."""

    def __init__(self, kernel, grid, block, shared_memory, arguments):
        self.kernel, self.arguments = kernel, arguments

    def __call__(self, stream: int) -> None:
        *numbers, params = self.arguments
        self.kernel.run(*(int(x[0]) for x in numbers), params.view(epilogue.PARAMS)[0])


class Turn:
    """A launch of `cuda/transpose.cu`."""

    def __init__(self, kernel, grid, block, shared_memory, arguments, *, early):
        self.dtype, self.numbers = np.dtype(f"u{kernel.defines['BYTES']}"), arguments

    def __call__(self, stream: int) -> None:
        x, pitch, _, out, out_pitch, _, k, n, _ = (int(number[0]) for number in self.numbers)
        turned = matrix(x, self.dtype, (k, n), (pitch, 1)).T
        matrix(out, self.dtype, (n, k), (out_pitch, 1))[...] = turned


def matrix(address: int, dtype, shape, strides) -> np.ndarray:
    """The elements at an address, with strides in elements."""
    steps = tuple(int(s) * dtype.itemsize for s in strides)
    data = SimpleNamespace(ptr=int(address))
    return at_address(
        SimpleNamespace(data=data, dtype=dtype, itemsize=dtype.itemsize, shape=shape, strides=steps)
    )
