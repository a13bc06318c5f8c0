"""Packed CUDA tensors like earlier ones: packed, unpacked, gathered, masked and sampled again."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _arrays, _spec
from sparse24._torch.parts import dtype_of, empty_parts
from sparse24._torch.replay import Launches, launch_of, layout, view
from sparse24._views import View
from sparse24.kernels import compress, decompress, like, sample
from sparse24.kernels import transposable as squares
from sparse24.kernels.call import KernelCall
from sparse24.kernels.launch import Launch

_WORD = 1 << 64  # a key is two words


def packing_key(
    x: Tensor, mask: Tensor | None, transposable: bool, *, squared: bool = False
) -> tuple | None:
    """All that packing depends on; None where it is not remembered."""
    if not x.is_cuda or (mask is not None and mask.dtype != torch.bool):
        return None
    return "pack", transposable, squared, *layout(x), *(() if mask is None else layout(mask))


class Packing:
    """Packs matrices of one layout, as the operator `pack` does.

    Parameters
    ----------
    x : Tensor, shape (m, k) or (e, m, k)
    mask : Tensor of bool, shape of x, or None
    transposable : bool
    squared : bool
        Pack the squared relu of the matrices, as `ops.pack_squared_relu` does.
    """

    def __init__(self, x: Tensor, mask: Tensor | None, transposable: bool, squared: bool):
        self._turns, self._dtype, self._squared = 1 + transposable, dtype_of(x), squared
        self._x, self._mask = _both_ways(x), None if mask is None else _both_ways(mask)
        self._parts = [_as_written(part) for part in self._empty(x)]
        self._status = None if mask is None else view(_counts(x))
        self._launches = Launches(self._lay_out)

    @classmethod
    def of(
        cls, x: Tensor, mask: Tensor | None, transposable: bool, *, squared: bool = False
    ) -> Packing | None:
        """None where packing takes more than a launch for each orientation."""
        if not x.numel():
            return None
        in_squares = squares.in_squares(_both_ways(x)[0], dtype_of(x))
        if transposable and mask is None and not in_squares:
            return None
        return cls(x, mask, transposable, squared)

    def __call__(self, x: Tensor, mask: Tensor | None) -> list[Tensor]:
        parts = self._empty(x)
        given = (x, *parts) if mask is None else (x, *parts, mask, _counts(x))
        self._launches.enqueue(x, *(tensor.data_ptr() for tensor in given))
        return parts

    def _empty(self, x: Tensor) -> list[Tensor]:
        shapes = (x.shape, x.mT.shape)[: self._turns]
        return [part for shape in shapes for part in empty_parts(x, *shape)]

    def _lay_out(self, x: int, *rest: int) -> list[Launch]:
        parts = [part.at(address) for part, address in zip(self._parts, rest, strict=False)]
        under_mask = rest[len(parts) : -1]
        dense = [turn.at(x) for turn in self._x]
        if not under_mask and self._turns == 2:
            call = squares.call_of(dense[0], self._dtype, *parts, squared=self._squared)
            return [launch_of(call)]
        calls = (
            self._call(dense[i], i, parts[2 * i], parts[2 * i + 1], *under_mask)
            for i in range(self._turns)
        )
        return [launch_of(call) for call in calls]

    def _call(
        self, dense: View, turn: int, values: View, codes: View, mask: int = 0, status: int = 0
    ) -> KernelCall:
        """What packs one orientation."""
        rule, chosen, counts = "magnitude", None, None
        if self._mask is not None and self._status is not None:
            rule, chosen, counts = "mask", self._mask[turn].at(mask), self._status.at(status)
        return compress.call_of(dense, self._dtype, rule, chosen, values, None, codes, counts)


def unpacking_key(parts: list[Tensor], m: int, k: int, out: Tensor | None = None) -> tuple | None:
    """All that unpacking depends on; None where it is not remembered."""
    values, codes = parts[:2]
    if not values.is_cuda:
        return None
    into = () if out is None else layout(out)
    return "unpack", m, k, *layout(values), *layout(codes), *into


class Unpacking:
    """Makes packed matrices of one layout dense, as the operators `dense` and `spread` do."""

    def __init__(self, values: Tensor, codes: Tensor, out: Tensor):
        self._shape, self._dtype = out.shape, dtype_of(values)
        self._values, self._codes = _as_written(values), _as_written(codes)
        self._out = _both_ways(out)[0]
        self._launches = Launches(self._lay_out)

    @classmethod
    def of(cls, parts: list[Tensor], m: int, k: int, out: Tensor | None = None) -> Unpacking | None:
        """None for tensors that kernels take copies of."""
        values, codes = parts[:2]
        in_order = codes.ndim == values.ndim + 1  # that of the tensor cores
        if not is_in_rows(values) or not codes.is_contiguous() or not in_order:
            return None
        if not values.numel() * m * k:
            return None
        out = values.new_empty((*values.shape[:-2], m, k)) if out is None else out
        return cls(values[..., : _spec.values_per_row(k)], codes, out)

    def __call__(self, parts: list[Tensor], out: Tensor | None = None) -> Tensor:
        values, codes = parts[:2]
        out = values.new_empty(self._shape) if out is None else out
        self._launches.enqueue(values, values.data_ptr(), codes.data_ptr(), out.data_ptr())
        return out

    def _lay_out(self, values: int, codes: int, out: int, stream: int) -> list[Launch]:
        arrays = self._values.at(values), self._codes.at(codes), self._out.at(out)
        return [launch_of(decompress.call_of(*arrays, self._dtype))]


class Gathering:
    """Gathers elements of matrices of one layout, as the operator `gather` does."""

    def __init__(self, x: Tensor, codes: Tensor, values: Tensor):
        self._dtype, self._x = dtype_of(x), _both_ways(x)[0]
        self._codes, self._values = _as_written(codes), _as_written(values)
        self._launches = Launches(self._lay_out)

    def __call__(self, x: Tensor, codes: Tensor, values: Tensor, seen: Tensor | None) -> None:
        tensors = (x, codes, values) if seen is None else (x, codes, values, seen)
        self._launches.enqueue(x, *[tensor.data_ptr() for tensor in tensors])

    def _lay_out(self, x: int, codes: int, values: int, *rest: int) -> list[Launch]:
        *seen, _ = rest
        arrays = self._x.at(x), self._codes.at(codes), self._values.at(values)
        call = like.gathering_call(*arrays, self._dtype, seen=seen[0] if seen else None)
        return [launch_of(call)]


def is_in_rows(values: Tensor) -> bool:
    """Whether kernels read and write values (..., m, n) where they are."""
    starts = values.data_ptr(), values.stride(-2) * values.itemsize
    return values.is_contiguous() and all(n % _arrays.VECTOR == 0 for n in starts)


def masking_key(
    parts: list[Tensor], gradient: Tensor, weight: Tensor | None, decay: float
) -> tuple | None:
    """All that `Masking` depends on; None where it is not remembered."""
    given = (*parts[:2], gradient) if weight is None else (*parts[:2], gradient, weight)
    if not all(x.is_cuda for x in given):
        return None
    return "masked", decay, *(fact for x in given for fact in layout(x))


class Masking:
    """Gradients of one layout, as the operator `masked_gradient` makes them."""

    def __init__(self, parts: list[Tensor], gradient: Tensor, weight: Tensor | None, decay: float):
        self._dtype, self._decay = dtype_of(parts[0]), decay
        self._codes, self._source = _as_written(parts[1]), _both_ways(gradient)[0]
        self._weight = None if weight is None else _both_ways(weight)[0]
        self._out = _both_ways(_plain_like(gradient))[0]
        self._launches = Launches(self._lay_out)

    @classmethod
    def of(
        cls, parts: list[Tensor], gradient: Tensor, weight: Tensor | None, decay: float
    ) -> Masking | None:
        """None for tensors that kernels take copies of."""
        codes = parts[1]
        in_place = codes.ndim == 3 and codes.is_contiguous()
        if not gradient.numel() or not in_place or gradient.dtype != parts[0].dtype:
            return None
        return cls(parts, gradient, weight, decay)

    def __call__(self, parts: list[Tensor], gradient: Tensor, weight: Tensor | None) -> Tensor:
        out = _plain_like(gradient)
        tensors = (parts[1], gradient, out)
        given = tensors if weight is None else (*tensors, weight)
        self._launches.enqueue(gradient, *[x.data_ptr() for x in given])
        return out

    def _lay_out(self, codes: int, source: int, out: int, *rest: int) -> list[Launch]:
        *weight, _ = rest
        turned = None if self._weight is None else self._weight.at(*weight)
        arrays = self._source.at(source), turned, self._codes.at(codes), self._out.at(out)
        return [launch_of(like.masked_call(*arrays, self._dtype, self._decay))]


def sampling_key(x: Tensor) -> tuple | None:
    """All that `Sampling` depends on; None where it is not remembered."""
    if not x.is_cuda or not x.numel() or dtype_of(x).name not in sample.DTYPES:
        return None
    return "sample", *layout(x)


class Sampling:
    """Packs samples of matrices of one layout, as the operator `pack_sample` does."""

    def __init__(self, x: Tensor):
        self._dtype, self._x = dtype_of(x), _both_ways(x)[0]
        self._parts = [_as_written(part) for part in empty_parts(x, *x.shape)]
        self._launches = Launches(self._lay_out, numbers=2)

    def __call__(self, x: Tensor, key: int) -> list[Tensor]:
        """`key` is that of `kernels.sample.launch`, another one in each call."""
        parts = empty_parts(x, *x.shape)
        addresses = (x.data_ptr(), *[part.data_ptr() for part in parts])
        self._launches.enqueue(x, *addresses, key % _WORD, key // _WORD)
        return parts

    def _lay_out(self, x: int, values: int, codes: int, *rest: int) -> list[Launch]:
        low, high, _ = rest
        written = (part.at(to) for part, to in zip(self._parts, (values, codes), strict=True))
        return [launch_of(sample.call_of(self._x.at(x), self._dtype, high * _WORD + low, *written))]


def _counts(x: Tensor) -> Tensor:
    """What a kernel counts under a mask, which nobody reads; as all that a call makes, not kept."""
    return x.new_empty(2, dtype=torch.int64)


def _plain_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _both_ways(x: Tensor) -> tuple[View, View]:
    """Matrices and their transposes as kernels take them, with a batch axis."""
    stack = x if x.ndim == 3 else x[None]
    return view(stack), view(stack.mT)


def _as_written(part: Tensor) -> View:
    """Values with a batch axis, or codes, of packed matrices."""
    return view(part if part.ndim >= 3 else part[None])
