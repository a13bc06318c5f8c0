"""`explain` of hybrid matrices: the path that `matmul` takes, and what both refuse."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import Device, array

import sparse24 as s24
from sparse24 import _storage
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import on_cpu as hybrid_on_cpu
from sparse24.formats import hybrid_tiles as ht

M, K = 70, 80


@pytest.fixture
def weight(rng):
    return rng.integers(-3, 4, (M, K)).astype(np.float16)


def ones(*shape, dtype=np.float16):
    return np.ones(shape, dtype)


# Operands of ``H @ b`` and, with the axes exchanged, of ``x @ H.T``.
COLUMNS = {
    "a vector": ones(K), "a few": ones(K, 3), "rows on 16 bytes": ones(K, 8),
    "by columns": ones(8, K).T, "off": ones(K, 24)[:, ::2], "many": ones(K, 100),
    "a stack": ones(5, K, 3), "a stack of one": ones(1, 8, K).mT, "vectors": ones(2, 4, K, 1),
    "a wide stack": ones(2, K, 72), "wider types": ones(K, 3, dtype=np.float64),
}  # fmt: skip


@pytest.fixture
def taken(monkeypatch):
    """Paths that multiplied, with the number of columns and the type."""
    ran, choose = [], hybrid_dispatch.choose

    def recorded(h, b, algorithm, balance):
        ran.append((choose(h, b, algorithm, balance), h.dtype))
        return ran[-1][0]

    monkeypatch.setattr(hybrid_dispatch, "choose", recorded)
    return ran


def check(taken, weight, call, **options):
    """What is told of a call is what it does, with another matrix that has told of nothing."""
    told, h = [], s24.hybrid(weight)
    call(h, lambda a, b: told.append(s24.explain(a, b, **options)))
    assert not taken
    call(s24.hybrid(weight), lambda a, b: s24.matmul(a, b, **options))
    assert {path for path, _ in taken} == {told[0].chosen}
    taken.clear()
    return told[0]


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("share", [0.02, 0.9])
def test_the_path_on_the_cpu_is_told(taken, weight, rng, name, share):
    b = COLUMNS[name]
    weight = weight * (rng.random(weight.shape) < share)
    x = b if b.ndim == 1 else b.mT
    for dtype in (None, "float32"):
        check(taken, weight, lambda h, of: of(h, b), dtype=dtype)
        check(taken, weight, lambda h, of: of(x, h.T), dtype=dtype)
    check(taken, weight.T.copy(), lambda h, of: of(x, h))


@pytest.mark.parametrize("name", COLUMNS)
def test_the_path_on_a_gpu_is_told(taken, weight, monkeypatch, name):
    device = Device(monkeypatch)

    def predictions(h, n, copied=None):
        """Other choices for other columns, layouts and types."""
        by_n = {"gather": 1.0 + abs(n - 3), "scatter": 1.0 + abs(n - 16), "cublas": 40.0}
        return by_n | ({"panel": 0.5} if copied else {}) | (
            {"rows": 0.25} if h.dtype != np.float16 else {}
        )  # fmt: skip

    monkeypatch.setattr(hybrid_choice, "predictions", predictions)
    monkeypatch.setattr(hybrid_choice, "copying_paths", lambda *_: ["panel"])
    monkeypatch.setattr(_storage, "converted", lambda x, own, row: x.astype(row.logical))
    b = COLUMNS[name]
    b = array(b.base)[:, ::2] if name == "off" else array(b)
    x = b if b.ndim == 1 else b.mT
    for dtype in (None, "float32"):
        told = check(taken, weight, lambda h, of: of(h, b), dtype=dtype)
        check(taken, weight, lambda h, of: of(x, h.T), dtype=dtype)
        assert told.keeps_dense
    assert device.ran


def test_a_gpu_has_a_table_of_paths(weight, monkeypatch):
    device = Device(monkeypatch)
    device.times = {"scatter": 2e-6, "cublas": 9e-6, "gather": 1e-6}
    told = s24.explain(s24.hybrid(weight), array(ones(K, 8)))
    assert [(c.name, c.seconds) for c in told.candidates] == sorted(
        device.times.items(), key=lambda pair: pair[1]
    )
    first, _, _, _, *rows = str(told).splitlines()
    assert first == "gather: predicted 2.00 times as fast as scatter"
    assert [row.split() for row in rows] == [
        ["gather", "1.0", "µs", "runs"], ["scatter", "2.0", "µs"], ["cublas", "9.0", "µs"],
    ]  # fmt: skip
    told = s24.explain(array(ones(12, K)), s24.hybrid(weight).T)
    (scatter,) = (c for c in told.candidates if c.name == "scatter")
    assert scatter.copies
    assert (scatter.problem.m, scatter.problem.n, scatter.problem.k) == (M, 12, K)


def test_a_choice_of_many_columns_is_explained():
    h = s24.hybrid(np.eye(64, dtype=np.float32))
    told = s24.explain(h, ones(64, 128, dtype=np.float32))
    assert (told.chosen, told.candidates) == ("cpu", ())
    assert str(told) == f"cpu: {h.explain(128)['reason']}"
    assert "times as fast as blas" in told.reason
    full = s24.hybrid(ones(64, 64, dtype=np.float32))
    assert s24.explain(ones(128, 64, dtype=np.float32), full.T).chosen == "blas"


def test_no_tiles_are_built_to_tell_of_a_product_from_the_left(weight):
    h = s24.hybrid(weight)
    told = s24.hybrid(weight.T.copy()).explain(8)
    want = told["candidates"]["cpu"]
    assert s24.explain(ones(8, M), h).chosen == told["choice"]
    assert isinstance(h.T._tiles, ht.Transposed)
    assert h.T.explain(8)["candidates"]["cpu"] == pytest.approx(want)
    assert hybrid_on_cpu.choose(h.T, 8) == told["choice"]


@pytest.mark.parametrize(
    ("b", "more", "error", "words"),
    [
        (ones(3, 3), {}, s24.ShapeError, r"b must have shape .* with k = 80, got \(3, 3\)"),
        (ones(2, 70, 3), {}, s24.ShapeError, r"with k = 80, got \(2, 70, 3\)"),
        (3.0, {}, s24.ShapeError, "b must have at least one axis"),
        (ones(K, dtype=complex), {}, s24.DTypeError, "b.dtype must be one of"),
        (ones(K), {"algorithm": "cpu"}, s24.ArgumentError, r"HybridArray\.matmul takes algorithm="),
        (ones(K), {"beta": 1.0}, s24.ArgumentError, "beta=1 needs c"),
        (ones(K), {"dtype": "double precision"}, s24.DTypeError, "dtype must be one of"),
        (ones(K, 3), {"epilogue": s24.Epilogue(bias=np.ones(4))}, s24.ShapeError, "bias must"),
    ],
    ids=str,
)
def test_explain_refuses_what_matmul_refuses(weight, b, more, error, words):
    h = s24.hybrid(weight)
    for call in (s24.explain, s24.matmul):
        with pytest.raises(error, match=words):
            call(h, b, **more)
    for call in (s24.explain, s24.matmul):
        with pytest.raises(s24.ShapeError, match=r"\(k,\) or \(\.\.\., n, k\) with k = 80, got"):
            call(ones(3, 70), h.T)


@pytest.mark.parametrize("options", [{}, {"alpha": 2.0}, {"dtype": "float32"}], ids=str)
@pytest.mark.parametrize("kind", ["hybrid", "5:8"])
def test_explain_refuses_targets_that_matmul_refuses(weight, kind, options):
    packed = s24.compress(weight, pattern=(5, 8), on_excess="prune")
    a, dtype = s24.hybrid(weight) if kind == "hybrid" else packed, options.get("dtype", np.float16)
    b, fixed = ones(K, 3), np.zeros((M, 3), dtype)
    fixed.flags.writeable = False
    for out, error in (
        (np.zeros((M, 4), dtype), s24.ShapeError), (np.zeros((3, M, 3), dtype), s24.ShapeError),
        (np.zeros((M, 3), np.float64), s24.DTypeError), ([[0.0] * 3] * M, s24.DTypeError),
        (fixed, s24.ArgumentError), (b[:M], s24.ArgumentError),
    ):  # fmt: skip
        words = []
        for call in (s24.explain, s24.matmul):
            with pytest.raises(error) as caught:
                call(a, b, out, **options)
            words.append(str(caught.value))
        assert words[0] == words[1]
    for b, shape in ((ones(K), (M,)), (ones(K, 3), (M, 3)), (ones(5, K, 3), (5, M, 3))):
        out = np.zeros(shape, dtype)
        for call in (s24.explain, s24.matmul):
            call(a, b, out, **options)
        assert s24.explain(b.mT if b.ndim > 1 else b, a.T, out.mT if b.ndim > 1 else out, **options)


@pytest.mark.parametrize("kind", ["hybrid", "5:8"])
def test_explain_refuses_what_a_second_pass_would(weight, kind):
    packed = s24.compress(weight, pattern=(5, 8), on_excess="prune")
    a, b = s24.hybrid(weight) if kind == "hybrid" else packed, ones(K, 3)
    for more, error in (
        ({"c": ones(M, 4), "beta": 1.0}, s24.ShapeError),
        ({"c": ones(M, 3, dtype=np.float32), "beta": 1.0}, s24.DTypeError),
        ({"epilogue": s24.Epilogue(aux=b)}, s24.ArgumentError),
    ):
        for call in (s24.explain, s24.matmul):
            with pytest.raises(error):
                call(a, b, **more)


def test_lists_are_operands_too(weight, taken):
    check(taken, weight, lambda h, of: of(h, [[1.0, 2.0]] * K))
    bias = s24.Epilogue(bias=np.ones(M))
    check(taken, weight, lambda h, of: of([[1.0] * K] * 3, h.T), epilogue=bias)


def test_operands_without_elements_need_no_path(weight):
    h, empty = s24.hybrid(weight), s24.hybrid(np.zeros((0, 8), np.float32))
    for told in (
        s24.explain(h, ones(K, 0)), s24.explain(ones(0, K), h.T), s24.explain(h, ones(0, K, 3)),
        s24.explain(empty, ones(8, 3)), s24.explain(ones(3, 0), empty),
    ):  # fmt: skip
        assert told.chosen == "none"
        assert told.reason == "an operand has no elements, so no kernel runs"


def test_the_other_operand_may_be_sparse_too(weight, taken):
    n_m = s24.compress(ones(K, 8), pattern=(4, 8), on_excess="prune")
    for other in (s24.hybrid(weight.T.copy()), n_m, n_m.tocsr()):
        check(taken, weight, lambda h, of, other=other: of(h, other))
    check(taken, weight, lambda h, of: of(n_m.T.tocsr(), h.T))
    two_four = s24.random((8, M), dtype="float16", rng=0)
    assert s24.explain(two_four, s24.hybrid(weight)).chosen.startswith("cpu_")
    windows = s24.compress(ones(8, 16), pattern=(6, 8), on_excess="prune").windows()
    with pytest.raises(s24.ArgumentError, match=r"explain\(W\.array, b\[W\.index\]\)"):
        s24.explain(windows, s24.hybrid(ones(16, 4)))
