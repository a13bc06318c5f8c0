"""float32 operands as six sections of bfloat16 pieces; launcher of ``cuda/sparse_split.cu``.

A float32 number is the sum of three bfloat16 pieces.  A product of two is the sum of six
products of pieces, and of terms below 2**-24 of it: one bfloat16 product along a six times
longer k.  Every section of the sparse operand has the places of its non-zeros.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sparse24 import _arrays, _dtypes, _spec
from sparse24._records import Compressed24
from sparse24.kernels import loader

STEM = "sparse_split"
SECTIONS = 6
THREADS = 256
PER = 8  # elements of a thread
MOST_BATCHES = 65535  # of a grid along y (CUDA C++ Programming Guide, compute capabilities)
SPARSE, DENSE = 0, 1

COMPILE_CHECKS = [((("SIDE", side),), "sm_90a", None) for side in (SPARSE, DENSE)]


class _Made(NamedTuple):
    """A widened operand, the event behind its making, and the streams that come after that."""

    record: Compressed24
    event: Any
    streams: set[int]


def padded(k: int) -> int:
    """Elements along k of a section: whole atoms of metadata."""
    return -(-k // _spec.ATOM_K) * _spec.ATOM_K


def of_sparse(a: Compressed24) -> Compressed24:
    """The sections (..., m, 6 * padded k) of a float32 record, made once and kept with it.

    Enqueued on CuPy's current stream; other streams wait for it.  A graph that is captured
    on a stream that never waited makes its own.
    """
    stream = _arrays.cupy_module().cuda.get_current_stream()
    made = a.derived.get(STEM)
    if made is not None and _may_read(made, stream):
        return made.record
    wide = _widen(a)
    if stream.is_capturing():
        keep_for_graph(a, wide)
    else:
        a.derived[STEM] = _Made(wide, stream.record(), {stream.ptr})
    return wide


def _may_read(made: _Made, stream) -> bool:
    if stream.ptr not in made.streams:
        if stream.is_capturing():
            return False
        stream.wait_event(made.event)
        made.streams.add(stream.ptr)
    return True


def kept(a: Compressed24) -> tuple[Any, ...]:
    """The arrays of the sections that a record keeps."""
    made = a.derived.get(STEM)
    return () if made is None else (made.record.values, made.record.packed)


def keep_for_graph(a: Compressed24, what: Any) -> None:
    """Keep what a captured graph reads for as long as the sparse operand, which it reads too."""
    a.derived.setdefault("graphs", []).append(what)


def _widen(a: Compressed24) -> Compressed24:
    xp, (*batch, m, k) = _arrays.cupy_module(), a.shape
    length, atoms = padded(k) // 2, a.packed.shape[-3:]
    values = xp.empty((*batch, m, SECTIONS * length), np.uint16)
    _launch(a.values, values, SPARSE, length, m, length)
    packed = xp.empty((*batch, SECTIONS, *atoms), np.uint8)
    packed[...] = a.packed[..., None, :, :, :]
    packed = packed.reshape(*batch, SECTIONS * atoms[0], *atoms[1:])
    shape = (*batch, m, SECTIONS * padded(k))
    return Compressed24(values, None, packed, shape, _dtypes.TABLE["bfloat16"])


def of_dense(b, *, by_columns: bool):
    """The sections (..., 6 * padded k, n) of b (..., k, n), columns or rows contiguous.

    Parameters
    ----------
    b : cupy.ndarray of float32, any strides
    by_columns : bool

    Returns
    -------
    cupy.ndarray of uint16, the bits of bfloat16
        Enqueued on CuPy's current stream.
    """
    xp = _arrays.cupy_module()
    *batch, k, n = b.shape
    length = padded(k)
    if by_columns:
        out = xp.empty((*batch, n, SECTIONS * length), np.uint16)
        _launch(b.swapaxes(-1, -2), out, DENSE, length, n, length)
        return out.swapaxes(-1, -2)
    pitch = _arrays.row_pitch(n, 2)
    out = xp.empty((*batch, SECTIONS * length, pitch), np.uint16)
    _launch(b, out, DENSE, length * pitch, length, pitch)
    return out[..., :n]


def _launch(x, out, side: int, section: int, lines: int, length: int) -> None:
    """Fill the `lines` lines of `length` elements of each section of `out`.

    `section` is the distance in elements from one section to the next; `x` is (..., lines,
    length) of any strides, `out` is written 16 bytes at a time.
    """
    if not out.size:
        return
    step, line, batch = _strides(x)
    out_line, out_batch = _strides(out)[1:]
    aligned = step == 1 and not (x.data.ptr | 4 * line | 4 * batch) & 15
    arguments = (
        x, *map(np.int64, (batch, line, step)), out, *map(np.int64, (out_batch, out_line, section)),
        *map(np.int32, (*x.shape[-2:], lines, length, aligned)),
    )  # fmt: skip
    blocks = -(-lines * (length // PER) // THREADS)
    kernel = loader.function(STEM, STEM, (("SIDE", side),))
    kernel((blocks, x.shape[0] if x.ndim > 2 else 1), (THREADS,), arguments)


def _strides(x) -> tuple[int, int, int]:
    """Elements from one to the next of a line, from line to line, from matrix to matrix."""
    batch = x.strides[0] if x.ndim > 2 else 0
    return x.strides[-1] // x.itemsize, x.strides[-2] // x.itemsize, batch // x.itemsize
