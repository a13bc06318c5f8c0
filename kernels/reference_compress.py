"""Reference in NumPy for the canonical and the packed form of a 2:4 matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _spec
from sparse24.kernels.reference_arrays import grouped, is_nonzero, joined, split, to_dtype


def compress(x: np.ndarray, mask: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Canonical values and metadata of a matrix, of the elements that `mask` keeps.

    Parameters
    ----------
    x : ndarray, shape (..., m, k)
    mask : ndarray of bool, same shape, optional
        At most two true elements in a group.  Zeros under a true mask keep
        their slot; without a mask the non-zeros are kept.

    Returns
    -------
    values : ndarray, shape (..., m, values_per_row(k))
    metadata : ndarray of uint8, shape (..., m, metadata_bytes_per_row(k))
    """
    groups = grouped(x)
    kept = is_nonzero(groups) if mask is None else grouped(mask, fill=False)
    count = kept.sum(-1)
    first = np.argmax(kept, axis=-1)
    last = _spec.GROUP - 1 - np.argmax(kept[..., ::-1], axis=-1)
    single_at_3 = (count == 1) & (first == 3)
    i0 = np.where((count == 0) | single_at_3, 0, first)
    i1 = np.where(count == 0, 1, np.where(count == 1, 3, last))
    pair = np.stack([i0, i1], axis=-1)
    values = np.take_along_axis(groups, pair, axis=-1)
    values[~np.take_along_axis(kept, pair, axis=-1)] = 0
    values[values == 0] = 0  # -0.0 reads back as +0.0
    codes = (i0 | i1 << 2).astype(np.uint8)
    return joined(values), codes_to_metadata(codes)


def decompress(values: np.ndarray, metadata: np.ndarray, k: int) -> np.ndarray:
    """The dense matrix (..., m, k) of canonical values and metadata."""
    codes = metadata_to_codes(metadata, k)
    slots = split(values, _spec.KEPT)
    out = np.zeros((*codes.shape, _spec.GROUP), values.dtype)
    pair = np.stack([codes & 3, codes >> 2], axis=-1).astype(np.intp)
    np.put_along_axis(out, pair, slots, axis=-1)
    return joined(out)[..., :k]


def stored_mask(metadata: np.ndarray, k: int) -> np.ndarray:
    """Boolean (..., m, k): the two places of every group that have a stored element."""
    return decompress(np.ones((*metadata.shape[:-1], _spec.values_per_row(k)), bool), metadata, k)


def like(metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Canonical values of `x` at the places that old metadata names; -0.0 becomes +0.0."""
    codes = metadata_to_codes(metadata, x.shape[-1])
    pair = np.stack([codes & 3, codes >> 2], axis=-1).astype(np.intp)
    values = joined(np.take_along_axis(grouped(x), pair, axis=-1))
    values[values == 0] = 0
    return values


def masked_gradient(
    metadata: np.ndarray, gradient: np.ndarray, weight: np.ndarray | None = None, decay: float = 0.0
) -> np.ndarray:
    """The gradient in stored places; 0, or gradient + decay * weight, in the others.

    The sum is taken in float32, in float64 for float64.
    """
    real: Any = np.float64 if gradient.dtype == np.float64 else np.float32
    other = np.zeros((), gradient.dtype)
    if weight is not None:
        total = gradient.astype(real) + real(decay) * weight.astype(real)
        other = to_dtype(total, gradient.dtype)
    return np.where(stored_mask(metadata, gradient.shape[-1]), gradient, other)


def codes_to_metadata(codes: np.ndarray) -> np.ndarray:
    """(..., groups) codes -> (..., ceil(groups/2)) bytes, low K in the low nibble."""
    if codes.shape[-1] % 2:
        pad = [(0, 0)] * (codes.ndim - 1) + [(0, 1)]
        codes = np.pad(codes, pad, constant_values=_spec.EMPTY_CODE)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def metadata_to_codes(metadata: np.ndarray, k: int) -> np.ndarray:
    """The inverse of `codes_to_metadata` for rows of `k` elements."""
    codes = np.stack([metadata & 15, metadata >> 4], axis=-1)
    return joined(codes)[..., : _spec.groups(k)]


def pack_codes(codes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Arrange codes (..., m, groups) in atoms of 64 rows by 32 codes.

    `places` is the table of `_spec.atom_nibbles`.  Returns uint8 (..., K atoms, M atoms, 1024).
    """
    m, count = codes.shape[-2:]
    rows, columns = places.shape
    pad = [(0, 0)] * (codes.ndim - 2) + [(0, -m % rows), (0, -count % columns)]
    codes = np.pad(codes, pad, constant_values=_spec.EMPTY_CODE)
    shape = (codes.shape[-2] // rows, rows, codes.shape[-1] // columns, columns)
    blocks = codes.reshape(*codes.shape[:-2], *shape)
    blocks = np.moveaxis(blocks, -2, -4)  # (..., K atoms, M atoms, rows, columns)
    nibbles = np.empty((*blocks.shape[:-2], 2 * _spec.ATOM_BYTES), np.uint8)
    nibbles[..., places.ravel()] = joined(blocks)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


def unpack_codes(packed: np.ndarray, places: np.ndarray, m: int, count: int) -> np.ndarray:
    """The inverse of `pack_codes`: codes (..., m, count)."""
    nibbles = joined(np.stack([packed & 15, packed >> 4], axis=-1))
    rows, columns = places.shape
    blocks = nibbles[..., places.ravel()].reshape(*packed.shape[:-1], rows, columns)
    blocks = np.moveaxis(blocks, -4, -2)  # (..., M atoms, rows, K atoms, columns)
    shape = (packed.shape[-2] * rows, packed.shape[-3] * columns)
    codes = blocks.reshape(*packed.shape[:-3], *shape)
    return np.ascontiguousarray(codes[..., :m, :count])


def pack_metadata(metadata: np.ndarray, k: int, itemsize: int) -> np.ndarray:
    """Canonical metadata (..., m, bytes) -> packed metadata (..., K atoms, M atoms, 1024)."""
    return pack_codes(metadata_to_codes(metadata, k), _spec.atom_nibbles(itemsize))


def unpack_metadata(packed: np.ndarray, m: int, k: int, itemsize: int) -> np.ndarray:
    """Packed metadata -> canonical metadata, bit for bit."""
    codes = unpack_codes(packed, _spec.atom_nibbles(itemsize), m, _spec.groups(k))
    return codes_to_metadata(codes)
