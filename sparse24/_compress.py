"""Make a 2:4 array of a dense one: `compress`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from sparse24 import (
    _arrays,
    _backend,
    _check,
    _dtypes,
    _excess,
    _foreign,
    _foreign_streams,
    _prune_methods,
    _storage,
)
from sparse24._compress_records import compress_rows, records_both_ways, transposable_records
from sparse24._errors import ArgumentError
from sparse24._records import Compressed24, Operand24
from sparse24.formats import convert
from sparse24.formats.base import SparseArray, made_dense
from sparse24.formats.products_24 import Products24
from sparse24.formats.two_four import Sparse24Array

if TYPE_CHECKING:
    from sparse24.formats.n_m import NMArray


@overload
def compress(
    x, *, scores=..., mask=..., like=..., axis=..., on_excess=..., check=..., transposable=...,
    keep_dense=..., dtype=...,
) -> Sparse24Array: ...  # fmt: skip
@overload
def compress(
    x, *, pattern: Sequence[int], scores=..., mask=..., like=..., axis=..., on_excess=...,
    check=..., transposable=..., keep_dense=..., dtype=...,
) -> Sparse24Array | NMArray: ...  # fmt: skip
def compress(
    x, *, pattern=(2, 4), scores=None, mask=None, like=None, axis=-1, on_excess="raise", check=True,
    transposable=False, keep_dense=False, dtype=None,
) -> Sparse24Array | NMArray:  # fmt: skip
    """Compress an array that obeys 2:4, or prune it to 2:4 and compress it.

    Parameters
    ----------
    x : array, shape (..., m, k)
        NumPy, CuPy, torch or any DLPack array, any strides; or a sparse array of sparse24, SciPy
        or cupyx.  Elements are float16, bfloat16, float32, float64, int8 or fp8 (float8_e4m3fn,
        float8_e5m2); other types need `dtype`.
    pattern : (int, int), default (2, 4)
        (n, m): at most n non-zeros in every m elements.  Patterns other than (2, 4) give an
        `NMArray`.
    scores : array of real numbers, shape of `x`, optional
        With ``on_excess="prune"``: keep the two elements of highest score, not of largest
        magnitude.
    mask : array of bool, shape of `x`, optional
        The elements to keep, at most two in a group; all others are dropped.
    like : Sparse24Array, optional
        Keep the elements where this array has non-zeros; its groups must run along `axis`.
        Its codes are reused, and only values are gathered.
    axis : {-1, -2}
        The axis that the groups of four run along.
    on_excess : {"raise", "prune"}
        What to do with a group of more than two non-zeros: raise, or keep the two of
        largest magnitude (ties keep the lower index, NaN counts as largest).
    check : {True, "deferred", False}
        Whether ``on_excess="raise"`` checks the pattern.  ``True`` waits for the device;
        ``"deferred"`` does not, and ``A.check()`` raises later; with ``False`` a group
        of more than two non-zeros silently loses some.  ``True`` also makes up a check that
        `x` itself has put off.
    transposable : bool
        Store both orientations, so that products with ``A`` and ``A.T`` are sparse.  `x` must
        obey 2:4 along both of its last axes or, with ``on_excess="prune"``, is pruned by the
        best 4x4 masks that keep two elements in every row and column.  The check is made at
        once or, with ``check=False``, not at all.
    keep_dense : bool
        Keep the dense matrix beside the compressed one, as a candidate for products: where
        the dense product is predicted to be faster, it runs.
    dtype : dtype, optional
        Convert to this type first; `x` may then also hold integers of any size or booleans.
        Nothing is narrowed unless asked for here.  Also names the logical type of fp8 bits
        carried as ``uint8`` in a dense array.

    Returns
    -------
    Sparse24Array or NMArray
        On the device of `x`.

    Raises
    ------
    PatternError
        If a group has too many non-zeros, or `mask` or `like` keep more than two in one.
    ShapeError, DTypeError, ArgumentError
        If an argument does not fit; the message says what to do.

    See Also
    --------
    prune : Choose the elements by calibration, and get a dense array.
    hybrid : Keep every element of a matrix without a pattern.
    compress_stream, compress_blocks : For a matrix larger than the GPU's memory.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> w = np.array([[1, -3, 2, 0, 0, 0, 0, 4]], np.float32)
    >>> s24.compress(w)
    Traceback (most recent call last):
        ...
    sparse24.PatternError: x[0, 0:4] has more than 2 non-zeros, the first of 1 such \
groups; prune it first (sparse24.prune), or compress with on_excess='prune'; sparse24.hybrid \
keeps every element
    >>> s24.compress(w, on_excess="prune").toarray()
    array([[ 0., -3.,  2.,  0.,  0.,  0.,  0.,  4.]], dtype=float32)
    """
    if isinstance(x, SparseArray) and x.dtype.name.startswith("float8"):
        x = x if dtype is None else x.astype(dtype)
        dtype = x.dtype  # the dense form may be bits
    given, x = x, made_dense(convert.as_numbers(x, dtype), argument="x")
    _check.one_of(on_excess, ("raise", "prune"), argument="on_excess")
    check = _check.flag(check, argument="check", also=("deferred",))
    transposable = _check.flag(transposable, argument="transposable")
    keep_dense = _check.flag(keep_dense, argument="keep_dense")
    if check is True and isinstance(given, Sparse24Array):
        given.check()  # what it has lost cannot be seen in its dense form
    if _check.pattern(pattern) != (2, 4):
        _only_24(scores=scores, like=like)
        _only_24(transposable=transposable, keep_dense=keep_dense)
        _only_24(check=check if check == "deferred" else None)
        return _n_m(x, pattern, mask, axis, on_excess, check, dtype)
    with _foreign_streams.makes_of(x):
        x, own = _prepared(x, dtype)
        swap = _check.matrix_axis(axis, x.ndim) == -2
        if transposable:
            _no_other_rule(scores=scores, mask=mask, like=like)
            return _transposable(x, own, on_excess, check, keep_dense)
        if sum(chosen is not None for chosen in (scores, mask, like)) > 1:
            raise ArgumentError("give one of scores=, mask= and like=, not two")
        again = None if keep_dense else _like(x, own, like, swap)
        if again is not None:
            return again
        rule, chosen = _rule(on_excess, scores, mask, like, x)
        record, status = compress_rows(_swapped(x, swap), own, rule, _swapped(chosen, swap))
        looked_at = _looked_at(rule, mask, like, swap)
        turned = isinstance(given, Products24) and given.axis == (-1 if swap else -2)
        status = _checked(status, record.shape, looked_at, check, swap, turned=turned)
        dense = _kept_dense(x, record, rule, swap) if keep_dense else None
        return Sparse24Array(_operand(record, dense, swap), status=status)


def _swapped(x, swap: bool):
    """An array, or None, with its last two axes exchanged where groups run along the columns."""
    return x.swapaxes(-1, -2) if swap and x is not None else x


def _checked(status, shape, looked_at: str | None, check: bool | str, swap: bool, *, turned: bool):
    """Look at the result of a check now if `check` is True; else return what is left for later.

    `turned`: `x` is an array at 2:4 along its other axis.
    """
    if not check or looked_at is None:
        return None
    if check is True:
        axis = -2 if swap else -1
        _excess.refuse(status, shape, axis=axis, argument=looked_at, turned=turned)
    return status if looked_at == "x" else _excess.of_whole(status, shape, looked_at)


def _n_m(x, pattern, mask, axis, on_excess: str, check: bool, dtype):
    """An `NMArray`, of the elements under `mask` if there is one."""
    from sparse24.formats.n_m import NMArray

    with _foreign_streams.makes_of(x):
        x, own = _prepared(x, dtype)
        if mask is not None:
            mask = checked_mask(mask, x)
            bits = _arrays.namespace(x).where(mask, x.view(own.storage), own.storage.type(0))
            x = bits.view(x.dtype)
        return NMArray.from_dense(
            x, pattern=pattern, axis=axis, on_excess=on_excess, check=check, dtype=own.name
        )


def _only_24(**given) -> None:
    for name, value in given.items():
        if value is not None and value is not False:
            text = f"{name}=" if hasattr(value, "shape") else f"{name}={value!r}"
            raise ArgumentError(f"{text} needs pattern (2, 4); drop one of them")


def _kept_dense(x, record: Compressed24, rule: str, swap: bool):
    """The dense matrix beside a record of it: `x` itself, copied, where nothing was pruned."""
    if rule == "check":
        return x.copy()
    return _swapped(_storage.decompress(record), swap)


def _operand(record: Compressed24, dense, swap: bool) -> Operand24:
    operand = Operand24(record, None, _swapped(dense, swap), record.shape, record.dtype)
    return operand.transposed() if swap else operand


def _prepared(x, dtype):
    """`x` on the device of the backend and in the wanted element type, and that type."""
    told = _foreign.float8_of(x)
    x, _ = _foreign.take(x)
    x = _backend.place(x)
    named = dtype is not None and x.dtype == np.uint8 and _dtypes.lookup(dtype).is_float8
    of_bits = told or (dtype if named else None)
    if dtype is not None and of_bits is None and x.dtype.kind in "biu" and x.dtype != np.int8:
        x = x.astype(_dtypes.holding(x.dtype, _dtypes.lookup(dtype)))
    own = _arrays.logical_dtype(x, of_bits)
    x = _arrays.as_storage(x, own)
    _check.at_least_2d(x.shape, argument="x")
    if dtype is not None:
        wanted = _dtypes.lookup(dtype)
        if wanted is not own:
            return _storage.converted(x, own, wanted), wanted
    return x, own


def _no_other_rule(**given) -> None:
    for name, value in given.items():
        if value is not None:
            raise ArgumentError(
                f"transposable=True takes no {name}=; zero the other elements first, as "
                "sparse24.prune(x, scores=..., transposable=True) does"
            )


def _rule(on_excess, scores, mask, like, x):
    """Which elements stay: the name of the kernels' rule, and its scores or mask."""
    if scores is not None:
        if on_excess != "prune":
            raise ArgumentError("scores= say what to prune; pass on_excess='prune' with them")
        return "scores", _prune_methods.checked_scores(scores, x)
    if like is not None:
        if not isinstance(like, Sparse24Array):
            way_out = "for the non-zeros of a dense array pass mask=like != 0"
            if isinstance(like, SparseArray):
                way_out = "for those of another format pass mask=like.mask()"
            raise ArgumentError(
                f"like must be a Sparse24Array, got {type(like).__name__}; {way_out}"
            )
        _check.same_shape(x.shape, like.shape, argument="x", other="like")
        return "mask", like.mask()
    if mask is not None:
        return "mask", checked_mask(mask, x)
    return ("magnitude", None) if on_excess == "prune" else ("check", None)


def _looked_at(rule: str, mask, like, swap: bool) -> str | None:
    """The argument that may have too many elements in a group; None where none can."""
    if rule == "check":
        return "x"
    if mask is not None:
        return "mask"
    return "like" if like is not None and _along(like, swap) is None else None


def _along(like: Sparse24Array, swap: bool) -> Compressed24 | None:
    """What `like` stores of its groups along the rows, or with `swap` the columns."""
    return like._operand.columns if swap else like._operand.rows


def _like(x, dtype, like, swap: bool) -> Sparse24Array | None:
    """`x` at the non-zeros of `like`, by its codes, where a kernel can; else None."""
    if not isinstance(like, Sparse24Array) or not _arrays.is_cupy(x) or like._dtype is not dtype:
        return None
    _check.same_shape(x.shape, like.shape, argument="x", other="like")
    record = _along(like, swap)
    if record is None or not _arrays.is_cupy(record.values):
        return None
    from sparse24.kernels import like as kernel

    source = _swapped(x, swap)
    return Sparse24Array(_operand(kernel.launch(record, source, nonzero=True), None, swap))


def checked_mask(mask, x):
    """The mask as an array beside `x`; refuses another shape or type."""
    mask, _ = _foreign.take(mask, argument="mask")
    _check.same_shape(mask.shape, x.shape, argument="mask", other="x")
    _check.boolean(mask)
    return mask


def _transposable(x, dtype, on_excess: str, check, keep_dense: bool) -> Sparse24Array:
    rule = "magnitude" if on_excess == "prune" else "check"
    if rule == "magnitude":
        rows, columns = transposable_records(x, dtype)
    else:
        rows, columns = records_both_ways(x, dtype, check)
    dense = _kept_dense(x, rows, rule, swap=False) if keep_dense else None
    return Sparse24Array(Operand24(rows, columns, dense, tuple(x.shape), dtype))
