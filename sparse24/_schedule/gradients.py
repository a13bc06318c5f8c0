"""Gradients and weights of 2:4 training: decays, the continuous projection, unbiased sampling."""

from __future__ import annotations

import math

from sparse24 import _arrays, _check, _dtypes, _spec
from sparse24._compress_records import compress_rows
from sparse24._errors import ArgumentError, DTypeError
from sparse24._records import Operand24
from sparse24._schedule.arrays import (
    Array,
    check_factor,
    check_floats,
    join_groups,
    level,
    namespace,
    random_key,
    ranked,
    select,
    split_groups,
    tree_sum,
    uniform,
    working,
)
from sparse24._schedule.largest import ranks_in_groups
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import sample


def sr_ste_gradient(weight: Array, gradient: Array, mask: Array, decay: float = 2e-4) -> Array:
    """The straight-through gradient with sparse refinement: ``g + decay * (1 - mask) * w``.

    `sr_ste_gradient` and `masked_decay_gradient` are two names of one function.

    Parameters
    ----------
    weight, gradient : array, any shape
        The dense weight, and the gradient that reached the masked weight.
    mask : array of bool, shape of `weight`
    decay : float
        The paper's lambda; 2e-4 there with SGD.

    Returns
    -------
    array, shape of `weight`
        Of the wider dtype of `weight` and `gradient`.

    Raises
    ------
    ShapeError, DTypeError
        If the three differ in shape or library, or `decay` is an array of several.
    ArgumentError
        If `decay` is not a number, or a negative one, NaN or infinity; of an array it is not read.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24.schedule import sr_ste_gradient
    >>> sr_ste_gradient(np.array([2.0, 4.0]), np.zeros(2), np.array([True, False]), decay=0.5)
    array([0., 2.])

    References
    ----------
    .. [1] A. Zhou et al., *Learning N:M Fine-grained Structured Sparse Neural Networks From
       Scratch*, 2021, equation 5.
    """
    if gradient is None:  # as of a parameter of torch before a backward pass
        raise DTypeError(
            "gradient must be an array, got NoneType; call this after backward() and before "
            "zero_grad(), and leave out layers whose .grad is None"
        )
    for name, array in (("weight", weight), ("gradient", gradient), ("mask", mask)):
        _check.is_array(array, argument=name)
        _check.same_shape(array.shape, weight.shape, argument=name, other="weight")
    xp = namespace(gradient, weight, mask)
    check_factor(decay, "decay")
    if not _check.is_an_array(decay) and not 0 <= decay < math.inf:
        raise ArgumentError(f"decay must be at least 0 and finite, got {decay!r}")
    dtype = _common(xp, gradient, weight)
    gradient, weight = (xp.astype(x, dtype, copy=False) for x in (gradient, weight))
    decayed = gradient + decay * select(mask, level(weight, 0), weight)
    return xp.astype(decayed, dtype, copy=False)  # of bfloat16 NumPy makes float32


def _common(xp, gradient, weight):
    """The type that holds both; float32 where the library names none, as of 8-bit floats."""
    try:
        return xp.result_type(gradient, weight)
    except (TypeError, RuntimeError):  # of NumPy, and of torch
        return xp.float32


masked_decay_gradient = sr_ste_gradient
"""The same term as decay on the *gradients* of pruned weights (Hu et al., 2024): it goes
through the optimizer, so Adam normalises it.  `DecayFactorSearch` finds its factor."""


def soft_threshold_24(weight: Array, scale: float | Array = 1.0) -> Array:
    """S-STE's continuous projection to 2:4: shrink each group by its second smallest magnitude.

    Unlike a hard mask it has no jumps: where the order within a group changes, the element
    that leaves is zero already.

    Parameters
    ----------
    weight : array, shape (..., k)
    scale : float or 0-d array
        ``soft_threshold_scale`` of the first weight, kept fixed afterwards.

    Returns
    -------
    array, shape and dtype of `weight`
        At most two non-zeros in each group of four.  In training, pass its gradient on to the
        weight unchanged, as a soft `sparse24.torch.SparseLinear` does.

    Raises
    ------
    DTypeError, ShapeError
        If `weight` is not an array of floating-point numbers with at least one axis, or `scale` an
        array of several.

    References
    ----------
    .. [1] Y. Hu, J. Zhu, J. Chen, *S-STE: Continuous Pruning Function for Efficient 2:4 Sparse
       Pre-training*, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> S.soft_threshold_24(np.array([[1.0, 2, -3, 4]]))
    array([[ 0.,  0., -1.,  2.]])
    """
    check_floats(weight, "weight")
    check_factor(scale, "scale")
    xp = namespace(weight)
    groups = split_groups(weight, _spec.GROUP, 0.0)
    size = xp.abs(groups)
    a, b, c, d = (size[..., place : place + 1] for place in range(_spec.GROUP))
    least, most = xp.maximum(xp.minimum(a, b), xp.minimum(c, d)), xp.maximum(a, b)
    threshold = xp.minimum(least, xp.minimum(most, xp.maximum(c, d)))  # the second smallest
    rest = size - threshold  # no xp.sign, which looks for NaN and so waits for the device
    shrunk = xp.where(size > threshold, xp.where(groups < 0, -rest, rest), groups * 0.0)
    return xp.astype(join_groups(scale * shrunk, weight.shape[-1]), weight.dtype, copy=False)


def soft_threshold_scale(weight: Array) -> Array:
    """The factor that brings the soft-thresholded weight nearest to the weight.

    Parameters
    ----------
    weight : array, shape (..., k)

    Returns
    -------
    array, 0-d
        Least squares: ``<w, s> / <s, s>`` with ``s = soft_threshold_24(w)``; 1 if s is zero.

    Raises
    ------
    DTypeError, ShapeError
        As `soft_threshold_24`.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> float(S.soft_threshold_scale(np.array([[1.0, -2, 3, 4]])))
    2.2
    """
    xp = namespace(weight)
    soft = working(soft_threshold_24(weight))
    dot = tree_sum(xp.reshape(working(weight) * soft, (-1,)))
    norm = tree_sum(xp.reshape(soft * soft, (-1,)))
    return xp.where(norm > 0, dot / xp.where(norm > 0, norm, norm + 1), norm + 1)


def mvue_24(gradient: Array, *, step: int, seed: int = 0, name: str = "") -> Array:
    """Sample a gradient to 2:4 along its last axis, without bias and with the least variance.

    Each element of a group is kept with probability ``p = min(1, 2 |g| / sum |g|)`` (the excess of
    a capped element goes to the others) and divided by p; one uniform number per group chooses
    exactly two elements.  A greedy mask would be biased, which harms training [1]_.  A group whose
    sum is not finite keeps its two largest elements, so that an overflow still shows.

    Parameters
    ----------
    gradient : array, shape (..., k)
    step, seed, name
        The draw is a pure function of these.

    Returns
    -------
    array, shape (..., k)
        At most two non-zeros in each group of four; its expectation is `gradient`.

    Raises
    ------
    DTypeError, ShapeError
        If `gradient` is not an array of floating-point numbers with at least one axis.
    ArgumentError
        If `step` or `seed` is not a non-negative integer.

    References
    ----------
    .. [1] B. Chmiel et al., *Minimum Variance Unbiased N:M Sparsity for the Neural Gradients*,
       2023.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule as S
    >>> g = np.array([[1.0, 1, 1, 1]])
    >>> float(S.mvue_24(g, step=0).sum())
    4.0
    >>> mean = np.mean([S.mvue_24(g, step=i) for i in range(2000)], axis=0)
    >>> bool(np.allclose(mean, g, atol=0.1))
    True
    """
    check_floats(gradient, "gradient")
    step = _check.whole(step, argument="step", least=0)
    seed = _check.whole(seed, argument="seed", least=0)
    xp = namespace(gradient)
    groups = split_groups(working(gradient), _spec.GROUP, 0.0)
    rank = ranks_in_groups(ranked(xp.abs(gradient)), _spec.GROUP)
    finite = _sum_of_four(xp.abs(groups)) < xp.inf
    size = xp.where(finite, xp.abs(groups), xp.zeros_like(groups))
    half = 0.5 * _sum_of_four(size)
    certain = (rank == 0) & (size > half)
    length = xp.where(certain, xp.zeros_like(size), size)
    capped = xp.any(certain, axis=-1, keepdims=True)
    rest = xp.where(capped, _sum_of_four(length), half)
    first = rest * uniform(groups[..., :1], seed, step, name, "mvue")
    second = xp.where(capped, -xp.ones_like(first), half + first)
    # Systematic sampling: lengths laid end to end, and what is under the two points is kept.
    # As |g| / p is `rest` for all of them, nothing is divided.
    begin, drawn = xp.zeros_like(first), []
    for place in range(_spec.GROUP):
        piece = length[..., place : place + 1]
        last = place == _spec.GROUP - 1  # reaches to the end whatever the rounding
        end = xp.full_like(begin, xp.inf) if last else begin + piece
        under = (begin <= first) & (first < end) | (begin <= second) & (second < end)
        drawn.append(under & (piece > 0))
        begin = end
    value = xp.where(groups < 0, -rest, rest)
    value = xp.where(xp.concat(drawn, axis=-1), value, xp.zeros_like(value))
    value = xp.where(certain | ~finite & (rank < _spec.KEPT), groups, value)
    return xp.astype(join_groups(value, gradient.shape[-1]), gradient.dtype, copy=False)


def _sum_of_four(x: Array) -> Array:
    """Sum over the last axis, in one order everywhere, hence the same bits."""
    return (x[..., 0:1] + x[..., 2:3]) + (x[..., 1:2] + x[..., 3:4])


def mvue_key(seed: int, step: int) -> int:
    """The key of `mvue_24`'s draw for a gradient without a name."""
    return random_key(seed, step, "", "mvue")


def compress_mvue_24(gradient, *, step: int, seed: int = 0) -> Sparse24Array:
    """`mvue_24` of a NumPy or CuPy matrix, compressed; on a GPU in one pass, the same numbers."""
    dtype = _dtypes.lookup(gradient.dtype, argument="gradient.dtype")
    if _arrays.is_cupy(gradient) and dtype.name in sample.DTYPES:
        record = sample.launch(gradient, dtype, mvue_key(seed, step))
    else:
        sampled = mvue_24(gradient, step=step, seed=seed)
        record, _ = compress_rows(sampled, dtype, "magnitude")
    return Sparse24Array(Operand24(record, None, None, record.shape, dtype))
