"""Whether a device has room for what some paths make of a hybrid matrix for each of its elements.

Most paths on a GPU are made from a dense copy of the matrix, and `blas` on the CPU multiplies one;
`masks` has a bit for each element.  Where a device has no room for that, such paths are left out:
by its whole memory and not by what is free, so that the same matrix always takes the same path.
Matrices that cannot be made dense at all are refused here, too.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from collections.abc import Iterator

import numpy as np

from sparse24 import _arrays
from sparse24._errors import NoRoomError

ALWAYS = 1 << 28  # elements, as of 16384 x 16384, for which there is room on every device
SHARE = 0.5  # of a device's memory, at most
# Bytes for each element that the layouts of a GPU take beside the dense copy while they are made:
# which elements are kept, and CuPy's running numbers of the non-zeros.
MAKING = 12
BITS = 8  # of a byte


def copy_bytes(h) -> int:
    """Bytes of the dense matrix as a path multiplies it: on the CPU in the type of sums."""
    dtype = h._dtype
    each = np.dtype(dtype.accumulator).itemsize if h.device == "cpu" else dtype.itemsize
    return h.size * each


def for_dense(h) -> bool:
    """Whether paths that need a dense copy of the matrix are considered."""
    making = 0 if h.device == "cpu" else MAKING * h.size
    return _holds(h, copy_bytes(h) + making)


def for_masks(h) -> bool:
    """Whether the path `masks` is considered, on the CPU."""
    return _holds(h, h.size // BITS)


def lacking(h) -> str:
    """Words on the paths that are left out, to be put after the reason of a choice; or ""."""
    if for_dense(h):
        return ""
    copy, whole = (f"{nbytes / 1e9:.1f} GB" for nbytes in (copy_bytes(h), memory(h.device)))
    return (
        f"; paths that need a dense copy of the matrix are left out, as that takes {copy} and "
        f"{h.device} has {whole}"
    )


@contextlib.contextmanager
def refusing(
    what: str, shape: tuple[int, ...], itemsize: int, device: str, way_out: str
) -> Iterator[None]:
    """Refuse what takes that many bytes for each element, before or when it finds no memory.

    Before, as a system may promise memory that it does not have.
    """
    needed = math.prod(shape) * itemsize
    text = (
        f"{what} of shape {shape} takes {needed / 1e9:.1f} GB, which {device} does not have; "
        f"{way_out}"
    )
    if needed > ALWAYS and needed > memory(device):
        raise NoRoomError(text)
    try:
        yield
    except MemoryError as error:
        raise NoRoomError(text) from error


def _holds(h, nbytes: int) -> bool:
    return h.size <= ALWAYS or nbytes <= SHARE * memory(h.device)


@functools.cache
def memory(device: str) -> int:
    """Bytes of memory of a device, in use or not."""
    if device == "cpu":
        if not hasattr(os, "sysconf"):
            return sys.maxsize  # Windows does not say it this way; NumPy raises MemoryError there
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    number = int(device.partition(":")[2])
    return int(_arrays.cupy_module().cuda.Device(number).mem_info[1])
