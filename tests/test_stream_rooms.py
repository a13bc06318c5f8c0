"""Rooms in which blocks of a launch meet: one for every stream, also while a graph is captured."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from sparse24 import UnsupportedError
from sparse24.kernels import block_sums
from sparse24.kernels.stream_rooms import StreamRooms


def test_a_capture_takes_the_spare_room():
    numbers = itertools.count()
    rooms = StreamRooms(lambda: (next(numbers),))
    with pytest.raises(UnsupportedError, match="run the product once on the stream before"):
        rooms._assign(0, capturing=True)
    first = rooms._assign(0, capturing=False)
    captured = rooms._assign(0, capturing=True)
    assert captured != first
    with pytest.raises(UnsupportedError):
        rooms._assign(0, capturing=True)
    with pytest.raises(UnsupportedError):
        rooms._assign(1, capturing=True)  # the spare one was of another device


@pytest.mark.gpu
@pytest.mark.stem("hybrid_scatter")
@pytest.mark.parametrize("n", [16, 64])
def test_nothing_is_left_in_a_room(rng, n):
    cupy = pytest.importorskip("cupy")
    from sparse24._dtypes import lookup
    from sparse24.kernels import hybrid_scatter

    w = (rng.standard_normal((700, 5000)) * (rng.random((700, 5000)) < 0.1)).astype(np.float16)
    layout = hybrid_scatter.prepare(cupy.asarray(w).view(np.uint16), lookup("float16"))
    with cupy.cuda.Stream(non_blocking=True) as stream:
        b, out = cupy.ones((5000, n), np.float16), cupy.empty((700, n), np.float16)
        for blocks in (9, 132):
            hybrid_scatter.product(layout, b, out, blocks=blocks)
            stream.synchronize()
            _, slots = block_sums.rooms._rooms[cupy.cuda.Device().id, stream.ptr]
            assert (slots == block_sums.MISSING).all()


@pytest.mark.gpu
@pytest.mark.stem("hybrid_scatter")
def test_threads_share_the_room_of_their_stream(rng, monkeypatch):
    cupy = pytest.importorskip("cupy")
    from sparse24._to_hybrid import hybrid

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
