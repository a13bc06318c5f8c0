"""Grouped products: every type and layout, arrays of other libraries, what is kept."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
from grouped_cases import Layer, offsets_of, refused
from matmul_cases import assert_close, logical

import sparse24 as s24
from sparse24 import _dispatch, _dtypes
from sparse24._grouped import host as grouped_host

COUNTS = (3, 0, 7, 1, 0, 0, 12)


def layer(rng, name="float32", m=20, k=36, counts=COUNTS) -> Layer:
    return Layer(name, m, k, counts, np, rng)


@pytest.mark.parametrize("name", _dtypes.NAMES)
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (33, 130), (64, 128)], ids=str)
def test_every_type_is_right_for_each_expert(rng, name, size):
    case = layer(rng, name, *size)
    assert_close(logical(case.multiply(), name), case.exact, name, size[1])
    y = s24.grouped_linear(case.x, case.experts, offsets=case.offsets)
    assert y.flags.c_contiguous
    assert_close(y, case.exact.T, name, size[1])


def test_experts_in_n_m_that_24_can_hold_are_those_of_24(rng):
    case = layer(rng)
    experts = s24.compress(case.experts, pattern=(1, 4), on_excess="prune")
    options = {"offsets": case.offsets, "activation": "relu"}
    for _ in range(2):
        got = s24.grouped_linear(case.x, experts, **options)
        np.testing.assert_array_equal(got, s24.grouped_linear(case.x, experts.to_24(), **options))
    assert s24.explain(experts, case.x.T, offsets=case.offsets).chosen == "cpu"


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8"])
def test_results_have_the_bits_of_single_products(rng, name):
    case = layer(rng, name, 65, 130, (3, 0, 40, 1))
    np.testing.assert_array_equal(case.multiply(), case.one_by_one())


@pytest.mark.parametrize(
    "counts", [(), (0,), (4,), (0, 0, 5), (5, 0, 0), (0, 0, 0), (1, 1, 1)], ids=str
)
def test_empty_experts_no_tokens_and_no_experts(rng, counts):
    case = layer(rng, counts=counts)
    got = case.multiply()
    assert got.shape == (20, sum(counts))
    assert_close(got, case.exact, "float32", 36)


@pytest.mark.parametrize(("m", "k"), [(0, 8), (8, 0), (0, 0)])
def test_matrices_without_elements(m, k):
    experts = s24.compress(np.zeros((2, m, k), np.float32))
    out = np.full((m, 5), 77, np.float32)
    s24.grouped_matmul(experts, np.ones((k, 5), np.float32), out, offsets=[0, 2, 5])
    np.testing.assert_array_equal(out, np.zeros((m, 5)))


def test_thousands_of_empty_experts_take_no_time(rng):
    experts = s24.random((4000, 2, 4), rng=rng)
    x = np.ones((4, 2), np.float32)
    offsets = np.array([0] * 1000 + [1] * 2000 + [2] * 1001)
    got = s24.grouped_matmul(experts, x, offsets=offsets)
    start = time.perf_counter()
    s24.grouped_matmul(experts, x, offsets=offsets)
    assert time.perf_counter() - start < 0.1
    np.testing.assert_array_equal(got[:, 1], experts[2999].toarray() @ x[:, 1])


@pytest.mark.parametrize("out_order", ["C", "F", "strided", "backwards"])
@pytest.mark.parametrize("b_order", ["C", "F", "strided"])
def test_every_layout_and_results_in_place(rng, b_order, out_order):
    case = layer(rng)
    m, t = case.exact.shape
    b = np.asarray(case.x.T, order="C" if b_order == "C" else "F")
    if b_order == "strided":
        wide = np.zeros((2 * len(b), 3 * t), np.float32)
        wide[::2, ::3] = b
        b = wide[::2, ::3]
    room = np.full((2 * m, 2 * t), 77, np.float32)
    outs = {"C": room[:m, :t], "F": room.T.copy().T[:m, :t], "strided": room[::2, 1::2],
            "backwards": room[m - 1 :: -1, t - 1 :: -1]}  # fmt: skip
    out = outs[out_order]
    assert s24.grouped_matmul(case.experts, b, out, offsets=case.offsets) is out
    assert_close(out, case.exact, "float32", 36)
    if out_order == "strided":
        assert (room[1::2] == 77).all()
        assert (room[:, ::2] == 77).all()


def test_new_results_are_stored_token_by_token(rng):
    case = layer(rng)
    assert case.multiply().flags.f_contiguous
    assert s24.grouped_matmul(
        case.experts, np.ascontiguousarray(case.x.T), offsets=case.offsets
    ).flags.f_contiguous


def test_types_of_results_are_those_of_matmul(rng):
    tokens = np.ones((36, 23))
    for name, other, result in (
        ("float16", "float32", "float32"), ("float32", "float64", "float64"),
        ("bfloat16", "float16", "float32"), ("int8", "int8", "int32"), ("int8", "bool", "int32"),
        ("int8", "float8_e5m2", "float32"), ("float8_e4m3fn", "float8_e5m2", "bfloat16"),
        ("float32", "int64", "float64"),
    ):  # fmt: skip
        case = layer(rng, name)
        b = tokens.astype(_dtypes.TABLE[other].logical if other in _dtypes.TABLE else other)
        got = s24.grouped_matmul(case.experts, b, offsets=case.offsets)
        assert got.dtype == _dtypes.numpy_dtype(result)
        assert got.dtype == (case.experts[0] @ b).dtype
    for wanted in ("float16", "float64", "int32"):
        got = layer(rng).multiply(dtype=wanted)
        assert got.dtype == wanted
    bits = layer(rng, "float8_e4m3fn")
    same = s24.grouped_matmul(
        bits.experts, bits.x.T.view(np.uint8), offsets=bits.offsets, b_dtype="float8_e4m3fn"
    )
    np.testing.assert_array_equal(same, bits.multiply())


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int8"])
def test_biases_are_those_of_the_experts(rng, name):
    case = layer(rng, name)
    bias = rng.integers(-9, 10, (7, 20)).astype(np.float64)
    want = case.exact.T + np.repeat(bias, COUNTS, axis=0)
    for kind in (np.float64, np.float16, np.int8):
        y = s24.grouped_linear(case.x, case.experts, bias.astype(kind), offsets=case.offsets)
        assert_close(y, want, name, 36)
    as_lists = s24.grouped_linear(case.x, case.experts, bias.tolist(), offsets=case.offsets)
    assert_close(as_lists, want, name, 36)


def test_nan_stays_with_the_tokens_of_its_expert(rng):
    case = layer(rng)
    case.x[3:10] = np.nan
    got = case.multiply()
    assert np.isnan(got[:, 3:10]).all()
    assert np.isfinite(np.delete(got, np.s_[3:10], axis=1)).all()


def test_slices_and_both_orientations_of_a_stack(rng):
    case = layer(rng)
    part = case.experts[2:6]
    got = s24.grouped_matmul(part, case.x[3:11].T, offsets=offsets_of(COUNTS[2:6]))
    assert_close(got, case.exact[:, 3:11], "float32", 36)
    w = rng.standard_normal((3, 16, 24)).astype(np.float32)
    both = s24.compress(w, on_excess="prune", transposable=True)
    y = rng.standard_normal((5, 16)).astype(np.float32)
    got = s24.grouped_linear(y, both.mT, offsets=[0, 1, 1, 5])
    want = [y[0] @ both.toarray()[0], *(y[1:] @ both.toarray()[2])]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_kept_dense_matrices_and_deferred_checks(rng):
    w = s24.prune(rng.standard_normal((2, 16, 24)).astype(np.float32))
    x = rng.standard_normal((5, 24)).astype(np.float32)
    for how in ({"keep_dense": True}, {"check": "deferred"}):
        got = s24.grouped_linear(x, s24.compress(w, **how), offsets=[0, 2, 5])
        np.testing.assert_allclose(got[:2], x[:2] @ w[0].T, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(got[2:], x[2:] @ w[1].T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [list, tuple, np.int32, np.uint8, np.int64, ">i8"])
def test_offsets_of_any_integers(rng, kind):
    case = layer(rng)
    as_list = case.offsets.tolist()
    given = kind(as_list) if kind in (list, tuple) else np.array(as_list, kind)
    np.testing.assert_array_equal(case.multiply(offsets=given), case.multiply())
    every_other = np.repeat(case.offsets, 2)[::2]
    np.testing.assert_array_equal(case.multiply(offsets=every_other), case.multiply())


def test_torch_tensors_in_and_out(rng):
    torch = pytest.importorskip("torch")
    for name in ("float32", "bfloat16"):
        case = layer(rng, name)
        kind = getattr(torch, name)
        x = torch.from_numpy(case.x.astype(np.float32)).to(kind)
        for offsets in (case.offsets, torch.from_numpy(case.offsets)):
            y = s24.grouped_linear(x, case.experts, torch.zeros(7, 20), offsets=offsets)
            assert (type(y), y.dtype) == (torch.Tensor, kind)
            assert y.is_contiguous()
            assert_close(y.float().numpy(), case.exact.T, name, 36)
        out = torch.zeros(20, 23, dtype=kind)
        assert s24.grouped_matmul(case.experts, x.T, out, offsets=offsets, dtype=kind) is out
        assert_close(out.float().numpy(), case.exact, name, 36)


def test_jax_arrays_in_and_out(rng, jax_on_cpu):
    jnp, case = jax_on_cpu, layer(rng)
    y = s24.grouped_linear(jnp.asarray(case.x), case.experts, offsets=jnp.asarray(case.offsets))
    assert isinstance(y, jnp.ndarray)
    assert_close(np.asarray(y), case.exact.T, "float32", 36)
    words = "out is read-only"
    refused(s24.ArgumentError, words, case.experts, case.x.T, y.T, offsets=case.offsets)


def test_a_stack_does_not_grow_by_its_products(rng):
    experts = s24.random((3, 64, 128), dtype="int8", rng=rng)
    before, size = experts.nbytes, len(pickle.dumps(experts))
    for _ in range(2):
        s24.grouped_linear(np.ones((4, 128), np.int8), experts, offsets=[0, 2, 2, 4])
    assert (experts.nbytes, len(pickle.dumps(experts))) == (before, size)


def test_explain_of_grouped_products(rng):
    case = layer(rng)
    found = s24.explain(case.experts, case.x.T, offsets=case.offsets, gated=True)
    assert found.chosen == "cpu"
    assert str(found) == (
        "cpu: each expert that has tokens has a product of its own, as always on the CPU"
    )
    for options, words in (
        ({"alpha": 2.0}, "grouped products, .* take no c, alpha, .*; drop them"),
        ({"c": np.ones(3)}, "those with offsets, take no c, alpha"),
        ({"offsets": [1, 2]}, "offsets must have shape"),
    ):
        with pytest.raises((s24.ArgumentError, s24.ShapeError), match=words):
            s24.explain(case.experts, case.x.T, **{"offsets": case.offsets, **options})
    with pytest.raises(s24.ArgumentError, match="gated=True is an option of grouped products"):
        s24.explain(case.experts[0], case.x.T, gated=True)


def test_an_expert_is_planned_once_for_a_number_of_tokens(rng, monkeypatch):
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: (planned.append(given), fill(*given))[1])
    case = layer(rng, counts=(3, 0, 7, 3))
    scale = np.ones((4, 20), np.float32)
    for factor in (1, 2, -1):
        y = s24.grouped_linear(factor * case.x, case.experts, offsets=case.offsets)
        assert_close(y, factor * case.exact.T, "float32", 36)
        y = s24.grouped_linear(
            case.x, case.experts, offsets=case.offsets, scales=(None, factor * scale)
        )
        assert_close(y, factor * case.exact.T, "float32", 36)
    assert len(planned) == 3
    monkeypatch.setattr(grouped_host, "MOST_PREPARED", 2)
    for counts in ((1, 1, 1, 10), (2, 2, 2, 7), (4, 4, 4, 1)):
        case.offsets = offsets_of(counts)
        np.testing.assert_array_equal(case.multiply(), case.one_by_one())
    part = case.experts[1:3]
    assert_close(
        s24.grouped_linear(case.x[:4], part, offsets=[0, 1, 4]),
        np.concatenate([case.x[:1] @ part[0].toarray().T, case.x[1:4] @ part[1].toarray().T]),
        "float32", 36,
    )  # fmt: skip
