"""Where the sources are, and the public parts of the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import sparse24

ROOT = Path(__file__).resolve().parents[1]


def parts():
    """The public modules that can be imported here."""
    for module in sparse24._MODULES:
        if module not in ("jax", "torch") or importlib.util.find_spec(module):
            yield module, getattr(sparse24, module)
