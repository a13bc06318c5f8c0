"""Matrix Market files by SciPy's reader, which is kept from what harms it.

SciPy 1.17 takes memory for as many entries as a header counts before it reads one of them.  An
array without rows, a NUL, or words too many in a last line without an end stop its process.  Of a
word that begins with a number it takes that: 1 of 1e3 for an integer, 1 of 1d3 for a real number.
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

from sparse24 import _file_checks
from sparse24._errors import FormatError

LEAST = {"coordinate": 4, "array": 2}  # bytes that a stored entry has: "1 1\n" and "1\n"
DIGITS, NUMBERS = b"+-0123456789", b"+-.0123456789EINFTYAeinftya"  # Infinity and NaN among them
TYPES = {"integer": np.int64, "unsigned-integer": np.uint64, "complex": np.complex128}


def read(path: str | os.PathLike):
    """The matrix of a file, in CSR form and in the file's own type."""
    import scipy.io
    import scipy.sparse

    file = _file_checks.named(path)
    try:
        text = _text(file)
        m, k, entries, form, field, symmetry = scipy.io.mminfo(io.BytesIO(text))
        _check_header(len(text), (m, k), entries, form, symmetry)
        _check_words(text, field)
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


def _check_words(text: bytes, field: str) -> None:
    """Refuse letters and signs of which no number of the field is made."""
    whole = field.endswith("integer")
    start = _after_comments(text)
    left = text[start:].translate(None, (DIGITS if whole else NUMBERS) + b" \t\r\n\v\f")
    if not left:
        return
    place = text.index(left[:1], start)
    line = text.count(b"\n", 0, place) + 1
    words = text[text.rindex(b"\n", 0, place) : text.index(b"\n", place)].split()
    word = next(word for word in words if left[:1] in word).decode(errors="replace")
    kind = "an integer; write digits alone, or make the field real" if whole else "a number"
    raise ValueError(f"line {line}: {word[:40]!r} is not {kind}")


def _after_comments(text: bytes) -> int:
    """Where the first line begins that is neither empty nor a comment; both may be indented."""
    start = 0
    while True:
        end = text.index(b"\n", start)
        line = text[start:end].lstrip()
        if line and not line.startswith(b"%"):
            return start
        start = end + 1


def _stored(shape, symmetry: str) -> int:
    """Entries that a file has of an array: of a symmetric one those on and below the diagonal."""
    m, k = shape
    below = {"general": m * k, "skew-symmetric": m * (m - 1) // 2}
    return below.get(symmetry, m * (m + 1) // 2)
