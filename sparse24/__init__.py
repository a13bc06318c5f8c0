"""2:4 sparse kernels for CuPy and NumPy arrays, with a NumPy-like API."""

from sparse24._errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    DTypeError,
    FormatError,
    PatternError,
    ShapeError,
    Sparse24Error,
    UnsupportedError,
)
from sparse24._methods import Calibration
from sparse24._obeys import check_24, is_24
from sparse24._prune import mask, prune
from sparse24._version import __version__

__all__ = [
    "ArgumentError",
    "Calibration",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "FormatError",
    "PatternError",
    "ShapeError",
    "Sparse24Error",
    "UnsupportedError",
    "__version__",
    "check_24",
    "is_24",
    "mask",
    "prune",
]
