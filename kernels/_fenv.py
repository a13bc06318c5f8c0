"""The floating-point environment of a thread, such as whether it flushes subnormals to zero.

A thread begins with that of the one that makes it.  XLA calls back in threads that flush, so
workers made there would go on to do so for everybody, and the rows of one result would differ
by the thread that computed them.  So each worker takes over the environment of its caller.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

# Room for a `fenv_t`, which has 32 bytes on x86-64, 16 on macOS and 8 on other ARM machines.
_Environment = ctypes.c_char * 64


def _functions() -> tuple[Callable, Callable] | None:
    """`fegetenv` and `fesetenv` of the C library (C11, 7.6.4), if it can be reached."""
    try:
        library = ctypes.PyDLL("ucrtbase" if sys.platform == "win32" else None)
        return library.fegetenv, library.fesetenv
    except (OSError, AttributeError):  # no such library, or it has none of them
        return None


_found = _functions()


def of_this_thread() -> ctypes.Array | None:
    """The environment of the calling thread; None where C cannot be asked."""
    if _found is None:
        return None
    environment = _Environment()
    return None if _found[0](environment) else environment


def take_over(environment: ctypes.Array | None) -> None:
    """Give the calling thread an environment that `of_this_thread` returned."""
    if environment is not None and _found is not None:
        _found[1](environment)
