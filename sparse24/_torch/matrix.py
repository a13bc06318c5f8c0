"""The packed matrix within a `Sparse24Tensor`: its parts, and how torch is to see them."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from sparse24 import _spec
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._torch import grouped_ops, ops, wholes
from sparse24._torch.check import refuse_onnx


class PackedMatrix(Tensor):
    """What operations read and make.

    Parameters
    ----------
    parts : list of Tensor
        Those of `ops.pack`, of one matrix (m, k); of a stack of them, where `stacked`.
    shape : tuple of int
        (m, k), or (k, m) where `turned`; axes before these are those of ``expand`` or of a stack.
    turned : bool
        True: the tensor is the transpose of what the parts hold.
    dtype : torch.dtype, optional
        By default that of the first part.

    Attributes
    ----------
    parts : list of Tensor
        Raises `UnsupportedError` where a part of a matrix has a copy, and that was written since.
    lent : bool
        True where its memory is that of others, too: of a matrix whose rows or columns it has, or
        of an array.
    bits : int
        Of an integer of a quantised matrix; 0 where elements are stored as they are.
    stacked : bool
        True where the parts are those of a matrix for each place of the first axis.
    matrix_axes : int
        Axes that the first part of a single matrix has.
    """

    bits = 0
    matrix_axes = 2

    @staticmethod
    def __new__(
        cls, parts, shape, *, turned: bool = False, requires_grad: bool = False,
        dtype: torch.dtype | None = None,
    ):  # fmt: skip
        return Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype or parts[0].dtype, device=parts[0].device,
            requires_grad=requires_grad,
            storage_size=0,  # else TorchScript, which never asks, would save what lies at address 0
        )  # fmt: skip

    def __init__(
        self, parts, shape, *, turned: bool = False, requires_grad: bool = False,
        dtype: torch.dtype | None = None,
    ):  # fmt: skip
        self.parts = parts
        self.turned = turned
        self.lent = False

    @property
    def parts(self) -> list[Tensor]:
        for source, version in self._copied_of:
            tensor = source()
            if tensor is not None and tensor._version != version:
                raise _stale()
        return self._parts

    @parts.setter
    def parts(self, parts) -> None:
        self._parts = list(parts)
        self._copied_of: tuple[tuple[weakref.ref[Tensor], int], ...] = ()

    @property
    def stacked(self) -> bool:
        return self._parts[0].ndim > self.matrix_axes

    @property
    def stored_shape(self) -> tuple[int, int]:
        """Shape of the packed matrix, or of each one."""
        m, k = self.shape[-2:]
        return (k, m) if self.turned else (m, k)

    def whole(self) -> Tensor:
        """With its zeros; belongs to no graph."""
        stored = self.stored_dense()
        return (stored.mT if self.turned else stored).expand(self.shape)

    def stored_dense(self) -> Tensor:
        """What is packed with its zeros."""
        return ops.dense(self.parts, *self.stored_shape)

    def times(self, dense: Tensor, bias: Tensor | None, form: str) -> Tensor:
        """A product with the packed matrix, as of `factors.times`."""
        return ops.product(self.parts, *self.stored_shape, dense, bias, form)

    def of_experts(
        self, x: Tensor, bias: Tensor | None, offsets: Tensor, activation: str | None, gated: bool
    ) -> Tensor:
        """The products of a stack with the tokens of experts, as `grouped_ops.grouped_product`."""
        how = bias, offsets, self.turned, activation, gated
        return grouped_ops.stack_product(self.parts, *self.stored_shape, x, *how)

    def like(self, parts: list[Tensor], shape, turned: bool):
        """One of other parts."""
        return type(self)(parts, shape, turned=turned)

    def converted(self, dtype: torch.dtype | None, device=None):
        """Packed anew, as the layout depends on the device and the size of an element."""
        stored = self.stored_dense().to(dtype=dtype, device=device)
        packed = ops.pack(stored, None, False)
        if len(self.parts) == 4:  # not by the best tiles: beside an infinity all are equally good
            packed += ops.pack(stored.mT.contiguous(), None, False)
        return self.like(packed, self.shape, self.turned)

    def matrix(self, number: int):
        """A matrix of a stack; shares its memory."""
        return self.seen(self.shape[1:], self.turned, [part[number] for part in self.parts])

    def part(self, axis: int, start: int, stop: int):
        """Some matrices of a stack, which share its memory, or some lines of each matrix."""
        shape = [*self.shape]
        shape[axis] = stop - start
        if axis < self.ndim - 2:
            return self.seen(shape, self.turned, [part[start:stop] for part in self.parts])
        of_rows = axis == self.ndim - (1 if self.turned else 2)
        return self.lines(axis, start, stop, shape, of_rows)

    def lines(self, axis: int, start: int, stop: int, shape: list[int], of_rows: bool):
        """Rows, or whole groups of columns; of a transposable matrix its rows of either axis."""
        (m, k), parts = self.stored_shape, self.parts
        if of_rows:
            return self.seen(shape, self.turned, _rows(parts[:2], m, k, start, stop))
        if len(parts) == 4:
            return self.seen(shape, not self.turned, _rows(parts[2:], k, m, start, stop))
        if start < stop and (start % _spec.GROUP or (stop % _spec.GROUP and stop != k)):
            raise ShapeError(
                f"[{start}:{stop}] cuts a group of {_spec.GROUP} along axis {axis} of a "
                f"Sparse24Tensor of shape {tuple(self.shape)}; cut at multiples of {_spec.GROUP}, "
                "or call .to_dense() first"
            )
        return self.seen(shape, self.turned, _packed(ops.dense(parts, m, k)[..., start:stop]))

    def seen(self, shape, turned: bool, parts: list[Tensor] | None = None):
        """A view: the same parts, or those of some rows or columns."""
        if not torch.is_inference_mode_enabled() or self.is_inference():
            return self._seen(shape, turned, parts)
        with torch.inference_mode(False):  # a tensor from outside and its views share a version
            return self._seen(shape, turned, parts)

    def _seen(self, shape, turned: bool, parts: list[Tensor] | None):
        view = self.like(self.parts if parts is None else parts, shape, turned)
        view.lent = self.lent or parts is not None
        view._copied_of = self._copied_of
        if parts is None:
            return view
        own = {memory: part for part in self._parts for memory in _memory([part])}
        for part in parts:
            (memory,) = _memory([part])
            if memory in own:
                wholes.note(part, own[memory])
        if not _memory(parts) <= own.keys():
            counted = [part for part in self._parts if wholes.version(part) is not None]
            sources = [wholes.whole_of(part) for part in counted]
            view._copied_of += tuple((weakref.ref(part), part._version) for part in sources)
        return view


def _rows(parts: list[Tensor], m: int, k: int, start: int, stop: int) -> list[Tensor]:
    """Views, but of a GPU's codes, whose order is that of tiles of rows, and of a stack."""
    values, codes = parts
    if codes.ndim == values.ndim:
        cut = [part[..., start:stop, :] for part in parts]
    elif start % _spec.ATOM_M:
        return _packed(ops.dense(parts, m, k)[..., start:stop, :])
    else:
        tiles = slice(start // _spec.ATOM_M, -(-stop // _spec.ATOM_M))
        cut = [values[..., start:stop, :], codes[..., tiles, :].contiguous()]
    stacked = values.ndim > PackedMatrix.matrix_axes
    return [part.contiguous() for part in cut] if stacked else cut


def _packed(dense: Tensor) -> list[Tensor]:
    return ops.pack(dense.contiguous(), None, False)


def _memory(parts: list[Tensor]) -> set[int]:
    """The storages of tensors, also of those without elements."""
    return {part.untyped_storage()._cdata for part in parts}


def _stale() -> UnsupportedError:
    return UnsupportedError(
        "a Sparse24Tensor of rows or columns that were copied is not used after the whole matrix "
        "was written, as by copy_; take the part anew, or its .clone() before"
    )


def undefined(function, way_out: str = "call .to_dense() first") -> UnsupportedError:
    """The error of an operation that packed matrices do not have."""
    refuse_onnx(traced=True)  # which looks at weights before it traces
    return UnsupportedError(f"{function} is not defined for a Sparse24Tensor; {way_out}")
