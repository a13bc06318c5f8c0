"""What is made of arrays is made on their device and stream, in the order of their library."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _foreign
from sparse24.formats import hybrid_build


class Theirs(np.ndarray):
    """Of another library: `_foreign.take` makes a plain array of it."""


W = np.eye(8, 16, dtype=np.float32)


def working(monkeypatch, *parts):
    """For each call of these parts whether it ran where the work of a `Theirs` goes."""
    within, ran = [], []

    @contextlib.contextmanager
    def stream_of(x):
        within.append(type(x) is Theirs)
        yield
        within.pop()

    def watched(module, name):
        works = getattr(module, name)

        def watch(*given, **named):
            ran.append(any(within))
            return works(*given, **named)

        monkeypatch.setattr(module, name, watch)

    monkeypatch.setattr(_foreign, "stream_of", stream_of)
    for module, name in parts:
        watched(module, name)
    return ran


def test_a_hybrid_matrix_is_built_on_the_stream_of_its_elements(monkeypatch):
    """Else products on the tensor's stream read tiles before they are filled."""
    ran = working(monkeypatch, (hybrid_build, "_survey"), (hybrid_build, "_fill"))
    h = s24.hybrid(W.view(Theirs))
    np.testing.assert_array_equal(h.toarray(), W)
    assert ran == [True, True]
    assert s24.hybrid(W).shape == W.shape
    assert ran == [True, True, False, False]


@pytest.mark.gpu
def test_a_hybrid_matrix_of_a_tensor_is_ready_for_products_on_its_stream(rng, monkeypatch):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    streams, fill = [], hybrid_build._fill

    def slow(*given):
        streams.append(cupy.cuda.get_current_stream().ptr)
        torch.cuda._sleep(100_000_000)  # before it on the stream of torch, or else not at all
        fill(*given)

    monkeypatch.setattr(hybrid_build, "_fill", slow)
    w = (rng.integers(-3, 4, (512, 256)) * (rng.random((512, 256)) < 0.1)).astype(np.float16)
    b = rng.integers(-2, 3, (256, 8)).astype(np.float16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        h = s24.hybrid(torch.from_numpy(w).to("cuda"))
        got = h @ torch.from_numpy(b).to("cuda")
    assert streams == [side.cuda_stream]
    np.testing.assert_array_equal(got.cpu().numpy(), w @ b)
