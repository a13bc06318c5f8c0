"""What the layout of ``cuda/hybrid_scatter.cu`` means, in NumPy, to the last bit."""

from __future__ import annotations

import itertools

import numpy as np

from sparse24.kernels.hybrid_scatter_plan import (
    GROUP_BYTES,
    GROUP_ELEMENTS,
    LINE_BYTES,
    MOST_LINES,
    UNIT_COLUMNS,
    UNIT_ROWS,
)

LANES = 32


def pack(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes, and groups and lines of the units, of a matrix (m, k) of uint16.

    Returns
    -------
    units : ndarray of uint8
    sizes : ndarray of int32, shape (units down, units across, 2)
    """
    m, k = bits.shape
    wide = np.pad(bits, ((0, -m % UNIT_ROWS), (0, -k % UNIT_COLUMNS)))
    grid = len(wide) // UNIT_ROWS, wide.shape[1] // UNIT_COLUMNS
    units = wide.reshape(grid[0], UNIT_ROWS, grid[1], UNIT_COLUMNS).swapaxes(1, 2)
    packed = [_pack_unit(unit) for unit in units.reshape(-1, UNIT_ROWS, UNIT_COLUMNS)]
    sizes = np.array([size for _, size in packed], np.int32).reshape(*grid, 2)
    return np.frombuffer(b"".join(data for data, _ in packed), np.uint8), sizes


def _by_lists(unit: np.ndarray) -> np.ndarray:
    """Elements by row, lane and parity, shape (128, 32, 2): what lies in the banks of a tile."""
    row, at = np.ogrid[:UNIT_ROWS, :UNIT_COLUMNS]
    return unit[row, (at // 8 ^ row % 8) * 8 + at % 8].reshape(UNIT_ROWS, LANES, 2)


def _pack_unit(unit: np.ndarray) -> tuple[bytes, tuple[int, int]]:
    elements = _by_lists(unit)
    rows = {
        (lane, odd): np.flatnonzero(elements[:, lane, odd] & 0x7FFF)
        for lane, odd in itertools.product(range(LANES), range(2))
    }
    groups, lines = _best_size(np.array([len(found) for found in rows.values()]))
    held = groups * GROUP_ELEMENTS
    values = np.zeros((groups, LANES, 2, GROUP_ELEMENTS), np.uint16)
    places = np.zeros((groups, LANES, 2, GROUP_ELEMENTS), np.uint8)
    for (lane, odd), found in rows.items():
        first = found[:held] if len(found) else np.zeros(1, np.int64)
        first = np.pad(first, (0, max(0, held - len(first))), "edge")[:held]
        places[:, lane, odd] = first.reshape(groups, GROUP_ELEMENTS)
        values[:, lane, odd] = elements[first, lane, odd].reshape(groups, GROUP_ELEMENTS)
    data = b"".join(v.tobytes() + p.tobytes() for v, p in zip(values, places))
    left = [
        [(row * 128 + lane * 4 + odd * 2) << 16 | int(elements[row, lane, odd])
         for odd in range(2) for row in rows[lane, odd][held:]]
        for lane in range(LANES)
    ]  # fmt: skip
    words = [word for turn in itertools.zip_longest(*left) for word in turn if word is not None]
    words += words[-1:] * (lines * LANES - len(words))
    return data + np.array(words, np.uint32).tobytes(), (groups, lines)


def _best_size(lengths: np.ndarray) -> tuple[int, int]:
    """Groups and lines of the fewest bytes; the fewest groups of those."""
    best = []
    for groups in range(UNIT_ROWS // GROUP_ELEMENTS + 1):
        left = int(np.maximum(lengths - groups * GROUP_ELEMENTS, 0).sum())
        lines = -(-left // LANES)
        if lines <= MOST_LINES:
            best.append((groups * GROUP_BYTES + lines * LINE_BYTES, groups, lines))
    return min(best)[1:]


def unpack(units: np.ndarray, sizes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The matrix (m, k) of uint16 that the bytes mean."""
    down, across, _ = sizes.shape
    out = np.zeros((down, across, UNIT_ROWS, UNIT_COLUMNS), np.uint16)
    at = 0
    for i, j in np.ndindex(down, across):
        groups, lines = sizes[i, j]
        end = at + groups * GROUP_BYTES
        for start in range(at, end, GROUP_BYTES):
            values = units[start : start + 512].view(np.uint16).reshape(LANES, 2, GROUP_ELEMENTS)
            row = units[start + 512 : start + GROUP_BYTES].reshape(values.shape).astype(np.int64)
            lane, odd, _ = np.ogrid[:LANES, :2, :GROUP_ELEMENTS]
            _put(out[i, j], row * 128 + lane * 4 + odd * 2, values)
        at = end + lines * LINE_BYTES
        words = units[end:at].view(np.uint32)
        _put(out[i, j], (words >> 16).astype(np.int64), words & 0xFFFF)
    return out.swapaxes(1, 2).reshape(down * UNIT_ROWS, -1)[: shape[0], : shape[1]]


def _put(unit: np.ndarray, byte: np.ndarray, values: np.ndarray) -> None:
    """Store elements at these bytes of the unit's tile."""
    row, chunk = byte // 128, byte % 128 // 16
    unit[row, (chunk ^ row % 8) * 8 + byte % 16 // 2] = values
