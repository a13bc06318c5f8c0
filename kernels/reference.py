"""What every kernel means, in NumPy: short, slow and right.

The CPU and CUDA kernels are tested against these functions, bit for bit where
bits are moved and against float64 where numbers are summed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparse24 import _spec
from sparse24._dtypes import DType, numpy_dtype
from sparse24._records import Epilogue


def magnitude_rank(x: np.ndarray) -> np.ndarray:
    """Integer scores (int64) whose order is the order of magnitude; exact for every type.

    NaN ranks above infinity, all NaNs alike; -0.0 equals 0.0; int8 -128 ranks above 127.
    """
    if x.dtype.kind in "iu":
        return np.abs(x.astype(np.int64))
    signed = np.dtype(f"i{x.dtype.itemsize}")
    top = np.iinfo(signed).max  # the bits without the sign grow with the magnitude
    bits = (np.ascontiguousarray(x).view(signed) & signed.type(top)).astype(np.int64)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.where(np.isnan(x), top, bits)


def top_mask(scores: np.ndarray, keep: int, group: int) -> np.ndarray:
    """Boolean mask of the `keep` largest of every `group` along the last axis.

    Ties keep the lower index.  A NaN ranks above infinity.  A last, shorter group is
    filled up with elements that rank below all others.
    """
    k = scores.shape[-1]
    if scores.dtype.kind != "i":
        scores = scores.astype(np.result_type(scores, np.float32), copy=False)
    lowest = np.iinfo(scores.dtype).min + 1 if scores.dtype.kind == "i" else -np.inf
    pad = [(0, 0)] * (scores.ndim - 1) + [(0, -k % group)]
    grouped = _split(np.pad(scores, pad, constant_values=lowest), group)
    nan = np.isnan(grouped)
    order = np.lexsort((-np.where(nan, 0, grouped), ~nan), axis=-1)  # stable
    mask = np.zeros(grouped.shape, bool)
    np.put_along_axis(mask, order[..., :keep], True, axis=-1)
    return _joined(mask)[..., :k]


def _split(x: np.ndarray, size: int) -> np.ndarray:
    """(..., k) -> (..., k / size, size)."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def _joined(x: np.ndarray) -> np.ndarray:
    """(..., a, b) -> (..., a * b)."""
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _is_nonzero(x: np.ndarray) -> np.ndarray:
    return x != 0  # false for -0.0, true for NaN


def grouped(x: np.ndarray, fill=0) -> np.ndarray:
    """(..., k) -> (..., ceil(k/4), 4), the last group filled up."""
    pad = -x.shape[-1] % _spec.GROUP
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)], constant_values=fill)
    return _split(x, _spec.GROUP)


def excess_groups(x: np.ndarray) -> np.ndarray:
    """Boolean (..., ceil(k/4)): the groups with more than two non-zeros."""
    return _is_nonzero(grouped(x)).sum(-1) > _spec.KEPT


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
    kept = _is_nonzero(groups) if mask is None else grouped(mask, fill=False)
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
    return _joined(values), codes_to_metadata(codes)


def prune(x: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the two best of every group of four."""
    keep = top_mask(magnitude_rank(x) if scores is None else scores, _spec.KEPT, _spec.GROUP)
    return np.where(keep, x, np.zeros((), x.dtype))


def transposable_mask(x: np.ndarray) -> np.ndarray:
    """Boolean mask, 2:4 along both of the last two axes, of the largest sum of magnitudes.

    Each 4x4 tile takes the best of the 90 legal masks.  The sum is defined to
    the bit: magnitudes as float32, NaN as a sixteenth of the largest float32;
    the kept pair of each row first, then rows 0 + 1 and rows 2 + 3, then both.
    Ties go to the smallest mask, read as bits 4 * row + column.  Edges are
    filled up with zeros.
    """
    m, k = x.shape[-2:]
    g = _spec.GROUP
    with np.errstate(over="ignore"):
        size = np.abs(x.astype(np.float32))
    size = np.where(np.isnan(size), np.finfo(np.float32).max / np.float32(16), size)
    pad = [(0, 0)] * (x.ndim - 2) + [(0, -m % g), (0, -k % g)]
    size = np.pad(size, pad)
    rows, columns = size.shape[-2] // g, size.shape[-1] // g
    tiles = size.reshape(*x.shape[:-2], rows, g, columns, g).swapaxes(-3, -2)
    legal = (_spec.TILE_MASKS[:, None] >> np.arange(g * g) & 1).astype(bool).reshape(-1, g, g)
    kept = np.nonzero(legal)[2].reshape(-1, g, _spec.KEPT)  # columns of (mask, row, slot)
    row = np.arange(g)[None, :]
    with np.errstate(over="ignore"):
        pairs = tiles[..., row, kept[..., 0]] + tiles[..., row, kept[..., 1]]
        sums = (pairs[..., 0] + pairs[..., 1]) + (pairs[..., 2] + pairs[..., 3])
    best = legal[np.argmax(sums, axis=-1)]  # (..., rows, columns, 4, 4); the first, smallest, wins
    return best.swapaxes(-3, -2).reshape(size.shape)[..., :m, :k]


def prune_n_m(x: np.ndarray, n: int, m: int, scores: np.ndarray | None = None) -> np.ndarray:
    """Zero all but the `n` best of every group of `m` along the last axis."""
    keep = top_mask(magnitude_rank(x) if scores is None else scores, n, m)
    return np.where(keep, x, np.zeros((), x.dtype))


def compress_n_m(x: np.ndarray, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (..., rows, n * groups) and places (uint8, same shape) of an n:m matrix.

    Every group stores exactly `n` distinct ascending places: its non-zeros, then,
    where there are fewer, its first zeros, with value 0.
    """
    pad = -x.shape[-1] % m
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)])
    groups = _split(padded, m)
    order = np.argsort(~_is_nonzero(groups), axis=-1, kind="stable")[..., :n]
    places = np.sort(order, axis=-1)
    values = np.take_along_axis(groups, places, axis=-1)
    values[values == 0] = 0  # -0.0 reads back as +0.0
    return _joined(values), _joined(places.astype(np.uint8))


def decompress_n_m(values: np.ndarray, places: np.ndarray, n: int, m: int, k: int) -> np.ndarray:
    """The dense matrix (..., rows, k) of values and places."""
    slots = _split(values, n)
    out = np.zeros((*slots.shape[:-1], m), values.dtype)
    np.put_along_axis(out, places.reshape(slots.shape).astype(np.intp), slots, axis=-1)
    return _joined(out)[..., :k]


def codes_to_metadata(codes: np.ndarray) -> np.ndarray:
    """(..., groups) codes -> (..., ceil(groups/2)) bytes, low K in the low nibble."""
    if codes.shape[-1] % 2:
        pad = [(0, 0)] * (codes.ndim - 1) + [(0, 1)]
        codes = np.pad(codes, pad, constant_values=_spec.EMPTY_CODE)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def metadata_to_codes(metadata: np.ndarray, k: int) -> np.ndarray:
    """The inverse of `codes_to_metadata` for rows of `k` elements."""
    codes = np.stack([metadata & 15, metadata >> 4], axis=-1)
    return _joined(codes)[..., : _spec.groups(k)]


def decompress(values: np.ndarray, metadata: np.ndarray, k: int) -> np.ndarray:
    """The dense matrix (..., m, k) of canonical values and metadata."""
    codes = metadata_to_codes(metadata, k)
    slots = _split(values, _spec.KEPT)
    out = np.zeros((*codes.shape, _spec.GROUP), values.dtype)
    pair = np.stack([codes & 3, codes >> 2], axis=-1).astype(np.intp)
    np.put_along_axis(out, pair, slots, axis=-1)
    return _joined(out)[..., :k]


def stored_mask(metadata: np.ndarray, k: int) -> np.ndarray:
    """Boolean (..., m, k): the two places of every group that have a stored element."""
    return decompress(np.ones((*metadata.shape[:-1], _spec.values_per_row(k)), bool), metadata, k)


def like(metadata: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Canonical values of `x` at the places that old metadata names; -0.0 becomes +0.0."""
    codes = metadata_to_codes(metadata, x.shape[-1])
    pair = np.stack([codes & 3, codes >> 2], axis=-1).astype(np.intp)
    values = _joined(np.take_along_axis(grouped(x), pair, axis=-1))
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


def activate_compress(
    x: np.ndarray, activation: str, gate: np.ndarray | None = None, *, quantise: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Values and metadata of relu(x), relu2 or silu(x) * gate, pruned to 2:4; scales of rows.

    The activation is computed in float32 and rounded to the type of `x` before elements are
    chosen.  Scales are None, or those of `quantise_rows`.
    """
    y = activated(x, activation, gate)
    values, metadata = compress(prune(y))
    if not quantise:
        return values, metadata, None
    eighth, scales = quantise_rows(y, values)
    return eighth, metadata, scales


def activated(x: np.ndarray, activation: str, gate: np.ndarray | None = None) -> np.ndarray:
    """The activation, times the gate, in float32 (float64 of float64) and the type of `x`."""
    real: Any = np.float64 if x.dtype == np.float64 else np.float32
    with np.errstate(invalid="ignore", over="ignore"):
        y = activate(x.astype(real), activation)
        return (y if gate is None else y * gate.astype(real)).astype(x.dtype)


def quantise_rows(y: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`values`, some elements of the rows of `y`, as float8_e4m3fn, and the rows' scales.

    They are values * (448 / amax) and amax / 448 for the largest magnitude amax of a row, NaN
    left out; both factors are 1 below 2**-100.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(y.astype(np.float32))
        amax = np.where(np.isnan(size), 0, size).max(-1, initial=0)
        tiny = amax < np.float32(2.0**-100)
        safe = np.where(tiny, np.float32(1), amax)
        factor = np.where(tiny, np.float32(1), np.float32(448) / safe)
        scales = np.where(tiny, np.float32(1), safe / np.float32(448))
        scaled = values.astype(np.float32) * factor[..., None]
        eighth = to_dtype(scaled, numpy_dtype("float8_e4m3fn"))
    eighth[eighth == 0] = 0
    return eighth, scales


def uniform(shape: tuple[int, ...], key: int) -> np.ndarray:
    """Float32 numbers in [0, 1), 24 random bits each: Philox 4x64 with a key of 128 bits."""
    count = math.prod(shape)
    words = np.random.Philox(key=key).random_raw(-(-count // 2))
    words = words.astype("<u8", copy=False).view("<u4")[:count]
    return ((words >> 8).astype(np.float32) * np.float32(2.0**-24)).reshape(shape)


def sample(x: np.ndarray, key: int) -> np.ndarray:
    """Two of every four elements, each kept with p = min(1, 2 |x| / sum |x|) and divided by p.

    The expectation is `x`.  |x| / p is half the sum, so no division is needed: magnitudes are
    laid end to end, and one uniform number u a group points at u and 1 + u halves of their sum.
    If an element alone exceeds half, it is certain and stays as it is; the other comes from the
    rest in the same way.  A group whose sum is not finite keeps its two largest.  In float32.
    """
    groups = grouped(x).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.abs(groups)
        total = (size[..., 0] + size[..., 2]) + (size[..., 1] + size[..., 3])
        half = total * np.float32(0.5)
        certain = np.arange(_spec.GROUP) == size.argmax(-1)[..., None]
        certain &= (size.max(-1) > half)[..., None]
        capped = certain.any(-1)
        length = np.where(certain, 0, size)
        others = (length[..., 0] + length[..., 2]) + (length[..., 1] + length[..., 3])
        rest = np.where(capped, others, half)
        end = np.cumsum(length, axis=-1, dtype=np.float32)
        begin = np.concatenate([np.zeros_like(end[..., :1]), end[..., :3]], axis=-1)
        end[..., 3] = np.inf
        first = (uniform(total.shape, key) * rest)[..., None]
        second = np.where(capped, -1, half + first[..., 0])[..., None]
        drawn = (begin <= first) & (first < end) | (begin <= second) & (second < end)
        value = np.where(drawn & (length > 0), np.copysign(rest[..., None], groups), 0)
        value = np.where(certain, groups, value)
        finite = (total < np.inf)[..., None]
        value = np.where(finite, value, grouped(prune(x)).astype(np.float32))
        return to_dtype(_joined(value)[..., : x.shape[-1]], x.dtype)


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
    nibbles[..., places.ravel()] = _joined(blocks)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4


def unpack_codes(packed: np.ndarray, places: np.ndarray, m: int, count: int) -> np.ndarray:
    """The inverse of `pack_codes`: codes (..., m, count)."""
    nibbles = _joined(np.stack([packed & 15, packed >> 4], axis=-1))
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


def transpose(b: np.ndarray) -> np.ndarray:
    """b (..., k, n) stored by columns."""
    return np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)


def split_bfloat16(x: np.ndarray) -> list[np.ndarray]:
    """Three float32 arrays of eight significant bits each that sum to float32 `x`, largest first.

    The first is cut off, so it never overflows; the second is rounded to nearest even.  An
    infinity or a NaN is its own first piece.  The sum is exact down to 2**-110; below, bits
    under 2**-133 are lost.
    """
    finite = np.isfinite(x)
    first = _upper_half(np.where(finite, x, np.float32(0)), nearest=False)
    rest = np.where(finite, x, first) - first
    second = _upper_half(rest, nearest=True)
    third = _upper_half(rest - second, nearest=False)
    return [np.where(finite, first, x), second, third]


def _upper_half(x: np.ndarray, *, nearest: bool) -> np.ndarray:
    """float32 with the lower 16 bits rounded, or cut off."""
    bits = x.view(np.uint32)
    if nearest:
        bits = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def split_sections(x: np.ndarray, *, dense: bool) -> list[np.ndarray]:
    """The pieces of one operand in the order of the six sections of ``sparse_split``.

    Summed over the sections, the products of the sparse operand's pieces and the dense one's
    make ``p1 q3 + p3 q1 + p2 q2 + p1 q2 + p2 q1 + p1 q1``.  What is not finite is in the last.
    """
    pieces = split_bfloat16(x)
    order = (2, 0, 1, 1, 0, 0) if dense else (0, 2, 1, 0, 1, 0)
    finite = np.isfinite(x)
    sections = [np.where(finite, pieces[i], np.float32(0)) for i in order]
    return [*sections[:-1], pieces[0]]


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The exact product of decompressed `a` and `b`, in float64 (int64 for integers)."""
    if a.dtype.kind in "iu":
        return np.matmul(a.astype(np.int64), b.astype(np.int64))
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def activate(x: np.ndarray, name: str, lower: float = 0.0, upper: float = math.inf) -> np.ndarray:
    """The activation functions of the epilogue, in the precision of `x`."""
    if name == "relu":
        return np.where(x > lower, np.minimum(x, upper), np.where(np.isnan(x), x, 0))
    if name == "relu2":
        return np.where(x > 0, x * x, np.where(np.isnan(x), x, 0))
    if name == "gelu":
        erf = np.vectorize(math.erf, otypes=[float])
        return 0.5 * x * (1 + erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x / (1 + np.exp(-x))
    return x


def apply_epilogue(acc: np.ndarray, e: Epilogue, out: DType | str) -> tuple[np.ndarray, np.ndarray]:
    """Result and pre-activation, both in the dtype of the result, for accumulators (..., m, n)."""
    dtype = numpy_dtype(out if isinstance(out, str) else out.name)
    if e.is_plain:
        stored = to_dtype(acc, dtype)
        return stored, stored
    x = e.alpha * acc.astype(np.float64)
    for vector, shape in ((e.row_scale, (-1, 1)), (e.column_scale, (1, -1))):
        if vector is not None:
            x = x * np.asarray(vector, np.float64).reshape(shape)
    if e.c is not None and e.beta != 0.0:
        x = x + e.beta * np.asarray(e.c).astype(np.float64)
    for vector, shape in ((e.row_bias, (-1, 1)), (e.column_bias, (1, -1))):
        if vector is not None:
            x = x + np.asarray(vector, np.float64).reshape(shape)
    result = e.out_scale * activate(x, e.activation, e.lower, e.upper)
    return to_dtype(result, dtype), to_dtype(x, dtype)


def to_dtype(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert as the kernels do: integers round half to even and saturate, fp8 saturates."""
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        whole = x if x.dtype.kind in "iu" else np.rint(x)
        return np.clip(whole, info.min, info.max).astype(dtype)
    if dtype.name.startswith("float8"):
        import ml_dtypes

        limit = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x.astype(np.float64), -limit, limit).astype(np.float32).astype(dtype)
    return x.astype(dtype)
