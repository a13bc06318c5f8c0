"""A GPU of NumPy memory on which one stand-in multiplies 2:4 matrices, whatever they are.

What plans, remembers and repeats products is that of a GPU.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import fake_device
import numpy as np
from fake_device import Array, at_address, matrix
from fake_grouped import array

import sparse24 as s24
from sparse24 import _dispatch, _foreign_streams, _planner, _storage, _widening
from sparse24._arrays import row_pitch
from sparse24._records import Compressed24, Operand24
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import epilogue, launch, reference


class Device(fake_device.Device):
    """The stand-ins.

    Attributes
    ----------
    planned : list
        What was planned, not repeated.
    """

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.planned, fill, put = [], _dispatch.fill, monkeypatch.setattr
        put(launch, "current_stream", lambda: self.stream)
        put(_dispatch, "fill", lambda *given: self.planned.append(given) or fill(*given))
        put(_planner, "choose", lambda problem, device, **_: _Choice(problem))
        put(_planner, "prepare", lambda choice, epilogue: _launcher_for(choice.problem))
        put(_widening, "as_multiplied", lambda problem, *_: problem)
        put(_storage, "cast", _converted)
        put(_foreign_streams, "is_torchs", lambda x: False)

    @property
    def cuda(self):
        stream = SimpleNamespace(ptr=self.stream, is_capturing=lambda: self.capturing)
        found = super().cuda
        found.get_current_stream, found.Event = lambda: stream, _Event
        return found

    def full(self, shape, value, dtype) -> Array:
        return array(np.full(shape, value, dtype))

    def empty(self, shape, dtype) -> Array:
        return array(np.full(shape, 99).astype(dtype))  # on a boundary, as CuPy's memory is


class _Choice:
    kernel = name = "stand-in"

    def __init__(self, problem):
        self.problem = problem


class _Event:
    done = True

    def __init__(self, **_):
        pass

    def record(self):
        pass


def _converted(record: Compressed24, dtype) -> Compressed24:
    values = array(np.array(record.values).astype(dtype.logical))
    metadata = reference.unpack_metadata(np.array(record.packed), record.m, record.k, 1)
    codes = array(reference.pack_metadata(metadata, record.k, dtype.itemsize))
    return Compressed24(values, None, codes, record.shape, dtype)


@functools.cache
def _launcher_for(problem) -> launch.Launcher:
    """One for all products of a problem, as the planner's."""
    return _Launcher()


class _Launcher(launch.Launcher):
    def bind(self, a, b, out, stream: int) -> _Launch:
        return _Launch(a, b, out)


class _Launch(NamedTuple):
    """``out = epilogue(a @ b)``, which reads and writes by address."""

    a: Compressed24
    b: Any
    out: Any
    last: np.ndarray = epilogue.NO_PARAMS

    def with_last(self, argument: np.ndarray) -> _Launch:
        return self._replace(last=argument)

    def __call__(self, stream: int) -> None:
        a, values = self.a, at_address(self.a.values)
        metadata = reference.unpack_metadata(at_address(a.packed), a.m, a.k, values.itemsize)
        dense = reference.decompress(np.array(values), metadata, a.k)
        product = dense.astype(np.float64) @ at_address(self.b).astype(np.float64)
        p = self.last.view(epilogue.PARAMS)[0]
        at_address(self.out)[...] = _finished(product, p, self.out) if p["alpha"] else product


def _finished(x: np.ndarray, p, out) -> np.ndarray:
    """The epilogue but for its activation, which stores `aux`, of a matrix."""
    m, n = x.shape
    whole = lambda name: matrix(  # noqa: E731
        p[name], out.dtype, (m, n), (p[f"{name}_row"], p[f"{name}_column"])
    )
    x = p["alpha"] * x
    for name, length in (("row_scale", m), ("column_scale", n)):
        if p[name]:
            x = x * _vector(p, name, length)
    if p["c"]:
        x = x + p["beta"] * whole("c")
    for name, length in (("row_bias", m), ("column_bias", n)):
        if p[name]:
            x = x + _vector(p, name, length)
    if p["aux"]:
        whole("aux")[...] = x
    return p["out_scale"] * x


def _vector(p, name: str, length: int) -> np.ndarray:
    vector = matrix(p[name], np.dtype(np.float32), (length,), (1,))
    return vector[:, None] if name.startswith("row") else vector


def sparse(rng, shape: tuple[int, ...], dtype=np.float16) -> tuple[Sparse24Array, np.ndarray]:
    """A matrix, or a stack, of small integers, and what it stands for in float64."""
    host = s24.compress(rng.integers(-8, 9, shape).astype(dtype), on_excess="prune")
    record, size = host._operand.rows, np.dtype(dtype).itemsize
    *lines, stored = record.values.shape
    values = array(np.zeros((*lines, row_pitch(stored, size)), dtype))[..., :stored]
    values[...] = record.values
    codes = array(reference.pack_metadata(record.metadata, record.k, size))
    on_gpu = Compressed24(values, None, codes, record.shape, record.dtype)
    operand = Operand24(on_gpu, None, None, on_gpu.shape, on_gpu.dtype)
    return Sparse24Array(operand), host.toarray().astype(np.float64)
