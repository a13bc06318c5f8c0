"""`Calibration`: what a layer's inputs say about its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _foreign, _foreign_streams
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._sparsegpt import narrowed

AT_ONCE = 1 << 22  # elements of a batch of which there are copies in float64 at a time


class Calibration:
    """Statistics of a layer's inputs, accumulated batch by batch, that calibrated pruning needs.

    Give it the inputs of one layer, and pass it to ``prune(..., calibration=...)`` with
    ``method="wanda"`` or ``"sparsegpt"``, and to `refit`.  It holds one (k, k) matrix,
    however many inputs it has seen.

    Parameters
    ----------
    inputs : array, shape (..., k), optional
        A first batch: every vector along the last axis is one input.
    targets : array, shape (..., rows), optional
        The outputs that the layer should have for them.  By default those of the dense
        weights; if the layers before are pruned already, the outputs of the dense model
        let this layer compensate for their errors.
    bias : bool, default False
        Whether the layer adds a bias, which `new_bias` adapts.  The moments are then taken
        about the mean, because the bias absorbs a constant part of the inputs.

    Attributes
    ----------
    count : int
        Inputs seen.
    hessian : ndarray, shape (k, k), float64
        Sum of the outer products of the inputs, ``X.T @ X``.  Copy it before you write to it.
    cross : ndarray, shape (k, rows), float64, or None
        The same of inputs and targets, ``X.T @ Y``.
    norms : ndarray, shape (k,)
        Euclidean norm of each input feature over all inputs.

    Raises
    ------
    ShapeError, DTypeError
        If a batch is not of numbers, or does not fit the batches before or its targets.
    ArgumentError
        If some batches come with targets and others without, or `hessian` or `norms` is read
        before there are inputs.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> inputs = np.array([[3.0, 0.0, 1.0, 0.0], [4.0, 1.0, 0.0, 0.0]])
    >>> seen = s24.Calibration()
    >>> for batch in np.split(inputs, 2):
    ...     seen.update(batch)
    >>> seen
    Calibration(2 inputs of 4 features)
    >>> seen.norms
    array([5., 1., 1., 0.])
    >>> s24.prune(np.array([[1.0, 2.0, 3.0, 9.0]]), method="wanda", calibration=seen)
    array([[1., 0., 3., 0.]])
    """

    def __init__(self, inputs=None, targets=None, *, bias: bool = False):
        self.bias = _check.flag(bias, argument="bias")
        self.count = 0
        # With a bias, sums are taken of differences from the first input and the first target.
        # Sums of the inputs themselves would give a constant feature a moment that is rounding
        # error, perhaps below zero, instead of none.
        self._moment: Any = None
        self._cross: Any = None
        self._first_input: Any = 0.0
        self._first_target: Any = 0.0
        self._input_sum: Any = 0.0
        self._target_sum: Any = 0.0
        if inputs is not None:
            self.update(inputs, targets)
        elif targets is not None:
            raise ArgumentError("targets are the outputs for inputs; pass both, or neither")

    def update(self, inputs, targets=None) -> None:
        """Add a batch of inputs and, if the batches before came with them, of targets.

        Parameters
        ----------
        inputs : array, shape (..., k)
        targets : array, shape (..., rows), optional
            The outputs that pruned weights should give for these inputs.

        Raises
        ------
        ShapeError, DTypeError, ArgumentError
            As the class says; such a batch is not counted.
        """
        _foreign_streams.follow(inputs)  # the sums so far may come from other streams
        with _foreign_streams.makes_of(inputs):  # whose memory is soon another tensor's
            self._add(inputs, targets)

    def _add(self, inputs, targets) -> None:
        x = self._rows(inputs, "inputs", None if self._moment is None else len(self._moment))
        y = None
        if targets is not None:
            width = None if self._cross is None else self._cross.shape[1]
            y = self._rows(targets, "targets", width)
            if len(x) != len(y):
                raise ShapeError(f"targets must be as many as inputs, {len(x)}, got {len(y)}")
        if self._moment is not None and (y is None) != (self._cross is None):
            raise ArgumentError("targets must come with every batch of inputs, or with none")
        first = self._first(x, y)
        new: list[Any] = [self._moment, self._input_sum, self._cross, self._target_sum]
        for part in _parts(max(a.shape[1] for a in (x, y) if a is not None), len(x)):
            terms = _terms(x[part], None if y is None else y[part], first)
            new = [past if term is None else _sum(term, past) for term, past in zip(terms, new)]
        # All at once, as a batch of which one sum fails must not count in the others.
        self._moment, self._input_sum, self._cross, self._target_sum = new
        self._first_input, self._first_target = first
        self.count += len(x)

    def _first(self, x, y) -> tuple[Any, Any]:
        """The input and the target from which differences are taken; 0 without a bias."""
        if self.count or not self.bias or not len(x):
            return self._first_input, self._first_target
        return _wide(x[:1])[0].copy(), 0.0 if y is None else _wide(y[:1])[0].copy()

    @staticmethod
    def _rows(given, argument: str, width: int | None):
        x, _ = _foreign.take(given, argument=argument)
        numbers = x.dtype.kind in "fiu" or x.dtype.isbuiltin == 2  # of ml_dtypes, such as bfloat16
        if x.ndim < 1 or not numbers:
            raise DTypeError(
                f"{argument} must be an array of numbers (..., k), got shape {x.shape} of {x.dtype}"
            )
        x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        if width is not None and x.shape[1] != width:
            raise ShapeError(
                f"{argument} must have {width} features on the last axis as in the batches "
                f"before, got {x.shape[1]}"
            )
        return x

    @property
    def hessian(self):
        if not self.count:
            raise ArgumentError(
                "calibration has seen no inputs; call update(inputs) first, or prune the weights "
                "of an expert that no token reaches by magnitude, and give quantise None in its "
                "place"
            )
        if not self.bias:
            return _arrays.read_only(self._moment)
        return self._moment - self._input_sum[:, None] * self._input_sum / self.count

    @property
    def cross(self):
        if self._cross is None or not self.bias:
            return _arrays.read_only(self._cross)
        return self._cross - self._input_sum[:, None] * self._target_sum / max(self.count, 1)

    @property
    def norms(self):
        squares = self.hessian.diagonal()
        xp = _arrays.namespace(squares)
        return xp.sqrt(xp.maximum(squares, 0.0))

    def new_bias(self, pruned, dense=None, bias=None):
        """The bias that goes with pruned weights: the mean output stays what it should be.

        Parameters
        ----------
        pruned : array, shape (rows, k)
        dense : array, shape (rows, k), optional
            The weights before; needed unless there were targets.
        bias : array, shape (rows,), optional
            The bias before; zero if not given.  Targets hold it already.

        Returns
        -------
        array, shape (rows,), dtype of `bias` or else of `pruned`
            In the library of `pruned`.  int8 is rounded and saturates, fp8 saturates.

        Raises
        ------
        ShapeError
            If shapes do not fit.
        DTypeError
            If `pruned` or `bias` is of a type that sparse24 does not store, such as a mask, or
            `dense` does not hold real numbers.
        ArgumentError
            If there were no inputs, or neither targets nor `dense`.

        Examples
        --------
        >>> import numpy as np, sparse24 as s24
        >>> seen = s24.Calibration()
        >>> seen.update(np.array([[1.0, 2.0, 3.0, 4.0]]))
        >>> dense = np.array([[1.0, 2.0, 3.0, 4.0]])
        >>> pruned = s24.prune(dense)
        >>> pruned, seen.new_bias(pruned, dense)
        (array([[0., 0., 3., 4.]]), array([5.]))
        """
        _foreign_streams.follow(pruned)
        with _foreign_streams.stream_of(pruned):
            return self._new_bias(pruned, dense, bias)

    def _new_bias(self, pruned, dense, bias):
        new, restore = _foreign.take(pruned, argument="pruned")
        _check.not_bits(new, argument="pruned")
        check_pruned_type(new, way_out="multiply the weights by a mask first")
        self._check_weights(new.shape)
        before = _arrays.namespace(new).zeros(len(new), new.dtype)
        if bias is not None:
            before, _ = _foreign.take(bias, argument="bias")
            _arrays.logical_dtype(before, argument="bias")  # in others the new one would be rounded
        _check.same_shape(before.shape, new.shape[:1], argument="bias", other="the rows of pruned")
        mean = self._first_input + self._input_sum / self.count
        if self._cross is not None:
            target = self._first_target + self._target_sum / self.count
            value = target - new.astype(np.float64) @ mean
        elif dense is None:
            raise ArgumentError("new_bias needs the dense weights, as there were no targets")
        else:
            old, _ = _foreign.take(dense, argument="dense")
            _arrays.check_real(old, argument="dense")
            _check.same_shape(old.shape, new.shape, argument="dense", other="pruned")
            value = (old.astype(np.float64) - new.astype(np.float64)) @ mean
            value = value + before.astype(np.float64)
        return restore(narrowed(value, before.dtype))

    def _check_weights(self, shape) -> None:
        k, rows = len(self.hessian), None if self._cross is None else self._cross.shape[1]
        if len(shape) != 2 or shape[1] != k or rows not in (None, shape[0]):
            raise ShapeError(
                f"pruned must have shape ({'rows' if rows is None else rows}, {k}), by what the "
                f"calibration saw, got {tuple(shape)}"
            )

    def __repr__(self) -> str:
        features = 0 if self._moment is None else len(self._moment)
        return f"Calibration({self.count} inputs of {features} features)"


def sums_of_squares(inputs):
    """The diagonal of the `hessian` of these inputs, without the rest of it."""
    x = Calibration._rows(inputs, "inputs", None)
    if not len(x):
        raise ArgumentError(f"calibration holds no inputs, shape {inputs.shape}; pass some")
    total: Any = 0.0
    for part in _parts(x.shape[1], len(x)):
        wide = _wide(x[part])
        total = total + (wide * wide).sum(0)
    return total


def _parts(width: int, count: int) -> Iterator[slice]:
    """Rows of a batch that are looked at together; one part, though empty, of an empty batch."""
    step = max(1, AT_ONCE // max(1, width))
    for start in range(0, max(1, count), step):
        yield slice(start, start + step)


def _terms(x, y, first: tuple[Any, Any]) -> tuple:
    """What inputs, and targets if there are any, add to the sums of a `Calibration`."""
    x = _wide(x, first[0])
    if y is None:
        return x.T @ x, x.sum(0), None, None
    y = _wide(y, first[1])
    return x.T @ x, x.sum(0), x.T @ y, y.sum(0)


def _wide(x, first: Any = 0.0):
    """Rows in float64, as differences from `first`."""
    x = x.astype(np.float32 if x.dtype.kind == "V" else np.float64, copy=False)
    x = x.astype(np.float64, order="C", copy=False)  # of other strides products are slow
    return x if isinstance(first, float) else x - first


def _sum(term, past):
    return term if past is None else term + past


def check_pruned_type(x, *, way_out: str) -> None:
    """Refuse weights of other types than sparse24 stores, in which results would be returned."""
    if x.dtype == bool:
        raise DTypeError(f"pruned must hold weights, got bool; {way_out}")
    _arrays.logical_dtype(x, argument="pruned")
