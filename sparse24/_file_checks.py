"""Checks of what files of arrays claim, before any array is made: sizes, shapes, npy streams."""

from __future__ import annotations

import io
import math
import os
import struct
import tokenize
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sparse24._errors import ArgumentError, FormatError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")  # suffixes of torch's checkpoints
AS_SAFETENSORS = (
    "save its tensors with safetensors.torch.save_file, or a model of transformers with "
    "model.save_pretrained(folder, safe_serialization=True)"
)
NPY_KINDS = "biufcSUmM"  # numbers, text and times: what is no object, nor raw bytes
_PACKED = (".gz", ".bz2")
_END = b"PK\5\6"  # begins the last record of a zip file, which a comment of 64 KiB may follow
_UNCOUNTED = 0xFFFF  # there are more members, or other records count them
Spec = tuple[tuple[int, ...], np.dtype]  # of an array
# What NumPy raises of a damaged npy header, which it reads as text of Python.
_NPY_ERRORS = (
    ValueError, TypeError, OverflowError, EOFError, RecursionError, SyntaxError,
    tokenize.TokenError,
)  # fmt: skip


def named(path: Any) -> Path:
    """The path of a file; refuses all else, such as an open file."""
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path must be a path, got {type(path).__name__}; name the file")
    return Path(path)


def damaged(path: Path, what: object) -> FormatError:
    otherwise = way_to_read(path) or "fetch or save the file again"
    return FormatError(f"{path} cannot be read: {what}; {otherwise}")


def not_safetensors(file: Any, path: Path, what: object) -> FormatError:
    """The error of a file that is damaged, or that NumPy wrote and only its name is of another."""
    file.seek(0)
    start = file.read(len(np.lib.format.MAGIC_PREFIX))
    if start == np.lib.format.MAGIC_PREFIX:
        return FormatError(f"{path} is an npy file, not safetensors; load it with numpy.load")
    if start.startswith(b"PK") and way_to_read(path) is None:  # a zip archive
        return FormatError(
            f"{path} is an npz file, not safetensors; rename it, to load it with sparse24.load_npz "
            "or numpy.load"
        )
    return damaged(path, what)


def way_to_read(path: str | os.PathLike) -> str | None:
    """What to do with a file that by its name is of another kind; it may be packed: a.mtx.gz."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes if suffix.lower() not in _PACKED]
    last = suffixes[-1] if suffixes else ""
    if last in (".mtx", ".smtx"):
        return f"read it in Python, with sparse24.families.read_{last[1:]}"
    if last in PICKLES:
        return f"pickles, which may run any program, are never read; {AS_SAFETENSORS}"
    return None


def npy_array(file: Any, path: Path, name: str, stored: Spec, dtype: np.dtype) -> np.ndarray:
    """The array of an npy stream, whose bits or whose foreign byte order become `dtype`."""
    try:
        x = np.lib.format.read_array(file, allow_pickle=False)
    except _NPY_ERRORS as error:
        raise damaged(path, f"array {name!r}: {error}") from error
    if (x.shape, x.dtype) != stored:  # it was written over in place
        raise damaged(path, f"array {name!r} is no longer what it was when the file was opened")
    if x.dtype == dtype:
        return x
    return x.view(dtype) if x.dtype.isnative else x.astype(dtype)


def native(spec: Spec) -> Spec:
    """An array's shape and type, in the byte order of this machine."""
    return spec[0], spec[1].newbyteorder("=")


def npy_spec(file: Any, size: int, path: Path, name: str) -> Spec:
    """Shape and type of an npy stream of `size` bytes, checked against that size."""
    head = io.BytesIO(file.read(min(size, 1 << 16)))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(head)
    except _NPY_ERRORS as error:
        raise damaged(path, f"array {name!r}: {error}") from error
    if dtype.kind not in NPY_KINDS or not dtype.itemsize:
        raise FormatError(
            f"{path}: array {name!r} has element type {dtype}, not numbers, text or times; "
            "save it as numbers (bfloat16 and fp8 go through sparse24.save_npz or safetensors)"
        )
    if bytes_of(shape, dtype, path, name) != size - head.tell():
        raise damaged(path, f"array {name!r} of shape {shape} and type {dtype} does not fill it")
    return shape, dtype


def bytes_of(shape: tuple[int, ...], dtype: np.dtype, path: Path, name: str) -> int:
    """Bytes of an array; refuses shapes that no array of NumPy has, empty ones too."""
    sizes = all(type(size) is int and size >= 0 for size in shape)
    # NumPy's limit passes over sizes of 0.
    if not sizes or dtype.itemsize * math.prod(size or 1 for size in shape) >= 1 << 63:
        raise damaged(path, f"array {name!r} has shape {shape}")
    return dtype.itemsize * math.prod(shape)


def check_members(file: Any, archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse a zip file whose list of members lacks some, as where a length in it is damaged.

    So are two of one name, of which only the last could be read.
    """
    found = len(archive.infolist())
    for name, times in Counter(archive.namelist()).items():
        if times > 1:
            raise damaged(path, f"it has {times} members {name!r}")
    file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 17)))
    tail = file.read()
    (count,) = struct.unpack_from("<H", tail, tail.rindex(_END) + 10)
    if count not in (_UNCOUNTED, found):
        raise damaged(path, f"its list of members has {found} of {count}")
