"""What can be done to a `Compressed24` record on either device."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _foreign_streams, _gradients, _overlap
from sparse24._dtypes import DType
from sparse24._errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ShapeError,
    UnsupportedError,
)
from sparse24._records import DEQUANTISED, EXPERTS, MASKS, Compressed24

MOST_OF_AN_AXIS = (1 << 31) - 256  # of a matrix on a GPU: kernels count in 32 bits, up to a tile


def canonical(record: Compressed24) -> Any:
    """The canonical metadata of a record, converted if it holds packed metadata only."""
    if record.metadata is not None:
        return record.metadata
    if _arrays.is_cupy(record.packed):
        from sparse24.kernels import decompress

        return decompress.unpack_metadata(record.packed, record.m, record.k, record.dtype.itemsize)
    from sparse24.kernels import reference

    return reference.unpack_metadata(record.packed, record.m, record.k, record.dtype.itemsize)


def packed(record: Compressed24) -> Any:
    """The packed metadata of a record, converted if it holds canonical metadata only."""
    if record.packed is not None:
        return record.packed
    if _arrays.is_cupy(record.metadata):
        from sparse24.kernels import decompress

        return decompress.pack_metadata(record.metadata, record.k, record.dtype.itemsize)
    from sparse24.kernels import reference

    return reference.pack_metadata(record.metadata, record.k, record.dtype.itemsize)


def with_packed(record: Compressed24) -> Compressed24:
    """The record with packed metadata, as the CUDA products need it."""
    if record.packed is not None:
        return record
    return Compressed24(record.values, record.metadata, packed(record), record.shape, record.dtype)


def arrays(record: Compressed24) -> tuple[Any, ...]:
    """All arrays that a record holds, in other layouts too; None for what is not there."""
    packed = None if record.quantised else record.packed  # else the values themselves
    experts = record.derived.get(EXPERTS, {}).values()  # views, but for what is derived from them
    of_experts = (x for part in list(experts) for x in _derived(part))
    return (record.values, record.metadata, packed, *_derived(record), *of_experts)


def _derived(record: Compressed24) -> tuple[Any, ...]:
    if record.quantised:
        kept = record.derived.get(DEQUANTISED, {}).values()
        return tuple(x for whole in list(kept) for x in arrays(whole))
    from sparse24.kernels import pieces

    made, codes = pieces.kept(record), record.packed
    if codes is not None:  # which those of a stack view, with other batch axes
        made = tuple(x for x in made if not _overlap.shares_memory(x, codes))
    return record.derived.get(MASKS), *made


def decompress(record: Compressed24, out=None):
    """Dense array (..., m, k) of a record; written to `out` if given."""
    if _arrays.is_cupy(record.values):
        from sparse24.kernels import decompress as kernel

        return kernel.launch(record, out=out)
    from sparse24.kernels import cpu

    dense = cpu.decompress(record.values, canonical(record), record.k)
    if out is None:
        return dense
    out[...] = dense
    return out


def check_out(out, shape: tuple[int, ...], dtype: DType, *, like) -> Any:
    """The NumPy or CuPy array behind a result array, if it fits."""
    _check.is_array(out, argument="out")
    _gradients.refuse_target(out)
    out, _ = _foreign.take(out, argument="out")
    if _arrays.is_cupy(out) != _arrays.is_cupy(like):
        raise DeviceError(
            f"out is on {_arrays.device_of(out)}, the sparse array on {_arrays.device_of(like)}; "
            "pass an array on that device"
        )
    if tuple(out.shape) != tuple(shape):
        raise ShapeError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
    if out.dtype not in (dtype.logical, dtype.carried):
        raise DTypeError(f"out must have dtype {dtype.logical}, got {out.dtype}")
    _check.writable(out, argument="out")
    return out


def dense_into(out, make, shape: tuple[int, ...], dtype: DType, *, like):
    """The dense array that `make()` returns, or `out` with its elements, after its checks."""
    if out is None:
        return make()
    with _foreign_streams.stream_of(out):
        check_out(out, shape, dtype, like=like)[...] = make()
    return out


def converted(x: Any, own: DType, wanted: DType) -> Any:
    """An array of type `own` in another one, as its device carries both; never `x` itself."""
    if not _arrays.is_cupy(x):
        return _converted_on_cpu(x, own, wanted)
    from sparse24.kernels import cast as cast_kernel

    xp = _arrays.namespace(x)
    if not x.size:  # CuPy cannot fold the rows of an empty stack
        return xp.empty(x.shape, wanted.carried)
    by_rows = x if x.strides[-1] == x.itemsize else xp.ascontiguousarray(x)
    return cast_kernel.launch(by_rows, own, wanted)


def _converted_on_cpu(x: np.ndarray, own: DType, wanted: DType) -> np.ndarray:
    """By NumPy, unless there are many elements that something else converts sooner."""
    if _is_decoded(own, wanted) and x.size > WORTH_DECODING:
        from sparse24.kernels import cpu_decode

        return cpu_decode.decoded(x, own).astype(wanted.logical, copy=False)
    is_narrowed = own.name == "float32" and wanted.name == "float16" and x.size > WORTH_DECODING
    if is_narrowed and fit_halves(x):
        return store_halves(x, np.empty_like(x, wanted.logical))
    if _is_looked_up(own, wanted) and x.size > 1 << 8 * own.itemsize:
        return _table(own, wanted).take(x.view(own.storage))
    if own.name == "float16" and wanted.name == "int8" and x.size > WORTH_DECODING:
        x = _converted_on_cpu(x, own, _dtypes.TABLE["float32"])  # NumPy rounds float16 slowly
    from sparse24.kernels import reference

    return reference.to_dtype(x, wanted.logical)


def fit_halves(x: np.ndarray) -> bool:
    """Whether NumPy makes float16 of float32 without a warning, and there is no NaN.

    Of NaN it keeps the bits.
    """
    if np.geterr()["under"] != "ignore":  # it tells of numbers that are too small, then
        return False
    return bool(x.max() < _TOO_LARGE and x.min() > -_TOO_LARGE)


def store_halves(x: np.ndarray, out: np.ndarray) -> np.ndarray:
    """float32 that fits float16 as float16 in `out`, in a tenth of NumPy's time."""
    from sparse24.kernels import cpu_epilogue

    cpu_epilogue.store(x, out)
    return out


# Elements from which on loops of ours win over NumPy's, which take 2 to 8 ns for each float16.
WORTH_DECODING = 1 << 12
_TOO_LARGE = 65520.0  # what rounds to infinity in float16


def _is_decoded(own: DType, wanted: DType) -> bool:
    """Whether our loops give the bits that NumPy does; of float16 in float64 NaN may differ."""
    if own.name == "float16":
        return wanted.name == "float32"
    return own.is_float8 and wanted.name in ("float32", "float64")


def _is_looked_up(own: DType, wanted: DType) -> bool:
    """Whether a table gives many elements of `own` sooner than NumPy converts them.

    Not those of int8 in types that NumPy, or ml_dtypes, makes of them 3 to 8 times as fast.
    """
    if own.name == "int8" and wanted.name in ("bfloat16", "float32", "float64"):
        return False
    return own.itemsize == 1 or own.itemsize + wanted.itemsize == 3


@functools.cache
def every(dtype: DType) -> np.ndarray:
    """Every value of a narrow type, in the order of its bits."""
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=dtype.storage)
    return _arrays.read_only(bits.view(dtype.logical))


@functools.cache
def _table(own: DType, wanted: DType) -> np.ndarray:
    """What every value of a narrow type is in another one, by its bits.

    Looking up is 4 to 12 times as fast as NumPy's conversions.
    """
    from sparse24.kernels import reference

    with np.errstate(invalid="ignore"):  # NaN that signal
        return _arrays.read_only(reference.to_dtype(every(own), wanted.logical))


def cast(record: Compressed24, dtype: DType) -> Compressed24:
    """The record with elements of another type; the codes stay."""
    if _arrays.is_cupy(record.values):
        from sparse24.kernels import widen

        if widen.takes(record, dtype):
            return widen.launch(record, dtype)
    return with_values(record, converted(record.values, record.dtype, dtype), dtype)


def with_values(record: Compressed24, values: Any, dtype: DType) -> Compressed24:
    """The record with other elements, of type `dtype`, at the same places."""
    keep_order = (dtype.itemsize == 1) == (record.dtype.itemsize == 1)
    metadata = canonical(record) if not keep_order else record.metadata
    packed_too = record.packed if keep_order else None
    return Compressed24(values, metadata, packed_too, record.shape, dtype)


def copy(record: Compressed24) -> Compressed24:
    """A deep copy; rows keep their alignment."""
    return move(record, lambda x: x.copy())


def device_name(device) -> str:
    """A device by its name; those of torch and CuPy are named as ours."""
    of_torch = getattr(sys.modules.get("torch"), "device", None)
    of_cupy = getattr(sys.modules.get("cupy.cuda"), "Device", None)
    if of_torch is not None and isinstance(device, of_torch):
        return str(device)
    if of_cupy is not None and isinstance(device, of_cupy):
        return f"cuda:{device.id}"
    if not isinstance(device, str):
        raise _no_device(device)
    return device


def _no_device(value) -> ArgumentError:
    return ArgumentError(
        f"device must be 'cpu', 'cuda' or 'cuda:<index>', got {_check.shown(value)}"
    )


def mover(device, stream=None):
    """A function that copies an array to `device`."""
    device = device_name(device)
    if device == "cpu":
        return lambda x: x.get(stream=stream) if _arrays.is_cupy(x) else x.copy()
    name, _, index = device.partition(":")
    if name != "cuda" or (index and not index.isdigit()):
        raise _no_device(device)
    cupy = _arrays.cupy_module()
    if not _arrays.cuda_available():
        raise DeviceError(f"cannot move to {device}, as {_arrays.why_no_cuda()}; name 'cpu'")

    def to_cuda(x):
        with cupy.cuda.Device(int(index) if index else cupy.cuda.Device().id):
            return cupy.asarray(x)

    return to_cuda


def move_values(values, dtype: DType, mover):
    """Stored elements copied by `mover`; rows 16-byte aligned on a GPU."""
    moved = mover(values.view(np.uint8) if dtype.is_float8 else values)
    if _arrays.is_cupy(moved):
        return in_rows(moved)
    return np.ascontiguousarray(moved).view(dtype.logical) if dtype.is_float8 else moved


def refuse_long(shape: tuple[int, ...]) -> None:
    """Refuse a matrix on a GPU with more rows or columns than kernels count."""
    if max(shape[-2:]) > MOST_OF_AN_AXIS:
        raise UnsupportedError(
            f"on a GPU a matrix has up to {MOST_OF_AN_AXIS} rows and columns, got shape "
            f"{tuple(shape)}; split it"
        )


def in_rows(values: Any) -> Any:
    """Stored elements in rows as kernels read them: on a GPU copied to 16-byte boundaries."""
    if not _arrays.is_cupy(values):
        return np.ascontiguousarray(values)
    aligned = _arrays.empty_rows(_arrays.namespace(values), values.shape, values.dtype)
    aligned[...] = values
    return aligned


def move(record: Compressed24, mover) -> Compressed24:
    """The record with every array copied by `mover`."""
    values = move_values(record.values, record.dtype, mover)
    if _arrays.is_cupy(record.values) and not _arrays.is_cupy(values):
        codes = mover(canonical(record))  # converted before, by the GPU
        return Compressed24(values, codes, None, record.shape, record.dtype)
    metadata = None if record.metadata is None else mover(record.metadata)
    packed = None if record.packed is None else mover(record.packed)
    if _arrays.is_cupy(values):
        refuse_long(record.shape)
    return native(Compressed24(values, metadata, packed, record.shape, record.dtype))


def native(record: Compressed24) -> Compressed24:
    """The record with its codes only in the order that products on its device read."""
    on_gpu = _arrays.is_cupy(record.values)
    codes = packed(record) if on_gpu else canonical(record)
    order = {"metadata": None, "packed": codes} if on_gpu else {"metadata": codes, "packed": None}
    return Compressed24(record.values, **order, shape=record.shape, dtype=record.dtype)
