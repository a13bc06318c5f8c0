"""Reference in NumPy for the layout of ``cuda/hybrid_scatter.cu``, to the last bit."""

from __future__ import annotations

import itertools

import numpy as np

from sparse24.kernels.hybrid_scatter_units import (
    BASE_LINES,
    GROUP_BYTES,
    GROUP_ELEMENTS,
    LINE_BYTES,
    MOST_LINES,
    TILE_COLUMNS,
    TILE_ROWS,
    Units,
)

LANES = 32
VALUE_BYTES = TILE_ROWS * TILE_COLUMNS  # of a unit's 2:4 part; its metadata follow


def pack(
    bits: np.ndarray, *, base: bool = False, rows: int = TILE_ROWS, columns: int = TILE_COLUMNS
) -> tuple[np.ndarray, Units]:
    """Bytes of the units of a matrix (m, k) of uint16, and how much they hold."""
    m, k = bits.shape
    grid = -(-m // rows), -(-k // columns)
    wide = np.pad(bits, ((0, grid[0] * rows - m), (0, grid[1] * columns - k)))
    wide = np.where(wide & 0x7FFF, wide, 0).astype(np.uint16)
    by_unit = wide.reshape(grid[0], rows, grid[1], columns).swapaxes(1, 2)
    units = Units(np.zeros((*grid, 2), np.int32), base, rows, columns)
    data = []
    for i, j in np.ndindex(grid):
        packed, units.sizes[i, j] = _pack_unit(_tile(by_unit[i, j]), base)
        data.append(packed)
    return np.frombuffer(b"".join(data), np.uint8), units


def _tile(unit: np.ndarray) -> np.ndarray:
    """A unit as 128 rows by 64 columns: columns 64 and on, if there are any, below the others."""
    halves = unit.shape[1] // TILE_COLUMNS
    whole = np.pad(unit, ((0, TILE_ROWS // halves - len(unit)), (0, 0)))
    return np.concatenate(np.hsplit(whole, halves))


def _unit(tile: np.ndarray, units: Units) -> np.ndarray:
    """The rows and columns of the matrix that a tile stands for."""
    return np.hstack(np.vsplit(tile, units.columns // TILE_COLUMNS))[: units.rows]


def _places(base: bool) -> tuple[np.ndarray, np.ndarray]:
    """Row and column in the unit of what lies in (line, bank, half) of its tile."""
    line, lane, odd = np.ogrid[: TILE_ROWS // (2 if base else 1), :LANES, :2]
    within = lane % 4 * 2 + odd
    if not base:
        return line + 0 * (lane + odd), (lane // 4 ^ line % 8) * 8 + within
    at = (lane % 16 // 4 ^ line % 4) * 8 + within
    return 2 * line + lane // 16 + 0 * odd, 4 * (at % 16) + 2 + at // 16


def _spills(unit: np.ndarray) -> np.ndarray:
    """Which elements are the third or fourth non-zero of their group of four."""
    held = (unit != 0).reshape(len(unit), -1, 4)
    return (held & (held.cumsum(-1) > 2)).reshape(unit.shape)


def _pack_unit(unit: np.ndarray, base: bool) -> tuple[bytes, tuple[int, int]]:
    spills = _spills(unit)
    scattered = np.where(spills, unit, 0).astype(np.uint16) if base else unit
    elements = scattered[_places(base)]
    lines = {
        (lane, odd): np.flatnonzero(elements[:, lane, odd])
        for lane, odd in itertools.product(range(LANES), range(2))
    }
    size = _best_size(np.array([len(found) for found in lines.values()]), len(elements))
    data = _pack_lists(elements, lines, size)
    return (_pack_base(np.where(spills, 0, unit)) + data if base else data), size


def _pack_lists(elements: np.ndarray, at: dict, size: tuple[int, int]) -> bytes:
    """Groups and lines of the elements that lie `at` these lines of each bank."""
    groups, lines = size
    held = groups * GROUP_ELEMENTS
    values = np.zeros((groups, LANES, 2, GROUP_ELEMENTS), np.uint16)
    places = np.zeros((groups, LANES, 2, GROUP_ELEMENTS), np.uint8)
    for (lane, odd), found in at.items():
        first = found[:held] if len(found) else np.zeros(1, np.int64)
        first = np.pad(first, (0, max(0, held - len(first))), "edge")[:held]
        places[:, lane, odd] = first.reshape(groups, GROUP_ELEMENTS)
        values[:, lane, odd] = elements[first, lane, odd].reshape(groups, GROUP_ELEMENTS)
    data = b"".join(v.tobytes() + p.tobytes() for v, p in zip(values, places))
    left = [
        [(row * 128 + lane * 4 + odd * 2) << 16 | int(elements[row, lane, odd])
         for odd in range(2) for row in at[lane, odd][held:]]
        for lane in range(LANES)
    ]  # fmt: skip
    words = [word for turn in itertools.zip_longest(*left) for word in turn if word is not None]
    words += words[-1:] * (lines * LANES - len(words))
    return data + np.array(words, np.uint32).tobytes()


def _pack_base(unit: np.ndarray) -> bytes:
    """Values and metadata of a unit with at most two non-zeros in a group."""
    groups = unit.reshape(TILE_ROWS, -1, 4).astype(np.uint16)
    held = groups != 0
    count, first, last = held.sum(-1), held.argmax(-1), 3 - held[..., ::-1].argmax(-1)
    low = np.where(count == 2, first, np.where((count == 1) & (first < 3), first, 0))
    high = np.where(count == 2, last, np.where(count == 1, 3, 1))
    values = np.take_along_axis(groups, np.stack([low, high], -1), -1).reshape(TILE_ROWS, 4, 8)
    row, chunk = np.ogrid[:TILE_ROWS, :4]
    image = values[row, chunk ^ row // 2 % 4]
    words = np.zeros(2 * 128, np.uint32)
    np.bitwise_or.at(words, *_metadata(low | high << 2))
    return image.tobytes() + words.tobytes()


def _metadata(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The word of every group of a unit, and its code's bits there."""
    row, group = np.ogrid[:TILE_ROWS, : TILE_COLUMNS // 4]
    thread = row % 64 // 16 * 32 + row % 8 * 4 + group // 8 * 2 + group // 4 % 2
    shift = group % 4 * 4 + row // 8 % 2 * 16
    return row // 64 * 128 + thread, (codes.astype(np.uint32) << shift.astype(np.uint32))


def _best_size(lengths: np.ndarray, most: int) -> tuple[int, int]:
    """Groups and lines of the fewest bytes; the fewest groups of those."""
    best = []
    for groups in range(most // GROUP_ELEMENTS + 1):
        left = int(np.maximum(lengths - groups * GROUP_ELEMENTS, 0).sum())
        lines = -(-left // LANES)
        if lines <= MOST_LINES:
            best.append((groups * GROUP_BYTES + lines * LINE_BYTES, groups, lines))
    return min(best)[1:]


def unpack(data: np.ndarray, units: Units, shape: tuple[int, int]) -> np.ndarray:
    """The matrix (m, k) of uint16 that the bytes mean."""
    down, across, _ = units.sizes.shape
    out = np.zeros((down, across, units.rows, units.columns), np.uint16)
    at = 0
    for i, j in np.ndindex(down, across):
        end = at + int(units.lines[i, j]) * LINE_BYTES
        lists = at
        if units.base:
            lists += BASE_LINES * LINE_BYTES
            out[i, j] = _unit(_unpack_base(data[at:lists]), units)
        tile = _unpack_lists(data[lists:end], units.sizes[i, j][0])
        whole = np.zeros((TILE_ROWS, TILE_COLUMNS), np.uint16)
        places = _places(units.base)
        whole[places] = tile[: len(places[0])]
        out[i, j] |= _unit(whole, units)
        at = end
    return out.swapaxes(1, 2).reshape(down * units.rows, -1)[: shape[0], : shape[1]]


def _unpack_lists(data: np.ndarray, groups: int) -> np.ndarray:
    """The tile (lines, banks, halves) into which the elements are scattered."""
    tile = np.zeros((TILE_ROWS, LANES, 2), np.uint16)
    for start in range(0, groups * GROUP_BYTES, GROUP_BYTES):
        values = data[start : start + 512].view(np.uint16).reshape(LANES, 2, GROUP_ELEMENTS)
        row = data[start + 512 : start + GROUP_BYTES].reshape(values.shape).astype(np.int64)
        lane, odd, _ = np.ogrid[:LANES, :2, :GROUP_ELEMENTS]
        tile.reshape(-1)[row * 64 + lane * 2 + odd] = values
    words = data[groups * GROUP_BYTES :].view(np.uint32)
    tile.reshape(-1)[(words >> 16) // 2] = words & 0xFFFF
    return tile


def _unpack_base(data: np.ndarray) -> np.ndarray:
    row, chunk = np.ogrid[:TILE_ROWS, :4]
    image = data[:VALUE_BYTES].view(np.uint16).reshape(TILE_ROWS, 4, 8)
    values = image[row, chunk ^ row // 2 % 4].reshape(TILE_ROWS, -1, 2)
    words = data[VALUE_BYTES:].view(np.uint32)
    ones = np.full((TILE_ROWS, TILE_COLUMNS // 4), 15)
    word, mask = _metadata(ones)
    codes = (words[word] & mask) // (mask // 15)
    out = np.zeros((*values.shape[:2], 4), np.uint16)
    np.put_along_axis(out, np.stack([codes & 3, codes >> 2], -1).astype(np.int64), values, -1)
    return out.reshape(TILE_ROWS, TILE_COLUMNS)
