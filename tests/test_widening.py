"""8-bit matrices with 16-bit arrays: result types, which products widen, and the same values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planner_cases import problem

import sparse24 as s24
from sparse24 import _dtypes, _planner, _tuning_cache, _widening
from sparse24._explain_gpu import on_gpu

gpu = pytest.mark.gpu
PAIRS = [
    (stored, dtype)
    for stored in ("int8", "float8_e4m3fn", "float8_e5m2")
    for dtype in ("float16", "bfloat16")
]


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
def test_the_result_is_of_the_16_bit_type(rng, stored, dtype):
    a, x = s24.random((24, 40), dtype=stored, rng=rng), tokens(rng, (3, 40), dtype)
    y = x @ a.T
    assert y.dtype == _dtypes.numpy_dtype(dtype)
    exact = x.astype(np.float64) @ a.toarray().astype(np.float64).T
    np.testing.assert_array_equal(y, exact.astype(np.float32).astype(y.dtype))


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
def test_every_8_bit_value_fits_into_16_bits(stored, dtype):
    values = np.arange(256, dtype=np.uint8).view(_dtypes.numpy_dtype(stored))
    wide = values.astype(np.float32)
    np.testing.assert_array_equal(wide.astype(_dtypes.numpy_dtype(dtype)).astype(np.float32), wide)


@pytest.mark.parametrize("stored", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("n", "kernel"), [(1, "sparse_decode"), (16, "sparse_decode"), (48, "sparse_mixed"),
                      (512, "sparse_mixed")]
)  # fmt: skip
def test_elements_are_widened_as_they_are_read(h200, stored, n, kernel):
    wide = problem(m=14336, n=n, out_order="column")
    narrow = _widening.as_multiplied(wide, stored, 0, "auto")
    assert narrow == dataclasses.replace(wide, dtype=stored)
    chosen = _planner.choose(narrow, 0, dense=False)
    assert chosen.kernel == kernel
    told = str(on_gpu(wide, stored, 0, "auto", False, ""))
    assert told.startswith(f"{chosen.name}: it widens the {stored} elements as it reads them")
    assert "dense/cublas" in told
    assert "sparse_skinny cannot: operands of" in told
    named = on_gpu(wide, stored, 0, chosen.name, False, "")
    assert (named.chosen, named.reason) == (chosen.name, "it was asked for")
    other = _planner.candidates(narrow, 0, dense=False)[1].name
    _tuning_cache.record_winner(0, narrow, dense=False, seconds={chosen.name: 2e-5, other: 1e-5})
    tuned = on_gpu(wide, stored, 0, "auto", False, "")
    assert tuned.chosen == other
    assert tuned.reason.endswith("and is the fastest measured of 2 candidates on this GPU")


def test_many_columns_and_other_kernels_are_converted_for(h200):
    many = problem(n=16384)
    assert _widening.as_multiplied(many, "int8", 0, "auto") is many
    told = on_gpu(many, "int8", 0, "auto", False, "keep_dense=True would let")
    assert told.reason.endswith("; the int8 elements are converted to bfloat16 at each call")
    asked = _widening.as_multiplied(many, "int8", 0, "sparse_decode")
    assert asked.dtype == "int8"
    assert _planner.choose(asked, 0, dense=False, algorithm="sparse_decode").refusal is None
    few = problem(n=8)
    assert _widening.as_multiplied(few, "int8", 0, "sparse_wgmma") is few
    assert _widening.as_multiplied(few, "bfloat16", 0, "auto") is few
    single = problem(n=8, dtype="float32")
    assert _widening.as_multiplied(single, "int8", 0, "auto") is single


@pytest.mark.parametrize("n", [1, 64])
def test_older_chips_convert(h200, n):
    old = problem(n=n, compute_capability=80)
    assert _widening.as_multiplied(old, "int8", 0, "auto") is old
    asked = _widening.as_multiplied(old, "int8", 0, "sparse_decode")
    with pytest.raises(s24.UnsupportedError, match=r"compute capability 9\.0"):
        _planner.choose(asked, 0, dense=False, algorithm="sparse_decode")


def test_b_that_the_kernel_cannot_read_is_copied(h200):
    odd = problem(n=7, b_order="row", aligned=False)
    narrow = _widening.as_multiplied(odd, "int8", 0, "auto")
    assert narrow.dtype == "int8"
    chosen = _planner.choose(narrow, 0, dense=False)
    assert chosen.kernel in _widening.KERNELS
    assert chosen.variant.stage_b


@pytest.mark.parametrize(
    ("n", "kernel", "copied"),
    [
        (8, "sparse_decode", False),
        (16, "sparse_decode", False),
        (24, "sparse_mixed", False),
        (48, "sparse_mixed", False),
        (512, "sparse_mixed", False),
    ],
)
def test_rows_of_b_are_read_as_they_are_or_turned(h200, n, kernel, copied):
    wide = problem(m=14336, n=n, b_order="row")
    narrow = _widening.as_multiplied(wide, "int8", 0, "auto")
    assert narrow.dtype == "int8"
    chosen = _planner.choose(narrow, 0, dense=False)
    assert (chosen.kernel, chosen.variant.stage_b) == (kernel, copied)


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("n", [1, 5, 16, 33, 300])
def test_on_a_gpu_as_a_converted_matrix(cupy, rng, stored, dtype, n):
    a = s24.random((200, 1032), dtype=stored, rng=rng, device="cuda")
    x = cupy.asarray(tokens(rng, (n, 1032), dtype))
    y = x @ a.T
    assert y.dtype == _dtypes.numpy_dtype(dtype)
    close(y, x @ a.astype(dtype).T)
    out = cupy.zeros_like(y)
    for _ in range(3):  # the second call is a repeated one
        out[...] = 0
        s24.matmul(x, a.T, out)
        np.testing.assert_array_equal(out.get(), y.get())
    close(a @ x.T, y.T)
    close(a @ cupy.ascontiguousarray(x.T), y.T)
    close(s24.matmul(x, a.T, dtype="float32"), y)
    close(s24.matmul(cupy.stack([x, x]), a.T), cupy.stack([y, y]))


@gpu
def test_scales_and_bias_of_quantised_weights(cupy, rng):
    weight = rng.standard_normal((96, 512)).astype(np.float32)
    a = s24.compress(weight, on_excess="prune")
    of_row = abs(a).max(axis=1) / 127
    q = (a / of_row[:, None]).astype("int8").to_device("cuda")
    x = cupy.asarray(tokens(rng, (2, 3, 512), "float16"))
    scale, bias = cupy.asarray(of_row), cupy.asarray(rng.standard_normal(96).astype(np.float16))
    y = s24.linear(x, q, bias, scales=(1.0, scale), activation="silu")
    before = x.get().astype(np.float64) @ (q.to_device("cpu").toarray() * of_row[:, None]).T.astype(
        float
    )
    before += bias.get()
    wanted = before / (1 + np.exp(-before))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.get(), wanted, rtol=4e-3, atol=4e-3)


@gpu
@pytest.mark.parametrize("keep_dense", [True, False])
def test_options_and_forms(cupy, rng, keep_dense):
    dense = s24.random((128, 256), dtype="int8", rng=rng).toarray()
    a = s24.compress(cupy.asarray(dense), transposable=False, keep_dense=keep_dense)
    x = cupy.asarray(tokens(rng, (9, 256), "bfloat16"))
    wanted = x @ a.astype("bfloat16").T
    assert s24.explain(x, a.T).chosen.startswith("sparse_decode")
    for algorithm in ("auto", "sparse_decode", "sparse_skinny", "dense"):
        close(s24.matmul(x, a.T, algorithm=algorithm), wanted)
    plan = s24.plan(a, ((256, 9), "bfloat16"), out_order="column")
    assert plan.chosen.startswith("sparse_decode")
    close(plan.execute(x.T).T, wanted)
    with s24.autotune():
        close(x @ a.T, wanted)
    graph, y = cupy.cuda.Stream(non_blocking=True), cupy.empty_like(wanted)
    with graph:
        s24.matmul(x, a.T, y)
        graph.begin_capture()
        s24.matmul(x, a.T, y)
        captured = graph.end_capture()
        y[...] = 0
        captured.launch(graph)
        graph.synchronize()
    close(y, wanted)


@gpu
def test_torch_tensors(cupy, rng):
    torch = pytest.importorskip("torch")
    a = s24.random((64, 128), dtype="int8", rng=rng, device="cuda")
    x = torch.randn(2, 5, 128, device="cuda", dtype=torch.bfloat16)
    y = s24.linear(x, a)
    assert (y.dtype, y.shape) == (torch.bfloat16, (2, 5, 64))
    wanted = x.float() @ torch.from_dlpack(cupy.asarray(a.toarray())).float().T
    torch.testing.assert_close(y.float(), wanted, rtol=2e-2, atol=2e-2 * float(wanted.abs().max()))


def tokens(rng, shape, dtype: str) -> np.ndarray:
    return rng.standard_normal(shape).astype(_dtypes.numpy_dtype(dtype))


def close(got, wanted) -> None:
    got, wanted = (x.get().astype(np.float64) for x in (got, wanted))
    assert got.shape == wanted.shape
    scale = np.abs(wanted).max(initial=1e-30)
    np.testing.assert_allclose(got / scale, wanted / scale, rtol=1.6e-2, atol=1e-3)
