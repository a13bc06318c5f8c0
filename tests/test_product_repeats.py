"""Products on a GPU that are repeated as they were planned, with a stand-in for the kernels."""

from __future__ import annotations

import fake_products
import numpy as np
import pytest
from fake_grouped import array
from fake_products import sparse

import sparse24 as s24
from sparse24 import ArgumentError, _foreign
from sparse24._dtypes import TABLE
from sparse24._options import NO_OPTIONS
from sparse24._product import EpilogueMaker
from sparse24._target import Result

M, K = 16, 32
OPTIONS = {  # of a vector for the columns, one for the rows, and a matrix; what they make of y
    "nothing": (lambda column, row, c: {}, lambda y, column, row, c: y),
    "a type": (lambda column, row, c: {"dtype": "float32"}, lambda y, column, row, c: y),
    "a factor": (lambda column, row, c: {"alpha": 2.0}, lambda y, column, row, c: 2 * y),
    "a scale": (
        lambda column, row, c: {"scales": (0.5, column)},
        lambda y, column, row, c: 0.5 * y * column,
    ),
    "scales": (
        lambda column, row, c: {"scales": (row, column)},
        lambda y, column, row, c: y * row[:, None] * column,
    ),
    "a bias": (
        lambda column, row, c: {"epilogue": s24.Epilogue(bias=column)},
        lambda y, column, row, c: y + column,
    ),
    "a bias of rows": (
        lambda column, row, c: {"epilogue": s24.Epilogue(bias=row[:, None])},
        lambda y, column, row, c: y + row[:, None],
    ),
    "a number": (
        lambda column, row, c: {"epilogue": s24.Epilogue(bias=3.0)},
        lambda y, column, row, c: y + 3,
    ),
    "a matrix": (lambda column, row, c: {"c": c, "beta": 0.5}, lambda y, column, row, c: y + c / 2),
}


@pytest.fixture
def gpu(monkeypatch):
    return fake_products.Device(monkeypatch)


def drawn(rng, *shape, dtype=np.float16):
    return array(rng.integers(-4, 5, shape).astype(dtype))


@pytest.mark.parametrize("given", [False, True], ids=["", "with an out"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
@pytest.mark.parametrize("vectors", [np.float16, np.float32])
def test_options_are_read_at_each_call(gpu, rng, name, dtype, vectors, given):
    a, dense = sparse(rng, (M, K), dtype)
    read = drawn(rng, M, dtype=vectors), drawn(rng, 5, dtype=vectors), drawn(rng, 5, M)
    options, finished = OPTIONS[name][0](*read), OPTIONS[name][1]
    for number in range(3):
        for part in read:
            part[...] = rng.integers(-4, 5, part.shape)
        x = drawn(rng, 5, K)
        out = gpu.empty((5, M), options.get("dtype", "float16")) if given else None
        y, want = s24.matmul(x, a.mT, out, **options), np.array(x, np.float64) @ dense.T
        np.testing.assert_allclose(y, finished(want, *read), rtol=2e-3)
        assert number == 0 or not gpu.planned
        gpu.planned.clear()
        assert out is None or y is out


@pytest.mark.parametrize("options", [{}, {"epilogue": s24.Epilogue(bias=2.0)}], ids=str)
@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_nothing_is_written_over_an_operand(gpu, rng, dtype, options):
    a, _ = sparse(rng, (8, K), dtype)
    x, values = drawn(rng, 5, K), a._operand.rows.values
    s24.matmul(x, a.mT, gpu.empty((5, 8), np.float16), **options)
    gpu.planned.clear()
    for operand in (x, values):
        out = operand.reshape(-1).view(np.float16)[:40].reshape(5, 8)
        before = operand.copy()
        with pytest.raises(ArgumentError, match="out shares memory with an operand"):
            s24.matmul(x, a.mT, out, **options)
        np.testing.assert_array_equal(operand, before)
    assert not gpu.planned


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
def test_aux_is_not_written_over_an_operand(gpu, rng, dtype):
    a, _ = sparse(rng, (8, K), dtype)
    x, other = drawn(rng, 5, K), drawn(rng, 5, K)
    epilogue = s24.Epilogue(aux=x.reshape(-1)[:40].reshape(5, 8))
    s24.matmul(other, a.mT, epilogue=epilogue)
    gpu.planned.clear()
    before = x.copy()
    with pytest.raises(ArgumentError, match="aux shares memory with an operand"):
        s24.matmul(x, a.mT, epilogue=epilogue)
    np.testing.assert_array_equal(x, before)
    assert not gpu.planned


SHAPES = [  # of A, and of x
    ((3, M, K), (3, 5, K)), ((3, M, K), (5, K)), ((M, K), (3, 5, K)), ((2, 3, M, K), (2, 3, 5, K)),
    ((3, 1, M, K), (1, 2, 5, K)), ((1, M, K), (4, 5, K)), ((2, 3, M, K), (K,)),
]  # fmt: skip
PARTS = {
    "all": lambda a: a,
    "later ones": lambda a: a[1:],
    "later ones of each": lambda a: a[:, 1:],
    "every other one": lambda a: a[::2],
}


@pytest.mark.parametrize("dtype", [np.float16, np.int8])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_stacks_multiply_by_elements_of_their_own(gpu, rng, shapes, dtype):
    several = [sparse(rng, shapes[0], dtype) for _ in range(2)]
    for a, dense in several * 3:
        x = drawn(rng, *shapes[1])
        want = np.array(x, np.float64) @ dense.swapaxes(-1, -2)
        for out in (None, gpu.empty(want.shape, np.float16)):
            np.testing.assert_allclose(s24.matmul(x, a.mT, out), want, rtol=2e-3)


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_stacks_multiply_by_elements_of_their_own(gpu, rng, part):
    several = [sparse(rng, (4, 3, M, K)) for _ in range(2)]
    x = drawn(rng, 5, K)
    for a, dense in several * 3:
        want = np.array(x, np.float64) @ PARTS[part](dense).swapaxes(-1, -2)
        np.testing.assert_allclose(x @ PARTS[part](a).mT, want, rtol=2e-3)


@pytest.mark.parametrize("shapes", [((3, M, K), (3, 5, K)), ((M, K), (3, 5, K))], ids=str)
def test_a_stack_is_planned_once(gpu, rng, shapes):
    a, _ = sparse(rng, shapes[0])
    for number in range(3):
        drawn(rng, *shapes[1]) @ a.mT
        assert number == 0 or not gpu.planned
        gpu.planned.clear()


def test_a_graph_holds_no_conversion_of_a_plan(gpu, rng):
    """What that allocates is kept only where the product is planned."""
    a, dense = sparse(rng, (M, K), np.int8)
    s24.matmul(drawn(rng, 5, K), a.mT, scales=(2.0, None))
    for gpu.capturing in (True, True, False):
        gpu.planned.clear()
        x = drawn(rng, 5, K)
        y = s24.matmul(x, a.mT, scales=(2.0, None))
        np.testing.assert_allclose(y, 2 * np.array(x, np.float64) @ dense.T, rtol=2e-3)
        assert len(gpu.planned) == gpu.capturing


class Tensor:
    """One of torch, which is another kind of array than what is made of it."""

    def __init__(self, seen):
        self.seen, self.shape, self.dtype = seen, seen.shape, seen.dtype


def test_a_vector_in_a_tensor_that_is_written_is_copied_at_each_repeat(gpu, monkeypatch):
    take, out = _foreign.take, Tensor(gpu.empty((3, 4), np.float32))
    unwrapped = lambda x, **how: take(getattr(x, "seen", x), **how)  # noqa: E731
    monkeypatch.setattr(_foreign, "take", unwrapped)
    types = Result((3, 4), "float32", None, True, TABLE["float32"], TABLE["float32"])
    make = EpilogueMaker(types, None, (3, 8), (8, 4), gpu, np.float32)
    call = NO_OPTIONS._replace(epilogue=s24.Epilogue(bias=out.seen[2]))
    assert not np.shares_memory(make(call, out).column_bias, out.seen)
