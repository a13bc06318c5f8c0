"""Plain text tables and numbers for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; the first one flush left."""
    header, *rows = ([printable(cell) for cell in row] for row in (header, *rows))
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *map(line, rows)])


def printable(text: str) -> str:
    """Text of a file, such as a name, in which nothing breaks lines or steers the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def sides(shape: Sequence[int]) -> str:
    """A shape as a person reads it."""
    return "×".join(map(str, shape))


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def count(number: int, noun: str, many: str | None = None) -> str:
    """A number and its noun: 1 array, 2 arrays."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def share(part: float | None) -> str:
    """A share in percent, or why there is none: the sum holds inf or NaN."""
    return "inf or NaN" if part is None or math.isnan(part) else f"{part:.1%}"


def rest(part: float) -> str:
    """What a share leaves, in percent, with as many decimals as keep it from reading 100."""
    decimals = max(1, math.ceil(-math.log10(100 * part))) if part else 1
    return f"{1 - part:.{decimals}%}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.1f} µs"
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
