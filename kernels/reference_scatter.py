"""What the layout of ``cuda/hybrid_scatter.cu`` means, in NumPy, to the last bit."""

from __future__ import annotations

import numpy as np

from sparse24.kernels.hybrid_scatter_plan import ROW_WORDS, UNIT_COLUMNS, UNIT_ROWS

LANES = BANKS = 32


def pack(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Words and rows of words of a matrix (m, k) of uint16.

    Returns
    -------
    words : ndarray of uint32, shape (rows, 128)
    rows : ndarray of int32, shape (units down, units across)
    """
    m, k = bits.shape
    wide = np.pad(bits, ((0, -m % UNIT_ROWS), (0, -k % UNIT_COLUMNS)))
    grid = len(wide) // UNIT_ROWS, wide.shape[1] // UNIT_COLUMNS
    units = wide.reshape(grid[0], UNIT_ROWS, grid[1], UNIT_COLUMNS).swapaxes(1, 2)
    packed = [_unit(unit) for unit in units.reshape(-1, UNIT_ROWS, UNIT_COLUMNS)]
    rows = np.array([len(unit) for unit in packed], np.int32).reshape(grid)
    return np.concatenate([*packed, np.empty((0, ROW_WORDS), np.uint32)]), rows


def _unit(unit: np.ndarray) -> np.ndarray:
    """Words of one unit, shape (rows, 128)."""
    row, column = np.nonzero(unit & 0x7FFF)
    byte = row * 128 + (column // 8 ^ row % 8) * 16 + column % 8 * 2
    bank = byte // 4 % BANKS
    by_bank = np.lexsort((byte, bank))
    rank = np.empty(len(byte), np.int64)  # within the bank
    rank[by_bank] = np.arange(len(byte)) - np.searchsorted(bank[by_bank], bank[by_bank])
    order = np.lexsort((bank, rank))
    words = byte[order].astype(np.uint32) << 16 | unit[row[order], column[order]]
    words = np.pad(words, (0, -len(words) % ROW_WORDS), "edge") if len(words) else words
    return words.reshape(-1, ROW_WORDS // LANES, LANES).swapaxes(1, 2).reshape(-1, ROW_WORDS)


def unpack(words: np.ndarray, rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The matrix (m, k) of uint16 that the words mean."""
    unit = np.repeat(np.arange(rows.size), rows.ravel() * ROW_WORDS)
    word = words.ravel()
    byte = (word >> 16).astype(np.int64)
    row, chunk = byte // 128, byte % 128 // 16
    column = (chunk ^ row % 8) * 8 + byte % 16 // 2
    down, across = rows.shape
    out = np.zeros((down * UNIT_ROWS, across * UNIT_COLUMNS), np.uint16)
    at = unit // across * UNIT_ROWS + row, unit % across * UNIT_COLUMNS + column
    out[at] = word & 0xFFFF
    return out[: shape[0], : shape[1]]
