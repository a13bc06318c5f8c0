"""Races of launchers against a device copy of the same bytes."""

from __future__ import annotations

from functools import partial

import cupy as cp
import numpy as np
import torch
from harness import Contender, case, copies, race

from sparse24 import _arrays

COPY_AT_ONCE = 256 << 20  # larger copies are slower


def copy_of(count: int) -> Contender:
    """Copies that read and write `count` bytes together."""
    half = count // 2
    pairs = [(cp.zeros(half, cp.uint8), cp.zeros(half, cp.uint8)) for _ in range(copies(count))]

    def copy(source, target):
        stream = cp.cuda.get_current_stream().ptr
        for start in range(0, half, COPY_AT_ONCE):
            size = min(COPY_AT_ONCE, half - start)
            cp.cuda.runtime.memcpyAsync(
                target.data.ptr + start, source.data.ptr + start, size, 3, stream
            )

    return Contender([partial(copy, *pair) for pair in pairs])


class Uncaptured(Contender):
    """Calls that cannot be captured into a graph; they take long enough to hide their launch."""

    def __init__(self, calls):
        self.calls, self.samples, self.stream = len(calls), [], torch.cuda.Stream()
        self._all = calls
        torch.cuda.synchronize()

    def _replay(self):
        with cp.cuda.Stream.from_external(self.stream):
            for call in self._all:
                call()


class Recycled:
    """Allocations of a launcher, kept by call, so that a captured call only launches."""

    def __init__(self):
        self.arrays: dict = {}

    def calls(self, functions):
        return [partial(self._call, index, function) for index, function in enumerate(functions)]

    def _call(self, index, function):
        real_empty, real_zeros, real_rows = cp.empty, cp.zeros, _arrays.empty_rows
        taken = iter(range(99))

        def again(make, *arguments, **keywords):
            key = (index, next(taken))
            if key not in self.arrays:
                self.arrays[key] = make(*arguments, **keywords)
            return self.arrays[key]

        def zeros(*arguments):
            array = again(real_zeros, *arguments)
            array.data.memset_async(0, array.nbytes)
            return array

        cp.empty, cp.zeros = partial(again, real_empty), zeros
        _arrays.empty_rows = lambda xp, shape, dtype: again(_fresh_rows, real_empty, shape, dtype)
        try:
            function()
        finally:
            cp.empty, cp.zeros, _arrays.empty_rows = real_empty, real_zeros, real_rows


def _fresh_rows(empty, shape, dtype):
    pitch = _arrays.row_pitch(shape[-1], np.dtype(dtype).itemsize)
    return empty((*shape[:-1], pitch), dtype)[..., : shape[-1]]


def timed(name, kernel, functions, count, *, m, k, dtype, rivals=None, **fields) -> dict:
    """Race `functions`, one for each copy of the operand, against a copy of `count` bytes."""
    ours = Contender(Recycled().calls(functions))
    others = {"copy": copy_of(count), **(rivals or {})}
    race({"ours": ours, **others})
    row = case(name, ours=ours, kernel=kernel, rivals=others, m=m, k=k, n=0, dtype=dtype,
               bytes=count, error=0.0, **fields)  # fmt: skip
    print(
        f"{name:46s} {row['ours_us']:9.1f} us, {row['rivals']['copy'] / row['ours_us']:.3f} of copy"
    )
    cp.get_default_memory_pool().free_all_blocks()
    return row
