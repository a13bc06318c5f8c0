"""Matplotlib, loaded when a figure is drawn."""

from __future__ import annotations

from sparse24._errors import UnsupportedError


def pyplot():
    """``matplotlib.pyplot``, or an `UnsupportedError` that says how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise UnsupportedError(
            "figures need matplotlib; install it with: pip install 'sparse24[plot]'"
        ) from error
    return plt
