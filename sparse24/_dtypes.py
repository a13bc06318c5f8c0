"""The element types of sparse24, in one table.

CuPy has no 8-bit floating type, so fp8 travels as ``uint8`` on the GPU and the
logical type rides beside it.  The table says for each type how it is carried,
what its products accumulate in and what they return by default.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from sparse24 import _check
from sparse24._errors import DTypeError


@dataclass(frozen=True)
class DType:
    """One element type.

    Attributes
    ----------
    name : str
        The name used in files, messages and CUDA macros.
    logical : numpy.dtype
        What ``array.dtype`` says to the user.
    storage : numpy.dtype
        The same-sized type that carries it where the logical type is unknown.
    accumulator : numpy.dtype
        The type in which a product sums.
    result : str
        Name of the type of a product, unless ``dtype=`` asks for another.
    """

    name: str
    logical: np.dtype
    storage: np.dtype
    accumulator: np.dtype
    result: str

    def __reduce__(self):
        return lookup, (self.name,)  # a row is told by its identity, also after unpickling

    @property
    def itemsize(self) -> int:
        return self.logical.itemsize

    @property
    def is_float8(self) -> bool:
        return self.name.startswith("float8")

    @property
    def carried(self) -> np.dtype:
        """What ``array.dtype`` says on a GPU: CuPy knows fp8 as bits alone."""
        return self.storage if self.is_float8 else self.logical


def _row(name, logical, storage, accumulator, result=None):
    return DType(name, np.dtype(logical), np.dtype(storage), np.dtype(accumulator), result or name)


_ROWS = (
    _row("float16", np.float16, np.uint16, np.float32),
    _row("bfloat16", ml_dtypes.bfloat16, np.uint16, np.float32),
    _row("float32", np.float32, np.uint32, np.float32),
    _row("float64", np.float64, np.uint64, np.float64),
    _row("int8", np.int8, np.uint8, np.int32, "int32"),
    _row("float8_e4m3fn", ml_dtypes.float8_e4m3fn, np.uint8, np.float32, "bfloat16"),
    _row("float8_e5m2", ml_dtypes.float8_e5m2, np.uint8, np.float32, "bfloat16"),
)
TABLE: dict[str, DType] = {row.name: row for row in _ROWS}
NAMES: tuple[str, ...] = tuple(TABLE)
OF_16_BITS = ("float16", "bfloat16")
OUTPUT_NAMES: tuple[str, ...] = (*NAMES, "int32")
_BY_LOGICAL = {row.logical: row for row in _ROWS}
LOGICAL: frozenset[np.dtype] = frozenset(_BY_LOGICAL)


def lookup(dtype, *, argument: str = "dtype", known: tuple[str, ...] = NAMES) -> DType:
    """The element type of a dtype or a name, or raise `DTypeError`, which lists `known`."""
    if isinstance(dtype, DType):
        return dtype
    name = by_name(dtype)
    if isinstance(name, str) and name in TABLE:
        return TABLE[name]
    key = of_numpy(name)
    row = _BY_LOGICAL.get(key) if key is not None else None
    if row is None:
        raise DTypeError(
            f"{argument} must be one of {', '.join(known)}, got {_check.shown(dtype)}; "
            f"{_way_out(key, argument, known)}"
        )
    return row


def holding(whole: np.dtype, wanted: DType) -> type:
    """The float type to which whole numbers are converted before `wanted`.

    It holds them exactly, up to 2**53, so that they are rounded only once.
    """
    exact = wanted.name == "float64" or (whole.itemsize > 2 and wanted.name != "float32")
    return np.float64 if exact else np.float32


def of_numpy(dtype) -> np.dtype | None:
    """The NumPy dtype that is named by `dtype`; None for all else, also for arrays."""
    if _check.is_an_array(dtype):
        return None
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError):
        return None


def by_name(dtype):
    """A type of torch, such as ``torch.bfloat16``, by its name; all else unchanged."""
    return str(dtype).removeprefix("torch.") if is_torchs(dtype) else dtype


def is_torchs(dtype) -> bool:
    kind = type(dtype)
    return kind.__name__ == "dtype" and kind.__module__ == "torch"


def _way_out(key: np.dtype | None, argument: str, known: tuple[str, ...]) -> str:
    """What to do about a type that is unknown: of an array, or one that was asked for."""
    if not argument.endswith(".dtype"):
        return "name one of these"
    if key == np.uint8 and known == NAMES:
        return (
            "convert it first, for example with .astype('float32'), or name the fp8 type of its "
            "bits: dtype=, a_dtype=, b_dtype= or x_dtype="
        )
    if key is not None and key.newbyteorder("=") in _BY_LOGICAL:
        return f"it is in the byte order of other machines; use .astype({key.name!r})"
    if key is not None and key.kind == "c":
        x = argument.removesuffix(".dtype")
        return f"take {x}.real and {x}.imag one by one: A @ (u + 1j * v) is A @ u + 1j * (A @ v)"
    return "convert it first, for example with .astype('float32')"


def numpy_dtype(name: str) -> np.dtype:
    """Return the logical NumPy dtype of an operand's or a result's type name."""
    return np.dtype(np.int32) if name == "int32" else TABLE[name].logical
