"""Products of float32 matrices at 1:2 in TF32, on the sparse tensor cores of Hopper."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import (
    _arrays,
    _cuda_graphs,
    _devices,
    _dtypes,
    _foreign,
    _foreign_streams,
    _memory_order,
    _planner,
    _spec,
)
from sparse24._bounded import remember
from sparse24._errors import DTypeError, PatternError, ShapeError, UnsupportedError
from sparse24._records import PLAIN, Compressed24, Problem
from sparse24.kernels.chip import chip

CODES = np.array([_spec.CODE_OF_PAIR[(0, 1)], _spec.CODE_OF_PAIR[(2, 3)]], np.uint8)
FLOAT32 = _dtypes.TABLE["float32"]
MOST_LAUNCHES = 256  # that a matrix keeps; shapes that change all the time must not pile up


def check(pattern: tuple[int, int], dtype: _dtypes.DType, device: str) -> None:
    """Raise unless TF32 tensor cores can multiply an array like this."""
    if pattern != (1, 2):
        raise PatternError(
            f"precision='tf32' needs pattern (1, 2), the array has {pattern}; compress it with "
            "pattern=(1, 2)"
        )
    if dtype is not FLOAT32:
        raise DTypeError(
            f"precision='tf32' is for float32, the array is {dtype.name}; use precision='full'"
        )
    if device == "cpu":
        raise UnsupportedError(
            "precision='tf32' needs a GPU; the array is on the cpu: use precision='full' there"
        )
    of = chip(int(device.partition(":")[2]))
    if not of.has_wgmma:
        major, minor = of.compute_capability[:-1], of.compute_capability[-1]
        raise UnsupportedError(
            "precision='tf32' needs a GPU of compute capability 9.0 (Hopper), the array is on one "
            f"of {major}.{minor}: use precision='full' there"
        )


def pack(places, k: int):
    """Codes of 1:2 places (m, ceil(k / 2)) in atoms of 64 rows by 64 columns.

    The tensor cores take the codes 0x4 and 0xE for the first and the second of a pair.
    """
    xp = _arrays.namespace(places)
    atoms_k, atoms_m, size = _spec.packed_shape(places.shape[0], k, atom_k=_spec.ATOM_K_TF32)
    pairs = _spec.ATOM_K_TF32 // 2  # in a row of an atom
    wide = xp.full((atoms_m * _spec.ATOM_M, atoms_k * pairs), CODES[0])
    wide[: places.shape[0], : places.shape[1]] = xp.asarray(CODES)[places]
    atoms = wide.reshape(atoms_m, _spec.ATOM_M, atoms_k, pairs).transpose(2, 0, 1, 3)
    atoms = atoms.reshape(atoms_k, atoms_m, _spec.ATOM_M * pairs)
    nibbles = xp.empty((atoms_k, atoms_m, 2 * size), np.uint8)
    nibbles[..., xp.asarray(_spec.ATOM_NIBBLES_TF32.ravel())] = atoms
    return nibbles[..., ::2] | nibbles[..., 1::2] << 4


class TensorFloat:
    """A float32 matrix (m, k) at 1:2, packed for TF32 products.

    Parameters
    ----------
    values, places : cupy.ndarray, shape (m, ceil(k / 2))
    shape : tuple (m, k)
    axis : {-1, -2}
        -2 if the array that is multiplied is the transpose of this matrix.
    """

    def __init__(self, values, places, shape: tuple[int, ...], axis: int = -1):
        if len(shape) != 2:
            raise UnsupportedError(f"precision='tf32' multiplies matrices, got shape {shape}")
        self._axis = axis
        rows = _arrays.empty_rows(_arrays.namespace(values), values.shape, values.dtype)
        rows[...] = values
        self._record = Compressed24(rows, None, pack(places, shape[1]), shape, FLOAT32)
        self._launches: dict[Problem, Any] = {}

    @property
    def nbytes(self) -> int:
        return self._record.values.nbytes + self._record.packed.nbytes

    def product(self, other, *, left: bool):
        """``A @ other`` or ``other @ A``, in the library of `other`."""
        with _foreign_streams.stream_of(other):
            other, restore = _foreign.take(other, argument="b" if left else "a")
            self._check_operand(other, left)
            b = (other if left else other.T) if other.ndim == 2 else other[:, None]
            m, k = self._record.shape
            if b.shape[0] != k:
                raise ShapeError(f"matmul: inner dimensions {k} and {b.shape[0]} differ")
            shape = (m, b.shape[1]) if left else (b.shape[1], m)
            result = _arrays.namespace(other).empty(shape, np.float32)
            self.multiply(b, result if left else result.T)
            return restore(result.ravel() if other.ndim == 1 else result)

    def _check_operand(self, other, left: bool) -> None:
        device = _arrays.device_of(self._record.values)
        _devices.refuse_apart(other, device, argument="b" if left else "a")
        if other.ndim not in (1, 2) or self._axis != (-1 if left else -2):
            raise UnsupportedError(
                "precision='tf32' multiplies matrices whose groups run along the contracted axis, "
                f"got axis {self._axis} and an operand of shape {other.shape}"
            )
        if other.dtype != np.float32:
            raise DTypeError(f"precision='tf32' needs float32 operands, got {other.dtype}")

    def multiply(self, b, out) -> None:
        """``out = A @ b`` for float32 CuPy matrices (k, n) and (m, n) of any strides."""
        if not out.size:
            return
        m, k = self._record.shape
        problem = Problem(
            m, b.shape[1], k, 1, "float32", "float32", "float32", tensor_float=True,
            compute_capability=int(b.device.compute_capability), **_memory_order.facts(b, out),
        )  # fmt: skip
        launch = self._launches.get(problem)
        if launch is None:
            launch = self._prepare(problem, b.device.id)
            remember(self._launches, problem, launch, MOST_LAUNCHES)
        with _cuda_graphs.keeping(self._record, out):  # b may be copied
            launch(self._record, b, out, PLAIN)

    def _prepare(self, problem: Problem, device: int):
        if not problem.k:
            return _zero
        kernel = _planner.TENSOR_FLOAT_KERNEL
        choice = _planner.choose(problem, device, dense=False, algorithm=kernel)
        return _planner.prepare(choice, PLAIN)


def _zero(record: Compressed24, b, out, epilogue) -> None:
    out.fill(0)
