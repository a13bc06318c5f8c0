"""A 2:4 linear layer for NumPy and CuPy, forward and backward written out.

>>> import numpy as np
>>> from sparse24 import functional as F
>>> rng = np.random.default_rng(0)
>>> x, weight = rng.normal(size=(5, 16)), rng.normal(size=(8, 16))
>>> y, saved = F.linear(x, weight, np.zeros(8))
>>> dx, dweight, dbias = F.linear_backward(np.ones_like(y), saved)
>>> dx.shape, dweight.shape, dbias.shape
((5, 16), (8, 16), (8,))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign
from sparse24._compress import compress
from sparse24._devices import on_device_of_arguments
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._matmul import linear as _sparse_linear
from sparse24._matmul import matmul
from sparse24._promotion import promoted_integers, result_of
from sparse24._prune import mask as choose_mask
from sparse24._schedule.arrays import level, select
from sparse24._schedule.gradients import compress_mvue_24, sr_ste_gradient
from sparse24._train_rule import checked_rule
from sparse24.formats.base import SparseArray
from sparse24.formats.two_four import Sparse24Array

__all__ = ["Saved", "linear", "linear_backward", "pack"]


@dataclass(frozen=True)
class Saved:
    """What `linear` saves for `linear_backward`, among it the packed weight.

    Made by `linear`.

    Attributes
    ----------
    x, weight : array
        As they were given.
    mask : array of bool or None
        As it was given.
    packed : tuple of Sparse24Array
        The pruned weight, as `pack` gives it.
    bias_shape : tuple of int, or None without a bias

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import functional
    >>> y, saved = functional.linear(np.ones((3, 8), np.float32), np.ones((4, 8), np.float32))
    >>> saved.packed[0].shape, saved.bias_shape
    ((4, 8), None)
    """

    x: Any
    weight: Any
    mask: Any
    packed: tuple[Sparse24Array, ...]
    bias_shape: tuple[int, ...] | None

    @property
    def transposable(self) -> bool:
        """Whether products with the transpose of the weight are sparse, too."""
        return self.packed[0].transposable or len(self.packed) == 2


@on_device_of_arguments
def pack(weight, *, mask=None, transposable: bool = False) -> tuple[Sparse24Array, ...]:
    """The pruned weight, compressed: one array, or two where a mask serves both orientations.

    Parameters
    ----------
    weight : array, shape (m, k)
    mask : array of bool, shape (m, k), optional
        The elements to keep; without it the largest magnitudes.
    transposable : bool
        Whether products with the transpose are to be sparse too.

    Returns
    -------
    tuple of Sparse24Array
        The first serves ``x @ W.T``, the last ``dy @ W``.

    Raises
    ------
    ShapeError
        If the shape of `mask` is not that of `weight`.
    PatternError
        If `mask` is not 2:4, along both axes with `transposable`.  On the GPU this is not
        checked, and the excess elements of a group are dropped.

    Notes
    -----
    Does not wait for the GPU.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import functional
    >>> (packed,) = functional.pack(np.array([[1, 2, 3, 4]], np.float32))
    >>> packed.toarray()
    array([[0., 0., 3., 4.]], dtype=float32)
    """
    transposable = _check.flag(transposable, argument="transposable")
    if mask is None:
        return (compress(weight, on_excess="prune", check=False, transposable=transposable),)
    _check.is_array(mask, argument="mask")
    _check.is_array(weight, argument="weight")
    _check.same_shape(mask.shape, weight.shape, argument="mask", other="weight")
    check = not _arrays.is_cupy(weight)  # would wait there
    along_rows = compress(weight, mask=mask, check=check)
    if not transposable:
        return (along_rows,)
    return along_rows, compress(weight, mask=mask, axis=-2, check=check)


@on_device_of_arguments
def linear(x, weight, bias=None, *, mask=None, transposable: bool = False):
    """Forward pass ``x @ prune(weight).T + bias``.

    Parameters
    ----------
    x : array, shape (..., k)
        NumPy or CuPy, as all others.
    weight : array, shape (m, k)
        Dense; pruned to 2:4 on the way.
    bias : array, shape (m,) or (1, m), optional
    mask : array of bool, shape (m, k), optional
        The elements to keep; without it the largest magnitudes.
    transposable : bool
        Prune by 4x4 tiles, so that the backward product with the weight is sparse too.  A given
        `mask` must then be 2:4 along both axes.

    Returns
    -------
    y : array, shape (..., m)
    saved : Saved
        For `linear_backward`.

    Raises
    ------
    ShapeError
        If the shapes do not fit.
    PatternError
        If `mask` is not 2:4; see `pack`.
    DTypeError
        If an array is not a dense one of NumPy or CuPy.

    Notes
    -----
    Does not wait for the GPU.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import functional
    >>> weight = np.array([[1, 2, 3, 4]], np.float32)
    >>> y, saved = functional.linear(np.ones((2, 4), np.float32), weight)
    >>> y
    array([[7.],
           [7.]], dtype=float32)
    """
    _check_own(x, "x")
    _check_own(weight, "weight")
    for name, given in (("bias", bias), ("mask", mask)):
        if given is not None:
            _check_own(given, name)
    transposable = _check.flag(transposable, argument="transposable")
    _check.layer_shapes(x.shape, weight.shape)
    vector = _check.bias(bias, weight.shape[0])
    packed = pack(weight, mask=mask, transposable=transposable)
    y = _sparse_linear(x, packed[0], vector)
    return y, Saved(x, weight, mask, packed, None if bias is None else tuple(bias.shape))


@on_device_of_arguments
def linear_backward(
    dy, saved: Saved, *, gradient: str = "ste", decay: float = 0.0, seed: int = 0, step: int = 0
):
    """Backward pass: the gradients of x, of the weight and of the bias.

    Parameters
    ----------
    dy : array, shape (..., m)
        Gradient of the output of `linear`.
    saved : Saved
    gradient : {"ste", "24dense", "24sparse", "ste_sampled"}
        The gradient of the weight: that of all elements (``"ste"``, straight-through, and
        ``"ste_sampled"``), or of the kept ones only (``"24dense"`` and ``"24sparse"``).
        ``"24sparse"`` and ``"ste_sampled"`` compute it from a `dy` that is sampled to 2:4 along
        the tokens, without bias, so that this product is sparse as well.
    decay : float
        SR-STE: the pruned weights times `decay` are added to the weight's gradient.
    seed, step : int
        The samples are a pure function of both.

    Returns
    -------
    dx : array, shape (..., k)
    dweight : array, shape (m, k)
    dbias : array, shape of the bias, or None without one

    Raises
    ------
    ShapeError
        If the shape of `dy` is not that of the output.
    DTypeError
        If products take no `dy` of this type.
    ArgumentError
        If `gradient` is unknown, or `saved` is not a result of `linear`.

    Notes
    -----
    Does not wait for the GPU.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import functional as F
    >>> y, saved = F.linear(np.ones((3, 8)), np.arange(32.0).reshape(4, 8))
    >>> dx, dweight, dbias = F.linear_backward(np.ones_like(y), saved)
    >>> dx.shape, dweight.shape, dbias is None
    ((3, 8), (4, 8), True)
    """
    _check_own(dy, "dy")
    if not isinstance(saved, Saved):
        raise ArgumentError(
            f"saved must be the second result of linear, a Saved, got {_check.shown(saved)}"
        )
    dy, x = (_as_multiplied(a, saved, name) for a, name in ((dy, "dy"), (saved.x, "x")))
    weight, _ = _foreign.take(saved.weight, argument="weight")
    step = _check.whole(step, argument="step", least=0)
    rule = checked_rule(gradient, saved.transposable, decay, seed)
    m, k = weight.shape
    if tuple(dy.shape) != (*x.shape[:-1], m):
        raise ShapeError(f"dy must have shape {(*x.shape[:-1], m)}, got {dy.shape}")
    dx = matmul(dy, saved.packed[-1])
    tokens = math.prod(dy.shape[:-1])
    rows, outer = x.reshape(tokens, k), dy.reshape(tokens, m)
    if rule.samples:
        dweight = matmul(compress_mvue_24(outer.T, step=step, seed=seed), rows)
    else:
        dweight = _dense_product(outer.T, rows)
    if rule.decay or not rule.straight:
        if saved.mask is None:
            kept = choose_mask(weight, transposable=saved.transposable)
        else:
            kept, _ = _foreign.take(saved.mask, argument="mask")
        if not rule.straight:  # an infinity times False would be NaN
            dweight = select(kept, dweight, level(dweight, 0))
        if rule.decay:
            dweight = sr_ste_gradient(weight, dweight, kept, rule.decay)
    shape = saved.bias_shape
    return dx, dweight, None if shape is None else _sum_of_rows(outer).reshape(shape)


def _check_own(x, argument: str) -> None:
    """Refuse arrays of torch and JAX, which would lose their gradients, and sparse ones."""
    _check.is_array(x, argument=argument)
    if isinstance(x, np.ndarray) or _arrays.is_cupy(x):
        return
    way_out = "layers of torch and JAX are in sparse24.torch and sparse24.jax"
    if isinstance(x, SparseArray):
        way_out = "pass its .toarray(), or multiply by a weight that stays with sparse24.linear"
    raise DTypeError(
        f"{argument} must be a dense array of NumPy or CuPy, got {type(x).__name__}; {way_out}"
    )


def _as_multiplied(x, saved: Saved, argument: str):
    """A plain array, in the type in which it meets the weight if it holds whole numbers."""
    array, _ = _foreign.take(x, argument=argument)
    array = promoted_integers(array, saved.packed[0]._dtype, argument=argument)
    _arrays.logical_dtype(array, argument=argument)
    return array


def _sum_of_rows(x):
    """``x.sum(0)`` in the type of products; NumPy would add narrow floats one by one in their own.

    That is the type of `x`, but for fp8.
    """
    dtype = _arrays.logical_dtype(x)
    if _arrays.namespace(x) is np and dtype.accumulator == np.float32:
        return x.sum(0, dtype=np.float32).astype(_dtypes.numpy_dtype(dtype.result))
    return x.sum(0)


def _dense_product(a, b):
    """``a @ b`` in the type of a sparse product; NumPy has no BLAS for 16-bit floats."""
    result = _dtypes.numpy_dtype(result_of(_arrays.logical_dtype(b), a.dtype, argument="dy"))
    xp = _arrays.namespace(a)
    if xp is not np and result != np.int32:  # of int8, which would wrap
        return xp.matmul(a, b)
    wide = np.dtype(np.float32) if result.itemsize == 2 else result
    product = xp.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    return product.astype(result, copy=False)
