"""What repeats a product of NumPy's arrays: what their layouts decide is decided already."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sparse24 import _check
from sparse24._dispatch import OVERLAP, Launched
from sparse24._errors import ArgumentError
from sparse24._records import PLAIN, Compressed24

Multiply = Callable[[np.ndarray, np.ndarray], None]  # of matrices, b and out


class ReadyOnCpu:
    """A product of one signature, as `_ready.Ready` is one on a GPU.

    Parameters
    ----------
    multiply : callable
        ``multiply(b, out)`` of matrices like those of the call that prepared it.
    held : array or None
        Which the result must not overlap, no more than the operand.
    result : ndarray
        Of that call.
    turned : bool
        Whether what multiplies is the transposed product.
    overlap : str
        The error where a result overlaps.
    """

    captured = True  # nothing is, on the CPU

    def __init__(
        self, multiply: Multiply, held: np.ndarray | None, result: np.ndarray,
        *, turned: bool = False, overlap: str = OVERLAP.format("out"),
    ):  # fmt: skip
        self._multiply, self._held, self._overlap = multiply, held, overlap
        self._shape, self._dtype = result.shape, result.dtype
        self._lay = _columns if result.ndim == 1 else _transposed if turned else None

    def __call__(self, x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if out is None:
            out = np.empty(self._shape, self._dtype)
        else:
            self._check_given(x, out)
        if self._lay is None:
            self._multiply(x, out)
        else:
            self._multiply(*self._lay(x, out))
        return out

    def _check_given(self, x: np.ndarray, out: np.ndarray) -> None:
        if not out.flags.writeable:
            _check.writable(out, argument="out")
        held = self._held
        overlaps = np.may_share_memory(out, x)
        if overlaps or (held is not None and np.may_share_memory(out, held)):
            raise ArgumentError(self._overlap)


def _columns(x: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[:, None], out[:, None]


def _transposed(x: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.T, out.T


def of_launched(launched: Launched, result: np.ndarray, *, turned: bool) -> ReadyOnCpu:
    """What repeats a plain product of matrices, or of one with a vector."""
    held = launched.a.values if isinstance(launched.a, Compressed24) else launched.a
    return ReadyOnCpu(_again(launched), held, result, turned=turned)


def _again(launched: Launched) -> Multiply:
    """The product with what can be decided beforehand, else as it was launched."""
    from sparse24.kernels import cpu, cpu_again

    launcher, a, found = launched.launcher, launched.a, None
    if launcher is cpu.dense_matmul:
        found = cpu_again.dense(a, launched.b, launched.out)
    elif launcher.product is cpu.matmul and a.metadata is not None:
        found = cpu_again.sparse(a.values, a.metadata, launched.b, launched.out)
    return found or (lambda b, out: launcher(a, b, out, PLAIN))
