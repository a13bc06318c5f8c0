"""Tensor maps: the descriptors by which Hopper's Tensor Memory Accelerator (TMA) addresses boxes.

They are encoded by the driver through ctypes, because the driver wants the 128 bytes
on a 64-byte boundary and Python objects cannot promise that.  CuPy passes the array
of size 1 by value as a ``__grid_constant__`` kernel parameter.

Source: CUDA driver API, ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable

import numpy as np

from sparse24._errors import DeviceError

BYTES = 128
ALIGNMENT = 64
CACHED = 512  # maps; one costs about 0.5 KiB

# CUtensorMapDataType, CUtensorMapSwizzle by inner bytes, and CUtensorMapL2promotion (cuda.h).
_DATA_TYPE = {1: 0, 2: 1, 4: 11}  # UINT8, UINT16, TFLOAT32 (rounds float32 as it loads)
_FLOAT32 = 7
_SWIZZLE = {16: 0, 32: 1, 64: 2, 128: 3, 1024: 0}
_PROMOTE_TO_128_BYTES = 2


@functools.cache
def _encoder():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"the CUDA driver library could not be loaded: {error}") from error
    encode = driver.cuTensorMapEncodeTiled
    pointer = ctypes.c_void_p
    encode.argtypes = (
        pointer, ctypes.c_int, ctypes.c_uint32, pointer, pointer, pointer, pointer, pointer,
        ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
    )  # fmt: skip
    encode.restype = ctypes.c_int
    return encode


def empty() -> np.ndarray:
    """Room for one map, of dtype V128 and size 1, on a 64-byte boundary."""
    room = np.zeros(BYTES + ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % ALIGNMENT
    return room[skip : skip + BYTES].view(f"V{BYTES}")


def several(maps: Iterable[np.ndarray]) -> np.ndarray:
    """Maps as one kernel argument, a struct of them."""
    together = np.concatenate(list(maps))
    return together.view(f"V{together.nbytes}")


def addressable(pointer: int, strides: tuple[int, ...]) -> bool:
    """True if the TMA can address a tensor with these outer strides in bytes."""
    return pointer % 16 == 0 and all(stride % 16 == 0 and stride > 0 for stride in strides)


@functools.lru_cache(maxsize=CACHED)
def tiled(
    pointer: int,
    extents: tuple[int, int, int],
    strides: tuple[int, int],
    box: tuple[int, int],
    itemsize: int,
    *,
    tensor_float: bool = True,
) -> np.ndarray:
    """The map of a 3-D tensor, read or written in 2-D boxes.

    Parameters
    ----------
    pointer : int
        Device address, a multiple of 16.
    extents : (inner, outer, batch)
        In elements; the inner axis is contiguous.
    strides : (outer, batch)
        In bytes, multiples of 16; lines may overlap.
    box : (inner, outer)
        In elements.  The inner bytes are 32, 64 or 128 and name the swizzle; 16 or 1024: none.
    itemsize : {1, 2, 4}
    tensor_float : bool
        Round 4-byte elements to TF32 while they are loaded.

    Returns
    -------
    ndarray of V128, size 1
        Read-only by convention: it is shared through a cache.
    """
    result = empty()
    data_type = _DATA_TYPE[itemsize] if tensor_float else {**_DATA_TYPE, 4: _FLOAT32}[itemsize]
    sizes = np.array(extents, np.uint64)
    pitches = np.array(strides, np.uint64)
    boxes = np.array((*box, 1), np.uint32)
    ones = np.ones(3, np.uint32)
    status = _encoder()(
        result.ctypes.data, data_type, 3, pointer, sizes.ctypes.data, pitches.ctypes.data,
        boxes.ctypes.data, ones.ctypes.data, 0, _SWIZZLE[box[0] * itemsize],
        _PROMOTE_TO_128_BYTES, 0,
    )  # fmt: skip
    if status:
        raise DeviceError(
            f"cuTensorMapEncodeTiled returned CUresult {status} for extents {extents}, strides "
            f"{strides} and box {box} of {itemsize}-byte elements at {pointer:#x}"
        )
    return result
