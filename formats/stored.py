"""What a file holds of each array: its parts, and the header that describes them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _raw_files, _shards, _spec, _storage
from sparse24._errors import ArgumentError, DTypeError, FormatError, PatternError
from sparse24.formats.array_parts import AnyParts, array_of, parts_of
from sparse24.formats.base import SparseArray
from sparse24.formats.hybrid_parts import HYBRID, HYBRID_ROWS, HybridParts, HybridRowsParts
from sparse24.formats.parts import Parts
from sparse24.formats.quantised_parts import QUANTISED, QuantisedParts
from sparse24.formats.windows import Windows24

_KNOWN = frozenset({"version", "single", "arrays", "dense", "crc32"})  # what a header holds
_SINGLE = "array"  # name of an array that was saved alone
_KINDS: dict[Any, type[AnyParts]] = {
    HYBRID: HybridParts, HYBRID_ROWS: HybridRowsParts, QUANTISED: QuantisedParts,
}  # fmt: skip


def pack(arrays: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """NumPy arrays by name, and the header, of what is to be saved."""
    arrays = _of_packed(arrays)
    single = isinstance(arrays, SparseArray)
    _refuse_windows(arrays, "arrays")
    if not single and not isinstance(arrays, Mapping):
        raise ArgumentError(
            f"arrays must be a compressed array or a mapping of names to arrays, got "
            f"{type(arrays).__name__}; make one with sparse24.compress or sparse24.hybrid, or "
            "keep plain arrays with numpy.savez"
        )
    raw: dict[str, np.ndarray] = {}
    entries, dense = {}, {}
    for name, array in ({_SINGLE: arrays} if single else arrays).items():
        if not isinstance(name, str):
            raise ArgumentError(f"arrays must have names that are strings, got {name!r}")
        array = _of_packed(array)
        _refuse_windows(array, name)
        if isinstance(array, SparseArray):
            parts = parts_of(array, argument=name)
            pieces = parts.pieces()
            checksums = {key: _checksum(piece) for key, piece in pieces.items()}
            entries[name] = {**parts.describe(), "crc32": checksums}
            pieces = {f"{name}.{key}": piece for key, piece in pieces.items()}
        else:
            pieces = {name: _dense(array, name)}
            dense[name] = _described(pieces[name])
        for key, piece in pieces.items():
            if key in raw:
                raise ArgumentError(f"two arrays would be saved as {key!r}; rename one")
            raw[key] = piece
    head = {"version": _spec.FORMAT_VERSION, "single": single, "arrays": entries, "dense": dense}
    return raw, sealed(head)


def _of_packed(x: Any) -> Any:
    """The array of a `sparse24.torch.Sparse24Tensor`; all else as it is."""
    return x.to_array() if _arrays.is_torch(x) and hasattr(x, "to_array") else x


def _refuse_windows(array: Any, name: str) -> None:
    if isinstance(array, Windows24):
        raise ArgumentError(
            f"{name} is a Windows24, which no file holds; save the NMArray of which it was made, "
            f"that is sparse24.compress(W.toarray(), pattern={array.pattern}, axis={array.axis}), "
            "and call .windows() once it is loaded"
        )


def sealed(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header with a checksum of all its other entries, in whatever order a file has them."""
    others = {key: value for key, value in header.items() if key != "crc32"}
    return {**others, "crc32": zlib.crc32(json.dumps(others, sort_keys=True).encode())}


def unpack(file: _raw_files.ArrayFile, device: str = "cpu") -> Any:
    """The arrays of a file that sparse24 wrote; a dict, or the one array that was saved alone."""
    _storage.mover(device)  # refuses a device that is not there before anything is read
    if isinstance(file, _shards.ShardedFile):
        return _unpack_shards(file, device)
    loaded: dict[str, Any] = {}
    taken = set()
    for name, entry in entries_of(file).items():
        parts = read_parts(file, name, entry)
        loaded[name] = checked_array(file, name, parts).to_device(device)
        taken |= {f"{name}.{key}" for key in parts.pieces()}
    for name, array in read_dense(file, taken):
        loaded[name] = _to_device(array, device)
    check_single(file, loaded)
    return loaded[_SINGLE] if file.header.get("single") is True else loaded


def checked_array(file: _raw_files.ArrayFile, name: str, parts: AnyParts) -> SparseArray:
    """The array of parts that `read_parts` has checked, if it is transposable where they say so."""
    try:
        return array_of(parts)
    except PatternError as error:
        raise FormatError(
            f"{file.path}, array {name!r} claims to be transposable: {error.args[0]}"
        ) from error


def check_single(file: _raw_files.ArrayFile, names: Iterable[str]) -> None:
    """Refuse a file that is said to hold one array, saved alone, and does not."""
    if file.header.get("single") is True and list(names) != [_SINGLE]:
        raise FormatError(f"{file.path} claims a single array, but holds {sorted(names)}")


def _unpack_shards(file: _shards.ShardedFile, device: str) -> dict[str, Any]:
    loaded: dict[str, Any] = {}
    for shard in file.files:
        arrays = unpack(shard, device)
        if not isinstance(arrays, dict):
            raise FormatError(
                f"{shard.path} holds an array that was saved alone, without a name of its own, so "
                "it cannot be a shard; load it by itself"
            )
        refuse_twice(shard.path, arrays, loaded)
        loaded |= arrays
    return loaded


def refuse_twice(path: Path, names: Iterable[str], others: Collection[str]) -> None:
    """Refuse arrays of a shard that others hold, such as dense in one, compressed in another."""
    for name in names:
        if name in others:
            raise FormatError(f"{path}, array {name!r}: another shard holds it, too")


def by_name(loaded: Any) -> dict[str, Any]:
    """What `unpack` gives as a dict, also where it is an array that was saved alone."""
    return loaded if isinstance(loaded, dict) else {_SINGLE: loaded}


def read_parts(file: _raw_files.ArrayFile, name: str, entry: Any) -> AnyParts:
    """The checked parts of one compressed array of a file."""
    where = f"{file.path}, array {name!r}"
    if not isinstance(entry, Mapping):
        raise FormatError(f"{where}: its description must be a JSON object, got {entry!r}")
    layout = entry.get("layout")
    kind = _KINDS.get(layout, Parts) if isinstance(layout, str) else Parts
    pieces = {}
    for key in kind.PIECES:
        if f"{name}.{key}" not in file:
            raise FormatError(f"{where}: its {key} are missing; the file is damaged")
        pieces[key] = file[f"{name}.{key}"]
    parts = kind.from_entry(entry, pieces, where=where)
    wanted = entry.get("crc32", {})
    for key, piece in pieces.items():
        if isinstance(wanted, Mapping) and wanted.get(key, _checksum(piece)) != _checksum(piece):
            raise FormatError(f"{where}: its {key} do not match the checksum; the file is damaged")
    return parts


def check_dense(file: _raw_files.ArrayFile, taken: Set[str]) -> set[str]:
    """Raise what `read_dense` would, of any array; the names of all that it gives."""
    return {name for name, _ in read_dense(file, taken)}


def read_dense(file: _raw_files.ArrayFile, taken: Set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a file but for the parts `taken`, one at a time, checked.

    The first files had no index of them, and are read as they are.
    """
    names = [name for name in file if name not in taken]
    index = file.header.get("dense", dict.fromkeys(names))
    if not isinstance(index, Mapping):
        raise FormatError(f"{file.path}: its list of dense arrays must be a JSON object")
    for name in index:
        if name not in names:
            raise FormatError(f"{file.path}, array {name!r}: it is missing; the file is damaged")
    for name in names:
        if name not in index:
            raise FormatError(
                f"{file.path}, array {name!r}: the header does not list it; the file is damaged, "
                "or was changed by other tools: save its arrays again"
            )
        array = file[name]
        if "dense" in file.header and index[name] != _described(array):
            raise FormatError(
                f"{file.path}, array {name!r}: it does not match the shape, type and checksum of "
                "the header; the file is damaged"
            )
        yield name, array


def _described(dense: np.ndarray) -> dict[str, Any]:
    """The header's entry of a dense array."""
    return {"shape": list(dense.shape), "dtype": dense.dtype.name, "crc32": _checksum(dense)}


def entries_of(file: _raw_files.ArrayFile) -> dict[str, Any]:
    """The header's entry of each compressed array."""
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
    unknown = sorted(set(file.header) - _KNOWN)
    if unknown:  # else a damaged name would pass for an entry that older files lack
        raise FormatError(
            f"{file.path} has a header with {unknown[0]!r}, not one of "
            f"{', '.join(sorted(_KNOWN))}; the file is damaged"
        )
    # An axis or a pattern of another layer would fit all parts.  The first files had no checksum.
    if "crc32" in file.header and sealed(file.header) != file.header:
        raise FormatError(
            f"{file.path} has a header that does not match its checksum; the file is damaged, or "
            "was changed by other tools: save its arrays again"
        )
    return entries


def _dense(array: Any, name: str) -> np.ndarray:
    _check.unmasked(array, argument=name)
    wanted = f"{name} must be a compressed array or an array of numbers"
    try:
        dense = _arrays.to_numpy(array, argument=name)
    except DTypeError:  # a tensor of torch without elements in rows
        raise
    except (TypeError, ValueError) as error:  # lists of two lengths
        raise ArgumentError(f"{wanted}: {error}") from error
    if dense.dtype.hasobject:
        sparse = _arrays.is_sparse_matrix(array)
        way_out = "; make one with sparse24.from_scipy or sparse24.hybrid" if sparse else ""
        objects = " of objects" if isinstance(array, np.ndarray) else ""
        raise ArgumentError(f"{wanted}, got {type(array).__name__}{objects}{way_out}")
    return dense


def _to_device(array: np.ndarray, device: str) -> Any:
    if device == "cpu" or array.dtype.kind in "SUmM":  # text and times, which no GPU holds
        return np.array(array)
    return _storage.mover(device)(np.array(array))


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
