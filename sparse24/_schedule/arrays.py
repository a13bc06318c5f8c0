"""Array helpers of the scheduler: ranking, exact counts, sums in a fixed order, random draws.

Everything goes through the array API, and every operation is elementwise or moves
elements, so NumPy, CuPy, torch, JAX and array-api-strict give the same bits.
A library's own ``sum`` would not: each adds in its own order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import array_api_compat
import numpy as np

from sparse24 import _arrays, _check, _row_blocks
from sparse24._errors import ArgumentError, DTypeError, PatternError, ShapeError
from sparse24.kernels import reference

Array = Any
# Sums of scores stay finite if each score is at most finfo.max / HEADROOM.
HEADROOM = 2.0**24
_SELECTED_BY_BITS = 1 << 12  # elements from which on that takes less time than NumPy's `where`


def namespace(*arrays: Array):
    """The array API namespace of the arrays."""
    for array in arrays:
        _check.unmasked(array, argument="a weight or gradient")
        if isinstance(array, np.matrix):
            raise DTypeError(
                "a weight or gradient must not be a numpy.matrix, whose * is the matrix product; "
                "pass numpy.asarray of it"
            )
    try:
        return array_api_compat.array_namespace(*arrays)
    except TypeError as error:
        raise DTypeError(
            f"weights, gradients and masks must be dense arrays of one library: {error}"
        ) from error


def plain(x: Array) -> Array:
    """The array without a gradient record (torch parameters), otherwise unchanged."""
    return x.detach() if hasattr(x, "detach") else x


def working(x: Array) -> Array:
    """The array in float64 if it is float64, else in float32, which holds all narrower types."""
    x = plain(x)
    xp = namespace(x)
    return x if x.dtype == xp.float64 else xp.astype(x, xp.float32, copy=False)


def copied(x: Array) -> Array:
    """An array that others may write to, without a gradient record."""
    return namespace(x).asarray(plain(x), copy=True)


def level(x: Array, value: float) -> Array:
    """A number beside `x`, in its type and without axes: one as large would take a pass more."""
    if type(x) is np.ndarray:  # in a tenth of the time
        return np.asarray(value, dtype=x.dtype)
    if _arrays.is_jax(x):  # which may be spread over devices
        return namespace(x).asarray(value, dtype=x.dtype)
    return namespace(x).full((), value, dtype=x.dtype, device=array_api_compat.device(x))


def ranked(scores: Array) -> Array:
    """Scores that compare safely: NaN is infinite, all others are finite."""
    scores = working(scores)
    xp = namespace(scores)
    top = float(xp.finfo(scores.dtype).max)
    return xp.where(xp.isnan(scores), level(scores, math.inf), bounded(scores, top))


def select(mask: Array, x: Array, otherwise: Array) -> Array:
    """``where(mask, x, otherwise)`` for two arrays of one dtype, and in that dtype.

    One of them may be a `level`.

    CuPy's has no bfloat16 and gives float32, so there the bits are selected; so are those of many
    elements of NumPy, whose ``where`` guesses wrong at each place of a mask without a pattern.
    """
    xp = namespace(x)
    if _is_selected_by_bits(mask, x, otherwise):
        found = np.empty_like(x if x.ndim else otherwise)
        ours, others = (np.broadcast_to(part, mask.shape) for part in (x, otherwise))
        for rows in _row_blocks.blocks_of_rows(mask.shape):
            _select_bits(mask[rows], ours[rows], others[rows], found[rows])
        return found
    if not _arrays.is_cupy(x) or x.dtype.isbuiltin == 1:
        return xp.where(mask, x, otherwise)
    bits = np.dtype(f"u{x.dtype.itemsize}")
    return xp.where(mask, x.view(bits), otherwise.view(bits)).view(x.dtype)


def _select_bits(mask: np.ndarray, x: np.ndarray, otherwise: np.ndarray, out: np.ndarray) -> None:
    bits = np.dtype(f"i{x.dtype.itemsize}")
    ones = (mask.view(np.int8) != 0).view(np.int8)  # a view of other bytes may hold more than 1
    found, other = np.negative(ones, dtype=bits), otherwise.view(bits)  # all bits, or none
    found &= x.view(bits) ^ other
    np.bitwise_xor(found, other, out=out.view(bits))


def _is_selected_by_bits(mask: Array, x: Array, otherwise: Array) -> bool:
    if not type(mask) is type(x) is type(otherwise) is np.ndarray or mask.dtype != bool:
        return False
    dtype = x.dtype
    if dtype != otherwise.dtype or dtype.hasobject or not dtype.isnative:
        return False
    shapes = {x.shape, otherwise.shape} - {()}
    fits = dtype.itemsize in (1, 2, 4, 8) and shapes == {mask.shape}
    return fits and mask.size > _SELECTED_BY_BITS


def bounded(x: Array, limit: float) -> Array:
    """`x` within ``[-limit, limit]``; array-api-compat's ``clip`` would wait for the device."""
    xp = namespace(x)
    return xp.maximum(xp.minimum(x, level(x, limit)), level(x, -limit))


def without_overflow(gradient: Array) -> Array:
    """A gradient to remember: 0 where it is inf or NaN, as in the first steps of a loss scaler."""
    xp = namespace(gradient)
    return xp.where(xp.isfinite(gradient), gradient, level(gradient, 0.0))


def unless_overflowed(gradient: Array, scores: Array, otherwise: Array) -> Array:
    """Scores by a gradient, or others if some of it overflowed: a loss scaler skips the step."""
    xp = namespace(gradient)
    sound = xp.all(xp.isfinite(gradient))  # one array without axes: nothing waits for it
    return xp.where(sound, scores, otherwise)


def summable(scores: Array) -> Array:
    """Scores whose sums stay finite: bounded, NaN above all others."""
    scores = ranked(scores)
    xp = namespace(scores)
    limit = float(xp.finfo(scores.dtype).max) / HEADROOM
    nan = xp.isinf(scores)
    return xp.where(nan, level(scores, 2 * limit), bounded(scores, limit))


def floor_count(share: float, total: int) -> int:
    """``floor(share * total)``, safe against the rounding of e.g. 0.29 * 100."""
    return min(total, max(0, math.floor(round(share * total, 6))))


def check_share(value, argument: str) -> float:
    """A number in [0, 1], or an error that names it."""
    try:
        number = _check.number(value, argument=argument)
    except ArgumentError:
        raise ArgumentError(f"{argument} must be a number in [0, 1], got {value!r}") from None
    if not 0.0 <= number <= 1.0:
        raise ArgumentError(f"{argument} must be in [0, 1], got {value!r}")
    return number


def check_part(part, kind: type, argument: str, example: str) -> None:
    """Refuse a part of a scheduler that is of another kind."""
    if not isinstance(part, kind):
        raise ArgumentError(
            f"{argument} must be a {kind.__name__} of sparse24.schedule, such as {example}, "
            f"got {_check.shown(part)}"
        )


def check_layer(name, array) -> None:
    """Refuse a layer whose name is no string, or whose array is none."""
    if not isinstance(name, str):
        raise ArgumentError(f"layers must have names that are strings, got {name!r}")
    if isinstance(array, Mapping):
        raise DTypeError(
            f"the array of layer {name!r} must be an array, got {type(array).__name__}; make a "
            "nested dictionary flat, as flax.traverse_util.flatten_dict(params, sep='.') does"
        )
    _check.is_array(array, argument=f"the array of layer {name!r}")


def check_factor(value, argument: str) -> None:
    """Refuse what is no number; an array is not read, as that would wait for its device."""
    if not _check.is_an_array(value):
        _check.number(value, argument=argument)
    elif tuple(value.shape) not in ((), (1,)):  # one for each row would be paired with groups
        raise ShapeError(
            f"{argument} must be a number, or an array of one, got shape {tuple(value.shape)}"
        )


def check_floats(x, argument: str) -> None:
    """Refuse all but arrays (..., k) of floating-point numbers; integers would be truncated."""
    _check.is_array(x, argument=argument)
    if "float" not in str(x.dtype):  # those of ml_dtypes are so named, too
        raise DTypeError(
            f"{argument} must hold floating-point numbers, got {x.dtype}; convert it first"
        )
    if not x.shape:
        raise ShapeError(f"{argument} must have shape (..., k), got a scalar; reshape it")


def split_groups(x: Array, group: int, fill: float) -> Array:
    """(..., k) -> (..., ceil(k / group), group), the last group filled up."""
    xp = namespace(x)
    short = -x.shape[-1] % group
    if short:
        tail = xp.full(
            (*x.shape[:-1], short), fill, dtype=x.dtype, device=array_api_compat.device(x)
        )
        x = xp.concat([x, tail], axis=-1)
    return xp.reshape(x, (*x.shape[:-1], x.shape[-1] // group, group))


def join_groups(x: Array, k: int) -> Array:
    """The inverse of `split_groups` for rows of `k` elements."""
    return namespace(x).reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))[..., :k]


def tree_sum(x: Array) -> Array:
    """Sum over the last axis by halving: the same order, hence the same bits, everywhere."""
    xp = namespace(x)
    if not x.shape[-1]:
        return xp.sum(x, axis=-1)
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        paired = x[..., :half] + x[..., half : 2 * half]
        x = xp.concat([paired, x[..., 2 * half :]], axis=-1) if x.shape[-1] % 2 else paired
    return x[..., 0]


def euclidean_norm(x: Array) -> Array:
    """The root of the sum of squares of a float32 or float64 array; waits for no device.

    Right also where the squares would overflow or vanish.
    """
    xp = namespace(x)
    if not math.prod(x.shape):
        return xp.sum(x)
    exponent = math.frexp(float(xp.finfo(x.dtype).max))[1]
    far, power = 2.0 ** (exponent // 4), 2.0 ** (exponent * 5 // 8)
    largest = xp.max(xp.abs(x))  # NaN keeps the scale of 1, and so do numbers of usual size
    scale = xp.where(largest < 1 / far, xp.full_like(largest, power), xp.ones_like(largest))
    scale = xp.where(largest > far, xp.full_like(largest, 1 / power), scale)
    scaled = x * scale
    return xp.sqrt(xp.sum(scaled * scaled)) / scale


def as_matrix(x: Array) -> Array:
    """(..., m, k) -> (rows, k)."""
    return namespace(x).reshape(x, (-1, x.shape[-1]))


def split_tiles(x: Array, tile: tuple[int, int]) -> Array:
    """(rows, k) -> (tile rows, tiles in a row, tile elements)."""
    xp = namespace(x)
    height, width = tile
    x = xp.reshape(x, (x.shape[0] // height, height, x.shape[1] // width, width))
    x = xp.permute_dims(x, (0, 2, 1, 3))
    return xp.reshape(x, (*x.shape[:2], height * width))


def spread_tiles(x: Array, tile: tuple[int, int]) -> Array:
    """(tile rows, tiles in a row) -> (rows, k), each element repeated over its tile."""
    xp = namespace(x)
    rows, columns = x.shape
    wide = xp.broadcast_to(x[:, None, :, None], (rows, tile[0], columns, tile[1]))
    return xp.reshape(wide, (rows * tile[0], columns * tile[1]))


def check_tiles(shape, tile: tuple[int, int], what: str) -> None:
    """Matrices must be whole tiles, so that the counts are exact."""
    if len(shape) < 2:
        raise ShapeError(f"{what} needs a matrix, got shape {tuple(shape)}; keep this layer dense")
    rows = math.prod(shape[:-1])
    if rows % tile[0] or shape[-1] % tile[1]:
        raise ShapeError(
            f"{what} needs shapes that are multiples of {tile[0]} by {tile[1]}, got "
            f"{tuple(shape)}; keep this layer dense or choose another pattern"
        )


def random_key(*key) -> int:
    """128 bits that stand for the parts of the key, as the generator takes them."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def uniform(like: Array, *key) -> Array:
    """Uniform float32 in [0, 1) of the shape of `like`, a pure function of the `key`.

    `reference.uniform`, keyed by a hash of the seed, the step and the layer's name, runs in
    NumPy and the numbers are moved: all libraries, ranks and resumed runs draw the same.
    """
    numbers = reference.uniform(like.shape, random_key(*key))
    return namespace(like).asarray(numbers, device=array_api_compat.device(like))


def to_host(x: Array) -> np.ndarray:
    """A NumPy copy of an array of any of the libraries; waits for the device."""
    x = plain(x)
    if hasattr(x, "get"):  # CuPy
        return x.get()
    return np.asarray(array_api_compat.to_device(x, "cpu") if hasattr(x, "cpu") else x).copy()


def check_reachable(sparsity: float, highest: float, what: str) -> None:
    """A pattern that always keeps something cannot go beyond its highest sparsity."""
    if sparsity > highest + 1e-9:
        raise PatternError(
            f"sparsity {sparsity:g} is beyond {what}, which reaches {highest:g}; "
            "lower the target or choose Unstructured() or TileHybrid()"
        )
