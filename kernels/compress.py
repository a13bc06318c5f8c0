"""Prune, check and pack on the GPU in one pass: launcher of ``cuda/compress.cu``.

Nothing here waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _spec
from sparse24._dtypes import NAMES, TABLE, DType
from sparse24._records import Compressed24
from sparse24.kernels import loader
from sparse24.kernels.call import KernelCall

NAME = "compress"
RULES = ("magnitude", "scores", "mask", "check")
NULL = 0
NARROW = ("float16", "bfloat16", "int8", "uint8", "int16", "uint16", "bool")  # exact in float32


def launch(
    x,
    row: DType,
    *,
    rule: str,
    scores=None,
    mask=None,
    want_metadata: bool = False,
    want_packed: bool = True,
):
    """Compress a dense CuPy array.

    Parameters
    ----------
    x : cupy.ndarray, shape (..., m, k), storage dtype of `row`
        Any strides.  Rows or columns that are contiguous and start on 16-byte boundaries
        run at memory speed.
    row : DType
    rule : {"magnitude", "scores", "mask", "check"}
        Which two of every four elements stay: the largest, those with the best
        `scores`, those under `mask`, or the non-zeros.
    scores : cupy.ndarray of real numbers, shape of `x`
        Copied unless they are float32 or float64.
    mask : cupy.ndarray of bool, shape of `x`
    want_metadata, want_packed : bool
        Which forms of the metadata to write.

    Returns
    -------
    compressed : Compressed24
        Of a group with more than two elements to keep it has the first and the last.
    status : cupy.ndarray of int64, shape (2,), or None
        For ``"mask"`` and ``"check"``: inverted flat index, among the (..., m, ceil(k/4))
        groups, of the first with more than two elements to keep, or 0, and the number of
        such groups; read by `_excess.found`.
    """
    xp = _arrays.cupy_module()
    _check.one_of(rule, RULES, argument="rule")
    *batch, m, k = x.shape
    values = _arrays.empty_rows(xp, (*batch, m, _spec.values_per_row(k)), x.dtype)
    metadata = packed = None
    if want_metadata:
        metadata = xp.empty((*batch, m, _spec.metadata_bytes_per_row(k)), np.uint8)
    if want_packed:
        packed = xp.empty((*batch, *_spec.packed_shape(m, k)), np.uint8)
    chosen = _as_chosen(scores if rule == "scores" else mask, rule)
    status = _run(x, row, rule, chosen, values, metadata, packed)
    return Compressed24(values, metadata, packed, tuple(x.shape), row), status


def check(x, row: DType):
    """Look for groups with more than two non-zeros; the status of `launch`, without output."""
    return _run(x, row, "check", None, None, None, None)


def defines(
    row: DType,
    rule: str = "magnitude",
    *,
    alignment: int = 16,
    score: str = "float",
    chosen_aligned: bool = False,
    values: bool = True,
    metadata: bool = False,
    packed: bool = True,
) -> loader.Defines:
    """The macros of ``compress.cu``."""
    return (
        ("ELEMENT", row.name),
        ("RULE", RULES.index(rule)),
        ("ALIGNMENT", alignment),
        ("SCORE", score),
        ("CHOSEN_ALIGNED", int(chosen_aligned)),
        ("VALUES", int(values)),
        ("METADATA", int(metadata)),
        ("PACKED", int(packed)),
    )


def runs_by_columns(x, itemsize: int) -> bool:
    """True if the first axis of (batch, m, k) is the contiguous one."""
    return x.strides[1] == itemsize != x.strides[2] and x.shape[1] > 1


def row_alignment(x, itemsize: int, most: int = 16) -> int:
    """Bytes that divide the start of every row of (batch, m, k); 0 if rows are strided.

    One of `most`, 4 and the item's size, so that few kernels are compiled.
    """
    if x.strides[2] != itemsize and x.shape[2] > 1:
        return 0
    found = math.gcd(x.data.ptr, most, *_outer_strides(x))
    return found if found == most else max(min(found, 4), itemsize)


def _outer_strides(x) -> list[int]:
    return [stride for stride, size in zip(x.strides[:2], x.shape[:2]) if size > 1]


def _as_chosen(chosen, rule):
    if chosen is None:
        return None
    if rule == "mask":
        return chosen.astype(np.bool_, copy=False)
    if chosen.dtype.name in ("float32", "float64"):
        return chosen
    return chosen.astype(np.float32 if chosen.dtype.name in NARROW else np.float64)


def _run(x, row, rule, chosen, values, metadata, packed):
    xp = _arrays.cupy_module()
    status = xp.zeros(2, np.int64) if rule in ("mask", "check") else None
    *_, m, k = x.shape
    if x.size == 0:
        if packed is not None:
            packed.fill(_spec.EMPTY_CODE * 0x11)
        return status
    if chosen is not None:
        chosen = chosen.reshape(-1, m, k)
    call_of(x.reshape(-1, m, k), row, rule, chosen, values, metadata, packed, status).enqueue()
    return status


def call_of(x, row: DType, rule: str, chosen, values, metadata, packed, status) -> KernelCall:
    """What `launch` enqueues.

    `x` and `chosen` are (batch, m, k), the others as in `launch`, or None.  Addresses and layouts
    of the arrays suffice.
    """
    batch, m, k = x.shape
    by_columns = runs_by_columns(x, row.itemsize)
    alignment = row_alignment(x, row.itemsize)
    if by_columns:
        aligned = all(part % 4 == 0 for part in (x.data.ptr, x.strides[0], x.strides[2]))
        alignment = 4 if aligned else 0
    macros: dict[str, Any] = {"alignment": alignment, "values": values is not None}
    macros |= {"metadata": metadata is not None, "packed": packed is not None}
    chosen_arguments = (NULL, 0, 0, 0)
    if chosen is not None:
        size = chosen.dtype.itemsize
        reach = 4 if rule == "mask" else 16
        macros["chosen_aligned"] = row_alignment(chosen, size, reach) == reach
        macros["score"] = "double" if size == 8 else "float"
        chosen_arguments = (chosen, *chosen.strides)
    name = "compress_columns" if by_columns else "compress_rows"
    kernel = loader.function(NAME, name, defines(row, rule, **macros))
    count = batch * blocks(m, k, row.itemsize, by_columns)
    pitch = 0 if values is None else values.strides[-2]
    outputs = (_or_null(values), pitch, _or_null(metadata), _or_null(packed), _or_null(status))
    arguments = (x, *x.strides, *chosen_arguments, *outputs, m, k)
    return KernelCall(kernel, count, 256 if by_columns else 128, arguments)


def blocks(m: int, k: int, itemsize: int, by_columns: bool) -> int:
    """Blocks of one matrix: tiles of tile.cuh, or what the warps of piece.cuh cover."""
    if by_columns:
        rows, columns = (128, 256) if itemsize == 1 else (64, 128)
    else:
        rows, columns = 64, 256 if itemsize == 1 else 128
    return -(-m // rows) * -(-k // columns)


def _or_null(array):
    return NULL if array is None else array


def _compile_checks():
    for name in NAMES:
        yield defines(TABLE[name]), "sm_90a", None
    for rule in RULES[1:]:
        yield defines(TABLE["bfloat16"], rule, metadata=True), "sm_90a", None
    for arch in ("sm_80", "sm_86", "sm_89", "sm_100a", "sm_120"):
        for name in ("bfloat16", "float8_e4m3fn"):
            yield defines(TABLE[name]), arch, None


COMPILE_CHECKS = tuple(_compile_checks())
