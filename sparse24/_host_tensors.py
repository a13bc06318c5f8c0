"""Tensors of torch on the CPU as NumPy arrays that share their memory.

Without ``tensor.numpy()``, after which torch can never resize the memory again, as its
``fully_shard`` does with every weight.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from sparse24 import _dtypes


class _Memory:
    """What NumPy reads to make an array, which keeps this, and so the tensor, alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any, address: int, typestr: str):
        size = tensor.element_size()
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": typestr,
            "shape": tuple(tensor.shape),
            "strides": tuple([size * stride for stride in tensor.stride()]),
            "data": (address, False),
        }


def view(x: Any) -> np.ndarray:
    """A NumPy view of a tensor without a gradient; TypeError or RuntimeError if it has no memory.

    Types that NumPy does not have are those of `ml_dtypes`.
    """
    typestr, logical = _carried(x.dtype)
    address = _address(x)
    if typestr is None or not address:
        return _by_torch(x)
    array = np.asarray(_Memory(x, address, typestr))
    return array if logical is None else array.view(logical)


def _address(x: Any) -> int:
    """Where the elements are, if that and the strides say all; else 0, as without elements.

    Bits may stand for their signs, and a subclass for elements elsewhere.
    """
    torch = sys.modules["torch"]
    if type(x) is not torch.Tensor or not x.is_cpu or x.layout is not torch.strided:
        return 0
    if x.is_neg() or x.is_conj() or torch._is_functional_tensor(x):
        return 0
    try:
        return x.data_ptr()
    except RuntimeError:  # within other transforms, and of nested tensors
        return 0


@functools.cache
def _carried(dtype: Any) -> tuple[str | None, np.dtype | None]:
    """How NumPy is shown elements of a torch type, and as which type to view them afterwards.

    The latter is None if NumPy knows the type.
    """
    name = str(dtype).removeprefix("torch.")
    known = _dtypes.TABLE.get(name)
    if known is not None and known.logical.isbuiltin != 1:
        return known.storage.str, known.logical
    try:
        own = np.dtype(name)
    except TypeError:  # one of torch's own
        return None, None
    return (own.str if own.isbuiltin == 1 else None), None  # `ml_dtypes` adds names of others


def _by_torch(x: Any) -> np.ndarray:
    """The view by torch itself, of tensors without such memory: an empty array, or its error."""
    import torch

    if torch._is_functional_tensor(x):  # of which torch would read what lies at address 0
        raise RuntimeError("a tensor of torch.func.functionalize stands for one elsewhere")
    dtype = _dtypes.TABLE.get(str(x.dtype).removeprefix("torch."))
    if dtype is None or dtype.logical.isbuiltin == 1:
        return x.numpy()

    bits = torch.int16 if dtype.itemsize == 2 else torch.uint8
    return x.view(bits).numpy().view(dtype.logical)
