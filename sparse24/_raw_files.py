"""Named NumPy arrays in safetensors, npz and npy files: every element type, no pickle.

Reading is lazy and defensive: shapes, element types and sizes are checked against
the file before any array is made.  `_raw_writers` writes them.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from sparse24 import _dtypes
from sparse24._errors import ArgumentError, FormatError

SUFFIXES = (".safetensors", ".npz", ".npy")
HEADER = "sparse24"  # key of the JSON header in safetensors; <HEADER>.json in npz

SAFETENSORS_TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    "BOOL": np.bool_, "C64": np.complex64,
}  # fmt: skip
NPY_KINDS = "biufc"
# What a damaged archive raises: a wrong offset is an OSError, an encrypted or odd member a
# RuntimeError or NotImplementedError, an odd name a UnicodeDecodeError.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError,
    RuntimeError, NotImplementedError, UnicodeDecodeError,
)  # fmt: skip
# What NumPy raises of a damaged npy header, which it reads as text of Python.
_NPY_ERRORS = (
    ValueError, TypeError, OverflowError, EOFError, RecursionError, SyntaxError,
    tokenize.TokenError,
)  # fmt: skip


def damaged(path: Path, what: object) -> FormatError:
    return FormatError(f"{path} cannot be read: {what}; fetch or save the file again")


def suffix_of(path: str | os.PathLike) -> str:
    """The lower-case suffix of a path that sparse24 reads and writes."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ArgumentError(
            f"path must end in {', '.join(SUFFIXES)}, got {str(path)!r}; {_way_out(path)}"
        )
    return suffix


def _way_out(path: str | os.PathLike) -> str:
    """What to do with a file of another kind, which may be packed, as a.mtx.gz is."""
    for kind in ("mtx", "smtx"):
        if f".{kind}" in Path(path).name.lower():
            return f"read it in Python, with sparse24.families.read_{kind}"
    return "save its arrays in one of these formats first"


def open_arrays(path: str | os.PathLike) -> ArrayFile:
    """Open a safetensors, npz or npy file by its suffix, or a checkpoint in shards.

    That is named by its index, or by the folder with the one index or one safetensors file.

    Raises
    ------
    ArgumentError
        If the suffix is another, or a folder holds several checkpoints or none.
    FormatError
        If the file is damaged, or holds what sparse24 cannot read.
    FileNotFoundError
        If there is no such file.
    """
    from sparse24 import _shards

    if _shards.may_be_sharded(path):
        return _shards.open_sharded(path)
    if not os.path.exists(path):  # a folder's name may end in anything
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    kinds = {".safetensors": SafetensorsFile, ".npz": NpzFile, ".npy": NpyFile}
    return kinds[suffix_of(path)](Path(path))


class ArrayFile(Mapping[str, np.ndarray]):
    """The arrays of a file by name; each is read when it is asked for.

    Attributes
    ----------
    header : dict
        The JSON header that sparse24 wrote, or empty.
    specs : dict of str to (shape, dtype)
        What the file holds, known without reading the arrays.
    texts : dict of str to str
        Other entries of a safetensors file's metadata.
    """

    def __init__(self, path: Path):
        if path.is_dir():
            raise ArgumentError(f"{str(path)!r} is a folder; name a file in it")
        self.path = path
        self.header: dict[str, Any] = {}
        self.specs: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self.texts: dict[str, str] = {}

    @property
    def files(self) -> tuple[ArrayFile, ...]:
        """The file itself, or the shards of which it is made."""
        return (self,)

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def __contains__(self, name: object) -> bool:
        return name in self.specs  # the way of a mapping would read the array

    def __getitem__(self, name: str) -> np.ndarray:
        shape, dtype = self.specs[name]
        return self._read(name, shape, dtype)

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        raise NotImplementedError(type(self).__name__)

    def _parse_header(self, text: str | bytes) -> None:
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise damaged(self.path, f"its header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise damaged(self.path, "its header is not a JSON object")
        self.header = header


class SafetensorsFile(ArrayFile):
    """A safetensors file; arrays are read-only views of the mapped file.

    The package's own NumPy loader knows no fp8, so it only checks the file and
    says what is in it.  The format allows no holes: in offset order, every array
    starts where the one before it ends.
    """

    def __init__(self, path: Path):
        super().__init__(path)
        from safetensors import SafetensorError, safe_open

        if path.stat().st_size == 0:
            raise damaged(path, "it is empty")
        try:
            with safe_open(path, framework="np") as file:
                self.texts = dict(file.metadata() or {})
                slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
                described = [(name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices]
        except SafetensorError as error:
            raise damaged(path, error) from error
        if HEADER in self.texts:
            self._parse_header(self.texts.pop(HEADER))
        self._offsets = self._locate(described)

    def _locate(self, described) -> dict[str, int]:
        sizes = {}
        for name, type_name, shape in described:
            if type_name not in SAFETENSORS_TYPES:
                known = ", ".join(SAFETENSORS_TYPES)
                raise damaged(self.path, f"array {name!r} has type {type_name}, not one of {known}")
            dtype = np.dtype(SAFETENSORS_TYPES[type_name])
            self.specs[name] = (shape, dtype)
            sizes[name] = _bytes_of(shape, dtype, self.path, name)
        offset = self.path.stat().st_size - sum(sizes.values())
        offsets = {}
        for name, size in sizes.items():
            offsets[name] = offset
            offset += size
        return offsets

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(self.path, dtype, "r", self._offsets[name], shape).view(np.ndarray)


class NpzFile(ArrayFile):
    """An npz file, of `numpy.savez` or of `write_npz`."""

    def __init__(self, path: Path):
        super().__init__(path)
        with path.open("rb") as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
                raise FormatError(f"{path} is an npy file, not npz; load it with numpy.load")
        with self._archive() as archive:
            members = {info.filename: info for info in archive.infolist()}
            ours = f"{HEADER}.json" in members
            if not ours and {"format.npy", "shape.npy", "data.npy"} <= members.keys():
                raise FormatError(
                    f"{path} is a scipy.sparse matrix; load it with scipy.sparse.load_npz, and "
                    "make it sparse24's with sparse24.hybrid or sparse24.from_scipy"
                )
            if ours:
                self._parse_header(archive.read(f"{HEADER}.json"))
            for filename, info in members.items():
                if filename.endswith(".npy"):
                    name = filename.removesuffix(".npy")
                    with archive.open(info) as file:
                        self.specs[name] = _npy_spec(file, info.file_size, path, name)
        bits = self.header.pop("bits", {})
        for name, type_name in bits.items() if isinstance(bits, dict) else ():
            self._rename(name, type_name)

    def _rename(self, name: str, type_name: str) -> None:
        row = _dtypes.TABLE.get(type_name) if isinstance(type_name, str) else None
        if row is None or name not in self.specs or self.specs[name][1] != row.storage:
            raise damaged(self.path, f"array {name!r} does not hold the bits of {type_name!r}")
        self.specs[name] = (self.specs[name][0], row.logical)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self.path.open("rb") as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    yield archive
            except _ZIP_ERRORS as error:
                raise damaged(self.path, error) from error

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        with self._archive() as archive, archive.open(f"{name}.npy") as file:
            x = _npy_array(file, self.path, name)
            file.read()  # to the end, where the checksum is compared
        return x.view(dtype) if x.dtype != dtype else x


class NpyFile(ArrayFile):
    """An npy file: one array, named by the file's stem."""

    def __init__(self, path: Path):
        super().__init__(path)
        with path.open("rb") as file:
            self.specs[path.stem] = _npy_spec(file, path.stat().st_size, path, path.stem)

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        with self.path.open("rb") as file:
            return _npy_array(file, self.path, name)


def _npy_array(file: Any, path: Path, name: str) -> np.ndarray:
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except _NPY_ERRORS as error:
        raise damaged(path, f"array {name!r}: {error}") from error


def _npy_spec(file: Any, size: int, path: Path, name: str) -> tuple[tuple[int, ...], np.dtype]:
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
    if dtype.kind not in NPY_KINDS:
        raise FormatError(
            f"{path}: array {name!r} has element type {dtype}, which is not numeric; "
            "save it as numbers (bfloat16 and fp8 go through sparse24.save_npz or safetensors)"
        )
    if _bytes_of(shape, dtype, path, name) != size - head.tell():
        raise damaged(path, f"array {name!r} of shape {shape} and type {dtype} does not fill it")
    return shape, dtype


def _bytes_of(shape: tuple[int, ...], dtype: np.dtype, path: Path, name: str) -> int:
    """Bytes of an array; refuses shapes that no array of NumPy has, empty ones too."""
    sizes = all(type(size) is int and size >= 0 for size in shape)
    # NumPy's limit passes over sizes of 0.
    if not sizes or dtype.itemsize * math.prod(size or 1 for size in shape) >= 1 << 63:
        raise damaged(path, f"array {name!r} has shape {shape}")
    return dtype.itemsize * math.prod(shape)
