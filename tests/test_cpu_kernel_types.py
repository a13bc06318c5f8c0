"""Kernels of the CPU are compiled for no more types than their machine code differs by."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparse24 import _arrays
from sparse24.kernels import _numba


def first(x):
    return x[0]


@pytest.mark.parametrize("read_only_first", [True, False])
def test_read_only_arrays_take_the_machine_code_of_others(monkeypatch, tmp_path, read_only_first):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    kernel, x = _numba.njit(first), np.array([7.0, 8.0])
    both = [x, _arrays.read_only(x)]
    assert [kernel(y) for y in (both[::-1] if read_only_first else both)] == [7, 7]
    assert len(list(tmp_path.rglob("*.nbc"))) == 1
    monkeypatch.setattr(kernel, "compile", None)  # it is not asked a second time
    assert [kernel(y) for y in both] == [7, 7]


def test_read_only_arrays_take_what_an_earlier_process_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    x = np.array([7.0, 8.0])
    assert _numba.njit(first)(x) == 7
    loaded = _numba.njit(first)
    assert loaded(_arrays.read_only(x)) == 7
    assert sum(loaded.stats.cache_hits.values()) == 1


def test_threads_that_meet_at_the_first_call_make_types_known_once(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    kernel, x = _numba.njit(first), _arrays.read_only(np.array([7.0, 8.0]))
    compiled, barrier = kernel.compile, threading.Barrier(4, timeout=60)

    def compile_together(sig):
        barrier.wait()  # all have asked before one is answered
        return compiled(sig)

    monkeypatch.setattr(kernel, "compile", compile_together)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(kernel, [x] * 4)) == [7] * 4
    monkeypatch.setattr(kernel, "compile", None)  # it is not asked again
    assert kernel(x) == 7


def test_constants_that_kernels_pass_on_are_not_compiled_in(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    called = _numba.njit(lambda x, place: x[place])
    kernel = _numba.njit(lambda x, place: (called(x, 0), called(x, 1), called(x, place)))
    assert kernel(np.array([7.0, 8.0, 9.0]), 2) == (7, 8, 9)
    assert len(called.signatures) == 1
