"""Functions that save and load, and files that are damaged, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import sparse24 as s24

FORMATS = {
    "npz": (s24.save_npz, s24.load_npz),
    "safetensors": (s24.save_safetensors, s24.load_safetensors),
}


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


def assert_same(a, b):
    assert (a.shape, a.dtype, a.axis, a.transposable) == (b.shape, b.dtype, b.axis, b.transposable)
    np.testing.assert_array_equal(bits(a.values), bits(b.values))
    np.testing.assert_array_equal(a.metadata, b.metadata)


def after_flips(path: Path, load: Callable[[Path], Any]) -> Iterator[Any]:
    """What a file gives, with one byte after the other changed, where that is not refused."""
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :])
        try:
            loaded = load(path)
        except s24.FormatError:
            continue
        yield loaded
