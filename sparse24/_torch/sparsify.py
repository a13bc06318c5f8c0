"""What makes a `Sparse24Tensor`, by the names that xformers and torch have for it."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _check, _foreign_streams, _is_24
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._torch import ops
from sparse24._torch.check import check_tensor
from sparse24._torch.stored import STORED_AXES, tensor_of
from sparse24._torch.tensor import Sparse24Tensor
from sparse24._torch.transforms import differentiable
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array


class _Sparsify(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gradient: str, transposable: bool):
        ctx.gradient, ctx.transposable = gradient, transposable
        if gradient != "ste":
            ctx.save_for_backward(x)
        return Sparse24Tensor(ops.pack(x, None, transposable), x.shape)

    @staticmethod
    def backward(ctx, grad):
        if ctx.gradient != "ste":
            (x,) = ctx.saved_tensors
            if torch.compiler.is_compiling():  # where a packed matrix stands for its gradient
                return ops.kept_gradient(grad, x, ctx.transposable), None, None
            grad = grad * ops.keep(x, ctx.transposable)
        return grad, None, None


def sparsify24(
    x: Tensor, algo: str = "", gradient: str = "24sparse", backend: str = "sparse24"
) -> Sparse24Tensor:
    """Prune to 2:4 by 4x4 tiles; stands in for ``xformers.ops.sp24.sparsify24``.

    Parameters
    ----------
    x : Tensor, shape (m, k)
        Or a stack (e, m, k), the weights of experts.
    algo : str
        Taken for compatibility: every name gives the exact optimum of the 90 tile masks.
    gradient : {"24sparse", "24dense", "ste"}
        Both 2:4 forms give `x` the gradient of its kept elements, as a dense tensor;
        ``"ste"`` gives it the whole gradient.
    backend : str
        Taken for compatibility.

    Returns
    -------
    Sparse24Tensor, shape of x
        Differentiable; its products from either side are sparse.  Does not wait for the device.

    Raises
    ------
    ShapeError, DTypeError
        If `x` is no matrix or stack of a type that sparse24 stores.
    ArgumentError
        If `gradient` is unknown.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import sparsify24
    >>> x = torch.randn(8, 8)
    >>> (sparsify24(x) @ torch.ones(8, 2)).shape
    torch.Size([8, 2])
    """
    _check.one_of(gradient, ("24sparse", "24dense", "ste"), argument="gradient")
    check_tensor(x, "x")
    _check_shape(x, "x")
    return differentiable(_Sparsify, x, gradient, True)


def to_sparse_semi_structured(
    original_tensor: Tensor | Sparse24Array | Quantised24Array, transposed: bool = False
) -> Sparse24Tensor:
    """Pack what is 2:4; stands in for ``torch.sparse.to_sparse_semi_structured``.

    Parameters
    ----------
    original_tensor : Tensor, Sparse24Array or Quantised24Array, shape (m, k)
        Or a stack (e, m, k), the weights of experts.
        Of an array that is compressed already, such as one of a file, the memory is shared, and
        nothing is copied into the tensor: for that pass its ``.clone()`` on.
    transposed : bool
        Taken for compatibility; must be False, as in torch.

    Returns
    -------
    Sparse24Tensor, shape of original_tensor
        A `Quantised24Tensor` of a `Quantised24Array`.

    Raises
    ------
    PatternError
        If a group holds more than two non-zeros.  (torch drops the others silently.)
        The check waits for the device.
    ShapeError, DTypeError
        If it is no matrix or stack of a type that sparse24 stores.
    UnsupportedError
        If `transposed` is True.

    Examples
    --------
    >>> import torch
    >>> from sparse24.torch import to_sparse_semi_structured
    >>> w = to_sparse_semi_structured(torch.tensor([[0.0, 1, 0, 2]]))
    >>> w @ torch.ones(4, 1)
    tensor([[3.]])
    >>> to_sparse_semi_structured(w.to_array()).to_dense()
    tensor([[0., 1., 0., 2.]])
    """
    if _check.flag(transposed, argument="transposed"):
        raise UnsupportedError("transposed=True is not supported; transpose the result with .t()")
    if isinstance(original_tensor, Sparse24Array | Quantised24Array):
        return tensor_of(original_tensor)
    check_tensor(original_tensor, "original_tensor")
    _check_shape(original_tensor, "original_tensor")
    with _foreign_streams.stream_of(original_tensor):
        _is_24.check_24(original_tensor.detach())
    parts = ops.pack(original_tensor.detach(), None, False)  # else they would belong to its graph
    return Sparse24Tensor(parts, original_tensor.shape)


def _check_shape(x: Tensor, argument: str) -> None:
    if x.ndim not in STORED_AXES:
        raise ShapeError(
            f"{argument} must be a matrix (m, k) or a stack (e, m, k), got shape {tuple(x.shape)}; "
            "reshape it"
        )
