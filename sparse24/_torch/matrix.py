"""The packed matrix within a `Sparse24Tensor`: its parts, and how torch is to see them."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from sparse24._errors import UnsupportedError
from sparse24._torch import ops
from sparse24._torch.check import refuse_onnx


class PackedMatrix(Tensor):
    """What operations read and make.

    Parameters
    ----------
    parts : list of Tensor
        Those of `ops.pack`, of one matrix (m, k).
    shape : tuple of int
        (m, k), or (k, m) where `turned`; axes before these are those of ``expand``.
    turned : bool
        True: the tensor is the transpose of what the parts hold.

    Attributes
    ----------
    parts : list of Tensor
        Raises `UnsupportedError` where a part of a matrix has a copy, and that was written since.
    lent : bool
        True where its memory is that of others, too: of a matrix whose rows or columns it has, or
        of an array.
    """

    @staticmethod
    def __new__(cls, parts, shape, *, turned: bool = False, requires_grad: bool = False):
        values = parts[0]
        return Tensor._make_wrapper_subclass(
            cls, shape, dtype=values.dtype, device=values.device, requires_grad=requires_grad,
            storage_size=0,  # else TorchScript, which never asks, would save what lies at address 0
        )  # fmt: skip

    def __init__(self, parts, shape, *, turned: bool = False, requires_grad: bool = False):
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
    def stored_shape(self) -> tuple[int, int]:
        """Shape of the packed matrix."""
        m, k = self.shape[-2:]
        return (k, m) if self.turned else (m, k)

    def whole(self) -> Tensor:
        """With its zeros; belongs to no graph."""
        stored = ops.dense(self.parts, *self.stored_shape)
        return (stored.t() if self.turned else stored).expand(self.shape)

    def converted(self, dtype: torch.dtype | None, device=None):
        """Packed anew, as the layout depends on the device and the size of an element."""
        stored = ops.dense(self.parts, *self.stored_shape).to(dtype=dtype, device=device)
        packed = ops.pack(stored, None, False)
        if len(self.parts) == 4:  # not by the best tiles: beside an infinity all are equally good
            packed += ops.pack(stored.t().contiguous(), None, False)
        return type(self)(packed, self.shape, turned=self.turned)

    def seen(self, shape, turned: bool, parts: list[Tensor] | None = None):
        """A view: the same parts, or those of some rows or columns."""
        if not torch.is_inference_mode_enabled() or self.is_inference():
            return self._seen(shape, turned, parts)
        with torch.inference_mode(False):  # a tensor from outside and its views share a version
            return self._seen(shape, turned, parts)

    def _seen(self, shape, turned: bool, parts: list[Tensor] | None):
        view = type(self)(self.parts if parts is None else parts, shape, turned=turned)
        view.lent = self.lent or parts is not None
        view._copied_of = self._copied_of
        if parts is not None and not _memory(parts) <= _memory(self._parts):
            whole = [part for part in self._parts if not part.is_inference()]  # torch counts not
            view._copied_of += tuple((weakref.ref(part), part._version) for part in whole)
        return view


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
