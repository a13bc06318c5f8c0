"""How products of hybrid matrices are called: what is replayed, and what must not be."""

from __future__ import annotations

import gc
import sys
import weakref
from unittest.mock import MagicMock

import numpy as np
import pytest
from fake_device import Device, array

import sparse24 as s24
from sparse24 import _storage, _tuning_cache
from sparse24._errors import ArgumentError, DeviceError, ShapeError
from sparse24._hybrid import choice as hybrid_choice

M, K = 70, 80


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


@pytest.fixture
def weight(rng):
    return whole(rng, M, K)


def whole(rng, *shape, dtype=np.float16):
    return rng.integers(-3, 4, shape).astype(dtype)


def assert_same(got, want):
    np.testing.assert_array_equal(np.asarray(got), want)


CALLS = {
    "rows": (lambda h, x: x @ h.T, (5, K), lambda w, x: x @ w.T),
    "rows of a stack": (lambda h, x: x @ h.T, (2, 3, K), lambda w, x: x @ w.T),
    "a row": (lambda h, x: x @ h.T, (K,), lambda w, x: x @ w.T),
    "linear": (lambda h, x: s24.linear(x, h), (5, K), lambda w, x: x @ w.T),
    "relu": (
        lambda h, x: s24.linear(x, h, activation="relu"), (2, 5, K),
        lambda w, x: np.maximum(x @ w.T, 0),
    ),
    "columns": (lambda h, x: h @ x, (K, 5), lambda w, x: w @ x),
    "a folded stack": (lambda h, x: h @ x, (2, 2, K, 5), lambda w, x: w @ x),
    "a stack": (lambda h, x: h.matmul(x, balance=False), (3, K, 5), lambda w, x: w @ x),
}  # fmt: skip


@pytest.mark.parametrize("path", ["gather", "scatter", "cublas"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_an_earlier_one_plans_nothing(rng, weight, device, name, path):
    call, shape, meaning = CALLS[name]
    h, kept = s24.hybrid(weight), []
    device.times[path] = 0.5
    for _ in range(3):
        x = whole(rng, *shape)
        kept.append((x, call(h, array(x))))
        planned = len(device.ran)
        assert planned == (3 if name == "a stack" and path != "cublas" else 1)
    for x, got in kept:  # results are apart from one another
        assert_same(got, meaning(weight, x))
        assert got.flags.c_contiguous
        assert got.dtype == np.float16


def test_sums_of_16_bits_are_those_of_a_float32_copy_that_is_remembered(device, monkeypatch):
    cast = lambda x, own, row: x.astype(row.logical)  # noqa: E731
    monkeypatch.setattr(_storage, "converted", cast)
    heavy = np.zeros((8, 16), np.float16)
    heavy[:, :2] = 40000
    h, x = s24.hybrid(heavy), array(np.ones((16, 3), np.float16))
    c = array(np.full((8, 3), -30000, np.float32))
    for _ in range(3):
        assert_same(s24.matmul(h, x, dtype="int32"), np.full((8, 3), 80000))
        summed = s24.matmul(h, x, c=c, beta=1.0, dtype="float32")
        assert_same(summed, np.full((8, 3), 50000))
        assert_same(s24.matmul(x.T, h.T, dtype="int32"), np.full((3, 8), 80000))
    assert len(device.ran) == 2
    assert "as float32" in h._prepared
    with pytest.raises(DeviceError, match="b is on cpu, the sparse array on cuda:0; move one"):
        s24.matmul(h, np.ones((16, 3), np.float16), dtype="int32")
    assert len(device.ran) == 2
    s24.matmul(h, x, alpha=0.5)  # of its own type, by its own kernels
    assert len(device.ran) == 3


@pytest.mark.parametrize("path", ["gather", "scatter"])
def test_other_shapes_strides_and_types_are_other_calls(rng, weight, device, path):
    device.times[path] = 0.5
    h, long = s24.hybrid(weight), whole(rng, 12, 2 * K)
    operands = [
        lambda x: x[:5, :K].copy(), lambda x: x[:6, :K].copy(), lambda x: x[:5, :K],
        lambda x: x[:5, ::2], lambda x: x[4::-1, :K], lambda x: x[:5, :K].copy(order="F"),
        lambda x: x[:, 1 : K + 1], lambda x: x.reshape(3, 4, 2 * K)[:, :, :K],
        lambda x: x.reshape(3, 4, 2 * K).swapaxes(0, 1)[:, :, :K], lambda x: x[0, :K],
        lambda x: x[:5, :K].astype(np.float64), lambda x: x[:5, :K].astype(np.int8),
    ]  # fmt: skip
    for _ in range(3):
        for make in operands:
            x = make(long)
            on_device = make(array(long))
            assert_same(on_device @ h.T, x.astype(np.float64) @ weight.T.astype(np.float64))
    for x, dtype in ((np.float64, np.float64), (np.int8, np.float16)):
        assert (array(long[:2, :K].astype(x)) @ h.T).dtype == dtype


@pytest.mark.parametrize("algorithm", ["auto", "scatter"])
def test_out_is_written_and_may_not_overlap(rng, weight, device, algorithm):
    h = s24.hybrid(weight)
    for shape, result in (((K, 5), (M, 5)), ((3, K, 5), (3, M, 5))):
        for _ in range(3):
            b, out = array(whole(rng, *shape)), array(np.zeros(result, np.float16))
            assert h.matmul(b, out=out, algorithm=algorithm) is out
            assert_same(out, weight @ np.asarray(b))
        planned = len(device.ran)
        memory = array(np.zeros(4 * K * 5 * 3, np.float16))
        b = memory[: np.prod(shape)].reshape(shape)
        out = memory[8 : 8 + np.prod(result)].reshape(result)
        for _ in range(2):
            with pytest.raises(ArgumentError, match="shares memory"):
                h.matmul(b, out=out, algorithm=algorithm)
        assert len(device.ran) == planned
    with pytest.raises(ShapeError, match="out must have the shape of the product"):
        h.matmul(array(whole(rng, K, 5)), out=array(np.zeros((M, 4), np.float16)))


def test_a_stream_has_launches_of_its_own(rng, weight, device):
    h, x = s24.hybrid(weight), array(whole(rng, 5, K))
    x @ h.T
    for device.stream in (8, 9, 8):
        assert_same(x @ h.T, np.asarray(x) @ weight.T)
    assert {8, 9} <= set(device.ran[0].streams)
    assert len(device.ran) == 1


def test_an_operand_on_another_device_is_refused_still(rng, weight, device):
    h, x = s24.hybrid(weight), whole(rng, 5, K)
    for _ in range(2):
        assert_same(array(x) @ h.T, x @ weight.T)
        with pytest.raises(DeviceError, match="x is on cuda:1, the sparse array on cuda:0"):
            array(x, number=1) @ h.T
        with pytest.raises(DeviceError, match="b is on cuda:1, the sparse array on cuda:0"):
            h @ array(x.T.copy(), number=1)


def test_a_calibration_makes_a_plan_stale(rng, weight, device, monkeypatch):
    monkeypatch.setattr(_tuning_cache, "_changes", 0)
    h, x = s24.hybrid(weight), array(whole(rng, 5, K))
    bias = array(np.zeros(M, np.float32))
    for call in (lambda: x @ h.T, lambda: s24.linear(x, h, bias), lambda: h @ x.T):
        device.times |= {"gather": 1.0, "cublas": 9.0}
        _tuning_cache.changed()
        call()
        assert device.ran[-1].path == "gather"
        device.times |= {"gather": 9.0, "cublas": 1.0}
        call()
        assert device.ran[-1].path == "gather"
        _tuning_cache.changed()
        call()
        assert device.ran[-1].path == "cublas"


def test_a_fit_of_the_cost_model_is_such_a_calibration(monkeypatch):
    from sparse24._hybrid import fit as hybrid_fit

    before = _tuning_cache.generation()
    monkeypatch.setitem(sys.modules, "cupy", MagicMock())
    monkeypatch.setattr(hybrid_fit.hybrid_samples, "sample", lambda *_: None)
    monkeypatch.setattr(hybrid_fit, "path", lambda device: None)
    monkeypatch.setattr(hybrid_fit, "shipped", lambda device: {})
    monkeypatch.setattr(hybrid_fit._evidence, "write_json", lambda *_: None)
    monkeypatch.setattr(hybrid_fit, "_known", {})
    hybrid_fit.fit(0)
    assert _tuning_cache.generation() > before


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_holds_no_memory_that_is_given_back(rng, weight, device, name):
    call, shape, meaning = CALLS[name]
    x = whole(rng, *shape)
    for path in ("gather", "scatter"):
        h, device.times[path] = s24.hybrid(weight), 0.5
        call(h, array(x))
        call(h, array(x))
        device.capturing = True
        planned = len(device.ran)
        assert_same(call(h, array(x)), meaning(weight, x))
        kept = h._prepared.get("memory of graphs")
        read_in_place = path == "gather" or name in ("columns", "a stack")
        copied = name in ("relu", "a folded stack") or not read_in_place
        assert (len(device.ran) > planned or kept is not None) == copied
        if kept is not None:
            assert h.nbytes >= kept.nbytes > 0
        device.capturing = False
        del device.times[path]


def test_a_graph_does_not_take_a_replayed_dense_product(rng, weight, device):
    h, x = s24.hybrid(weight), whole(rng, 5, K)
    h.matmul(array(x.T.copy()), algorithm="gather")
    device.times["cublas"] = 0.1
    bias = array(np.ones(M, np.float32))
    for _ in range(2):
        array(x) @ h.T, s24.linear(array(x), h, bias)
    device.capturing = True
    for got, want in ((array(x) @ h.T, x @ weight.T),
                      (s24.linear(array(x), h, bias), x @ weight.T + 1)):  # fmt: skip
        assert_same(got, want)
        assert device.ran[-1].path == "gather"


def test_a_bias_is_read_at_each_call_and_not_kept(rng, weight, device):
    h, x = s24.hybrid(weight), whole(rng, 5, K)
    plain, bias = (x @ weight.T).astype(np.float64), array(np.zeros(M, np.float32))
    for value in (1, 2, -3):
        bias.fill(value)  # the same address, new contents
        assert_same(s24.linear(array(x), h, bias), plain + value)
    assert len(h._plans) == 2  # with the bias and without
    for value in (4, 5):
        assert_same(s24.linear(array(x), h, array(np.full(M, value, np.float32))), plain + value)
    half = array(np.zeros(M, np.float16))  # converted at each call
    for value in (6, 7):
        half.fill(value)
        assert_same(s24.linear(array(x), h, half), plain + value)
    assert_same(s24.linear(array(x), h, bias, activation="relu"), np.maximum(plain - 3, 0))
    assert len(device.ran) == 1
    ends = weakref.ref(bias)
    del bias
    gc.collect()
    assert ends() is None


def test_named_algorithms_and_balance_are_other_calls(rng, weight, device):
    h, b = s24.hybrid(weight), array(whole(rng, K, 5))
    for _ in range(2):
        for how in ({}, {"algorithm": "scatter"}, {"balance": False}, {"algorithm": "cublas"}):
            assert_same(h.matmul(b, **how), weight @ np.asarray(b))
    assert [product.path for product in device.ran] == ["gather", "scatter", "gather", "cublas"]
    with pytest.raises(ArgumentError, match=r"algorithm must be one of .* got \['scatter'\]"):
        h.matmul(b, algorithm=["scatter"])


def test_explain_tells_what_copies_b(weight, device):
    h = s24.hybrid(weight, n_hint=16)
    device.times |= {"scatter": 0.5, "panel": 3.0}
    told = h.explain()
    assert (told["choice"], told["copies_b"]) == ("scatter", [])
    for how, lies in (
        ({"b_order": "column"}, "are not contiguous"), ({"n": 9}, "do not begin on 16 bytes")
    ):  # fmt: skip
        told = h.explain(**how)
        assert told["copies_b"] == ["scatter", "panel"]
        assert told["reason"].endswith(f"copies b at each call, whose rows {lies}")
    assert h.explain(7)["copies_b"] == ["panel"]  # scatter reads up to eight columns as they are
    wide = s24.hybrid(weight.astype(np.float32), n_hint=8)
    assert wide.explain(b_order="column")["copies_b"] == []
    with pytest.raises(ArgumentError, match="b_order must be one of"):
        h.explain(b_order="C")


def test_choices_know_whether_b_is_copied(rng, weight, device, monkeypatch):
    def predictions(h, n, copied=None):
        return {"gather": 2.0, "scatter": 1.0 + 3.0 * bool(copied), "cublas": 9.0}

    monkeypatch.setattr(hybrid_choice, "predictions", predictions)
    h, x = s24.hybrid(weight), whole(rng, K, 8)
    for b in (array(x), array(x[:, :7].copy()), array(x.T.copy()).T):
        h @ b
    assert [product.path for product in device.ran] == ["scatter", "gather", "gather"]


def test_explain_tells_the_choice_of_all_columns_that_share_it(rng, weight, device, monkeypatch):
    def predictions(h, n, copied=None):
        return {"gather": 5.0, "cublas": 9.0} | ({"scatter": 16.0 / n} if n >= 8 else {})

    monkeypatch.setattr(hybrid_choice, "predictions", predictions)
    h = s24.hybrid(weight)
    for n, choice in ((4, "gather"), (5, "scatter"), (8, "scatter")):
        told = h.explain(n)
        assert (told["n"], told["choice"]) == (n, choice)
        assert ("for 8 columns, which decide the choice for 5" in told["reason"]) == (n == 5)
        b = array(whole(rng, K, n))
        for algorithm in ("auto", *told["candidates"]):
            h.matmul(b, algorithm=algorithm)
        assert [product.path for product in device.ran] == [choice, *told["candidates"]]
        device.ran.clear()
        assert f"choice  {choice}: " in h.summary(n)
