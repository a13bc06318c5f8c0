"""Write named NumPy arrays to safetensors, npz and npy files; `_raw_files` reads them.

Writing goes to a temporary file that takes the target's place only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sparse24 import _dtypes
from sparse24._errors import ArgumentError, DTypeError
from sparse24._file_checks import NPY_KINDS
from sparse24._raw_files import HEADER, SAFETENSORS_TYPES, suffix_of
from sparse24._whole_files import nothing, replacing

_LONGEST = (1 << 16) - 1 - len(".npy")  # zip stores lengths of names in two bytes
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same arrays give the same bytes


def write(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any] | None,
    texts: Mapping[str, str] | None = None,
    *,
    last: Callable[[], None] = nothing,
) -> None:
    """Write arrays and a JSON header to a safetensors or npz file, or one array to an npy file.

    Only safetensors holds `texts`.  Once all is written, and before it replaces anything, `last` is
    called, which may refuse it.
    """
    suffix = suffix_of(path)
    if suffix == ".safetensors":
        write_safetensors(path, arrays, header, texts, last=last)
    elif suffix == ".npz":
        write_npz(path, arrays, header, last=last)
    else:
        if len(arrays) != 1 or header:
            raise ArgumentError(
                f"an npy file holds one plain array, got {len(arrays)}; use .npz or .safetensors"
            )
        with replacing(path, last) as fresh, fresh.open("xb") as file:
            np.save(file, next(iter(arrays.values())), allow_pickle=False)


def write_safetensors(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any] | None,
    texts: Mapping[str, str] | None = None,
    *,
    last: Callable[[], None] = nothing,
) -> None:
    """Write arrays in their own types, readable for every safetensors reader.

    `texts` are other entries of the file's metadata, such as ``{"format": "pt"}``.
    """
    from safetensors.numpy import save_file

    _check_all({name: x.dtype for name, x in arrays.items()}, "safetensors")
    metadata = {**(texts or {}), **({HEADER: json.dumps(header)} if header else {})}
    contiguous = {name: np.ascontiguousarray(x).reshape(x.shape) for name, x in arrays.items()}
    with replacing(path, last) as fresh, _named_errors(path):
        save_file(contiguous, fresh, metadata=metadata or None)


@contextlib.contextmanager
def _named_errors(path: str | os.PathLike) -> Iterator[None]:
    """Raise errors of the system, which safetensors raises as its own, as Python does."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code), os.fspath(path)) from None


def write_npz(
    path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray],
    header: Mapping[str, Any] | None,
    *,
    last: Callable[[], None] = nothing,
) -> None:
    """Write arrays; types that NumPy does not know go as raw bits, named in the header."""
    _check_all({name: x.dtype for name, x in arrays.items()}, "npz")
    names = {name: x.dtype.name for name, x in arrays.items() if x.dtype.isbuiltin == 2}
    head = {**(header or {}), **({"bits": names} if names else {})}
    with replacing(path, last) as fresh, zipfile.ZipFile(fresh, "x", zipfile.ZIP_STORED) as archive:
        if head:
            archive.writestr(zipfile.ZipInfo(f"{HEADER}.json", _EPOCH), json.dumps(head))
        for name, x in arrays.items():
            if name in names:
                x = x.view(_dtypes.lookup(x.dtype, argument=f"{name}.dtype").storage)
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(x), allow_pickle=False)


def check(path: str | os.PathLike, dtypes: Mapping[str, np.dtype]) -> None:
    """Refuse arrays that the file of this path cannot hold, before they are made.

    Raises
    ------
    DTypeError, ArgumentError
        For an element type, or a name, that the format does not know.
    """
    _check_all(dtypes, suffix_of(path).removeprefix("."))


def _check_all(dtypes: Mapping[str, np.dtype], kind: str) -> None:
    safetensors = kind == "safetensors"
    known = _dtypes.LOGICAL
    if safetensors:
        known = frozenset(np.dtype(kind) for kind in SAFETENSORS_TYPES.values())
    for name, dtype in dtypes.items():
        if dtype not in known and (safetensors or dtype.kind not in NPY_KINDS):
            way_out = ", or name an npz file, which holds it" if dtype.kind in NPY_KINDS else ""
            raise DTypeError(
                f"{name} has dtype {dtype}, which a {kind} file cannot hold; convert it "
                f"first{way_out}"
            )
        # What the format takes for its own, what its writer cuts short, and what is no UTF-8.
        bad = name == "__metadata__" if safetensors else "\0" in name
        if bad or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise ArgumentError(f"a {kind} file can hold no array named {name!r}; rename it")
        if not safetensors and len(name.encode()) > _LONGEST:
            raise ArgumentError(
                f"names in an npz file must have at most {_LONGEST} bytes, got "
                f"{len(name.encode())}, {name[:40]!r}…; shorten it"
            )
