"""A GPU of NumPy memory with a stand-in for the kernels of grouped products."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import fake_device
import numpy as np

from sparse24 import _arrays, _cuda_graphs, _foreign, _foreign_streams, _planner
from sparse24._grouped import choice as grouped_choice
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._grouped import replay as grouped_replay
from sparse24.kernels import grouped, reference, reference_grouped, transpose


class Array(fake_device.Array):
    """NumPy memory that passes for CuPy's."""

    def get(self):
        return np.array(self)


def array(x, order="C") -> Array:
    """On a boundary of 16 bytes, as CuPy's memory is."""
    x = np.asarray(x)
    room = np.empty(x.nbytes + 16, np.uint8)
    start = -room.ctypes.data % 16
    made = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape, order=order)
    made[...] = x
    return made.view(Array)


class Kernel:
    """In the place of the launchers: checks what it is given, and multiplies."""

    def __init__(self):
        self.refusal, self.problems, self.given = None, [], []
        self.tile_of = lambda *given: SimpleNamespace(name="128x32x128")

    def refuses(self, problem, *, gated):
        self.problems.append(problem)
        return self.refusal

    def bind(self, a, b, out, types, offsets, epilogue):
        place = ctypes.c_char * ((len(a.values) + 1) * np.dtype(types.offsets).itemsize)
        read = np.frombuffer(place.from_address(offsets), types.offsets).view(Array)
        return lambda stream: self.multiply(a, b, read, out, epilogue, types)

    def multiply(self, a, b, offsets, out, epilogue, types):
        assert (types.b_dtype, types.out_dtype) == (b.dtype.name, out.dtype.name)
        assert types.fast_accumulation
        assert a.values.shape[:2] == (len(a.packed), a.m)
        assert a.packed.ndim == 4
        assert offsets.dtype in (np.int32, np.int64)
        assert all(isinstance(x, Array) for x in (b, out))
        for x in (b, out):
            assert x.strides[0] == x.itemsize
            assert x.strides[1] % 16 == 0
            assert x.data.ptr % 16 == 0
        self.given.append((b, offsets, out))
        metadata = reference.unpack_metadata(np.array(a.packed), a.m, a.k, a.values.itemsize)
        matrices = reference.decompress(np.array(a.values), metadata, a.k)
        product = reference_grouped.grouped_matmul(matrices, np.array(b), np.array(offsets))
        product = finished(product, epilogue, np.array(offsets))
        if types.gated:
            half = len(product) // 2
            product = product[:half] * product[half:]
        out[...] = reference.to_dtype(product, out.dtype)


def finished(product, e, offsets):
    """The linear part of an epilogue, for the experts' vectors of rows."""
    of_rows = lambda vector: np.repeat(np.array(vector), np.diff(offsets), axis=0).T  # noqa: E731
    product = e.alpha * product
    if e.row_scale is not None:
        product = product * of_rows(e.row_scale)
    if e.column_scale is not None:
        product = product * np.array(e.column_scale)
    return product if e.row_bias is None else product + of_rows(e.row_bias)


def installed(monkeypatch) -> Kernel:
    """The stand-in for the kernel, on a GPU of NumPy memory that takes the place of CuPy's."""
    found = Kernel()

    asarray = lambda x: x if isinstance(x, Array) else array(x)  # noqa: E731
    gpu = SimpleNamespace(
        empty=lambda shape, dtype: array(np.full(shape, 99).astype(dtype)), asarray=asarray,
        ascontiguousarray=lambda x: x if x.flags.c_contiguous else array(x),
        arange=np.arange, searchsorted=np.searchsorted, broadcast_to=np.broadcast_to,
        cuda=SimpleNamespace(runtime=fake_device.RUNTIME, Device=fake_device.Place),
    )  # fmt: skip
    put, take = monkeypatch.setattr, _foreign.take
    put(_arrays, "is_cupy", lambda x: isinstance(x, Array))
    put(_arrays, "namespace", lambda x: gpu if isinstance(x, Array) else np)
    put(_arrays, "cupy_module", lambda: gpu)
    put(_arrays, "is_capturing", lambda: False)
    put(_foreign_streams, "make_current", lambda: None)
    put(
        _foreign,
        "take",
        lambda x, **how: (x, _foreign.identity) if isinstance(x, Array) else take(x, **how),
    )
    put(_cuda_graphs, "keeping", lambda record, out: contextlib.nullcontext())
    put(grouped_replay, "signature", lambda *given, **how: None)  # it asks for the device
    put(_planner, "kernel_module", dict.fromkeys(grouped_choice.KERNELS, found).__getitem__)
    put(grouped, "params_of", lambda epilogue: epilogue)
    put(grouped_dispatch, "current_stream", lambda: 0)
    put(transpose, "takes", lambda b: False)
    return found
