"""A tensor subclass for code written for xformers or torch's semi-structured tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse24 import _check, _foreign_streams
from sparse24._errors import DTypeError, ShapeError, UnsupportedError
from sparse24._torch import arithmetic as torch_arithmetic
from sparse24._torch import copies as torch_copies
from sparse24._torch import fused as torch_fused
from sparse24._torch import joins as torch_joins
from sparse24._torch import matmul as torch_matmul
from sparse24._torch import ops
from sparse24._torch import reductions as torch_reductions
from sparse24._torch import stacks as torch_stacks
from sparse24._torch import sums as torch_sums
from sparse24._torch import views as torch_views
from sparse24._torch.matrix import PackedMatrix, undefined
from sparse24._torch.parts import unpack
from sparse24._torch.transforms import differentiable
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array

_aten = torch.ops.aten
_OF_OPTIMIZERS = (_aten.zeros_like.default, _aten.full_like.default)  # for their state


class Sparse24Tensor(PackedMatrix):
    """A 2:4 matrix, or a stack, that takes part in torch's products.

    A matrix does so in ``@``, ``torch.mm`` and ``torch.nn.functional.linear``.

    Made by `sparsify24` and `to_sparse_semi_structured`.  A number, or a tensor that broadcasts to
    its shape, is a factor or a divisor; zeros stay zeros.  ``-a`` and ``abs(a)``, rows and whole
    groups of columns (``a[:8]``, ``a[:, 4:8]``, ``a.split(8)``) and ``.to()`` give such a matrix
    again, and ``a.copy_(b)`` takes all of one like it.  ``a + b`` and ``a - b`` of two give one if
    they obey 2:4, as where both have the same places, and raise if not; a look at that waits for
    the device.  So torch's ``AveragedModel`` averages packed weights that keep their places; where
    masks change, let it average dense ones.  `torch.cat` joins several as they are, packed along
    one axis.  Rows are views on the CPU; on a GPU their places are copied, and so are elements
    unless the first row is a multiple of 64.  Columns are packed anew at each call, by way of the
    dense matrix, unless `a` is transposable: there they are as rows.  Such a copy raises once
    ``a.copy_`` has written; take it anew, or its ``.clone()``.  ``a.sum()``, ``mean``, ``amax``,
    ``norm`` and their like, and ``torch.equal``, make the dense matrix to look at.  Other
    operations raise; use `to_dense` first.

    A stack (e, m, k) holds the weights of experts.  ``a[i]``, ``a[i:j]`` and ``a.unbind()`` share
    its memory; ``a[numbers]``, and rows or columns of all matrices, are copied.  `torch.stack`
    makes one of matrices.  It multiplies in `grouped_linear`, in
    ``torch.nn.functional.grouped_mm(x, a.mT, offs=ends)`` for tokens (t, k), of which the last end
    is t, and in ``x @ a.mT`` for (e, t, k).  In x these have gradients.

    ``torch.save`` stores it without the zeros, and ``torch.load`` checks it and takes it to any
    device, with ``weights_only`` once ``sparse24.torch`` is imported.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import to_sparse_semi_structured
    >>> a = to_sparse_semi_structured(torch.eye(4))
    >>> a
    Sparse24Tensor(shape=(4, 4), dtype=torch.float32, device=cpu, transposable=False)
    >>> torch.ones(1, 4) @ a.T
    tensor([[1., 1., 1., 1.]])
    >>> experts = torch.stack([a, 2 * a])
    >>> (torch.ones(2, 1, 4) @ experts.mT)[1]
    tensor([[2., 2., 2., 2.]])
    >>> scale = abs(a).amax(dim=1, keepdim=True) / 127
    >>> (a[:2] / scale[:2]).to_dense()
    tensor([[127.,   0.,   0.,   0.],
            [  0., 127.,   0.,   0.]])
    """

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix with its zeros; its gradient is this tensor's."""
        learns = torch.is_grad_enabled() and self.requires_grad
        dense = differentiable(_ToDense, self) if learns else self.whole()  # parts have no graph
        return dense if dtype is None else dense.to(dtype)

    def to_array(self) -> Sparse24Array | Quantised24Array:
        """The matrix, or stack, as an array of sparse24, to save or to multiply without torch.

        Shares the memory of this tensor, into which nothing may then be copied as long as the array
        is in use; has no gradient.
        """
        if self.is_meta:
            raise DTypeError(
                "to_array takes a matrix with memory, got one on the device 'meta'; load its "
                "elements first, as by load_state_dict with assign=True"
            )
        if self.ndim != 2 and not self.stacked:
            raise ShapeError(
                f"to_array takes a matrix, got shape {tuple(self.shape)}; call it before expand"
            )
        with _foreign_streams.stream_of(self.parts[0]):
            stored = self._stored_array()
            return stored.mT if self.turned else stored

    def _stored_array(self) -> Sparse24Array | Quantised24Array:
        return unpack(self.parts, *self.stored_shape)

    def __reduce_ex__(self, protocol):
        """Saved in the canonical form, checked when it is loaded."""
        from sparse24._torch.stored import restored, saved

        lead = tuple(self.shape[:-2])
        facts = self.turned, self.requires_grad, isinstance(self, torch.nn.Parameter)
        return restored, (*saved(self), *facts, *([lead] if lead else []))

    def __deepcopy__(self, memo):
        """Of a part, or of one made of an array, a matrix of its own, as its clone."""
        new = super().__deepcopy__(memo)
        if new.lent:
            new.parts, new.lent = [part.clone() for part in new.parts], False
        return new

    def __repr__(self, *, tensor_contents=None) -> str:
        facts = f"shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}"
        return f"{type(self).__name__}({facts}, {self._shown_kind()})"

    def _shown_kind(self) -> str:
        return f"transposable={len(self.parts) == 4}"

    @property
    def data(self) -> Sparse24Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, other: Tensor) -> None:
        """Torch alone would exchange the shape and the type, but none of the parts."""
        if type(other) is not type(self):
            raise UnsupportedError(
                f"data of a {type(self).__name__} must be another one, got {_check.shown(other)}; "
                "pack it by to_sparse_semi_structured, or make a new parameter"
            )
        Tensor.data.__set__(self, other)
        self.parts, self.turned, self.lent = other.parts, other.turned, other.lent
        self._copied_of = other._copied_of

    def share_memory_(self) -> Sparse24Tensor:
        """Move the values and codes to shared memory, as for other processes.

        An array that `to_array` made before must not be used any more.
        """
        for part in self.parts:
            part.share_memory_()
        return self

    def is_shared(self) -> bool:
        return all(part.is_shared() for part in self.parts)

    def __dlpack__(self, **_):  # torch would hand out an address without elements
        raise _has_no_memory("to share by DLPack")

    def numpy(self, *, force: bool = False):
        raise _has_no_memory("for NumPy")

    def tolist(self):
        raise _has_no_memory("to list")

    def apply_(self, callable):  # torch would write to the address of memory that is not there
        raise _has_no_memory("for a function of elements")

    def map_(self, other, callable):
        raise _has_no_memory("for a function of elements")

    def __tensor_flatten__(self):
        names = [f"_part{i}" for i in range(len(self.parts))]
        for name, part in zip(names, self.parts, strict=True):
            setattr(self, name, part)
        return names, (tuple(self.shape), self.turned, self.lent, self.dtype)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
        shape, turned, lent, dtype = context
        made = cls([inner[name] for name in sorted(inner)], shape, turned=turned, dtype=dtype)
        made.lent = lent
        return made

    def _stable_hash_for_caching(self) -> str:
        """What compiled code depends on; torch keys its cache of such code by it."""
        parts = [
            (tuple(part.shape), part.stride(), part.storage_offset(), part.dtype, part.device)
            for part in self.parts
        ]
        facts = tuple(self.shape), self.dtype, self.turned, self.lent, self.requires_grad
        key = repr((*facts, parts))
        return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        rule = cls._rules.get(function) or cls._rules.get(function.name())
        if rule is not None:
            return rule(*args, **kwargs)
        _refuse_nested(args)
        # Inference mode hands over what torch itself makes of simpler operations, as linear.
        parts = getattr(function, "decompose", None)
        made = NotImplemented if parts is None else parts(*args, **kwargs)
        if made is NotImplemented:
            raise undefined(function, _way_out(function, args))
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl
    _rules: ClassVar[dict[Any, Callable[..., Any]]]


def _has_no_memory(purpose: str) -> UnsupportedError:
    return UnsupportedError(
        f"a Sparse24Tensor has no dense memory {purpose}; call .to_dense() first"
    )


class _ToDense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a: Sparse24Tensor) -> Tensor:
        return a.whole()

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return grad


def _refuse_nested(operands) -> None:
    """Of those that torch pads it would say that something is wrong with itself."""
    if any(isinstance(x, Tensor) and x.is_nested and x.layout is torch.strided for x in operands):
        raise UnsupportedError(
            "a Sparse24Tensor is not multiplied with a nested tensor; use "
            "torch.nested.to_padded_tensor(x, 0.0), or give it layout=torch.jagged"
        )


def _way_out(function, operands) -> str:
    learning = "a weight that learns stays dense, as in sparse24.torch.SparseLinear"
    if function in _OF_OPTIMIZERS:
        return f"call .to_dense() first, and {learning}"
    in_place = function._schema.is_mutable and function._schema.name.endswith("_")
    if in_place and isinstance(operands[0], PackedMatrix) and not operands[0].bits:
        return f"its elements are not written in place: w = 2 * w makes a new one, and {learning}"
    return "call .to_dense() first"


def _kept_gradient(a: Sparse24Tensor, x: Tensor, transposable: bool) -> Tensor:
    """A compiler traces backward with the result of forward in place of its gradient."""
    return ops.kept_gradient(a.whole(), x, transposable)


COMMON_RULES: dict[Any, Callable[..., Any]] = {  # of all packed matrices
    _aten.detach.default: torch_views.same,
    _aten.alias.default: torch_views.same,
    _aten.t.default: torch_views.turn,
    _aten.transpose.int: torch_views.transpose,
    _aten.permute.default: torch_views.permute,
    _aten.expand.default: torch_views.repeat,
    _aten.view.default: torch_views.view,
    _aten.select.int: torch_views.select,
    _aten.unbind.int: torch_views.unbind,
    _aten.index.Tensor: torch_views.take,
    _aten.index_select.default: torch_views.take_along,
    _aten.slice.Tensor: torch_views.cut,
    _aten.split.Tensor: torch_views.split,
    _aten.split_with_sizes.default: torch_views.split_in,
    _aten.mm.default: torch_matmul.mm,
    _aten.mm.out: torch_matmul.mm_out,
    _aten.mv.default: torch_matmul.mv,
    _aten.addmm.default: torch_matmul.addmm,
    _aten._native_multi_head_attention.default: torch_fused.attention,
    _aten._transformer_encoder_layer_fwd.default: torch_fused.encoder_layer,
    **torch_reductions.RULES,
    **torch_copies.RULES,
    **torch_joins.RULES,
    **torch_stacks.RULES,
}
Sparse24Tensor._rules = {
    **COMMON_RULES,
    _aten.mul.Tensor: torch_arithmetic.multiply,
    _aten.div.Tensor: torch_arithmetic.divide,
    _aten.neg.default: torch_arithmetic.negative,
    _aten.abs.default: torch_arithmetic.absolute,
    **torch_sums.RULES,
    ops.kept_gradient: _kept_gradient,
}
