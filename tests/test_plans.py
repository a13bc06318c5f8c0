"""`plan` and `autotune`, and what CUDA graphs hold."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from planner_cases import problem

import sparse24 as s24
from sparse24 import _arrays, _dispatch, _named_operands, _planner, _storage, _tuning_cache
from sparse24._arrays import to_numpy
from sparse24._records import PLAIN


def test_plans_of_column_order_multiply_what_matmul_multiplies(rng, jax_on_cpu):
    torch = pytest.importorskip("torch")
    a = s24.random((16, 32), rng=0)
    p = s24.plan(a, ((32, 4), np.float32), out_order="column")
    x = rng.standard_normal((32, 4)).astype(np.float32)
    assert p.execute(x).flags.f_contiguous
    for other in (x, x.tolist(), x[:, 0], x[None]):
        np.testing.assert_array_equal(p.execute(other), a @ np.asarray(other))
    tensor = p.execute(torch.from_numpy(x))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.stride() == (1, 16)
    np.testing.assert_array_equal(np.asarray(p.execute(jax_on_cpu.asarray(x))), a @ x)
    stack = s24.random((3, 16, 32), rng=0)
    many = s24.plan(stack, ((32, 4), np.float32), out_order="column").execute(x)
    np.testing.assert_array_equal(many, stack @ x)
    with pytest.raises(s24.ShapeError, match="inner dimensions 32 and 16"):
        p.execute(x[:16])


def test_plans_execute_on_the_cpu(rng):
    a = s24.random((16, 32), rng=0)
    p = s24.plan(a, ((32, 4), np.float32))
    x = rng.standard_normal((32, 4)).astype(np.float32)
    np.testing.assert_array_equal(p.execute(x), a @ x)
    with pytest.raises(s24.ArgumentError, match="must be a Sparse24Array"):
        s24.plan(np.ones((4, 4)), ((4, 4), np.float32))
    with pytest.raises(s24.ArgumentError, match="got HybridArray; arrays of other formats compile"):
        s24.plan(s24.hybrid(np.eye(4)), ((4, 4), np.float64))
    with pytest.raises(s24.ArgumentError, match="b_spec must be an array, or its shape and dtype"):
        s24.plan(a, (32, 4, np.float32))


def test_plans_take_n_m_that_24_can_hold(rng):
    a = s24.compress(rng.standard_normal((16, 32)), pattern=(1, 4), on_excess="prune")
    x = rng.standard_normal((32, 4))
    p = s24.plan(a, x)
    assert p.chosen == s24.explain(a, x).chosen
    np.testing.assert_array_equal(p.execute(x), a @ x)
    with pytest.raises(s24.ArgumentError, match="got NMArray; arrays of other formats compile"):
        s24.plan(s24.compress(np.eye(8), pattern=(4, 8)), ((8, 4), np.float64))


def _fp8(rng):
    """A 2:4 matrix of fp8, a dense operand, and its bits."""
    a = s24.random((64, 32), dtype="float8_e4m3fn", rng=0)
    b = rng.standard_normal((32, 8)).astype(a.dtype)
    return a, b, b.view(np.uint8)


@pytest.mark.parametrize("out_order", ["row", "column"])
def test_plans_take_fp8_as_such_or_as_bits(rng, out_order):
    a, b, bits = _fp8(rng)
    named = s24.plan(a, ((32, 8), b.dtype.name), out_order=out_order)
    np.testing.assert_array_equal(named.execute(b), a @ b)
    by_bits = s24.plan(a, bits, b_dtype="float8_e4m3fn", out_order=out_order)
    np.testing.assert_array_equal(by_bits.execute(bits), a @ b)
    with pytest.raises(s24.DTypeError, match="b_dtype"):
        s24.plan(a, bits)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_spec_of_fp8_agrees_with_the_named_type(device):
    """Refused before the device is asked for memory, of which the bits do not tell their type."""
    a, spec = SimpleNamespace(device=device), ((32, 8), "float8_e4m3fn")
    with pytest.raises(s24.DTypeError, match="dtype float8_e4m3fn, which cannot carry 'float8_e5m"):
        _named_operands.made(a, spec, "float8_e5m2", argument="b_spec")


def test_plans_tell_what_is_chosen_once_their_product_was_tuned(monkeypatch):
    a, chosen = s24.random((16, 32), rng=0), "dense"
    monkeypatch.setattr("sparse24.kernels.cpu.choose", lambda *of, **how: chosen)
    multiply = s24.Sparse24Array._multiply

    def tuned(*of):  # as within `autotune`
        nonlocal chosen
        chosen = "sparse"
        return multiply(*of)

    monkeypatch.setattr(s24.Sparse24Array, "_multiply", tuned)
    p = s24.plan(a, ((32, 4), np.float32))
    assert p.chosen == p.explanation.chosen == "cpu_sparse"


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_plans_of_fp8_know_what_bits_mean_on_the_gpu(rng):
    import cupy

    a, b, bits = _fp8(rng)
    p = s24.plan(a.to_device("cuda"), ((32, 8), "float8_e4m3fn"))
    got = to_numpy(p.execute(cupy.asarray(bits)))
    np.testing.assert_allclose(got.astype(float), (a @ b).astype(float), rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
@pytest.mark.parametrize("side", ["left", "right", "right, a stack"])
def test_autotune_measures_and_remembers(untuned, rng, side):
    import cupy

    a = s24.random((256, 512), dtype="float16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((512, 128)).astype(np.float16))
    tokens = cupy.ascontiguousarray(x.T)
    fresh = a.copy()
    operands = {
        "left": (fresh, x), "right": (tokens, fresh.T),
        "right, a stack": (tokens.reshape(2, 64, 512), fresh.T),
    }[side]  # fmt: skip
    before = to_numpy(s24.matmul(*operands))
    with s24.autotune(cache=untuned / "t.json"):
        tuned = to_numpy(s24.matmul(*operands))
    np.testing.assert_allclose(tuned, before, rtol=1e-2, atol=1e-2)
    told = s24.explain(*operands)
    assert told.measured  # of the product that ran, so seen from the same side
    assert "measured fastest" in told.reason
    assert (untuned / "t.json").exists()


@pytest.mark.gpu
@pytest.mark.stem("sparse_quantised")
@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("bits", [4, 8])
def test_autotune_measures_tiles_of_quantised_matrices(untuned, rng, bits, tokens):
    import cupy

    w = cupy.asarray(rng.standard_normal((4096, 4096)).astype(np.float16))
    a = s24.quantise(s24.prune(w), bits=bits)
    x = cupy.asarray(rng.standard_normal((tokens, 4096)).astype(np.float16))
    bias = s24.Epilogue(bias=cupy.asarray(rng.standard_normal(4096).astype(np.float32)))
    for options in ({}, {"epilogue": bias}):
        before = to_numpy(s24.matmul(x, a.T, **options))
        with s24.autotune(cache=untuned / "t.json"):
            tuned = to_numpy(s24.matmul(x, a.T, **options))
        np.testing.assert_allclose(tuned, before, rtol=1e-2, atol=0.2)
        told = s24.explain(x, a.T, **options)
        assert len(told.measured) > 1
        assert "fastest measured of" in told.reason
        assert told.chosen == min(told.measured, key=told.measured.get)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_explain_and_plan_on_the_gpu(rng):
    import cupy

    a = s24.random((512, 512), dtype="bfloat16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((512, 64)).astype(np.float32)).astype(a.dtype)
    told = s24.explain(a, x)
    assert {c.kernel for c in told.candidates} >= {"sparse_mma", "sparse_fma", "dense"}
    assert "predicted" in str(told)
    p = s24.plan(a, x)
    cupy.testing.assert_array_equal(p.execute(x).astype(np.float32), (a @ x).astype(np.float32))


def replayed(cupy, a, x):
    """The product as a graph writes it, captured after a first call."""
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        out = cupy.zeros((a.shape[0], x.shape[1]), x.dtype)
        s24.matmul(a, x, out)
        stream.begin_capture()
        s24.matmul(a, x, out)
        graph = stream.end_capture()
        out.fill(0)
        graph.launch(stream)
    stream.synchronize()
    return to_numpy(out)


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "sparse_wgmma")
def test_graph_capture_and_streams(rng):
    import cupy

    a = s24.random((256, 256), dtype="float16", rng=0).to_device("cuda")
    x = cupy.asarray(rng.standard_normal((256, 256)).astype(np.float16))
    want = to_numpy(a @ x)
    np.testing.assert_array_equal(replayed(cupy, a, x), want)


@pytest.mark.parametrize("algorithm", ["auto", "dense"])
@pytest.mark.parametrize("capturing", [False, True])
def test_a_capture_holds_no_dense_product(monkeypatch, h200, algorithm, capturing):
    case = problem(m=64, n=4096, k=64)
    ranked = {dense: _planner.candidates(case, 0, dense=dense) for dense in (True, False)}
    choose = lambda of, device, *, dense, algorithm="auto": next(  # noqa: E731
        c for c in ranked[dense] if not dense or c.kernel == "dense"
    )
    monkeypatch.setattr(_planner, "choose", choose)
    monkeypatch.setattr(_planner, "prepare", lambda choice, epilogue: choice.kernel)
    monkeypatch.setattr(_arrays, "is_capturing", lambda: capturing)
    monkeypatch.setattr(_storage, "with_packed", lambda rows: rows)
    a = s24.compress(np.eye(64, dtype=np.float32), keep_dense=True)._operand
    b = SimpleNamespace(device=SimpleNamespace(id=0))
    if capturing and algorithm == "dense":
        with pytest.raises(s24.UnsupportedError, match="CuPy does not capture cuBLAS; compress"):
            _dispatch.prepare(a, b, None, PLAIN, algorithm, case)
        return
    launched = _dispatch.prepare(a, b, None, PLAIN, algorithm, case)
    assert (launched.launcher != "dense") == capturing
    assert launched.a is (a.rows if capturing else a.dense)


@pytest.mark.gpu
def test_a_graph_holds_a_sparse_product_where_the_dense_one_is_faster(monkeypatch, untuned, rng):
    import cupy

    winner = lambda *of, dense: "dense/cublas" if dense else None  # noqa: E731
    monkeypatch.setattr(_tuning_cache, "winner", winner)
    a = s24.random((256, 256), dtype="float16", rng=0).to_device("cuda")
    a = s24.compress(a.toarray(), keep_dense=True)
    x = cupy.asarray(rng.standard_normal((256, 256)).astype(np.float16))
    assert s24.explain(a, x).chosen == "dense/cublas"
    want = to_numpy(a @ x)
    np.testing.assert_allclose(replayed(cupy, a, x), want, rtol=2e-3, atol=2e-3)


@pytest.mark.gpu
def test_a_graph_of_plain_arrays_is_refused_in_a_sentence(rng):
    import cupy

    x = cupy.asarray(rng.standard_normal((256, 256)).astype(np.float16))
    s24.matmul(x, x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(s24.UnsupportedError, match="CuPy does not capture cuBLAS"):
            s24.matmul(x, x)
        stream.end_capture()
