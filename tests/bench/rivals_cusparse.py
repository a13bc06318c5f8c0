"""The rival cuSPARSE at its best: a CSR matrix by every algorithm, analysed before it is timed.

torch's product takes one algorithm, skips the analysis, and allocates its result, so the library is
called itself.  The dense operands lie in either order, whichever is faster.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
import torch
from harness import Contender, race

LIBRARY = "libcusparse.so.12"  # of CUDA 12 and of CUDA 13
# Enumerators of library_types.h and cusparse.h.
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
INDICES_OF_32_BITS, FROM_ZERO, NOT_TRANSPOSED = 2, 0, 0
ORDERS = {"C": 2, "F": 1}
VECTOR_ALGORITHMS = {"CSR_ALG1": 2, "CSR_ALG2": 3}
MATRIX_ALGORITHMS = {"CSR_ALG1": 4, "CSR_ALG2": 6, "CSR_ALG3": 12}
UNSUPPORTED = (3, 10)  # CUSPARSE_STATUS_INVALID_VALUE and _NOT_SUPPORTED
NEAR = 3.0  # times the fastest of one call each: from there on an algorithm is out of the race


class CusparseError(RuntimeError):
    """A function of cuSPARSE has failed, with this status."""

    def __init__(self, function: str, status: int):
        name, words = library().cusparseGetErrorName, library().cusparseGetErrorString
        name.restype = words.restype = ctypes.c_char_p
        super().__init__(f"{function}: {name(status).decode()} ({words(status).decode()})")
        self.status = status


@functools.cache
def library() -> Any:
    """The library that torch has brought along, or else the one that the system finds."""
    for folder in (*sys.path, str(Path(torch.__file__).parents[1])):
        for file in sorted(Path(folder).glob(f"nvidia/*/lib/{LIBRARY}")):
            return ctypes.CDLL(str(file))
    return ctypes.CDLL(LIBRARY)


def call(function: str, *arguments) -> None:
    status = getattr(library(), function)(*arguments)
    if status:
        raise CusparseError(function, status)


@functools.cache
def handle() -> ctypes.c_void_p:
    """The handle of this process, which lives as long."""
    made = ctypes.c_void_p()
    call("cusparseCreate", ctypes.byref(made))
    return made


class Csr(NamedTuple):
    """A CSR matrix with indices of 32 bits, all arrays CuPy's, or all NumPy's.

    cupyx has none of 16-bit elements.
    """

    starts: Any
    columns: Any
    values: Any
    shape: tuple[int, int]

    @classmethod
    def of(cls, dense) -> Csr:
        """The non-zeros of a dense matrix."""
        held = dense != 0
        xp = cp.get_array_module(dense)
        starts = xp.zeros(len(dense) + 1, np.int32)
        starts[1:] = held.sum(axis=1).cumsum()
        places = xp.flatnonzero(held)
        columns = (places % dense.shape[1]).astype(np.int32)
        return cls(starts, columns, dense.ravel()[places], dense.shape)

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    def longest(self, count: int) -> tuple[np.ndarray, Any]:
        """The numbers of the longest rows, and these rows as a dense matrix."""
        starts = cp.asnumpy(self.starts)
        rows = np.argsort(-np.diff(starts), kind="stable")[:count]
        xp = cp.get_array_module(self.values)
        dense = xp.zeros((len(rows), self.shape[1]), self.dtype)
        for line, row in zip(dense, rows, strict=True):
            held = slice(int(starts[row]), int(starts[row + 1]))
            line[self.columns[held]] = self.values[held]
        return rows, dense

    def copy(self) -> Csr:
        """The same matrix elsewhere in memory."""
        return Csr(self.starts.copy(), self.columns.copy(), self.values.copy(), self.shape)


class Way(NamedTuple):
    """A routine of cuSPARSE, its algorithm, and NumPy's letter of the order of dense operands."""

    routine: str
    algorithm: int
    order: str


def ways(n: int) -> dict[str, Way]:
    """Every way to multiply by `n` columns, by name."""
    found = {}
    if n == 1:
        found = {f"SpMV {name}": Way("SpMV", x, "C") for name, x in VECTOR_ALGORITHMS.items()}
    for order in ORDERS:
        for name, number in MATRIX_ALGORITHMS.items():
            found[f"SpMM {name} {order}"] = Way("SpMM", number, order)
    return found


class Product:
    """Each call is ``out = matrix @ b`` on CuPy's current stream; the analysis is done before.

    Keeps the operands and cuSPARSE's room; its descriptors go with it.
    """

    def __init__(self, matrix: Csr, b, out, way: Way):
        wide = out.dtype == np.float64
        real = ctypes.c_double if wide else ctypes.c_float
        one, zero = real(1), real(0)
        of_vector = way.routine == "SpMV"
        dense = self._vector if of_vector else self._dense
        self._routine = f"cusparse{way.routine}"
        self._kept = matrix, b, out
        self._arguments = (
            handle(), *(NOT_TRANSPOSED,) * (1 if of_vector else 2), ctypes.byref(one),
            self._sparse(matrix), dense(b, way), ctypes.byref(zero), dense(out, way),
            TYPES["float64" if wide else "float32"], way.algorithm,
        )  # fmt: skip
        size = ctypes.c_size_t()
        self._on_stream(f"{self._routine}_bufferSize", ctypes.byref(size))
        self._room = cp.empty(max(size.value, 1), np.uint8)
        self._on_stream(f"{self._routine}_preprocess", _address(self._room))

    def __call__(self) -> None:
        self._on_stream(self._routine, _address(self._room))

    def _on_stream(self, function: str, last) -> None:
        call("cusparseSetStream", handle(), ctypes.c_void_p(cp.cuda.get_current_stream().ptr))
        call(function, *self._arguments, last)

    def _sparse(self, x: Csr) -> ctypes.c_void_p:
        addresses = map(_address, (x.starts, x.columns, x.values))
        sizes = (ctypes.c_int64(size) for size in (*x.shape, len(x.values)))
        indices = (INDICES_OF_32_BITS, INDICES_OF_32_BITS, FROM_ZERO)
        return self._made("Csr", "SpMat", *sizes, *addresses, *indices, TYPES[x.dtype.name])

    def _dense(self, x, way: Way) -> ctypes.c_void_p:
        m, n = x.shape
        sizes = (ctypes.c_int64(size) for size in (m, n, n if way.order == "C" else m))
        kind = (TYPES[x.dtype.name], ORDERS[way.order])
        return self._made("DnMat", "DnMat", *sizes, _address(x), *kind)

    def _vector(self, x, way: Way) -> ctypes.c_void_p:
        return self._made(
            "DnVec", "DnVec", ctypes.c_int64(len(x)), _address(x), TYPES[x.dtype.name]
        )

    def _made(self, kind: str, family: str, *arguments) -> ctypes.c_void_p:
        """A descriptor, which is destroyed after this object."""
        made = ctypes.c_void_p()
        call(f"cusparseCreate{kind}", ctypes.byref(made), *arguments)
        end = weakref.finalize(self, call, f"cusparseDestroy{family}", made)
        end.atexit = False
        return made


def _address(x) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.data.ptr)


class Best(NamedTuple):
    """The fastest way: its name, ready to be timed, and where its calls write, (m, n)."""

    way: str
    contender: Contender
    out: Any


def best(matrices: Sequence[Csr], b) -> Best:
    """The fastest way to multiply copies of a matrix in turn by `b`, (k, n).

    One call of each way finds those that are far behind; the others race for a moment, over all
    copies.
    """
    (m, _), n = matrices[0].shape, b.shape[1]
    sides = {
        order: (cp.array(b, order=order), cp.full((m, n), cp.nan, b.dtype, order=order))
        for order in ORDERS
    }
    every = ways(n)
    make = lambda name, x: Product(x, *sides[every[name].order], every[name])  # noqa: E731
    once = {name: us for name in every if (us := _once(name, make, matrices[0])) is not None}
    if not once:
        raise RuntimeError(f"cuSPARSE supports no product of {b.dtype} by {n} columns")
    found = {name: Contender([make(name, x) for x in matrices]) for name in near(once)}
    race(found, rounds=3, budget_ms=1)
    name = min(found, key=lambda name: found[name].us)
    found[name].samples.clear()
    return Best(name, found[name], sides[every[name].order][1])


def _once(name: str, make: Callable[[str, Csr], Product], matrix: Csr) -> float | None:
    """Microseconds of a call; None, after saying so, of a way that cuSPARSE does not support."""
    try:
        tried = Contender([make(name, matrix)])
    except CusparseError as error:
        if error.status not in UNSUPPORTED:
            raise
        print(f"cuSPARSE leaves out {name}, {matrix.dtype} {matrix.shape}: {error}", flush=True)
        return None
    for _ in range(2):
        tried.run(1)
    return min(tried.samples)


def near(times: dict[str, float]) -> list[str]:
    """The names of those that take at most `NEAR` times as long as the fastest."""
    return [name for name, us in times.items() if us <= NEAR * min(times.values())]
