"""Threads that flush subnormal numbers to zero, as those do in which XLA calls back."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import sparse24 as s24
from sparse24.kernels import _fenv, _numba
from sparse24.kernels.cpu_decode import decode_into

torch = pytest.importorskip("torch")

SUBNORMAL = 1e-40


@pytest.fixture
def flushing():
    """The thread of the test flushes."""
    before = _fenv.of_this_thread()
    if before is None or not torch.set_flush_denormal(True):
        pytest.skip("no thread can be told to flush here")
    yield
    _fenv.take_over(before)
    assert not flushes()


def flushes() -> bool:
    return np.multiply(np.float32(SUBNORMAL), np.float32(1)) == 0


def by_thread(monkeypatch) -> dict[int, bool]:
    """Whether each thread that helps flushes."""
    monkeypatch.setattr(_numba, "threads", lambda: 2)
    found, both = {}, threading.Barrier(2)

    def task(_: int) -> None:
        both.wait(60)  # so that no thread takes both tasks
        found[threading.get_ident()] = flushes()

    _numba.parallel(task, 2)
    return found


def test_workers_take_over_what_their_caller_has(monkeypatch):
    monkeypatch.setattr(_numba, "_pool", None)
    assert list(by_thread(monkeypatch).values()) == [False, False]
    before = _fenv.of_this_thread()
    if not torch.set_flush_denormal(True):
        pytest.skip("no thread can be told to flush here")
    try:
        assert list(by_thread(monkeypatch).values()) == [True, True]
    finally:
        _fenv.take_over(before)
    assert list(by_thread(monkeypatch).values()) == [False, False]


def test_workers_that_were_made_by_a_thread_that_flushes(monkeypatch, flushing):
    monkeypatch.setattr(_numba, "_pool", None)
    by_thread(monkeypatch)
    torch.set_flush_denormal(False)
    assert list(by_thread(monkeypatch).values()) == [False, False]


def test_every_half_is_decoded(flushing):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    out = np.empty(every.size, np.float32)
    decode_into(every, s24._dtypes.TABLE["float16"], out)
    torch.set_flush_denormal(False)
    np.testing.assert_array_equal(out.view(np.uint32), every.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("n", [1, 5, 40, 300])
def test_subnormal_halves_are_multiplied(rng, flushing, n):
    w = (rng.integers(-9, 10, (64, 64)) * 2.0**-24).astype(np.float16)
    x = rng.integers(-9, 10, (64, n)).astype(np.float32)
    a = s24.compress(s24.prune(w))
    got = a @ (x.astype(np.float16)), a @ (1024 * x).astype(np.float16)
    torch.set_flush_denormal(False)
    exact = a.toarray().astype(np.float64) @ x.astype(np.float64)
    for product, scale in zip(got, (1, 1024)):
        np.testing.assert_array_equal(product, (exact * scale).astype(np.float16))
