"""What the units are that the scatter kernel reads, and how much they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

UNIT_ROWS, UNIT_COLUMNS = 128, 64  # the rows of units are called bands; see `rows_of_bands`
LINE_BYTES = 128
GROUP_BYTES = 6 * LINE_BYTES
GROUP_ELEMENTS = 4  # of each list of a lane
MOST_LINES = 7  # of a unit
BASE_LINES = 72  # of a unit's 2:4 part: 8192 bytes of values, 1024 of metadata


@dataclass(frozen=True, eq=False)
class Units:
    """How much the units of a matrix hold.

    Attributes
    ----------
    sizes : ndarray of int, shape (bands, across, 2)
        Groups and lines of what is scattered.
    base : bool
        The first two non-zeros of every group of four are stored as 2:4 tiles, and not scattered.
    rows : int
        Of a band, the last one apart; `UNIT_ROWS` with `base`.
    """

    sizes: np.ndarray
    base: bool = False
    rows: int = UNIT_ROWS

    @property
    def lines(self) -> np.ndarray:
        """Bytes of every unit, in lines."""
        scattered = self.sizes[..., 0] * (GROUP_BYTES // LINE_BYTES) + self.sizes[..., 1]
        return scattered + (BASE_LINES if self.base else 0)


UNIT_SHARE = 0.35  # of a unit's time, whatever its rows


def rows_of_bands(m: int, multiprocessors: int) -> int:
    """How many rows to a band: fewer than `UNIT_ROWS` where multiprocessors would be idle else.

    Every band is cut into as many parts as there are multiprocessors for; with more bands than
    those, parts pass from one to the next, and their rows do not matter.
    """

    def seconds(rows: int) -> float:
        parts = multiprocessors // max(-(-m // rows), 1)
        return (UNIT_SHARE + (1 - UNIT_SHARE) * rows / UNIT_ROWS) / parts if parts else 1.0

    return min(range(UNIT_ROWS, UNIT_ROWS // 2, -8), key=seconds)
