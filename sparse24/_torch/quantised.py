"""`Quantised24Tensor`: a packed matrix of integers of 4 or 8 bits times scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse24._errors import ShapeError, UnsupportedError
from sparse24._quantised import FLOATS
from sparse24._torch import quantised_ops
from sparse24._torch.tensor import COMMON_RULES, Sparse24Tensor
from sparse24.formats.quantised import Quantised24Array
from sparse24.kernels import bricks as layout

_TYPES = tuple(getattr(torch, name) for name in FLOATS)


class Quantised24Tensor(Sparse24Tensor):
    """A quantised 2:4 matrix, or a stack, that takes part in products as a `Sparse24Tensor` does.

    Made by `to_sparse_semi_structured` of a `Quantised24Array`, which says in which products its
    elements are not rounded.  As the weight of a `torch.nn.Linear` it takes 3.25 or 5.25 bits an
    element; tokens and results keep the type of the layer.

    ``.to(dtype)`` of a float type, and so ``model.half()``, changes the type that products take the
    elements for.  Integers and scales stay as they are, and the new tensor shares their memory.
    ``a[i:j]`` and ``a.split(n)`` give parts at multiples of 16 rows and of 128 columns; rows share
    their memory.  Arithmetic raises, as it would round again; use `to_dense` first.

    A stack (e, m, k) holds the weights of experts, and multiplies as one of `Sparse24Tensor` does.
    By ``a``, across the groups, products are dense.

    On the CPU a product that dequantises the matrix keeps the result with the integers, unless
    these were made in inference mode: then each such product dequantises them.

    Attributes
    ----------
    bits : int
        Of an integer: 4 or 8.

    Examples
    --------
    >>> import torch, sparse24 as s24
    >>> layer = torch.nn.Linear(256, 64)
    >>> Q = s24.quantise(s24.prune(layer.weight.detach()), bits=4)
    >>> weight = s24.torch.to_sparse_semi_structured(Q)
    >>> layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    >>> layer.bfloat16().weight.data
    Quantised24Tensor(shape=(64, 256), dtype=torch.bfloat16, device=cpu, bits=4)
    >>> layer(torch.ones(3, 256, dtype=torch.bfloat16)).shape
    torch.Size([3, 64])
    """

    matrix_axes = quantised_ops.AXES
    _rules: ClassVar[dict[Any, Callable[..., Any]]] = COMMON_RULES

    @property
    def bits(self) -> int:  # type: ignore[override]
        return quantised_ops.bits_of(self.parts[0])

    def _stored_array(self) -> Quantised24Array:
        record = quantised_ops.record_of(self.parts[0], *self.stored_shape, self.dtype)
        return Quantised24Array._of(record)

    def __reduce_ex__(self, protocol):
        """Saved as its bricks, which are the same on all devices; checked when it is loaded."""
        from sparse24._torch.stored import restored_quantised

        facts = self.turned, self.requires_grad, isinstance(self, torch.nn.Parameter)
        stored = self.stored_shape, self.dtype, tuple(self.shape[:-2])
        return restored_quantised, (self.parts[0], *stored, *facts)

    def _shown_kind(self) -> str:
        return f"bits={self.bits}"

    def stored_dense(self) -> Tensor:
        return quantised_ops.dequantised(self.parts[0], *self.stored_shape, self.dtype)

    def times(self, dense: Tensor, bias: Tensor | None, form: str) -> Tensor:
        facts = *self.stored_shape, self.dtype
        return quantised_ops.quantised_product(self.parts[0], *facts, dense, bias, form)

    def of_experts(
        self, x: Tensor, bias: Tensor | None, offsets: Tensor, activation: str | None, gated: bool
    ) -> Tensor:
        (bricks,), facts = self.parts, (*self.stored_shape, self.dtype)
        how = bias, offsets, self.turned, activation, gated
        return quantised_ops.quantised_experts(bricks, *facts, x, *how)

    def like(self, parts: list[Tensor], shape, turned: bool) -> Quantised24Tensor:
        return type(self)(parts, shape, turned=turned, dtype=self.dtype)

    def converted(self, dtype: torch.dtype | None, device: Any = None) -> Quantised24Tensor:
        """The same integers and scales, for products of another type, or on another device."""
        wanted = self.dtype if dtype is None else dtype
        if wanted not in _TYPES:
            raise UnsupportedError(
                f"a Quantised24Tensor is of one of the types {', '.join(FLOATS)}, not of {wanted}; "
                "call .to_dense() first"
            )
        (bricks,) = self.parts
        moved = bricks.to(device=device, copy=wanted == self.dtype)
        made = type(self)([moved], self.shape, turned=self.turned, dtype=wanted)
        made.lent = moved is bricks
        return made

    def lines(
        self, axis: int, start: int, stop: int, shape: list[int], of_rows: bool
    ) -> Quantised24Tensor:
        """Whole blocks of rows or of columns; rows of a single matrix share its memory."""
        block = layout.ROWS if of_rows else layout.COLUMNS
        whole = self.shape[axis]
        if start < stop and (start % block or (stop % block and stop != whole)):
            raise ShapeError(
                f"[{start}:{stop}] cuts a block of {layout.ROWS} rows by {layout.COLUMNS} columns "
                f"along axis {axis} of a Quantised24Tensor of shape {tuple(self.shape)}; cut at "
                f"multiples of {block}, or call .to_dense() first"
            )
        (bricks,), first = self.parts, start // block
        blocks = slice(first, -(-stop // block) if start < stop else first)
        cut = bricks[..., blocks, :, :] if of_rows else bricks[..., blocks, :]
        return self.seen(shape, self.turned, [cut.contiguous()])
