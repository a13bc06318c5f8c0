"""What a product hands on to be repeated: nothing of operands that were converted for it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import Array

import sparse24 as s24
from sparse24 import _dispatch
from sparse24._dtypes import TABLE
from sparse24._made_anew import Converting
from sparse24._options import NO_OPTIONS
from sparse24._records import PLAIN, Problem


@pytest.fixture
def launches(monkeypatch):
    """The operands that kernels are prepared for, on a GPU that does nothing."""
    found = []

    def prepare(a, b, out, epilogue, algorithm, problem):
        found.append(a)
        return _dispatch.Launched(lambda *operands: None, a.rows, b, out, epilogue)

    def problem_of(a, b, out, epilogue, types, fast):
        names = types.type_a.name, types.type_b.name
        return Problem(*a.shape[:1], b.shape[1], a.shape[1], 1, *names, types.type_a.name)

    monkeypatch.setattr(_dispatch, "prepare", prepare)
    monkeypatch.setattr(_dispatch, "problem_of", problem_of)
    monkeypatch.setattr(_dispatch._foreign_streams, "make_current", lambda: None)
    monkeypatch.setattr(_dispatch._streams, "hold_current", lambda: None)
    return found


def filled(array, dtype: str):
    """What `fill` returns for a product of an array with one of this type, on a GPU."""
    row = TABLE[dtype]
    types = SimpleNamespace(out=None, on_gpu=True, type_a=row, type_b=row, name=dtype)
    b = np.ones((array.shape[1], 3), row.logical).view(Array)
    out = np.empty((array.shape[0], 3), row.logical).view(Array)
    call = NO_OPTIONS._replace(algorithm="sparse_wgmma")
    return _dispatch._fill(array._operand, b, out, PLAIN, call, types)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_converted_matrix_is_repeated_as_it_is_stored(rng, launches, dtype):
    array = s24.random((8, 16), dtype="float16", rng=rng)
    launched = filled(array, dtype)
    assert launches[0].dtype is TABLE[dtype]
    assert launched.a is array._operand.rows
    assert isinstance(launched.launcher, Converting) == (dtype != "float16")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_dequantised_matrix_is_repeated_as_it_is_stored(rng, launches, dtype):
    array = s24.quantise(s24.random((16, 128), dtype="float16", rng=rng))
    launched = filled(array, dtype)
    assert not launches[0].rows.quantised
    assert launches[0].dtype is TABLE[dtype]
    assert launched.a is array._operand.rows
    assert isinstance(launched.launcher, Converting)
    assert launched.launcher.dtype is TABLE[dtype]
