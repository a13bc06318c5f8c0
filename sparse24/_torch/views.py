"""A `Sparse24Tensor` turned, repeated, and in parts."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch

from sparse24._errors import OutOfRangeError, ShapeError
from sparse24._torch import chosen
from sparse24._torch.matrix import PackedMatrix, undefined

_aten = torch.ops.aten


def same(a: PackedMatrix) -> PackedMatrix:
    return a.seen(a.shape, a.turned)


def turn(a: PackedMatrix) -> PackedMatrix:
    if a.stacked:  # as where torch.nn.functional.linear is given one
        raise undefined(
            _aten.t.default,
            "use a.mT, or a[i] for one matrix of it; sparse24.torch.grouped_linear takes the stack",
        )
    if a.ndim != 2:
        raise undefined(_aten.t.default)
    return a.seen(a.shape[::-1], not a.turned)


def transpose(a: PackedMatrix, first: int, second: int) -> PackedMatrix:
    axes = list(range(a.ndim))
    _check_axes(a, [first, second])
    axes[first], axes[second] = axes[second], axes[first]
    return permute(a, axes)


def permute(a: PackedMatrix, axes: list[int]) -> PackedMatrix:
    _check_axes(a, axes)
    given, axes = axes, [axis % a.ndim for axis in axes]
    if sorted(axes) != list(range(a.ndim)):
        raise ShapeError(
            f"axes must name each of the {a.ndim} axes once, got {given}; give {a.ndim} others"
        )
    if set(axes[-2:]) != {a.ndim - 2, a.ndim - 1}:  # an axis of expand would become one of m, k
        raise undefined(_aten.permute.default)
    turned = a.turned != (axes[-1] != a.ndim - 1)
    return a.seen([a.shape[axis] for axis in axes], turned)


def _check_axes(a: PackedMatrix, axes: list[int]) -> None:
    if not all(-a.ndim <= axis < a.ndim for axis in axes):
        span = f"-{a.ndim} to {a.ndim - 1}"
        raise ShapeError(
            f"axes of a Sparse24Tensor of shape {tuple(a.shape)} are {span}, got {axes}; give those"
        )


def repeat(a: PackedMatrix, shape: list[int], **_: Any) -> PackedMatrix:
    """The matrix at every place of leading axes, as torch's matmul asks for beside a stack."""
    new = len(shape) - a.ndim
    full = [*shape[:new], *(old if n == -1 else n for n, old in zip(shape[new:], a.shape))]
    if new < 0 or any(n != old != 1 for n, old in zip(full[new:], a.shape)):
        raise undefined(_aten.expand.default)
    return view(a, full, function=_aten.expand.default)


def view(a: PackedMatrix, shape: list[int], *, function=_aten.view.default) -> PackedMatrix:
    """Of other leading axes, which all lead to the one matrix; a stack has its own alone."""
    if len(shape) == 1:  # as transformers does, to find tensors that share memory
        raise undefined(
            function, "call .to_dense() first; a state is saved by sparse24.save_safetensors"
        )
    if len(shape) < 2 or tuple(shape[-2:]) != tuple(a.shape[-2:]) or -1 in shape:
        raise undefined(function)
    if a.stacked and tuple(shape) != tuple(a.shape):
        raise undefined(function)
    return a.seen(shape, a.turned)


def select(a: PackedMatrix, axis: int, number: int) -> PackedMatrix:
    """A matrix of a stack."""
    _check_axes(a, [axis])
    if not a.stacked or axis % a.ndim:
        raise undefined(_aten.select.int)
    if not -a.shape[0] <= number < a.shape[0]:
        raise OutOfRangeError(
            f"{number} is out of range for the {a.shape[0]} matrices of a Sparse24Tensor of shape "
            f"{tuple(a.shape)}; numbers are {-a.shape[0]} to {a.shape[0] - 1}"
        )
    return a.matrix(number)


def unbind(a: PackedMatrix, axis: int = 0) -> list[PackedMatrix]:
    _check_axes(a, [axis])
    if not a.stacked or axis % a.ndim:
        raise undefined(_aten.unbind.int)
    return [a.matrix(number) for number in range(a.shape[0])]


def take(a: PackedMatrix, places: list[torch.Tensor | None]) -> PackedMatrix:
    """The matrices of a stack at some places, which are copied: ``a[places]``."""
    if not a.stacked or len(places) != 1 or places[0] is None or places[0].ndim != 1:
        raise undefined(_aten.index.Tensor)
    parts = [part[places[0]] for part in a.parts]
    for copied, part in zip(parts, a.parts, strict=True):
        chosen.note(copied, part, places[0])
    return a.like(parts, (len(parts[0]), *a.shape[1:]), a.turned)


def take_along(a: PackedMatrix, axis: int, places: torch.Tensor) -> PackedMatrix:
    _check_axes(a, [axis])
    if axis % a.ndim:
        raise undefined(_aten.index_select.default)
    return take(a, [places])


def cut(a: PackedMatrix, axis: int = 0, start=None, stop=None, step: int = 1) -> PackedMatrix:
    """Rows or columns, or some matrices of a stack."""
    _check_axes(a, [axis])
    if (a.ndim != 2 and not a.stacked) or step != 1:
        raise undefined(_aten.slice.Tensor)
    axis %= a.ndim
    start, stop, _ = slice(start, stop).indices(a.shape[axis])
    return a.part(axis, start, max(start, stop))


def split(a: PackedMatrix, size: int, axis: int = 0) -> list[PackedMatrix]:
    _check_axes(a, [axis])
    whole = a.shape[axis]
    if size <= 0:
        raise ShapeError(f"parts must have a size of 1 or more, got {size}; give another")
    starts = range(0, max(whole, 1), size)  # of no rows there is one part
    return split_in(a, [min(size, whole - start) for start in starts], axis)


def split_in(a: PackedMatrix, sizes: list[int], axis: int = 0) -> list[PackedMatrix]:
    _check_axes(a, [axis])
    if sum(sizes) != a.shape[axis] or min(sizes, default=0) < 0:
        raise ShapeError(
            f"sizes of the parts must add up to {a.shape[axis]}, got {list(sizes)}; give others"
        )
    return [cut(a, axis, stop - n, stop) for n, stop in zip(sizes, accumulate(sizes))]
