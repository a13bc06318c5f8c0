"""Operands of calls that are repeated on the CPU, and how they may lie in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

import sparse24 as s24
from sparse24 import _dtypes

M, K = 29, 77  # neither whole groups, nor whole vectors; rows enough for panels
COLUMNS = (None, 1, 3, 16, 17)


def numbers(rng, shape, name):
    scale = 20 if name == "int8" else 1
    return (scale * rng.standard_normal(shape)).astype(_dtypes.TABLE[name].logical)


def operands(rng, n, name, k=K):
    a = s24.compress(numbers(rng, (M, k), name), on_excess="prune")
    return a, numbers(rng, (k,) if n is None else (k, n), name)


def bits(x):
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def assert_same(got, want):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_array_equal(bits(got), bits(want))


def assert_alike_in_threads(product: Callable, cases: Sequence[tuple], wanted: Sequence) -> None:
    """Each case in a thread of its own, a hundred times while the others run."""
    start, wrong = threading.Barrier(len(cases)), []

    def work(number: int) -> None:
        start.wait()
        for _ in range(100):
            if not np.array_equal(bits(product(*cases[number])), bits(wanted[number])):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def misaligned(x):
    """The same array one byte beyond where its elements may begin."""
    room = np.empty(x.nbytes + x.dtype.itemsize + 1, np.uint8)
    start = 1 + -room.ctypes.data % x.dtype.itemsize
    view = room[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": read_only,
    "misaligned": misaligned,
}
WRITABLE = [name for name in LAYOUTS if name != "read-only"]
