"""Named NumPy arrays in safetensors, npz and npy files: every element type, no pickle.

Reading is lazy and defensive: shapes, element types and sizes are checked against
the file before any array is made.  `_raw_writers` writes them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from sparse24 import _dtypes
from sparse24._errors import ArgumentError, FormatError
from sparse24._file_checks import (
    bytes_of,
    check_members,
    damaged,
    native,
    not_safetensors,
    npy_array,
    npy_spec,
    way_to_read,
)

SUFFIXES = (".safetensors", ".npz", ".npy")
HEADER = "sparse24"  # key of the JSON header in safetensors; <HEADER>.json in npz

SAFETENSORS_TYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8,
    "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    "BOOL": np.bool_, "C64": np.complex64,
}  # fmt: skip
# What a damaged archive raises: a wrong offset is an OSError, an encrypted or odd member a
# RuntimeError or NotImplementedError, an odd name a UnicodeDecodeError.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError,
    RuntimeError, NotImplementedError, UnicodeDecodeError,
)  # fmt: skip


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file from another that takes its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def suffix_of(path: str | os.PathLike) -> str:
    """The lower-case suffix of a path that sparse24 reads and writes."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ArgumentError(
            f"path must end in {', '.join(SUFFIXES)}, got {str(path)!r}; "
            f"{way_to_read(path) or 'save its arrays in one of these formats first'}"
        )
    return suffix


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
        What the file holds, known without reading the arrays.  Foreign byte orders are read as
        the machine's own, but where checksums of the bytes are kept.
    texts : dict of str to str
        Other entries of a safetensors file's metadata.
    index : dict or None
        What the index of a checkpoint in shards holds.
    """

    index: dict[str, Any] | None = None

    def __init__(self, path: Path):
        if path.is_dir():
            raise ArgumentError(f"{str(path)!r} is a folder; name a file in it")
        self.path = path
        self.header: dict[str, Any] = {}
        self.specs: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self.texts: dict[str, str] = {}
        self._first: tuple[int, ...] | None = None

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

    def _open(self) -> BinaryIO:
        """The file, which must be the one that was opened first: its parts are read one by one."""
        file = self.path.open("rb")
        found = _identity(os.fstat(file.fileno()))
        self._first = self._first or found
        if found != self._first:
            file.close()
            raise self._replaced()
        return file

    def check_unchanged(self) -> None:
        """Refuse a file that changed once its arrays were given: they may be views of it."""
        self._open().close()

    def _replaced(self) -> FormatError:
        return FormatError(f"{self.path} was replaced or changed while it was read; load it again")

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
        described = self._describe() or self._describe()  # once more if it was just replaced
        if described is None:
            raise self._replaced()
        if HEADER in self.texts:
            self._parse_header(self.texts.pop(HEADER))
        self._offsets = self._locate(*described)

    def _describe(self) -> tuple[int, list[tuple[str, str, tuple[int, ...]]]] | None:
        """Bytes of the file, and name, type and shape of its arrays; None if it was replaced.

        The package opens the file by its path, and calls one that may not be read missing.  So it
        is opened here first; as long as it is open, no other file gets its number.
        """
        from safetensors import SafetensorError, safe_open

        self._first = None
        with self._open() as opened:
            status = os.fstat(opened.fileno())
            if status.st_size == 0:
                raise damaged(self.path, "it is empty")
            try:
                with safe_open(self.path, framework="np") as file:
                    self.texts = dict(file.metadata() or {})
                    slices = [(name, file.get_slice(name)) for name in file.offset_keys()]
                    described = [(name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices]
            except SafetensorError as error:
                raise not_safetensors(opened, self.path, error) from error
            if _identity(self.path.stat()) != _identity(status):
                return None
        return status.st_size, described

    def _locate(self, nbytes: int, described) -> dict[str, int]:
        sizes = {}
        for name, type_name, shape in described:
            if type_name not in SAFETENSORS_TYPES:
                known = ", ".join(SAFETENSORS_TYPES)
                raise FormatError(
                    f"{self.path} cannot be read: array {name!r} has type {type_name}, which "
                    f"sparse24 does not know; types of arrays are {known}"
                )
            dtype = np.dtype(SAFETENSORS_TYPES[type_name])
            self.specs[name] = (shape, dtype)
            sizes[name] = bytes_of(shape, dtype, self.path, name)
        offset = nbytes - sum(sizes.values())
        offsets = {}
        for name, size in sizes.items():
            offsets[name] = offset
            offset += size
        return offsets

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if 0 in shape:
            return np.empty(shape, dtype)
        with self._open() as file:
            return np.memmap(file, dtype, "r", self._offsets[name], shape).view(np.ndarray)


class NpzFile(ArrayFile):
    """An npz file, of `numpy.savez` or of `write_npz`."""

    def __init__(self, path: Path):
        super().__init__(path)
        with self._open() as file:
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
                # Of all members, as that compares the name that the list has with the member's own.
                with archive.open(info) as file:
                    if filename.endswith(".npy"):
                        name = filename.removesuffix(".npy")
                        self.specs[name] = npy_spec(file, info.file_size, path, name)
        self._stored = dict(self.specs)  # in the types of NumPy
        self.specs = {name: spec if ours else native(spec) for name, spec in self.specs.items()}
        bits = self.header.pop("bits", {})
        for name, type_name in bits.items() if isinstance(bits, dict) else ():
            self._rename(name, type_name)

    def _rename(self, name: str, type_name: str) -> None:
        dtype = _dtypes.TABLE.get(type_name) if isinstance(type_name, str) else None
        if dtype is None or name not in self.specs or self.specs[name][1] != dtype.storage:
            raise damaged(self.path, f"array {name!r} does not hold the bits of {type_name!r}")
        self.specs[name] = (self.specs[name][0], dtype.logical)

    @contextlib.contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self._open() as file:
            try:
                with zipfile.ZipFile(file) as archive:
                    check_members(file, archive, self.path)
                    yield archive
            except _ZIP_ERRORS as error:
                raise damaged(self.path, error) from error

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        with self._archive() as archive, archive.open(f"{name}.npy") as file:
            x = npy_array(file, self.path, name, self._stored[name], dtype)
            file.read()  # to the end, where the checksum is compared
        return x


class NpyFile(ArrayFile):
    """An npy file: one array, named by the file's stem."""

    def __init__(self, path: Path):
        super().__init__(path)
        with self._open() as file:
            size = os.fstat(file.fileno()).st_size
            self._stored = npy_spec(file, size, path, path.stem)
        self.specs[path.stem] = native(self._stored)

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        with self._open() as file:
            return npy_array(file, self.path, name, self._stored, dtype)
