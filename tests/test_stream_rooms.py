"""Workspaces of streams: one for each, whoever asks first."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from sparse24._hybrid import hybrid
from sparse24.kernels import block_sums
from sparse24.kernels.stream_rooms import StreamRooms

pytestmark = [pytest.mark.gpu, pytest.mark.stem("hybrid_scatter")]


def test_threads_share_the_room_of_their_stream(rng, monkeypatch):
    import cupy

    made = []

    def allocate() -> tuple:
        time.sleep(0.05)
        made.append(block_sums._allocate())
        return made[-1]

    def multiply(i: int) -> None:
        results[i] = matrices[i].matmul(b, algorithm="scatter")

    shares = (rng.random((4, 256, 512)) < 0.2) * rng.integers(-3, 4, (4, 256, 512))
    weights = cupy.asarray(shares, np.float16)
    b = cupy.asarray(rng.integers(-2, 3, (512, 16)), np.float16)
    matrices, results = [hybrid(w) for w in weights], [None] * len(weights)
    for h in matrices:
        h.matmul(b, algorithm="scatter")
        h._plans.clear()
        h._prepared.pop("scatter")
    monkeypatch.setattr(block_sums, "rooms", StreamRooms(allocate))
    threads = [threading.Thread(target=multiply, args=(i,)) for i in range(len(matrices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2  # that of the stream, and one for the next
    for w, got in zip(weights, results, strict=True):
        assert (got == w @ b).all()
