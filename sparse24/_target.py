"""The result of a product: a new array, or the caller's `out`, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _devices, _dtypes, _foreign, _overlap
from sparse24._dtypes import DType
from sparse24._errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from sparse24._options import Call
from sparse24._promotion import as_read, promote
from sparse24._records import Fused, Operand24


@dataclass(frozen=True)
class Target:
    """Where a product goes, and of which type it is."""

    shape: tuple[int, ...]
    name: str  # of the result's type
    out: Any
    on_gpu: bool

    @property
    def dtype(self) -> np.dtype:
        """The array type that carries the result."""
        logical = _dtypes.numpy_dtype(self.name)
        carried = self.on_gpu and self.name.startswith("float8")
        return np.dtype(np.uint8) if carried else logical

    def allocate(self, dropped: int | None):
        """The array to fill, with both matrix axes; the caller's `out` lacks the dropped one."""
        if self.out is None:
            return (_arrays.cupy_module() if self.on_gpu else np).empty(self.shape, self.dtype)
        target = self._with_both_axes(self.out, "out", dropped)
        _check.writable(self.out, argument="out")
        return target

    def fitted(self, epilogue: Fused, dropped: int | None) -> Fused:
        """The epilogue with its matrices checked, and with both axes.

        `c` may be `out` itself; `aux` overlaps neither.
        """
        epilogue = self._with_vectors_apart(epilogue)
        c, aux = epilogue.c, epilogue.aux
        if c is None and aux is None:
            return epilogue
        if c is not None:
            if _meet(c, self.out) and not _overlap.same_view(c, self.out):
                raise ArgumentError(
                    "c overlaps out and is another array; pass out itself, or a copy"
                )
            c = self._with_both_axes(c, "c", dropped)
        if aux is not None:
            if _meet(aux, self.out) or _meet(aux, epilogue.c):
                raise ArgumentError("aux shares memory with out or c; pass another array")
            _check.writable(aux, argument="aux")
            aux = self._with_both_axes(aux, "aux", dropped)
        return replace(epilogue, c=c, aux=aux)

    def _with_vectors_apart(self, epilogue: Fused) -> Fused:
        """The epilogue with copies of its vectors that lie in what the product writes to."""
        written = [x for x in (self.out, epilogue.aux) if x is not None]
        copies = {}
        for name in ("row_scale", "column_scale", "row_bias", "column_bias") if written else ():
            vector = getattr(epilogue, name)
            if any(_meet(vector, x) for x in written):
                copies[name] = vector.copy()
        return replace(epilogue, **copies) if copies else epilogue

    def _with_both_axes(self, array, name: str, dropped: int | None):
        """An array of the caller's, checked against the result, as a view with both axes."""
        _devices.refuse_elsewhere(array, argument=name, on_gpu=self.on_gpu)
        wanted = list(self.shape)
        if dropped is not None:
            del wanted[dropped]
        if tuple(array.shape) != tuple(wanted):
            raise ShapeError(f"{name} must have shape {tuple(wanted)}, got {tuple(array.shape)}")
        if array.dtype != self.dtype:
            raise DTypeError(f"{name} must have dtype {self.dtype}, got {array.dtype}")
        if dropped is None:
            return array
        return array[..., None] if dropped == -1 else array[..., None, :]


@dataclass(frozen=True)
class Result(Target):
    """Where a product goes, and in which types it is computed."""

    type_a: DType  # types to which the operands are converted before a kernel takes them
    type_b: DType

    @classmethod
    def of(cls, a: Operand24, other, out, call: Call, shape: tuple[int, ...]) -> Result:
        """The result of a product of `a` and a dense array; refuses operands on two devices."""
        held = a.elements
        here, there = _arrays.device_of(held), _arrays.device_of(other)
        if here != there:
            raise DeviceError(
                f"one operand is on {here}, the other on {there}; move one with .to_device(...) or "
                "cupy.asarray"
            )
        own = _arrays.logical_dtype(other, call.other_dtype, argument="b")
        type_a, type_b = promote(a.dtype, own)
        name = type_a.result if call.dtype is None else result_name(call.dtype)
        on_gpu = _arrays.is_cupy(held)
        refuse_integers(type_a.name, name, on_gpu=on_gpu)
        if not on_gpu:
            type_a, type_b = as_read(a.dtype, type_a), as_read(own, type_b)
        return cls(shape, name, given(out), on_gpu, type_a, type_b)


def restored(product: Any, restore: Callable[[Any], Any], call: Call) -> Any:
    """A product in the library of the caller, where fp8 has its own type, which CuPy lacks.

    It is of fp8 only if the call asks for it.
    """
    made = restore(product)
    if call.dtype is None or not (_arrays.is_torch(made) or _arrays.is_jax(made)):
        return made
    name = result_name(call.dtype)
    return _foreign.of_float8(made, name) if name.startswith("float8") else made


def given(out):
    """The caller's `out` as a NumPy or CuPy array; None if there is none."""
    if out is None:
        return None
    _check.is_array(out, argument="out")
    return _foreign.take(out, argument="out")[0]


def check_out(out, shape: tuple[int, ...], dtype: np.dtype, device: str) -> None:
    """Refuse an `out` that cannot take a product of this shape and type, made on a device."""
    if _arrays.device_of(out) != device:
        raise DeviceError(
            f"out is on {_arrays.device_of(out)}, the product on {device}; "
            "pass an array on the device of the operands"
        )
    _check.same_shape(out.shape, shape, argument="out", other="the product")
    if out.dtype != dtype:
        raise DTypeError(f"out must have dtype {dtype}, got {out.dtype}")
    _check.writable(out, argument="out")


def real_of(result: str) -> type[np.floating]:
    """In which type an epilogue works, by the name of the result's."""
    return np.float64 if result == "float64" else np.float32


def vector_type(result: str, xp: Any) -> type[np.floating]:
    """In which type vectors of an epilogue are kept.

    On the CPU in float64, which holds those of any type, such as an int32 bias: what multiplies
    there narrows them to the type in which it works.
    """
    return np.float64 if xp is np else real_of(result)


def refuse_integers(of: str, result: str, *, on_gpu: bool) -> None:
    """Refuse a result of integers for a product of float64 on a GPU, which no kernel stores."""
    if on_gpu and of == "float64" and result in ("int8", "int32"):
        raise UnsupportedError(
            f"products of float64 have no {result} result on a GPU; leave dtype out and round"
        )


def result_name(dtype) -> str:
    """Name of a result's type, which may be int32 beside those of operands."""
    if _dtypes.of_numpy(_dtypes.by_name(dtype)) == np.int32:
        return "int32"
    return _dtypes.lookup(dtype, known=_dtypes.OUTPUT_NAMES).name


def _meet(x, y) -> bool:
    return x is not None and y is not None and _overlap.shares_memory(x, y)
