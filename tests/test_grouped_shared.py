"""Experts on the CPU: those with few tokens side by side, others by all threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from grouped_cases import offsets_of

import sparse24 as s24
from sparse24 import _ready_stacks
from sparse24.kernels import _numba


@pytest.fixture(params=[1, 2, 5])
def threads(request, monkeypatch):
    monkeypatch.setattr(_numba, "threads", lambda: request.param)
    monkeypatch.setattr(_numba, "_pool", None)
    return request.param


def test_little_work_is_shared_and_much_is_not(threads):
    little, much = _numba.WAKING // 2, _numba.WAKING
    work = {0: 1, 2: little, 3: much, 5: little, 6: little, 9: 2 * much}
    ran: dict[int, tuple] = {}

    def one(i: int) -> None:
        time.sleep(0.02)
        ran[i] = threading.get_ident(), getattr(_numba._thread, "busy", False)

    _ready_stacks.share(one, work)
    own = threading.get_ident()
    assert ran.keys() == work.keys()
    assert {ran[i] for i in (3, 9)} == {(own, False)}  # so that they may use all threads
    assert {busy for i in (0, 2, 5, 6) for _, busy in [ran[i]]} == {threads > 1}
    assert (len({ran[i][0] for i in (0, 2, 5, 6)}) > 1) == (threads > 1)


def test_too_little_work_stays_on_its_thread(threads):
    ran = []
    _ready_stacks.share(lambda i: ran.append((i, threading.get_ident())), {4: 1, 7: 3, 8: 2})
    assert ran == [(i, threading.get_ident()) for i in (7, 8, 4)]


def test_errors_of_an_expert_are_raised(threads):
    def one(i: int) -> None:
        if i == 1:
            raise ValueError("expert 1")

    with pytest.raises(ValueError, match="expert 1"):
        _ready_stacks.share(one, dict.fromkeys(range(4), _numba.WAKING // 2))


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_same_bits_by_any_number_of_threads(rng, monkeypatch, quantised, gated):
    counts = (3, 0, 40, 1, 600, 2, 5, 1, 1, 9)
    a = s24.random((len(counts), 256, 512), rng=rng)
    experts = s24.quantise(a, method="absmax") if quantised else a
    x = rng.standard_normal((sum(counts), 512)).astype(np.float32)
    options = {"offsets": offsets_of(counts), "gated": gated, "activation": "silu"}
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(_numba, "threads", lambda threads=threads: threads)
        monkeypatch.setattr(_numba, "_pool", None)
        found += [s24.grouped_linear(x, experts, **options) for _ in range(2)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
