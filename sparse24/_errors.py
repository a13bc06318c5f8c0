"""The errors that sparse24 raises.

Each is also the built-in error that a NumPy user would expect, so code that
catches ``ValueError`` or ``TypeError`` keeps working.  A message names the
argument, the rule, the value and a way out.
"""


class Sparse24Error(Exception):
    """Base class of every error that sparse24 raises on purpose."""


class ShapeError(Sparse24Error, ValueError):
    """Shapes that do not fit together, or that an argument may not have."""


class DTypeError(Sparse24Error, TypeError):
    """An element type that the function cannot take."""


class PatternError(Sparse24Error, ValueError):
    """A matrix that does not obey the pattern, or a pattern that does not exist."""


class ArgumentError(Sparse24Error, ValueError):
    """A value that is out of range, unknown, or contradicts another argument."""


class OutOfRangeError(ArgumentError, IndexError):
    """An index past the end of a stack: loops over sequences look for an `IndexError`."""


class DeviceError(Sparse24Error, RuntimeError):
    """Arrays on different devices, or a device that is not there, or has no room for a result."""


class NoRoomError(DeviceError, MemoryError):
    """A result that is larger than the memory of its device."""


class FormatError(Sparse24Error, ValueError):
    """A file, or the parts of an array, that are damaged or not in a format of sparse24."""


class UnsupportedError(Sparse24Error, NotImplementedError):
    """A well-defined operation that sparse24 does not implement."""


class CompileError(Sparse24Error, RuntimeError):
    """A CUDA kernel that did not compile; the message has the log and the options."""


# As users import them, and as tracebacks should show them.
for _error in (Sparse24Error, *Sparse24Error.__subclasses__()):
    _error.__module__ = "sparse24"
