"""The units that the scatter kernel reads, and how much they hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TILE_ROWS, TILE_COLUMNS = 128, 64  # of a unit in shared memory; see `Units`
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
        Of a band, the last one apart; `TILE_ROWS` with `base`, or 64.
    columns : int
        Of a unit; of `TILE_COLUMNS`, or of 128 and up to 64 rows.
    """

    sizes: np.ndarray
    base: bool = False
    rows: int = TILE_ROWS
    columns: int = TILE_COLUMNS

    @property
    def lines(self) -> np.ndarray:
        """Bytes of every unit, in lines."""
        scattered = self.sizes[..., 0] * (GROUP_BYTES // LINE_BYTES) + self.sizes[..., 1]
        return scattered + (BASE_LINES if self.base else 0)


UNIT_SHARE = 0.35  # the part of a unit's time that does not depend on its rows


def rows_of_bands(m: int, multiprocessors: int) -> int:
    """The number of rows of a band of units of 64 columns.

    Fewer than `TILE_ROWS` where multiprocessors would be idle otherwise.  Every band is cut into as
    many parts as there are multiprocessors for it.  If there are more bands than multiprocessors,
    blocks go from one band to the next, and the number of rows does not matter.
    """

    def seconds(rows: int) -> float:
        parts = multiprocessors // max(-(-m // rows), 1)
        return (UNIT_SHARE + (1 - UNIT_SHARE) * rows / TILE_ROWS) / parts if parts else 1.0

    return min(range(TILE_ROWS, TILE_ROWS // 2, -8), key=seconds)


IN_PAIRS = 0.9  # of the multiprocessors, which clusters of two that have 64 rows must keep busy
FLAT_MOST_K = 6144  # columns up to which sums that meet sooner outweigh more of b


def columns_of_units(m: int, k: int, multiprocessors: int) -> int:
    """Whether units had better be of 128 columns, and 64 rows, or of 64.

    Bands of half the height are shared by half as many blocks, and each block then reads twice
    the rows of b.  It pays where the two blocks of a band form a cluster, and four could not.
    """
    blocks = 2 * -(-m // (TILE_ROWS // 2))
    flat = IN_PAIRS * multiprocessors <= blocks <= multiprocessors and k <= FLAT_MOST_K
    return 2 * TILE_COLUMNS if flat else TILE_COLUMNS
