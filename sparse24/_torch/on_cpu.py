"""Products of packed tensors on the CPU, by arrays that are kept with what these have prepared."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _foreign
from sparse24._options import NO_OPTIONS, Epilogue
from sparse24._torch import kept_arrays
from sparse24._torch.parts import added_to, in_type, is_added_later, unpack, vector_type
from sparse24.formats.products_24 import Products24
from sparse24.formats.two_four import Sparse24Array


class _Matrix:
    """A packed matrix: the forms of its products so far, and its array, if one has come again."""

    def __init__(self) -> None:
        self.forms: set[str] = set()
        self.array: Sparse24Array | None = None


def multiplied(parts: list[Tensor], m: int, k: int, form: str) -> Sparse24Array | None:
    """The array for a product of a packed matrix, from its second one of a form on.

    A training step packs its weights anew, and has one of each.
    """
    matrix = kept_arrays.kept(parts, (_Matrix, m, k), _Matrix)
    if form not in matrix.forms:
        matrix.forms.add(form)
        return None
    if matrix.array is None:
        matrix.array = unpack(parts, m, k)
    return matrix.array


def product(array: Products24, dense: Tensor, bias: Tensor | None, form: str) -> Tensor:
    """`factors.times` of an array, which keeps what it has prepared for tensors of a layout."""
    if is_added_later(bias, dense):
        return added_to(product(array, dense, None, form), bias)
    matrix, call = array.mT if form in ("x@At", "At@b") else array, NO_OPTIONS
    multiply = matrix._multiply_from_left if form.startswith("x") else matrix._multiply
    if bias is not None:
        wanted = vector_type(getattr(torch, array._dtype.name), dense.dtype, on_gpu=False)
        added = _foreign.view_of(in_type(bias, wanted).contiguous())
        call = NO_OPTIONS._replace(epilogue=Epilogue(bias=added))
    return _foreign.to_torch(multiply(_foreign.view_of(dense), None, call))
