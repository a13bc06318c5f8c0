"""Matrix Market files by SciPy's reader, which is kept from headers that harm it.

An array without rows ends SciPy 1.17's process, and memory is taken for as many entries as the
header counts, before one of them is read.
"""

from __future__ import annotations

import os
import zlib

import numpy as np

from sparse24._errors import FormatError

# Bytes that an entry has at the least: "1 1\n" and "1\n".  Of a symmetric array half are stored.
LEAST = {"coordinate": 4, "array": 1}


def read(path: str | os.PathLike):
    """The matrix of a file, in CSR form and in the file's own type."""
    import scipy.io
    import scipy.sparse

    try:
        _check_header(path, *(header := scipy.io.mminfo(path)))
        if 0 in header[:2]:
            return _empty(*header)
        return scipy.sparse.csr_array(scipy.io.mmread(path))
    except (ValueError, OverflowError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError) or getattr(error, "errno", None):
            raise  # of the system; a damaged archive has no such number
        raise FormatError(f"{path} is not a readable Matrix Market file: {error}") from None


def _check_header(path, m: int, k: int, entries: int, form: str, field: str, symmetry: str) -> None:
    """Refuse counts that the file cannot hold, and what mirrors elements to places outside."""
    size = os.stat(path).st_size
    packed = str(path).endswith((".gz", ".bz2"))  # how much is in it, only reading tells
    if entries * LEAST[form] > size + 1 and not packed:  # the last may lack the end of its line
        raise ValueError(f"it has {size} bytes, too few for {entries} entries")
    if symmetry != "general" and m != k:
        raise ValueError(f"a {symmetry} matrix must be square, its header says {m} by {k}")


def _empty(m: int, k: int, entries: int, form: str, field: str, symmetry: str):
    import scipy.sparse

    if entries:
        raise ValueError(f"a matrix of {m} by {k} has no place for {entries} entries")
    types = {"integer": np.int64, "unsigned-integer": np.uint64, "complex": np.complex128}
    return scipy.sparse.csr_array((m, k), dtype=types.get(field, np.float64))
