"""The paths of a hybrid product: each right, prepared once, and captured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sparse24 import _arrays, families
from sparse24._dtypes import lookup
from sparse24._errors import ArgumentError, UnsupportedError
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import dispatch as hybrid_dispatch
from sparse24._hybrid import few_columns, two_four
from sparse24._hybrid import layouts as hybrid_layouts
from sparse24._hybrid.predict import SUMS_FROM
from sparse24._to_hybrid import hybrid
from sparse24.formats import hybrid_build

pytestmark = pytest.mark.stem("hybrid_overflow")


@pytest.mark.gpu
def test_matrices_of_more_rows_than_a_grid_has(rng, monkeypatch):
    import cupy

    w = cupy.asarray((rng.integers(-3, 4, (130, 64)) * (rng.random((130, 64)) < 0.3)), np.float16)
    b = cupy.asarray(rng.integers(-2, 3, (64, 96)), np.float16)
    monkeypatch.setattr(two_four, "MOST_BLOCKS", 2)
    h = hybrid(w)
    assert (h.matmul(b, algorithm="two_four") == w @ b).all()
    monkeypatch.setattr(few_columns, "MOST_BLOCKS", 2)
    with pytest.raises(ArgumentError, match="algorithm must be one of"):
        hybrid(w).matmul(b[:, :8], algorithm="stream")
    monkeypatch.setattr(hybrid_build, "MOST_BLOCKS", 2)
    with pytest.raises(UnsupportedError, match=r"has at most 128 rows, got 130; build one"):
        hybrid(w)
    assert hybrid(w.get()).shape == (130, 64)


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.7, 0.9995])
def test_more_columns_than_kernels_count_go_in_parts(rng, monkeypatch, zeros):
    import cupy

    monkeypatch.setattr(hybrid_dispatch, "MOST_COLUMNS", 40)
    w = (rng.integers(-3, 4, (70, 90)) * (rng.random((70, 90)) > zeros)).astype(np.float16)
    b = rng.integers(-2, 3, (90, 130)).astype(np.float16)
    h = hybrid(cupy.asarray(w))
    for _ in range(2):
        np.testing.assert_array_equal((h @ cupy.asarray(b)).get(), w @ b)
        out = cupy.full((130, 70), np.nan, np.float16).T
        h.matmul(cupy.asarray(b), out=out)
        np.testing.assert_array_equal(out.get(), w @ b)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 3, 60, 100, 128, 256, 300])
def test_every_path_is_exact_on_whole_numbers(rng, dtype, n):
    cupy = pytest.importorskip("cupy")
    kind = lookup(dtype).logical
    w = rng.integers(-3, 4, (210, 515)) * (rng.random((210, 515)) < 0.35)
    b = rng.integers(-1, 2, (515, n)) * (rng.random((515, n)) < 0.2)
    h = hybrid(cupy.asarray(w.astype(kind)))
    right = cupy.asarray(b.astype(kind))
    plan = h.explain(n)
    wanted = {"tiles", "cublas", "csr"} | ({"rows"} if n <= 4 else set())
    wanted |= {"panel"} if dtype != "int8" else set()
    wanted |= {"two_four", "twice"} if dtype in ("float32", "int8") and n >= SUMS_FROM else set()
    if kind.itemsize == 2:
        wanted |= {"gather"} if n <= 16 else set()
        wanted |= {"stream"} if n <= 64 else {"two_four"}
        if cupy.cuda.Device().compute_capability == "90":
            wanted |= {"scatter"} if n <= 128 else set()
            wanted |= {"slots", "regrouped"} if n >= 128 else set()
    assert set(plan["candidates"]) == wanted
    assert plan["choice"] in wanted
    for algorithm in ("auto", *wanted):
        got = h.matmul(right, algorithm=algorithm).get()
        np.testing.assert_array_equal(got.astype(np.int64), w @ b, err_msg=algorithm)
    assert h.nbytes > h.tiles.nbytes
    assert f"choice  {h.explain(h.n_hint or 16)['choice']}" in h.summary()


def test_what_is_prepared_may_need_another_thing():
    h = hybrid(np.eye(3, dtype=np.float32))
    outer = h.prepared("outer", lambda: h.prepared("inner", h.toarray).copy())
    assert outer is h.prepared("outer", h.toarray)
    assert h.nbytes == h.tiles.nbytes + 2 * outer.nbytes


def test_live_columns(rng):
    w = families.make("dead_columns", (200, 150), zeros=0.9, rng=rng)
    live = hybrid_layouts.live_columns(hybrid(w)).places
    np.testing.assert_array_equal(live, np.flatnonzero((w != 0).any(0)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8"])
def test_compact_is_exact_on_whole_numbers(rng, dtype):
    cupy = pytest.importorskip("cupy")
    kind = lookup(dtype).logical
    w = rng.integers(-3, 4, (130, 400)) * (rng.random(400) < 0.5)
    b = rng.integers(-1, 2, (400, 272)) * (rng.random((400, 272)) < 0.2)
    h = hybrid(cupy.asarray(w.astype(kind)))
    for right in (cupy.asarray(b.astype(kind)), cupy.asarray(b.T.astype(kind)).T):
        got = h.matmul(right, algorithm="compact").get()
        np.testing.assert_array_equal(got.astype(np.int64), w @ b)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "algorithm"), [("float16", "two_four"), ("float32", "two_four"), ("float32", "twice")]
)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [65, 512])
def test_errors_of_two_four_products_are_near_those_of_a_dense_one(rng, dtype, algorithm, zeros, n):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (512, 1023), zeros=zeros, dtype=dtype, rng=rng)
    b = rng.standard_normal((1023, n)).astype(dtype)
    want = w.astype(np.float64) @ b.astype(np.float64)
    h = hybrid(cupy.asarray(w))
    dense = h.matmul(cupy.asarray(b), algorithm="cublas").get()
    for right in (cupy.asarray(b), cupy.asarray(b.T.copy()).T):
        out = cupy.full((512, n), cupy.nan, dtype)
        got = h.matmul(right, out=out, algorithm=algorithm).get()
        assert np.linalg.norm(got - want) <= 2 * np.linalg.norm(dense - want)
        again = h.matmul(right, algorithm=algorithm).get()
        np.testing.assert_array_equal(again, got)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("algorithm", ["two_four", "twice"])
@pytest.mark.parametrize("n", [40, 128])
def test_two_four_products_can_be_captured(rng, dtype, algorithm, n):
    cupy = pytest.importorskip("cupy")
    w = rng.integers(-9, 10, (256, 512)) * (rng.random((256, 512)) < 0.4)
    b = cupy.asarray(rng.integers(-9, 10, (512, n)).astype(dtype))
    for right in (b, cupy.asarray(b.T.copy()).T):
        assert_captured(hybrid(cupy.asarray(w.astype(dtype))), right, algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["two_four", "twice"])
@pytest.mark.parametrize("n", [8, 37, 256])
def test_large_sums_of_int8_are_exact(rng, algorithm, n):
    cupy = pytest.importorskip("cupy")
    w, b = (rng.integers(120, 128, shape, dtype=np.int8) for shape in ((70, 4099), (4099, n)))
    h, want = hybrid(cupy.asarray(w)), w.astype(np.int64) @ b
    for right in (cupy.asarray(b), cupy.asarray(b.T.copy()).T):
        got = h.matmul(right, algorithm=algorithm).get()
        np.testing.assert_array_equal(got, want)
        out = cupy.empty((n, 70), np.int32).T
        h.matmul(right, out=out, algorithm=algorithm)
        np.testing.assert_array_equal(out.get(), want)


@pytest.mark.gpu
def test_the_pieces_of_two_four_products_count_as_memory(rng):
    cupy = pytest.importorskip("cupy")
    w = cupy.asarray(families.make("iid", (512, 1024), zeros=0.5, dtype="float32", rng=rng))
    h, b = hybrid(w), cupy.ones((1024, 512), np.float32)
    h.matmul(b, algorithm="twice")
    values, codes = w.nbytes, 2 * w.size // 8
    pieces = 3 * values // 2  # or more where they come in six sections
    assert hybrid_layouts.layout(h, "twice").nbytes >= values + codes + pieces


def test_a_capture_takes_what_is_prepared(monkeypatch):
    times = {"cublas": 1.0, "stream": 3.0, "two_four": 2.0, "tiles": 9.0}
    monkeypatch.setattr(hybrid_choice, "predictions", lambda h, n: times)
    h = hybrid(np.eye(3, dtype=np.float32))
    with pytest.raises(UnsupportedError, match=r"algorithm='two_four'\) once before the capture"):
        hybrid_choice._captured(h, 64, True)
    h.prepared(hybrid_choice.kind_of("stream", 64, True), hybrid_choice.Ran)
    assert hybrid_choice._captured(h, 64, True) == "stream"
    with pytest.raises(UnsupportedError, match="once before the capture"):
        hybrid_choice._captured(h, 32, True)
    h.prepared(hybrid_choice.kind_of("two_four", 64, True), hybrid_choice.Ran)
    assert hybrid_choice._captured(h, 64, True) == "two_four"
    assert hybrid_choice._captured(h, 32, True) == "two_four"


def test_a_capture_needs_a_first_product_of_its_kind(monkeypatch):
    h, ran = hybrid(np.eye(3, dtype=np.float32)), []
    monkeypatch.setattr(_arrays, "is_capturing", lambda: True)
    monkeypatch.setattr(hybrid_dispatch, "choose", lambda *_: "scatter")
    monkeypatch.setattr(hybrid_dispatch, "_run", lambda path, *_: ran.append(path))
    monkeypatch.setattr(hybrid_dispatch._foreign_streams, "make_current", lambda: None)
    monkeypatch.setattr(type(h), "device", "cuda:0")
    b, out = (np.ones((3, 5), np.float32) for _ in range(2))
    with pytest.raises(UnsupportedError, match=r"product with 5 columns .* before the capture"):
        hybrid_dispatch.multiply(h, b, out)
    with monkeypatch.context() as before:
        before.setattr(_arrays, "is_capturing", lambda: False)
        hybrid_dispatch.multiply(h, b, out)
    hybrid_dispatch.multiply(h, b, out)
    assert ran == ["scatter", "scatter"]
    for other, balance in ((b[:, :4], True), (b, False)):
        with pytest.raises(UnsupportedError, match="before the capture"):
            hybrid_dispatch.multiply(h, other, out[:, : other.shape[1]], balance=balance)


@pytest.mark.parametrize(
    "count", [hybrid_layouts.excess, hybrid_layouts.row_lengths, hybrid_layouts.live_columns]
)
def test_a_capture_counts_nothing_that_would_spoil_it(monkeypatch, count):
    """What a choice by other numbers of columns did not ask for, as two_four from 5 on."""
    capturing = [True]
    monkeypatch.setattr(_arrays, "is_capturing", lambda: capturing[0])
    h = hybrid(np.ones((3, 8), np.float32))
    with monkeypatch.context() as on_gpu:
        on_gpu.setattr(type(h), "device", "cuda:0")
        with pytest.raises(UnsupportedError, match=r"waits for the GPU.* by as many once before"):
            count(h)
    capturing[0] = False
    found = count(h)
    capturing[0] = True
    assert count(h) is found


@pytest.mark.gpu
def test_a_capture_of_more_columns_than_were_multiplied_is_refused_and_goes_on(rng):
    cupy = pytest.importorskip("cupy")
    h = hybrid(cupy.asarray(families.make("iid", (256, 512), zeros=0.9, dtype="float32", rng=rng)))
    few, many = cupy.ones((512, 1), np.float32), cupy.ones((512, 40), np.float32)
    want, out = h @ few, cupy.zeros((256, 1), np.float32)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        with pytest.raises(UnsupportedError, match="once before the capture"):
            h.matmul(many, algorithm="csr")
        h.matmul(few, out=out)
        stream.end_capture().launch(stream)
        stream.synchronize()
    assert (out == want).all()


def assert_captured(h, b, algorithm):
    """A graph of a product that has run before gives the same bits."""
    import cupy

    want = h.matmul(b, algorithm=algorithm)
    out = cupy.zeros_like(want)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        h.matmul(b, out=out, algorithm=algorithm)
        stream.end_capture().launch(stream)
        stream.synchronize()
    assert (out == want).all()


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.8, 0.97])
@pytest.mark.parametrize("n", [1, 8, 40])
def test_a_product_can_be_captured(rng, zeros, n):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (512, 1024), zeros=zeros, dtype="float16", rng=rng)
    b = cupy.asarray(rng.standard_normal((1024, n)).astype(np.float16))
    h = hybrid(cupy.asarray(w))
    for algorithm in {"stream", "gather", "rows"} & h.explain(n)["candidates"].keys():
        assert_captured(h, b, algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("path", ["slots", "regrouped"])
def test_strips_can_be_captured(rng, path):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (512, 1024), zeros=0.9, dtype="float16", rng=rng)
    b = cupy.asarray(rng.standard_normal((1024, 512)).astype(np.float16))
    h = hybrid(cupy.asarray(w))
    if path not in h.explain(512)["candidates"]:
        pytest.skip("needs compute capability 9.0")
    assert_captured(h, b, path)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 8, 40])
def test_a_new_thread_can_multiply(rng, n):
    cupy = pytest.importorskip("cupy")
    w = families.make("iid", (256, 512), zeros=0.8, dtype="float16", rng=rng)
    b = cupy.asarray(rng.standard_normal((512, n)).astype(np.float16))
    h = hybrid(cupy.asarray(w))
    for algorithm in h.explain(n)["candidates"]:
        want = h.matmul(b, algorithm=algorithm)
        cupy.cuda.Device().synchronize()
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(lambda name=algorithm: h.matmul(b, algorithm=name).get()).result()
        np.testing.assert_array_equal(got, want.get())
