"""Save and load compressed arrays: npz and safetensors.

A file holds for each compressed array ``NAME.values`` and ``NAME.metadata`` in
canonical form (:ref:`layout`), dense arrays under their own names, and a JSON
header::

    {"version": 1, "single": false,
     "arrays": {NAME: {"pattern": [2, 4], "shape": [...], "dtype": "bfloat16", "axis": -1,
                       "transposable": false, "layout": "codes",
                       "crc32": {"values": ..., "metadata": ...}}}}

In safetensors the header is the metadata entry ``sparse24``, and types are the
format's own.  In npz it is the member ``sparse24.json``, and types that NumPy does
not know are raw bits.  Nothing is pickled; a target is replaced only by a whole file.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _arrays, _raw_files, _spec, _storage
from sparse24._errors import ArgumentError, FormatError
from sparse24._records import Compressed24, Operand24
from sparse24.formats import hybrid_files
from sparse24.formats.base import SparseArray
from sparse24.formats.hybrid import HybridArray
from sparse24.formats.n_m import NMArray
from sparse24.formats.parts import Parts
from sparse24.formats.two_four import Sparse24Array

_SINGLE = "array"  # name of an array that was saved alone


def save_npz(path: str | os.PathLike, arrays: Any) -> None:
    """Save one compressed array, or several and dense ones by name, to an npz file.

    Parameters
    ----------
    path : path
        Should end in ``.npz``.  An existing file is replaced when the new one is whole.
    arrays : Sparse24Array, NMArray, HybridArray or mapping of str to arrays
        Arrays on a GPU are copied to the host, which waits for it.  Values of a mapping
        may be dense NumPy or CuPy arrays too; a `HybridArray` goes alone.  A dense matrix
        kept by ``compress(keep_dense=True)`` is not saved.

    Raises
    ------
    ArgumentError
        If two names collide, or something is no array.
    PatternError
        If a deferred check of an array fails.

    See Also
    --------
    load_npz, save_safetensors

    Examples
    --------
    >>> import numpy as np, sparse24 as s24, tempfile, pathlib
    >>> A = s24.random((4, 8), rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "layer.npz")
    ...     s24.save_npz(path, {"weight": A, "bias": np.ones(4)})
    ...     loaded = s24.load_npz(path)
    >>> sorted(loaded), bool((loaded["weight"].toarray() == A.toarray()).all())
    (['bias', 'weight'], True)
    """
    if isinstance(arrays, HybridArray):
        with _raw_files.replacing(path) as fresh, fresh.open("xb") as file:
            hybrid_files.save(file, arrays)
        return
    raw, header = pack(arrays)
    _raw_files.write_npz(path, raw, header)


def load_npz(path: str | os.PathLike, *, device: str = "cpu") -> Any:
    """Load what `save_npz` saved.

    Parameters
    ----------
    path : path
    device : str, default "cpu"
        ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.

    Returns
    -------
    Sparse24Array, NMArray, HybridArray or dict of str to arrays
        As it was saved.

    Raises
    ------
    FormatError
        If the file is damaged, truncated, of a newer version, or not sparse24's.
    FileNotFoundError
        If there is none.

    Examples
    --------
    >>> import sparse24 as s24, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.npz")
    ...     s24.save_npz(path, s24.random((4, 8), dtype="bfloat16", rng=0))
    ...     s24.load_npz(path).dtype.name
    'bfloat16'
    """
    if _raw_files.npz_member(path, "layout.npy"):
        hybrid = hybrid_files.load(path)
        return hybrid if device == "cpu" else hybrid.to_device(device)
    return unpack(_raw_files.NpzFile(Path(path)), device)


def save_safetensors(path: str | os.PathLike, arrays: Any) -> None:
    """Save one compressed array, or several and dense ones by name, to a safetensors file.

    Parameters
    ----------
    path : path
        Should end in ``.safetensors``.  An existing file is replaced when the new one is whole.
    arrays : Sparse24Array, NMArray or mapping of str to arrays
        As for `save_npz`.  Any safetensors reader can read the parts.

    Raises
    ------
    ArgumentError
        If two names collide, or something is no array.
    PatternError
        If a deferred check of an array fails.

    See Also
    --------
    load_safetensors, save_npz

    Examples
    --------
    >>> import sparse24 as s24, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.safetensors")
    ...     s24.save_safetensors(path, s24.random((4, 8), dtype="float8_e4m3fn", rng=0))
    ...     s24.load_safetensors(path).shape
    (4, 8)
    """
    raw, header = pack(arrays)
    _raw_files.write_safetensors(path, raw, header)


def load_safetensors(path: str | os.PathLike, *, device: str = "cpu") -> Any:
    """Load what `save_safetensors` saved.

    Parameters
    ----------
    path : path
    device : str, default "cpu"
        ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.

    Returns
    -------
    Sparse24Array, NMArray or dict of str to arrays
        As it was saved.

    Raises
    ------
    FormatError
        If the file is damaged, truncated, of a newer version, or not sparse24's.
    FileNotFoundError
        If there is none.

    See Also
    --------
    save_safetensors
    """
    return unpack(_raw_files.SafetensorsFile(Path(path)), device)


def pack(arrays: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """NumPy arrays by name, and the header, of what is to be saved."""
    single = isinstance(arrays, SparseArray)
    if not single and not isinstance(arrays, Mapping):
        raise ArgumentError(
            f"arrays must be a compressed array or a mapping of names to arrays, got "
            f"{type(arrays).__name__}; plain arrays go to numpy.savez"
        )
    raw: dict[str, np.ndarray] = {}
    entries = {}
    for name, array in ({_SINGLE: arrays} if single else arrays).items():
        if isinstance(array, SparseArray):
            parts = parts_of(array, argument=name)
            pieces = {"values": parts.values, "metadata": parts.metadata}
            checksums = {key: _checksum(piece) for key, piece in pieces.items()}
            entries[name] = {**parts.describe(), "crc32": checksums}
            pieces = {f"{name}.{key}": piece for key, piece in pieces.items()}
        else:
            pieces = {name: _dense(array, name)}
        for key, piece in pieces.items():
            if key in raw:
                raise ArgumentError(f"two arrays would be saved as {key!r}; rename one")
            raw[key] = piece
    return raw, {"version": _spec.FORMAT_VERSION, "single": single, "arrays": entries}


def unpack(file: _raw_files.ArrayFile, device: str = "cpu") -> Any:
    """The arrays of a file that sparse24 wrote; a dict, or the one array that was saved alone."""
    entries = _entries(file)
    loaded: dict[str, Any] = {}
    taken = set()
    for name, entry in entries.items():
        loaded[name] = array_of(read_parts(file, name, entry), device)
        taken |= {f"{name}.values", f"{name}.metadata"}
    for name in file:
        if name not in taken:
            loaded[name] = _to_device(file[name], device)
    if file.header.get("single") is True:
        if list(loaded) != [_SINGLE]:
            raise FormatError(f"{file.path} claims a single array, but holds {sorted(loaded)}")
        return loaded[_SINGLE]
    return loaded


def read_parts(file: _raw_files.ArrayFile, name: str, entry: Any) -> Parts:
    """The checked parts of one compressed array of a file."""
    where = f"{file.path}, array {name!r}"
    pieces = {}
    for key in ("values", "metadata"):
        if f"{name}.{key}" not in file:
            raise FormatError(f"{where}: its {key} are missing; the file is damaged")
        pieces[key] = file[f"{name}.{key}"]
    parts = Parts.from_entry(entry, **pieces, where=where)
    wanted = entry.get("crc32", {})
    for key, piece in pieces.items():
        if isinstance(wanted, Mapping) and wanted.get(key, _checksum(piece)) != _checksum(piece):
            raise FormatError(f"{where}: its {key} do not match the checksum; the file is damaged")
    return parts


def _entries(file: _raw_files.ArrayFile) -> dict[str, Any]:
    version, entries = file.header.get("version"), file.header.get("arrays")
    if type(version) is not int or not isinstance(entries, dict):
        raise FormatError(
            f"{file.path} was not written by sparse24; a plain checkpoint becomes one with: "
            "python -m sparse24 convert IN OUT"
        )
    if version > _spec.FORMAT_VERSION:
        raise FormatError(
            f"{file.path} has format version {version}, this sparse24 reads up to "
            f"{_spec.FORMAT_VERSION}; install a newer one"
        )
    return entries


def parts_of(array: Any, *, argument: str = "array") -> Parts:
    """The parts of a compressed array, on the host."""
    if isinstance(array, NMArray):
        return _parts_n_m(array)
    if not isinstance(array, Sparse24Array):
        raise ArgumentError(
            f"{argument} must be a Sparse24Array, an NMArray or dense, got {type(array).__name__}; "
            "a HybridArray is saved alone, by save_npz"
        )
    array.check()
    record = array._operand.stored
    values = np.ascontiguousarray(_arrays.to_numpy(record.values))
    metadata = np.ascontiguousarray(_arrays.to_numpy(array.metadata))
    return Parts(
        values.view(record.dtype.logical),
        metadata,
        record.shape,
        record.dtype,
        axis=array.axis,
        transposable=array.transposable,
    )


def _parts_n_m(array: NMArray) -> Parts:
    record = array if array.axis == -1 else array.mT
    values, indices = (_arrays.to_numpy(x) for x in (record.values, record.indices))
    row = array._dtype
    return Parts(
        np.ascontiguousarray(values).view(row.logical),
        np.ascontiguousarray(indices),
        record.shape,
        row,
        array.pattern,
        axis=array.axis,
        layout="places",
    )


def array_of(parts: Parts, device: str = "cpu") -> Any:
    """The array of checked parts, on `device`."""
    values, metadata = (np.array(x) for x in (parts.values, parts.metadata))
    if parts.layout == "places":
        n_m = NMArray(
            values, metadata, parts.shape, parts.pattern, parts.dtype, axis=parts.axis
        )
        return n_m if device == "cpu" else n_m.to_device(device)
    record = Compressed24(values, metadata, None, parts.shape, parts.dtype)
    columns = _turned(record) if parts.transposable else None
    operand = Operand24(record, columns, None, parts.shape, parts.dtype)
    array = Sparse24Array(operand if parts.axis == -1 else operand.transposed())
    return array if device == "cpu" else array.to_device(device)


def _turned(record: Compressed24) -> Compressed24:
    """The record of the transposed matrix, which obeys 2:4 too."""
    from sparse24.kernels import cpu

    dense = _storage.decompress(record).swapaxes(-1, -2)
    values, metadata, status = cpu.compress(dense, "check")
    _storage.raise_excess(status, dense.shape, argument="the transposed array")
    return Compressed24(values, metadata, None, dense.shape, record.dtype)


def _dense(array: Any, name: str) -> np.ndarray:
    dense = _arrays.to_numpy(array)
    if dense.dtype.hasobject:
        raise ArgumentError(
            f"{name} must be a Sparse24Array, an NMArray or an array of numbers, got "
            f"{type(array).__name__}; a HybridArray is saved alone, by save_npz"
        )
    return dense


def _to_device(array: np.ndarray, device: str) -> Any:
    return np.array(array) if device == "cpu" else _storage.mover(device)(np.array(array))


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
