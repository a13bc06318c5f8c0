"""`refit`: the best values under a mask that is already chosen."""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _foreign, _foreign_streams, _scales
from sparse24._calibration import Calibration, check_pruned_type
from sparse24._errors import ShapeError
from sparse24._sparsegpt import damped, narrowed

STEPS = 60  # of conjugate gradients at most
TOLERANCE = 1e-5  # of the residual, relative to the right-hand side, at which they stop


def refit(pruned, dense, calibration, *, mask=None, damping=0.1):
    """Least-squares values for the kept weights of a layer, given its inputs.

    Parameters
    ----------
    pruned : array, shape (rows, k)
        Weights after any pruning; the first guess.  With `mask` it may be `dense` itself.
    dense : array, shape (rows, k)
        The weights before.
    calibration : Calibration or array, shape (..., k)
        Inputs of the layer, perhaps with targets.
    mask : array of bool, shape (rows, k), optional
        Where weights may be non-zero; by default where `pruned` is.
    damping : float, default 0.1
        How strongly weights are held at `dense`, relative to the mean second moment of
        the inputs.  Fewer inputs need more.

    Returns
    -------
    array, shape (rows, k), dtype of `pruned`
        Minimises the squared error of the outputs; in the library of `pruned`.  int8 is
        rounded and saturates, fp8 saturates.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    DTypeError
        If weights are not real numbers, are the bits of fp8, or `pruned` has a type that
        sparse24 does not store; if the mask is not boolean.
    ArgumentError
        If the inputs hold NaN or inf, or `damping` is not above 0.

    Notes
    -----
    Solves all rows at once by conjugate gradients; waits for the GPU at every step.

    Examples
    --------
    The second input always equals the first, which can take over its weight:

    >>> import numpy as np, sparse24 as s24
    >>> inputs = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    >>> dense = np.array([[4.0, 3.0, 1.0, 2.0]])
    >>> pruned = s24.prune(dense, scores=np.array([[4.0, 0.0, 0.0, 2.0]]))
    >>> s24.refit(pruned, dense, inputs, damping=1e-9).round(3)
    array([[7., 0., 0., 3.]])
    """
    damping = _check.positive(damping, argument="damping")
    _foreign_streams.follow(pruned)  # a calibration may come from other streams
    with _foreign_streams.stream_of(pruned):
        return _refitted(pruned, dense, calibration, mask, damping)


def _refitted(pruned, dense, calibration, mask, damping: float):
    seen = calibration if isinstance(calibration, Calibration) else Calibration(calibration)
    start, restore = _foreign.take(pruned, argument="pruned")
    anchor, _ = _foreign.take(dense, argument="dense")
    for argument, array in (("pruned", start), ("dense", anchor)):
        _check.not_bits(array, argument=argument)
        _arrays.check_real(array, argument=argument)
    check_pruned_type(start, way_out="pass a mask as mask=, and dense as pruned, too")
    _check.same_shape(anchor.shape, start.shape, argument="dense", other="pruned")
    if start.ndim != 2 or start.shape[1] != len(seen.hessian):
        raise ShapeError(
            f"pruned must have shape (rows, {len(seen.hessian)}), as many columns as the "
            f"calibration has features, got {start.shape}"
        )
    keep = start != 0 if mask is None else _foreign.take(mask, argument="mask")[0]
    _check.same_shape(keep.shape, start.shape, argument="mask", other="pruned")
    _check.boolean(keep)
    matrix, scale = damped(seen.hessian, damping)
    wanted = right_hand_side(anchor.astype(np.float64), seen, damping, matrix, scale)
    values = _solve(start.astype(np.float64), keep, matrix, wanted)
    return restore(narrowed(values, start.dtype))


def fitted(dense, seen: Calibration, damping: float):
    """The dense weights that best give the targets, held at `dense`; itself without targets."""
    if seen.cross is None:
        return dense
    xp = _arrays.namespace(dense)
    matrix, scale = damped(seen.hessian, damping)
    return xp.linalg.solve(matrix, right_hand_side(dense, seen, damping, matrix, scale).T).T


def right_hand_side(dense, seen: Calibration, damping: float, matrix, scale: float):
    """What the weights times the damped Hessian should be, (rows, k)."""
    if seen.cross is None:
        return dense @ matrix
    if seen.cross.shape != dense.shape[::-1]:
        raise ShapeError(
            f"targets must have {dense.shape[0]} features, one a row of the weights, got "
            f"{seen.cross.shape[1]}"
        )
    return seen.cross.T / scale + damping * dense


def _solve(start, keep, matrix, wanted):
    """Minimise ``w matrix w / 2 - w wanted`` over the kept elements, each row for itself."""
    xp = _arrays.namespace(start)
    diagonal = matrix.diagonal()
    scale = _scales.of(wanted)
    wanted = wanted * scale
    w = xp.where(keep, start * scale, 0.0)
    residual = xp.where(keep, wanted - w @ matrix, 0.0)
    goal = TOLERANCE**2 * (xp.where(keep, wanted, 0.0) ** 2 / diagonal).sum(-1)
    scaled = residual / diagonal
    direction, power = scaled, (residual * scaled).sum(-1)
    for _ in range(STEPS):
        if bool((power <= goal).all()):
            break
        image = xp.where(keep, direction @ matrix, 0.0)
        length = _ratio(xp, power, (direction * image).sum(-1))
        w += length * direction
        residual -= length * image
        scaled = residual / diagonal
        new_power = (residual * scaled).sum(-1)
        direction = scaled + _ratio(xp, new_power, power) * direction
        power = new_power
    return w / scale


def _ratio(xp, over, under):
    """A column of quotients, 0 for rows that are done."""
    return xp.where(under > 0, over / xp.where(under > 0, under, 1.0), 0.0)[:, None]
