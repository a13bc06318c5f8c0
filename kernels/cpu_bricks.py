"""Bricks of quantised 2:4 matrices packed and taken apart on the CPU, bit for bit as by `bricks`.

Bytes of a brick are read and written as words of 16 bits.  In bricks of 4 bits word j of a row of
a chunk holds elements j, 8 + j, 16 + j and 24 + j of 32; in bricks of 8 bits the two of a step,
elements 2 t + 8 half and the next one, are word 2 t + half.  The codes of 16 columns are a word, as
in canonical metadata.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from sparse24 import _dtypes, _spec
from sparse24.kernels import bricks as layout
from sparse24.kernels._numba import njit, parallel, slices
from sparse24.kernels.bricks import CODES, FACTORS, ROWS, STORED
from sparse24.kernels.cpu_epilogue import store

_CHUNK = 256 // 2  # words of 16 bits
_EMPTY = _spec.EMPTY_CODE * 0x1111  # four codes
_RUN_STORED = 1 << 16  # stored elements of a task, which stay in L2


@njit
def _read_elements(words, row, bits, x):
    """Integers of a row of a brick."""
    if bits == 4:
        for chunk in range(2):
            at = chunk * _CHUNK + 8 * row
            for j in range(8):
                word = np.int32(words[at + j])
                for part in range(4):
                    x[32 * chunk + 8 * part + j] = (word >> 4 * part & 15 ^ 8) - 8
        return
    for step in range(4):
        at = step * _CHUNK + 8 * row
        for t in range(4):
            for half in range(2):
                word, place = np.int32(words[at + 2 * t + half]), 16 * step + 8 * half + 2 * t
                x[place] = (word & 255 ^ 128) - 128
                x[place + 1] = (word >> 8 ^ 128) - 128


@njit
def _write_elements(x, row, bits, words):
    """The inverse of `_read_elements`."""
    if bits == 4:
        for chunk in range(2):
            at = chunk * _CHUNK + 8 * row
            for j in range(8):
                word = np.int32(0)
                for part in range(4):
                    word |= np.int32(x[32 * chunk + 8 * part + j] & 15) << 4 * part
                words[at + j] = word
        return
    for step in range(4):
        at = step * _CHUNK + 8 * row
        for t in range(4):
            for half in range(2):
                place = 16 * step + 8 * half + 2 * t
                words[at + 2 * t + half] = (x[place] & 255) | (x[place + 1] & 255) << 8


@njit
def _place_of_codes(row, run):
    """Where, among the words of a brick's codes, are those of 16 columns of a row."""
    return (row >> 3) + 2 * (run >> 1) + 8 * (row & 7) + 64 * (run & 1)


@njit
def _read_codes(words, row, groups, metadata):
    """Canonical codes of `groups` groups of a row of a brick, four a word; others are empty."""
    for run in range(-(-groups // 4)):
        word = np.int32(words[_place_of_codes(row, run)])
        rest = groups - 4 * run
        if rest < 4:
            kept = (1 << 4 * rest) - 1
            word = (word & kept) | (_EMPTY & ~kept)
        metadata[2 * run] = word & 255
        if rest > 2:
            metadata[2 * run + 1] = word >> 8


@njit
def _write_codes(metadata, row, groups, words):
    """The inverse of `_read_codes`, with empty groups behind those."""
    for run in range(8):
        word, rest = np.int32(_EMPTY), groups - 4 * run
        if rest > 0:
            word = np.int32(metadata[2 * run])
            word |= np.int32(metadata[2 * run + 1]) << 8 if rest > 2 else _EMPTY & 0xFF00
            if rest < 4:
                kept = (1 << 4 * rest) - 1
                word = (word & kept) | (_EMPTY & ~kept)
        words[_place_of_codes(row, run)] = word


@njit
def _places(words, floats):
    """Where codes and factors begin in a brick, whose bytes are `words` and `floats`."""
    return words.shape[2] - (CODES + FACTORS) // 2, floats.shape[2] - FACTORS // 4


@njit
def _unpack(words, floats, bits, integers, metadata, factors):
    """Integers, codes and factors of bricks, whose bytes are `words` and `floats`."""
    x = np.empty(STORED, np.int32)
    codes_at, factors_at = _places(words, floats)
    m, stored = integers.shape
    for row in range(m):
        block, here = row // ROWS, row % ROWS
        for atom in range(words.shape[1]):
            brick, start = words[block, atom], atom * STORED
            count = min(STORED, stored - start)
            _read_elements(brick, here, bits, x)
            for i in range(count):
                integers[row, start + i] = x[i]
            factors[row, atom] = floats[block, atom, factors_at + here]
            _read_codes(brick[codes_at:], here, count // 2, metadata[row, start // 4 :])


@njit
def _dequantise(words, floats, bits, values, metadata):
    """Elements, in the type of `values`, and codes of bricks."""
    x = np.empty(STORED, np.int32)
    codes_at, factors_at = _places(words, floats)
    m, stored = values.shape
    for row in range(m):
        block, here = row // ROWS, row % ROWS
        for atom in range(words.shape[1]):
            brick, start = words[block, atom], atom * STORED
            count = min(STORED, stored - start)
            _read_elements(brick, here, bits, x)
            factor = values.dtype.type(floats[block, atom, factors_at + here])
            for i in range(count):
                values[row, start + i] = values.dtype.type(x[i]) * factor
            _read_codes(brick[codes_at:], here, count // 2, metadata[row, start // 4 :])


@njit
def _pack(integers, metadata, factors, bits, words, floats):
    """Fill bricks, whose bytes are `words` and `floats`; zeros behind the rows and columns."""
    x = np.empty(STORED, np.int32)
    codes_at, factors_at = _places(words, floats)
    m, stored = integers.shape
    for row in range(len(words) * ROWS):
        block, here = row // ROWS, row % ROWS
        for atom in range(words.shape[1]):
            brick, start = words[block, atom], atom * STORED
            count = min(STORED, stored - start) if row < m else 0
            for i in range(STORED):
                x[i] = integers[row, start + i] if i < count else 0
            _write_elements(x, here, bits, brick)
            floats[block, atom, factors_at + here] = factors[row, atom] if row < m else 0
            line = metadata[min(row, m - 1), start // 4 :]
            _write_codes(line, here, count // 2, brick[codes_at:])


def _views(bricks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of bricks as words of 16 bits and as floats, of the same memory."""
    floats = np.require(np.ascontiguousarray(bricks).view(np.float32), requirements="A")
    return floats.view(np.uint16), floats


def _each(run, blocks: int, atoms: int) -> None:
    """Call ``run(blocks, rows)`` for runs of row blocks; the last row may not be there."""
    stored = ROWS * atoms * STORED
    work = blocks * stored
    parts = slices(blocks, 1, max(1, _RUN_STORED // max(1, stored)), work=work)

    def task(number: int):
        part = parts[number]
        run(part, slice(part.start * ROWS, part.stop * ROWS))

    parallel(task, len(parts), work)


def pack_bricks(
    integers: np.ndarray, metadata: np.ndarray, factors: np.ndarray, bits: int
) -> np.ndarray:
    """Bricks, uint8 (row blocks, K atoms, bytes), as `bricks.pack` makes them.

    Parameters
    ----------
    integers : ndarray of int8, shape (m, values_per_row(k))
    metadata : ndarray of uint8, shape (m, metadata_bytes_per_row(k))
        Canonical codes.
    factors : ndarray of float32, shape (m, K atoms)
    bits : int
    """
    m, atoms = factors.shape
    blocks = -(-m // ROWS)
    packed = np.empty((blocks, atoms, layout.size(bits)), np.uint8)
    words, floats = _views(packed)
    whole = [np.require(x, requirements="CA") for x in (integers, metadata, factors)]
    whole[2] = whole[2].astype(np.float32, copy=False)
    _each(lambda b, r: _pack(*(x[r] for x in whole), bits, words[b], floats[b]), blocks, atoms)
    return packed


def unpack_bricks(
    bricks: np.ndarray, m: int, k: int, bits: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, canonical codes and factors of a matrix (m, k), in the shapes of `pack_bricks`."""
    words, floats = _views(bricks)
    integers = np.empty((m, _spec.values_per_row(k)), np.int8)
    metadata = np.empty((m, _spec.metadata_bytes_per_row(k)), np.uint8)
    factors = np.empty((m, words.shape[1]), np.float32)
    parts = integers, metadata, factors
    _each(lambda b, r: _unpack(words[b], floats[b], bits, *(x[r] for x in parts)), *words.shape[:2])
    return parts


def fit(bricks: np.ndarray, bits: int, dtype: _dtypes.DType) -> bool:
    """Whether no element can be beyond the largest finite number of a float type."""
    _, floats = _views(bricks)
    largest = np.abs(floats[..., -FACTORS // 4 :]).max(initial=0)
    return float(largest) * (1 << bits - 1) <= float(ml_dtypes.finfo(dtype.logical).max)


def dequantise(
    bricks: np.ndarray, shape: tuple[int, ...], bits: int, dtype: _dtypes.DType
) -> tuple[np.ndarray, np.ndarray]:
    """Elements, integers times factors, each rounded once, and canonical codes.

    Parameters
    ----------
    bricks : ndarray of uint8, shape (row blocks, K atoms, bytes)
    shape : tuple of int
        Of the matrix, (m, k).
    bits : int
    dtype : DType
        float16, bfloat16, float32 or float64.

    Returns
    -------
    values : ndarray of `dtype`, shape (m, values_per_row(k))
    metadata : ndarray of uint8, shape (m, metadata_bytes_per_row(k))
    """
    m, k = shape
    words, floats = _views(bricks)
    values = np.empty((m, _spec.values_per_row(k)), dtype.logical)
    metadata = np.empty((m, _spec.metadata_bytes_per_row(k)), np.uint8)
    # Up to 8 and 24 bits: exact in float64, and in float32 rounded as in 16 bits on a GPU.
    wide = np.float64 if dtype.name == "float64" else np.float32

    def run(blocks: slice, rows: slice):
        target = values[rows]
        made = target if target.dtype == wide else np.empty(target.shape, wide)
        _dequantise(words[blocks], floats[blocks], bits, made, metadata[rows])
        if made is not target:
            store(made, target)

    _each(run, *words.shape[:2])
    return values, metadata
