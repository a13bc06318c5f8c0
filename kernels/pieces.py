"""float32 operands as sections of bfloat16 pieces; launcher of ``cuda/sparse_split.cu``.

A float32 number is the sum of three bfloat16 pieces.  A product of two is the sum of six products
of pieces, and of terms that are left out: together at most 2**-22 of it, and on average as large as
its rounding.  The Hopper kernel takes three sections, one for each piece, and multiplies them
crosswise.  ``split_mma`` takes six, whose products follow one another along a six times longer k;
there every section of the sparse operand has the places of its non-zeros.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from sparse24 import _arrays, _dtypes, _spec
from sparse24._records import MAKING, Compressed24
from sparse24._settled import Making
from sparse24._views import View
from sparse24.kernels import loader
from sparse24.kernels.launch import Launch, current_stream

STEM = "sparse_split"
PIECES, SECTIONS = 3, 6
THREADS = 256
PER = 8  # elements of a thread
SPARSE, DENSE = 0, 1


def _defines(sections: int, side: int) -> loader.Defines:
    return (("SECTIONS", sections), ("SIDE", side))


_SPLIT = np.dtype(
    [
        ("x", "u8"), ("x_batch", "i8"), ("x_line", "i8"), ("x_step", "i8"),
        ("out", "u8"), ("out_batch", "i8"), ("out_line", "i8"), ("out_section", "i8"),
        ("lines", "i4"), ("length", "i4"), ("lines_out", "i4"), ("length_out", "i4"),
        ("blocks", "i4"), ("aligned", "i4"),
    ],
)  # fmt: skip

COMPILE_CHECKS = [(_defines(PIECES, SPARSE), "sm_90a", None)] + [
    (_defines(SECTIONS, side), arch, None)
    for side in (SPARSE, DENSE)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
]


class _Made:
    """A widened operand, what is known of its making, and the streams that come after that."""

    def __init__(self, record: Compressed24, stream: Any):
        self._record, self._event = record, stream.record()
        self._making, self._streams = Making(self._event), {stream.ptr}

    @property
    def record(self) -> Compressed24:
        """Settled once its making is known to have ended."""
        if not self._record.settled and self._making.has_ended():
            self._record = replace(self._record, settled=True)
        return self._record

    def may_read(self, stream: Any) -> bool:
        """Whether `stream` comes after the making; it waits for that if it can."""
        if not self.record.settled and stream.ptr not in self._streams:
            if stream.is_capturing():
                return False
            stream.wait_event(self._event)
            self._streams.add(stream.ptr)
        return True


def padded(k: int) -> int:
    """Elements along k of a section: whole atoms of metadata."""
    return -(-k // _spec.ATOM_K) * _spec.ATOM_K


def of_sparse(a: Compressed24, sections: int = PIECES) -> Compressed24:
    """The sections (..., m, sections * padded k) of a float32 record, made once and kept with it.

    Enqueued on CuPy's current stream; other streams wait for it.  A graph that is captured
    on a stream that never waited makes its own.  Those of a record that a graph makes anew at
    each replay are made for each product.
    """
    stream = _arrays.cupy_module().cuda.get_current_stream()
    made = a.derived.get(_key(sections))
    if made is not None and made.may_read(stream):
        return made.record
    wide = _widen(a, sections)
    if stream.is_capturing():
        keep_for_graph(a, wide)
    elif not _is_made_anew(a):
        first = a.derived.setdefault(_key(sections), _Made(wide, stream))  # another thread's
        first.may_read(stream)
        return first.record
    return wide


def _is_made_anew(a: Compressed24) -> bool:
    """Whether a captured graph makes a record at each replay, for all that is known."""
    making = a.derived.get(MAKING)
    return making is not None and not making.may_end


def settled(a: Compressed24) -> Compressed24 | None:
    """The three pieces of a record if their making is known to have ended, for every stream."""
    made = a.derived.get(_key(PIECES))
    return made.record if made is not None and made.record.settled else None


def _key(sections: int) -> str:
    return f"{sections} sections of pieces"


def kept(a: Compressed24) -> tuple[Any, ...]:
    """The arrays of the sections that a record keeps."""
    made = [a.derived[key] for key in map(_key, (PIECES, SECTIONS)) if key in a.derived]
    arrays = [x for each in made for x in (each.record.values, each.record.packed)]
    return tuple(x for x in arrays if x is not a.packed)


def keep_for_graph(a: Compressed24, what: Any) -> None:
    """Keep what a captured graph reads for as long as the sparse operand, which it reads too."""
    a.derived.setdefault("graphs", []).append(what)


def _widen(a: Compressed24, sections: int) -> Compressed24:
    xp, (*batch, m, k) = _arrays.cupy_module(), a.shape
    length, atoms = padded(k) // 2, a.packed.shape[-3:]
    values = xp.empty((*batch, m, sections * length), np.uint16)
    if values.size:
        split = _launch(View(a.values), View(values), _defines(sections, SPARSE), length, m, length)
        split(current_stream())
    packed = a.packed
    if sections == SECTIONS:
        packed = xp.empty((*batch, sections, *atoms), np.uint8)
        packed[...] = a.packed[..., None, :, :, :]
        packed = packed.reshape(*batch, sections * atoms[0], *atoms[1:])
    shape = (*batch, m, sections * padded(k))
    return Compressed24(values, None, packed, shape, _dtypes.TABLE["bfloat16"])


def of_dense(b, sections: int = PIECES, *, by_columns: bool):
    """The sections (..., sections * padded k, n) of b (..., k, n), columns or rows contiguous.

    Parameters
    ----------
    b : cupy.ndarray of float32, any strides
    sections : int
    by_columns : bool

    Returns
    -------
    cupy.ndarray of uint16, the bits of bfloat16
        Enqueued on CuPy's current stream.
    """
    xp, plan = _arrays.cupy_module(), dense_layout(b, sections, by_columns=by_columns)
    room = xp.empty(scratch_bytes(plan) // plan.itemsize, plan.dtype)
    out = xp.ndarray(plan.shape, plan.dtype, memptr=room.data, strides=plan.strides)
    if out.size:
        split_dense(View(b), View(out), sections, by_columns=by_columns)(current_stream())
    return out


def dense_layout(b, sections: int = PIECES, *, by_columns: bool) -> View:
    """How `of_dense` lays the sections of b out, at address 0."""
    *batch, k, n = b.shape
    rows = sections * padded(k)
    line = 2 * (rows if by_columns else _arrays.row_pitch(n, 2))
    strides = (2, line) if by_columns else (line, 2)
    matrix = line * (n if by_columns else rows)
    lead = [matrix * math.prod(batch[i + 1 :]) for i in range(len(batch))]
    return View.of(0, (*batch, rows, n), (*lead, *strides), np.uint16)


def scratch_bytes(plan: View) -> int:
    """Bytes of memory for sections of this layout."""
    *batch, rows, n = plan.shape
    line, lines = max((plan.strides[-2], rows), (plan.strides[-1], n))
    return math.prod(batch) * line * lines


def split_dense(b: View, out: View, sections: int = PIECES, *, by_columns: bool) -> Launch:
    """The launch that writes the sections of b to `out`, which `dense_layout` has laid out."""
    k, n = b.shape[-2:]
    macros = _defines(sections, DENSE if sections == SECTIONS else SPARSE)
    if by_columns:
        return _launch(b.turned(), out.turned(), macros, padded(k), n, padded(k))
    pitch = out.strides[-2] // out.itemsize
    return _launch(b, out, macros, padded(k) * pitch, padded(k), pitch)


def _launch(
    x: View, out: View, macros: loader.Defines, section: int, lines: int, length: int
) -> Launch:
    """What fills the `lines` lines of `length` elements of each section of `out`.

    `section` is the distance in elements from one section to the next; `x` is (..., lines,
    length) of any strides, `out` is written 16 bytes at a time.
    """
    blocks = -(-lines * (length // PER) // THREADS)
    step, line, batch = _strides(x)
    out_line, out_batch = _strides(out)[1:]
    aligned = step == 1 and not (x.ptr | 4 * line | 4 * batch) & 15
    split = (
        x.ptr, batch, line, step, out.ptr, out_batch, out_line, section,
        *x.shape[-2:], lines, length, blocks, aligned,
    )  # fmt: skip
    kernel = loader.function(STEM, STEM, macros)
    grid, argument = blocks * (x.shape[0] if x.ndim > 2 else 1), np.array([split], _SPLIT)
    early = int(_arrays.cupy_module().cuda.Device().compute_capability) >= 90
    return Launch(kernel, grid, THREADS, 0, [loader.by_value(argument)], early=early)


def _strides(x: View) -> tuple[int, int, int]:
    """Elements from one to the next of a line, from line to line, from matrix to matrix."""
    batch = x.strides[0] if x.ndim > 2 else 0
    return x.strides[-1] // x.itemsize, x.strides[-2] // x.itemsize, batch // x.itemsize
