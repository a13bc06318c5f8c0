"""Packing and unpacking of CUDA tensors like earlier ones."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _spec
from sparse24._ready import View
from sparse24._torch_parts import dtype_of, empty_parts
from sparse24._torch_replay import Launches, launch_of, layout, view
from sparse24.kernels.launch import Launch


def packing_key(x: Tensor, mask: Tensor | None, transposable: bool) -> tuple | None:
    """All that packing depends on; None where it is not remembered."""
    if not x.is_cuda or (mask is not None and mask.dtype != torch.bool):
        return None
    return "pack", transposable, *layout(x), *(() if mask is None else layout(mask))


class Packing:
    """Packs matrices of one layout, as the operator `pack` does.

    Parameters
    ----------
    x : Tensor, shape (m, k)
    mask : Tensor of bool, shape (m, k), or None
    transposable : bool
    """

    def __init__(self, x: Tensor, mask: Tensor | None, transposable: bool):
        self._turns, self._row = 1 + transposable, dtype_of(x)
        self._x, self._mask = _both_ways(x), None if mask is None else _both_ways(mask)
        self._parts = [_as_written(part) for part in self._empty(x)]
        # What kernels count under a mask: nobody reads it.
        self._status = None if mask is None else torch.zeros(2, dtype=torch.int64, device=x.device)
        self._launches = Launches(self._lay_out)

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None, transposable: bool) -> Packing | None:
        """None where packing takes more than a launch for each orientation."""
        from sparse24.kernels import transposable as squares

        if not x.numel():
            return None
        made = cls(x, mask, transposable)
        whole = not transposable or mask is not None or squares.in_squares(made._x[0], made._row)
        return made if whole else None

    def __call__(self, x: Tensor, mask: Tensor | None) -> list[Tensor]:
        parts = self._empty(x)
        given = x.data_ptr(), 0 if mask is None else mask.data_ptr()
        self._launches.enqueue(x, *given, *(part.data_ptr() for part in parts))
        return parts

    def _empty(self, x: Tensor) -> list[Tensor]:
        m, k = x.shape
        shapes = ((m, k), (k, m))[: self._turns]
        return [part for shape in shapes for part in empty_parts(x, *shape)]

    def _lay_out(self, x: int, mask: int, *rest: int) -> list[Launch]:
        from sparse24.kernels import compress
        from sparse24.kernels import transposable as squares

        parts = [part.at(address) for part, address in zip(self._parts, rest[:-1], strict=True)]
        dense = [turn.at(x) for turn in self._x]
        if self._mask is None and self._turns == 2:
            return [launch_of(squares.call_of(dense[0], self._row, *parts))]
        if self._mask is None:
            how = "magnitude", None, *parts[:1], None, parts[1], None
            return [launch_of(compress.call_of(dense[0], self._row, *how))]
        status, found = view(self._status), []
        for i in range(self._turns):
            values, codes = parts[2 * i : 2 * i + 2]
            how = "mask", self._mask[i].at(mask), values, None, codes, status
            found.append(launch_of(compress.call_of(dense[i], self._row, *how)))
        return found


def unpacking_key(parts: list[Tensor], m: int, k: int) -> tuple | None:
    """All that unpacking depends on; None where it is not remembered."""
    values, codes = parts[:2]
    if not values.is_cuda:
        return None
    return "unpack", m, k, *layout(values), *layout(codes)


class Unpacking:
    """Makes packed matrices of one layout dense, as the operator `dense` does."""

    def __init__(self, values: Tensor, codes: Tensor, m: int, k: int):
        self._shape, self._row = (m, k), dtype_of(values)
        self._values, self._codes = _as_written(values), _as_written(codes)
        self._out = _both_ways(values.new_empty(m, k))[0]
        self._launches = Launches(self._lay_out)

    @classmethod
    def of(cls, parts: list[Tensor], m: int, k: int) -> Unpacking | None:
        """None for tensors that kernels take copies of."""
        values, codes = parts[:2]
        in_place = values.is_contiguous() and codes.is_contiguous() and codes.ndim == 3
        aligned = all(n % 16 == 0 for n in (values.data_ptr(), values.stride(0) * values.itemsize))
        if not in_place or not aligned or not m * k:
            return None
        return cls(values[:, : _spec.values_per_row(k)], codes, m, k)

    def __call__(self, parts: list[Tensor]) -> Tensor:
        values, codes = parts[:2]
        out = values.new_empty(self._shape)
        self._launches.enqueue(values, values.data_ptr(), codes.data_ptr(), out.data_ptr())
        return out

    def _lay_out(self, values: int, codes: int, out: int, stream: int) -> list[Launch]:
        from sparse24.kernels import decompress

        arrays = self._values.at(values), self._codes.at(codes), self._out.at(out)
        return [launch_of(decompress.call_of(*arrays, self._row))]


def _both_ways(x: Tensor) -> tuple[View, View]:
    """A matrix and its transpose as kernels take them, with a batch axis."""
    return view(x[None]), view(x.t()[None])


def _as_written(part: Tensor) -> View:
    """Values with a batch axis, or codes, of a packed matrix."""
    return view(part if part.ndim == 3 else part[None])
