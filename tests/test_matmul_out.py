"""Results that are written to arrays of the caller: views, overlaps and devices."""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import Device, array

import sparse24 as s24


@pytest.mark.parametrize("strides", [(0, 4), (4, 4), (8, 4), (4, -4)])  # of broadcasts, windows
def test_an_out_whose_elements_share_memory_is_refused(strides):
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    out = np.lib.stride_tricks.as_strided(np.zeros(32, np.float32)[3:], (8, 4), strides)
    for write in (lambda: s24.matmul(a, x, out), lambda: s24.prune(x, axis=0, out=out)):
        with pytest.raises(s24.ArgumentError, match="out must not be a view whose elements share"):
            write()
    assert not out.any()


def test_views_that_slices_and_transposes_make_are_written_to():
    a, x = s24.random((8, 8), rng=0), np.ones((8, 4), np.float32)
    room = np.zeros((2, 8, 9, 5), np.float32)
    columns = np.zeros((4, 8), np.float32).T
    for out in (room[0, :, ::-2, 0][:, :4], room[1:, :, 1, :4][0], columns, columns[::-1]):
        np.testing.assert_array_equal(s24.matmul(a, x, out), a @ x)


@pytest.mark.parametrize("make", [
    s24.hybrid,
    lambda w: s24.compress(w, pattern=(3, 8), on_excess="prune"),
    lambda w: s24.compress(w, pattern=(6, 8), on_excess="prune").windows(),
    lambda w: w.astype(np.int64),  # NumPy's product
])  # fmt: skip
def test_out_is_apart_in_every_format(make, rng):
    a = make(rng.integers(-9, 9, (8, 8)).astype(np.float32))
    buffer = np.ones(80, a.dtype)
    x, kept = buffer[:64].reshape(8, 8), buffer.copy()
    calls = [
        lambda out: s24.matmul(a, x, out),
        lambda out: s24.matmul(x, a.T, out),
    ]
    calls += [lambda out: s24.matmul(a, x, out, alpha=2.0)] if a.dtype != np.int64 else []
    for call in calls:
        for out in (x, buffer[16:].reshape(8, 8)):
            with pytest.raises(s24.ArgumentError, match="out shares memory with an operand"):
                call(out)
    np.testing.assert_array_equal(buffer, kept)
    assert s24.matmul(a, x, np.empty((8, 8), a.dtype)).shape == (8, 8)


def test_out_must_be_writable_and_apart():
    a = s24.random((8, 8), rng=0)
    x = np.ones((8, 8), np.float32)
    with pytest.raises(s24.ArgumentError, match="shares memory"):
        s24.matmul(a, x, x)
    out = np.zeros((8, 8), np.float32)
    out.flags.writeable = False
    with pytest.raises(s24.ArgumentError, match="read-only"):
        s24.matmul(a, x, out)
    np.testing.assert_array_equal(out, 0)


@pytest.mark.parametrize("left", [True, False])
def test_aux_of_a_stack_has_any_strides(rng, left):
    """Also those that one axis for the whole stack cannot have."""
    a = s24.random((5, 8), rng=0)
    x = rng.standard_normal((2, 3, 8, 4)).astype(np.float32)
    b = x if left else x.mT
    pair = (a, b) if left else (b, a.T)
    exact = np.matmul(*(p.toarray() if p is not b else b for p in pair))
    aux = np.zeros((3, 2, *exact.shape[:1:-1]), np.float32).transpose(1, 0, 3, 2)
    got = s24.matmul(*pair, epilogue=s24.Epilogue(activation="relu", aux=aux))
    np.testing.assert_allclose(aux, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got, np.maximum(aux, 0))


@pytest.mark.parametrize("make", [
    s24.hybrid, lambda x: s24.compress(x, pattern=(3, 5)),
    lambda x: s24.compress(x, pattern=(6, 8)).windows(), lambda x: x.astype(np.int64),
])  # fmt: skip
def test_out_on_another_device_is_refused(make, monkeypatch):
    a, x = make(np.eye(8, dtype=np.float32)), np.ones((8, 2), np.float32)
    Device(monkeypatch).times = {"cpu": 1.0}
    monkeypatch.setattr(s24.HybridArray, "device", "cpu")
    out = array(np.zeros((8, 2), np.float32 if a.dtype == np.float32 else np.float64))
    wrong = "out is on cuda:0, the (product on cpu|operands are not); pass an arr"
    with pytest.raises(s24.DeviceError, match=wrong):
        s24.matmul(a, x, out)
    assert not out.any()


def test_an_out_apart_from_the_operands_is_refused(monkeypatch):
    a, h = s24.random((8, 8), rng=0), s24.hybrid(np.eye(8, dtype=np.float32))
    Device(monkeypatch)
    monkeypatch.setattr(s24.HybridArray, "device", "cpu")
    x, out = np.ones((8, 8), np.float32), array(np.zeros((8, 8), np.float32))
    for call in (lambda: s24.matmul(a, x, out), lambda: h.matmul(x, out), lambda: a.toarray(out)):
        with pytest.raises(s24.DeviceError, match=r"out is on cuda:0, .*; pass an array on"):
            call()
    assert not out.any()
