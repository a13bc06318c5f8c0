"""Matrix Market files by SciPy's reader, which is kept from what harms it.

SciPy 1.17 takes memory for as many entries as a header counts before it reads one of them.  An
array without rows, a NUL, or words too many in a last line without an end stop its process.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from sparse24._errors import FormatError

LEAST = {"coordinate": 4, "array": 2}  # bytes that a stored entry has: "1 1\n" and "1\n"
TYPES = {"integer": np.int64, "unsigned-integer": np.uint64, "complex": np.complex128}


def read(path: str | os.PathLike):
    """The matrix of a file, in CSR form and in the file's own type."""
    import scipy.io
    import scipy.sparse

    try:
        text = _text(Path(path))
        m, k, entries, form, field, symmetry = scipy.io.mminfo(io.BytesIO(text))
        _check_header(len(text), (m, k), entries, form, symmetry)
        if 0 in (m, k):
            return scipy.sparse.csr_array((m, k), dtype=TYPES.get(field, np.float64))
        return scipy.sparse.csr_array(scipy.io.mmread(io.BytesIO(text), spmatrix=False))
    except (ValueError, OverflowError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", None):
            raise  # of the system; a damaged archive has no such number
        raise FormatError(f"{path} is not a readable Matrix Market file: {error}") from None


def _text(path: Path) -> bytes:
    """What is in a file, without NUL and with an end of its last line."""
    opened: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opened(path, "rb") as file:
        return file.read().replace(b"\0", b"?") + b"\n"


def _check_header(size: int, shape, entries: int, form: str, symmetry: str) -> None:
    """Refuse counts that the file cannot hold, and what mirrors elements to places outside."""
    stored = entries if form == "coordinate" else _stored(shape, symmetry)
    if stored * LEAST[form] > size:
        raise ValueError(f"it has {size} bytes, too few for {stored} entries")
    if symmetry != "general" and shape[0] != shape[1]:
        raise ValueError(f"a {symmetry} matrix must be square, got the shape {shape}")
    if entries and 0 in shape:
        raise ValueError(f"a matrix of shape {shape} has no place for {entries} entries")


def _stored(shape, symmetry: str) -> int:
    """Entries that a file has of an array: of a symmetric one those on and below the diagonal."""
    m, k = shape
    below = {"general": m * k, "skew-symmetric": m * (m - 1) // 2}
    return below.get(symmetry, m * (m + 1) // 2)
