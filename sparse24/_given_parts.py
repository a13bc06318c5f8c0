"""Parts of arrays that a caller gives to `convert`, as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ShapeError
from sparse24._records import Compressed24, Operand24
from sparse24.formats.parts import Parts
from sparse24.formats.two_four import Sparse24Array


def host(x: Any, argument: str) -> np.ndarray:
    """A part as a NumPy array; tensors of torch keep their type, bfloat16 and fp8 too."""
    _check.unmasked(x, argument=argument)
    try:
        return np.asarray(_arrays.to_numpy(x, argument=argument))
    except ValueError as error:  # lists of two lengths
        raise ShapeError(f"{argument} must be an array: {error}") from error


def checked(parts: Parts, where: str) -> Sparse24Array:
    """The array of parts, which are checked; it shares their memory."""
    parts.check(where)
    record = Compressed24(parts.values, parts.metadata, None, parts.shape, parts.dtype)
    return Sparse24Array(Operand24(record, None, None, parts.shape, parts.dtype))
