"""Matrix Market files by SciPy's reader, which is kept from what harms it.

SciPy 1.17 takes memory for as many entries as a header counts before it reads one of them.  An
array without rows, a NUL, or words too many in a last line without an end stop its process.  Of a
word that begins with a number it takes that: 1 of 1e3 for an integer, 1 of 1d3 for a real number,
1.5 of 1.5-105, which Fortran writes for 1.5e-105.  Of an array's line it takes one element and
passes over others, and of 1.5 in place of two words it makes a column and half an element.
"""

from __future__ import annotations

import bz2
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparse24 import _file_checks
from sparse24._errors import FormatError

NUMBERS_OF = {"pattern": 0, "complex": 2}  # a stored element, beside its places; other fields 1
LEAST = {"coordinate": 4, "array": 2}  # bytes that a stored entry has: "1 1\n" and "1\n"
DIGITS, NUMBERS = b"+-0123456789", b"+-.0123456789EINFTYAeinftya"  # Infinity and NaN among them
AT_A_TIME = 1 << 18  # letters that are compared together: arrays of all would take several texts
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
        found = scipy.io.mmread(io.BytesIO(text), spmatrix=False)
        _check_count(text, _stored((m, k), symmetry) if form == "array" else entries, form, field)
        return scipy.sparse.csr_array(found)
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
    place = text.index(left[:1], start) if left else _sign_within(text, start)
    if place is None:
        return
    line = text.count(b"\n", 0, place) + 1
    begin, end = text.rindex(b"\n", 0, place) + 1, text.index(b"\n", place)
    found = re.finditer(rb"\S+", text[begin:end])
    word = next(x[0] for x in found if begin + x.end() > place).decode(errors="replace")
    kind = "an integer; write digits alone, or make the field real" if whole else "a number"
    raise ValueError(f"line {line}: {word[:40]!r} is not {kind}")


def _sign_within(text: bytes, start: int) -> int | None:
    """Where a sign follows anything but a gap or the e of an exponent, if one does."""
    for first, letters in _letters(text, start):
        before, signs = letters[:-1], (letters[1:] == ord("-")) | (letters[1:] == ord("+"))
        odd = signs & (before > ord(" ")) & (before | 0x20 != ord("e"))
        if odd.any():
            return first + int(odd.argmax())
    return None


def _letters(text: bytes, start: int) -> Iterator[tuple[int, np.ndarray]]:
    """Parts of a text from a place on: where each begins, and its letters after the one before."""
    every = np.frombuffer(text, np.uint8)
    for first in range(start, len(text), AT_A_TIME):
        yield first, every[first - 1 : first + AT_A_TIME]


def _check_count(text: bytes, entries: int, form: str, field: str) -> None:
    """Refuse an array with more numbers than it has elements, and entries with fewer words.

    Words that follow an entry of places are notes, which many files have.
    """
    words = 0
    for _, letters in _letters(text, _after_comments(text)):
        gaps = letters <= ord(" ")
        words += int(np.count_nonzero(gaps[:-1] > gaps[1:]))
    each = NUMBERS_OF.get(field, 1) + (0 if form == "array" else 2)
    found, wanted = words - (2 if form == "array" else 3), entries * each
    if found < wanted or (form == "array" and found > wanted):
        raise ValueError(
            f"it has {found} numbers where {entries} entries take {wanted}; write each on a line, "
            "with gaps between its numbers"
        )


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
