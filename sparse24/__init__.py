"""2:4 sparse kernels for CuPy and NumPy arrays, with a NumPy-like API."""

from sparse24._version import __version__

__all__ = ["__version__"]
