"""`matmul`: products of a sparse array and a tensor, differentiable in the tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparse24 import _check, _dtypes
from sparse24 import _matmul as ours
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._other_formats import in_place_of
from sparse24._torch.linear import autocast_dtype
from sparse24._torch.transforms import differentiable
from sparse24.formats.base import SparseArray

# What torch casts; it leaves float64 and what is no float alone.
_CAST = frozenset(_dtypes.NAMES) - {"float64", "int8"}


@torch._disable_dynamo  # a compiled model breaks its graph here, as it cannot look into arrays
def matmul(a: SparseArray | Tensor, b: SparseArray | Tensor, *, dtype: Any = None) -> Tensor:
    """``a @ b`` of a sparse array and a tensor; differentiable in the tensor.

    For layers whose sparse weight does not train, as beside an adapter, and for the neighbourhoods
    of a graph.

    Parameters
    ----------
    a, b : Sparse24Array, Quantised24Array, NMArray or HybridArray, and Tensor
        One is sparse, on the device of the other.  Shapes as for `sparse24.matmul`.
    dtype : dtype, optional
        Type of the result, as in `sparse24.matmul`.

    Returns
    -------
    Tensor

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, DeviceError
        If the operands do not fit.
    UnsupportedError
        Within the transforms of `torch.func`, for derivatives in forward mode, and if a tensor of
        whole numbers would need a gradient.

    Notes
    -----
    Enqueues on torch's current stream and does not wait, but for what `sparse24.matmul` names.

    The gradient is a product with the transposed array.  It is a sparse one for a `HybridArray`,
    whose transpose is built in the first backward pass and kept, and for an array that was
    compressed with ``transposable=True``; of others it may become a dense one on a GPU.  Gradients
    of gradients are products, too.  ``torch.compile`` breaks its graph at the call.

    Under ``torch.autocast`` the result of floats is of its type, as that of `torch.matmul`, unless
    `dtype` is given, also beside int8.  It is rounded once, as both operands are read in their own
    types; an array of that type, or of 8 bits, takes less time.

    Examples
    --------
    Messages between the nodes of a graph:

    >>> import scipy.sparse, torch, sparse24 as s24
    >>> edges = scipy.sparse.coo_array(([1.0, 1.0, 1.0], ([0, 1, 2], [1, 2, 1])), shape=(3, 3))
    >>> A = s24.hybrid(edges, dtype="float32")
    >>> x = torch.ones(3, 2, requires_grad=True)
    >>> y = s24.torch.matmul(A, x)
    >>> y.sum().backward()
    >>> x.grad
    tensor([[0., 0.],
            [2., 2.],
            [1., 1.]])
    """
    from_left = isinstance(b, SparseArray)
    array, x = (b, a) if from_left else (a, b)
    if not isinstance(array, SparseArray) or not isinstance(x, Tensor):
        raise ArgumentError(
            "one operand must be a sparse array, as a Sparse24Array is, the other one a Tensor, "
            f"got {_check.shown(a)} and {_check.shown(b)}; use torch.matmul or sparse24.matmul"
            f"{in_place_of(a, b)}"
        )
    _check.at_least_1d(x.shape, argument="a" if from_left else "b")
    dtype = _autocast_result(array, x) if dtype is None else dtype
    y = differentiable(_Product, x, array, from_left, dtype)
    if x.requires_grad and torch.is_grad_enabled() and not y.is_floating_point():
        raise UnsupportedError(f"the result must be of floats to have a gradient, got {y.dtype}")
    return y


def _autocast_result(array: SparseArray, x: Tensor) -> torch.dtype | None:
    """To which type ``torch.autocast`` takes the result; None outside of it, and for others."""
    types = {str(array.dtype), str(x.dtype).removeprefix("torch.")}
    if types <= _CAST | {"int8"} and types & _CAST:
        return autocast_dtype(x)
    return None


class _Product(torch.autograd.Function):
    """The product with an array, which is on the right where the tensor comes from the left."""

    @staticmethod
    def forward(ctx, x: Tensor, array: SparseArray, from_left: bool, dtype: Any) -> Tensor:
        ctx.array, ctx.from_left, ctx.like = array, from_left, (x.shape, x.dtype)
        pair = (x.detach(), array) if from_left else (array, x.detach())
        return ours.matmul(*pair, dtype=dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        shape, dtype = ctx.like
        transposed = ctx.array.mT
        if len(shape) == 1 and transposed.ndim > 2:  # the vector has met every matrix of a stack
            axis = -2 if ctx.from_left else -1
            stack = gradient.unsqueeze(axis)
            found = _Product.apply(stack, transposed, ctx.from_left, None).squeeze(axis)
        else:
            found = _Product.apply(gradient, transposed, ctx.from_left, None)
        return found.sum_to_size(shape).to(dtype), None, None, None
