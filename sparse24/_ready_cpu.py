"""Prepared products of one signature, which repeat a call on NumPy arrays without planning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparse24 import _check
from sparse24._dispatch import OVERLAP, Launched
from sparse24._errors import ArgumentError
from sparse24._options import Call
from sparse24._records import PLAIN, Compressed24, Fused, Multiply

MakeEpilogue = Callable[[Call, np.ndarray | None], Fused]  # of a call, and of its `out`


class ReadyOnCpu:
    """A prepared product of one signature, as `_ready.Ready` on a GPU.

    Parameters
    ----------
    multiply : callable
        ``multiply(b, out, epilogue)`` of matrices like those of the call that prepared it.
    held : array or None
        Another array that the result must not overlap.
    result : ndarray
        Of that call.
    transposed : bool
        Whether `multiply` computes the transposed product.
    overlap : str
        The message of the error if it does.
    """

    captured = True  # there are no graphs on the CPU

    def __init__(
        self, multiply: Multiply, held: np.ndarray | None, result: np.ndarray,
        *, transposed: bool = False, overlap: str = OVERLAP.format("out"),
    ):  # fmt: skip
        self._multiply, self._held, self._overlap = multiply, held, overlap
        self._shape, self._dtype = result.shape, result.dtype
        self._lay = as_matrices(vector=result.ndim == 1, transposed=transposed)

    def __call__(self, x: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        if out is not None:
            self._check_writable(out)
            self._check_apart(out, x, self._overlap)
        return self._fill(x, out, PLAIN)

    def _check_writable(self, out: np.ndarray) -> None:
        if not out.flags.writeable:  # its layout was checked at the first call
            _check.writable(out, argument="out")

    def _check_apart(self, written: np.ndarray, x: np.ndarray, error: str) -> None:
        held = self._held
        overlaps = np.may_share_memory(written, x)
        if overlaps or (held is not None and np.may_share_memory(written, held)):
            raise ArgumentError(error)

    def _fill(self, x: np.ndarray, out: np.ndarray | None, epilogue: Fused) -> np.ndarray:
        if out is None:
            out = np.empty(self._shape, self._dtype)
        if self._lay is None:
            self._multiply(x, out, epilogue)
        else:
            self._multiply(*self._lay(x, out), epilogue)
        return out


class ReadyWithOptions(ReadyOnCpu):
    """A `ReadyOnCpu` for a call with options, which are read again at each call.

    `make_epilogue` makes the epilogue of a call from them, and refuses what does not fit.
    """

    reads_options = True

    def __init__(
        self, multiply: Multiply, held: np.ndarray, result: np.ndarray,
        make_epilogue: MakeEpilogue, *, transposed: bool,
    ):  # fmt: skip
        super().__init__(multiply, held, result, transposed=transposed)
        self._make_epilogue, self._transposed = make_epilogue, transposed

    def __call__(  # type: ignore[override]
        self, x: np.ndarray, out: np.ndarray | None, call: Call
    ) -> np.ndarray:
        if out is not None:
            self._check_writable(out)
        epilogue = self._make_epilogue(call, out)
        if out is not None:
            self._check_apart(out, x, self._overlap)
        if epilogue.aux is not None:
            self._check_apart(epilogue.aux, x, OVERLAP.format("aux"))
        if self._transposed and epilogue is not PLAIN:
            epilogue = epilogue.transposed()
        return self._fill(x, out, epilogue)


def as_matrices(*, vector: bool, transposed: bool) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """What makes b and out of the operand and the result of a call; None where they are that."""
    return _columns if vector else _transposes if transposed else None


def _columns(x: Any, out: Any) -> tuple[Any, Any]:
    return x[:, None], out[:, None]


def _transposes(x: Any, out: Any) -> tuple[Any, Any]:
    return x.T, out.T


def of_launched(
    launched: Launched, result: np.ndarray, make_epilogue: MakeEpilogue | None, *, transposed: bool
) -> ReadyOnCpu:
    """What repeats a product of matrices, or of a matrix and a vector.

    `make_epilogue` is None for a product without options.
    """
    held = launched.a.values if isinstance(launched.a, Compressed24) else launched.a
    if make_epilogue is None:
        return ReadyOnCpu(prepared(launched), held, result, transposed=transposed)
    return ReadyWithOptions(prepared(launched), held, result, make_epilogue, transposed=transposed)


def prepared(launched: Launched) -> Multiply:
    """The product with what can be decided beforehand, else as it was launched."""
    from sparse24.kernels import cpu, cpu_across, cpu_expanded, cpu_few_bricks, cpu_prepared

    launcher, a, found = launched.launcher, launched.a, None
    if launcher is cpu.add_rows:
        found = cpu_expanded.across(a, launched.b)
    elif launcher is cpu.dense_matmul:
        found = cpu_prepared.dense(a, launched.b, launched.out)
    elif launcher.product is cpu.multiply_bricks:
        if a.values.flags.c_contiguous:  # else it would keep a copy
            found = cpu_few_bricks.FewBricks(a.values, a.quantised, launcher.dtype, launched.b)
    elif launcher.product is cpu.matmul and a.metadata is not None:
        found = cpu_expanded.along(a, launched.b)
        found = found or cpu_prepared.sparse(a.values, a.metadata, launched.b, launched.out)
    elif launcher.product is cpu.matmul_across and a.metadata is not None:
        found = cpu_across.prepared(a.values, a.metadata, a.k, launched.b)
    return found or (lambda b, out, epilogue: launcher(a, b, out, epilogue))
