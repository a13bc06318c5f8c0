"""Repeated products of stacks of 2:4 matrices on the CPU: each matrix as if it were alone.

A product of small matrices takes less time than to plan it, and less than to wake the threads for
it.  So what is prepared for each of them is kept, and threads multiply several side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _ready_cpu, _storage
from sparse24._dispatch import Launched
from sparse24._made_anew import OfRecord
from sparse24._records import PLAIN, Compressed24, Fused, Multiply

MOST_PREPARED = 4096  # products of single matrices that a stack keeps, of all its layouts


def takes(launched: Launched) -> bool:
    """Whether a product is one of a stack of 2:4 matrices, which can be repeated one by one."""
    a = launched.a
    return isinstance(a, Compressed24) and len(a.shape) > 2 and a.shape[0] <= MOST_PREPARED


class StackOnCpu:
    """Repeats ``a @ x``, or ``x @ a``, of a stack of matrices.

    Parameters
    ----------
    launched : Launched
        Of a record with one batch axis.
    batch : tuple of int
        The batch axes of the result.
    transposed : bool
        Whether x is multiplied from the left, as the transposed product.
    """

    def __init__(self, launched: Launched, batch: tuple[int, ...], *, transposed: bool):
        self._a, self._launcher = launched.a, launched.launcher
        self._places, self._transposed = list(np.ndindex(*batch)), transposed
        self._known: dict[int, Multiply] = {}
        m, k = launched.a.shape[-2:]
        self._each = m * (k // 2) * launched.b.shape[-1]

    def __call__(self, x: np.ndarray, out: np.ndarray, epilogue: Fused) -> None:
        if self._transposed:
            x, out = x.swapaxes(-1, -2), out.swapaxes(-1, -2)
        b = np.broadcast_to(x, (*out.shape[:-2], *x.shape[-2:]))

        def one(number: int) -> None:
            place = self._places[number]
            self._product(number, b[place], out[place])(b[place], out[place], PLAIN)

        share(one, dict.fromkeys(range(len(self._places)), self._each))

    def _product(self, number: int, b: np.ndarray, out: np.ndarray) -> Multiply:
        known = self._known.get(number)
        if known is None:
            launched = Launched(*self._alone(number, b.shape[-1]), b, out, PLAIN)
            known = self._known[number] = _ready_cpu.prepared(launched)
        return known

    def _alone(self, number: int, n: int) -> tuple[Any, Compressed24]:
        """What multiplies a matrix that is no part of a stack, and its record."""
        from sparse24.kernels import cpu

        a = self._a
        m, k = shape = a.shape[-2:]
        if a.quantised:
            bricks = a.values[number]
            return self._launcher, Compressed24(
                bricks, None, bricks, shape, a.dtype, quantised=a.quantised
            )
        codes = _storage.canonical(a)[number]
        sparse = cpu.choose(m, k, n, a.dtype.name) == "sparse"
        product = OfRecord(cpu.matmul if sparse else cpu.decompress_matmul)
        return product, Compressed24(a.values[number], codes, None, shape, a.dtype)


def share(one: Callable[[int], None], work: dict[int, int]) -> None:
    """Call ``one(i)`` for each matrix i in `work`, which tells its multiplications.

    Threads take those with little work in turn, the largest first; others have all threads for
    themselves, one after another.
    """
    from sparse24.kernels import _numba

    small = sorted((i for i in work if work[i] < _numba.WAKING), key=lambda i: -work[i])
    _numba.parallel(lambda j: one(small[j]), len(small), sum(work[i] for i in small))
    for number in work.keys() - small:
        one(number)


class ReadyStack(_ready_cpu.ReadyOnCpu):
    """A `ReadyOnCpu` of a stack, without options; the parameters are those of `StackOnCpu`.

    Attributes
    ----------
    matrices : int
        How many products of single matrices it keeps.
    """

    def __init__(self, launched: Launched, result: np.ndarray, *, transposed: bool):
        multiply = StackOnCpu(launched, result.shape[:-2], transposed=transposed)
        super().__init__(multiply, launched.a.values, result)
        self.matrices = launched.a.shape[0]


def make_room(plans: dict, matrices: int) -> None:
    """Forget the prepared products of stacks if there would be too many with so many more."""
    held = {key: plan.matrices for key, plan in list(plans.items()) if isinstance(plan, ReadyStack)}
    if sum(held.values()) + matrices > MOST_PREPARED:
        for key in held:
            plans.pop(key, None)
