"""Products of stacks on a GPU: planned once for a layout, right for new addresses and contents."""

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dispatch
from sparse24._arrays import to_numpy

pytestmark = pytest.mark.gpu
SHAPES = [  # of A, and of x
    ((3, 64, 256), (3, 5, 256)), ((3, 64, 256), (5, 256)), ((64, 256), (3, 5, 256)),
    ((2, 3, 64, 256), (2, 3, 33, 256)), ((3, 1, 64, 256), (1, 2, 5, 256)),
    ((1, 64, 256), (4, 3, 256)),
]  # fmt: skip


def weight(rng, shape, kind: str):
    import cupy

    dense = cupy.asarray(rng.standard_normal(shape), np.float16)
    if kind in ("float32", "int8"):
        dense = (4 * dense).astype(kind)
    sparse = s24.compress(dense, on_excess="prune")
    return s24.quantise(sparse) if kind == "quantised" else sparse


def drawn(rng, shape, a):
    import cupy

    return cupy.asarray(4 * rng.standard_normal(shape)).astype(a.dtype)


@pytest.fixture
def fills(monkeypatch):
    """The products that were planned."""
    found, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *args: found.append(args) or fill(*args))
    return found


def assert_right(got, x, a):
    want = to_numpy(x).astype(np.float64) @ to_numpy(a.toarray()).astype(np.float64).swapaxes(
        -1, -2
    )
    assert got.shape == want.shape
    scale = np.abs(want).max()
    assert np.abs(to_numpy(got).astype(np.float64) - want).max() <= 3e-3 * scale


@pytest.mark.parametrize("kind", ["float16", "float32", "int8", "quantised"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_again(rng, cupy, kind, shapes):
    a = weight(rng, shapes[0], kind)
    for _ in range(4):
        x = drawn(rng, shapes[1], a)
        assert_right(x @ a.mT, x, a)
        lead = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        out = cupy.empty((*lead, shapes[1][-2], 64), "int32" if kind == "int8" else a.dtype)
        out.view(np.uint8).fill(0xFF)
        assert_right(s24.matmul(x, a.mT, out), x, a)


@pytest.mark.parametrize("kind", ["float16", "quantised"])
@pytest.mark.parametrize("shape", [(3, 64, 256), (64, 256)])
def test_a_stack_is_planned_once(rng, cupy, kind, shape, fills):
    a = weight(rng, shape, kind)
    for _ in range(3):  # memory comes to lie where it was
        drawn(rng, (3, 5, 256), a) @ a.mT
    planned = len(fills)
    for _ in range(3):
        x = drawn(rng, (3, 5, 256), a)
        assert_right(x @ a.mT, x, a)
    assert len(fills) == planned


@pytest.mark.parametrize("kind", ["float16", "quantised"])
def test_stacks_alike_have_elements_of_their_own(rng, cupy, kind):
    several = [weight(rng, (2, 3, 64, 256), kind) for _ in range(3)]
    x = drawn(rng, (2, 3, 8, 256), several[0])
    for a in several * 2:
        assert_right(x @ a.mT, x, a)
        part = a[:, 1:]  # whose batch axes are no single one
        assert_right(x[:, 1:] @ part.mT, x[:, 1:], part)


def test_options_of_stacks_are_read_at_each_call(rng, cupy):
    a = weight(rng, (3, 64, 256), "float16")
    for _ in range(3):
        x, bias = drawn(rng, (3, 5, 256), a), drawn(rng, (64,), a)
        got = s24.linear(x, a, bias=bias, activation="relu")
        want = np.maximum(to_numpy(x @ a.mT).astype(np.float32) + to_numpy(bias), 0)
        assert np.abs(to_numpy(got) - want).max() <= 4e-3 * np.abs(want).max()
