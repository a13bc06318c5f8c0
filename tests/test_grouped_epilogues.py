"""Scales, biases, activations and gates of grouped products, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import KERNELS, Layer, offsets_of, only, runs
from matmul_cases import ROUNDOFF, logical

import sparse24 as s24
from sparse24 import _dtypes, _finish
from sparse24._arrays import to_numpy
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._options import ACTIVATIONS
from sparse24.kernels.reference_product import activate

COUNTS = (0, 1, 7, 33, 0, 64, 129, 0)
FEW = (3, 0, 7, 1)
SIXTEEN_BITS = ("float16", "bfloat16")


@pytest.fixture(params=KERNELS)
def cupy(request, monkeypatch):
    return only(request.param, monkeypatch)


@pytest.fixture(params=["numpy", *KERNELS])
def xp(request, monkeypatch):
    """NumPy, and CuPy by each kernel."""
    return np if request.param == "numpy" else only(request.param, monkeypatch)


def linear(case: Layer, xp, **options):
    if "offsets" not in options:
        options["offsets"] = xp.asarray(case.offsets)
    return s24.grouped_linear(case.x, case.experts, x_dtype=case.name, **options)


def each(case: Layer, of_experts: np.ndarray) -> np.ndarray:
    """A row for each token, that of its expert."""
    return np.repeat(np.asarray(of_experts, np.float64), np.diff(case.offsets), axis=0)


def gated(y: np.ndarray, activation: str | None) -> np.ndarray:
    half = y.shape[1] // 2
    return activate(y[:, :half], activation or "identity", 0.0, np.inf) * y[:, half:]


def assert_near(got, want: np.ndarray, result: str, slope=None) -> None:
    """`slope`: by how much more an error of the product counts in the result."""
    got = logical(got, result).astype(np.float64)
    assert got.shape == want.shape
    roundoff = ROUNDOFF.get(result, 0.5)
    slope = 1.0 if slope is None else 1.0 + slope
    size = np.sqrt((want**2).mean()) if want.size else 0.0
    bound = 4 * roundoff * np.abs(want) + 1e-3 * slope * (size + 1)
    assert (np.abs(got - want) <= bound).all(), np.max(np.abs(got - want) / bound)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int8", "float32"])
@pytest.mark.parametrize("of_experts", ["number", "expert", "column", "row", "scalar array"])
@pytest.mark.parametrize("of_tokens", [None, "number", "token", "column"])
def test_scales_of_experts_and_tokens(xp, rng, name, of_experts, of_tokens):
    case = Layer(name, 136, 272, COUNTS, xp, rng)
    e, t = len(COUNTS), len(case.x)
    experts = {
        "number": 0.25, "expert": rng.random(e) + 0.5, "column": rng.random((e, 1)) + 0.5,
        "row": rng.random((e, 136)) + 0.5, "scalar array": np.array(0.75),
    }[of_experts]  # fmt: skip
    tokens = {
        None: None, "number": -2.0, "token": rng.random(t) - 0.5, "column": rng.random((t, 1)),
    }[of_tokens]  # fmt: skip
    rows = np.broadcast_to(
        np.asarray(experts).reshape(-1, 136 if of_experts == "row" else 1), (e, 136)
    )
    want = case.exact.T * each(case, rows)
    want = want if tokens is None else want * np.reshape(tokens, (-1, 1))
    give = lambda x: xp.asarray(x, np.float32) if isinstance(x, np.ndarray) else x  # noqa: E731
    result = "float32" if name == "int8" else None
    y = linear(case, xp, scales=(give(tokens), give(experts)), dtype=result)
    assert_near(y, want, result or _dtypes.TABLE[name].result)
    flat = tokens.reshape(-1) if isinstance(tokens, np.ndarray) else tokens
    columns = case.multiply(
        scales=(give(experts), give(flat)), dtype=result, offsets=xp.asarray(case.offsets)
    )
    np.testing.assert_array_equal(to_numpy(columns).T, to_numpy(y))


@pytest.mark.parametrize("name", SIXTEEN_BITS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_the_biased_product(xp, rng, name, activation):
    case = Layer(name, 136, 64, COUNTS, xp, rng)
    bias = rng.standard_normal((len(COUNTS), 136)).astype(np.float32)
    y = linear(case, xp, bias=xp.asarray(bias), activation=activation)
    before = case.exact.T + each(case, bias)
    slope = 2 * np.abs(before) if activation == "relu2" else None
    assert_near(y, activate(before, activation, 0.0, np.inf), name, slope)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "int8", "float32"])
@pytest.mark.parametrize("m", [2, 100, 128, 384, 640])
@pytest.mark.parametrize("counts", [COUNTS, FEW, (0, 300, 700)], ids=str)
def test_gates(xp, rng, name, m, counts):
    case = Layer(name, m, 272 if name != "int8" else 40, counts, xp, rng)
    bias = rng.standard_normal((len(counts), m)).astype(np.float32)
    scale = (rng.random((len(counts), m)) / 8).astype(np.float32)
    tokens = rng.random(len(case.x)).astype(np.float32)
    result = "bfloat16" if name == "int8" else None
    y = linear(
        case, xp, bias=xp.asarray(bias), scales=(xp.asarray(tokens), xp.asarray(scale)),
        activation="silu", gated=True, dtype=result,
    )  # fmt: skip
    before = case.exact.T * each(case, scale) * tokens[:, None] + each(case, bias)
    half = m // 2
    slope = np.abs(before[:, half:]) + np.abs(before[:, :half])
    assert y.flags.c_contiguous
    assert_near(y, gated(before, "silu"), result or _dtypes.TABLE[name].result, slope)


@pytest.mark.parametrize("name", SIXTEEN_BITS)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_every_activation_of_a_gate(xp, rng, name, activation):
    case = Layer(name, 256, 64, COUNTS, xp, rng)
    y = linear(case, xp, scales=(None, 0.25), activation=activation, gated=True)
    before = case.exact.T / 4
    slope = np.abs(before[:, 128:]) * (1 + 2 * np.abs(before[:, :128])) + np.abs(before[:, :128])
    assert_near(y, gated(before, activation), name, slope)


@pytest.mark.parametrize("result", ["float32", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_gated_results(xp, rng, result):
    case = Layer("float8_e4m3fn", 256, 64, COUNTS, xp, rng)
    y = linear(case, xp, activation="gelu", gated=True, scales=(0.25, None), dtype=result)
    before = case.exact.T / 4
    got, want = logical(y, result).astype(np.float64), gated(before, "gelu")
    eps = {"float8_e4m3fn": 2**-4, "float8_e5m2": 2**-3}.get(result, 2**-9)
    slope = np.abs(before[:, 128:]) + np.abs(before[:, :128])
    assert (np.abs(got - want) <= 1.1 * eps * np.abs(want) + 2e-3 * (slope + 1)).all()


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("tokens", [8, 100, 1000, 6000])
@pytest.mark.parametrize("fast", [True, False])
def test_gates_in_one_launch_are_those_of_two_products(cupy, rng, name, tokens, fast):
    """Every tile that the kernel has, also with offsets that leave tokens out."""
    counts = rng.multinomial(tokens, [0.5, 0.0, 0.3, 0.2])
    case = Layer(name, 384, 528, counts, cupy, rng)
    offsets = cupy.asarray(case.offsets, np.int32)
    y = linear(case, cupy, activation="relu", gated=True, dtype="float32", offsets=offsets)
    both = case.multiply(dtype="float32", fast_accumulation=fast, offsets=offsets).T
    want = cupy.maximum(both[:, :192], 0) * both[:, 192:]
    bound = 1e-5 if name != "float8_e4m3fn" else 2e-2
    error = float(cupy.linalg.norm(y - want) / cupy.linalg.norm(want))
    assert error <= bound
    part = offsets // 2
    out = linear(case, cupy, activation="relu", gated=True, dtype="float32", offsets=part)
    for i, (start, stop) in enumerate(zip(to_numpy(part)[:-1], to_numpy(part)[1:])):
        of_expert = case.x[int(start) : int(stop)]
        one = s24.matmul(case.experts[i], of_expert.T, b_dtype=name, dtype="float32").T
        want = cupy.maximum(one[:, :192], 0) * one[:, 192:]
        got = out[int(start) : int(stop)]
        assert float(cupy.linalg.norm(got - want)) <= bound * float(cupy.linalg.norm(want) + 1e-9)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_calls_with_scales_and_gates_are_replayed(cupy, rng, library, monkeypatch):
    planned, fill = [], grouped_dispatch.fill
    monkeypatch.setattr(
        grouped_dispatch, "fill", lambda *given: (planned.append(given), fill(*given))[1]
    )
    give = pytest.importorskip("torch").from_dlpack if library == "torch" else lambda x: x
    case = Layer("float16", 256, 272, COUNTS, cupy, rng)
    x, offsets = give(case.x), give(cupy.asarray(case.offsets))
    scale, tokens = cupy.ones((len(COUNTS), 256), np.float32), cupy.ones(len(case.x), np.float32)
    of_call = {"activation": "silu", "gated": True, "scales": (give(tokens), give(scale))}
    first = s24.grouped_linear(x, case.experts, offsets=offsets, **of_call)
    scale[...], tokens[...] = 0.5, 2.0  # read anew
    second = s24.grouped_linear(x, case.experts, offsets=offsets, **of_call)
    assert bool((first == second).all())
    tokens[...] = 0.0
    assert not s24.grouped_linear(x, case.experts, offsets=offsets, **of_call).any()
    without = s24.grouped_linear(x, case.experts, offsets=offsets, gated=True, activation="relu")
    assert without.any()
    once = runs()
    assert len(planned) == (2 if once else 4)
    other = {**of_call, "scales": (give(tokens), 2.0)}
    for _ in range(2):  # a number is part of the call
        s24.grouped_linear(x, case.experts, offsets=offsets, **other)
    assert len(planned) == (3 if once else 6)


def test_a_graph_of_a_gated_product(cupy, rng):
    if not runs():
        pytest.skip("only a kernel reads offsets on the device")
    case = Layer("bfloat16", 256, 272, COUNTS, cupy, rng)
    offsets, tokens = cupy.asarray(case.offsets), cupy.ones(len(case.x), np.float32)
    call = lambda: linear(  # noqa: E731
        case, cupy, activation="silu", gated=True, scales=(tokens, None), offsets=offsets
    )
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        call()
        stream.begin_capture()
        y = call()
        graph = stream.end_capture()
    offsets[...] = cupy.asarray(offsets_of([len(case.x), *[0] * (len(COUNTS) - 1)]))
    tokens[...] = 2
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(to_numpy(y), to_numpy(call()))


def test_experts_without_tokens_and_matrices_without_elements(xp):
    for m, k, t in ((0, 8, 5), (8, 0, 5), (8, 16, 0), (128, 16, 0)):
        experts = s24.compress(xp.zeros((2, m, k), np.float16))
        y = s24.grouped_linear(
            xp.ones((t, k), np.float16), experts, xp.ones((2, m), np.float32), offsets=[0, 0, t],
            activation="silu", gated=True, scales=(xp.ones(t, np.float32), 2.0),
        )  # fmt: skip
        assert y.shape == (t, m // 2)
    nobody = s24.compress(xp.zeros((0, 8, 16), np.float16))
    for scale in (xp.ones(0, np.float32), xp.ones((0, 8), np.float32)):
        scales = (None, scale)
        y = s24.grouped_linear(xp.ones((0, 16), np.float16), nobody, offsets=[0], scales=scales)
        assert y.shape == (0, 8)


def test_a_gate_is_applied_to_the_tokens_of_all_experts_at_once(rng, monkeypatch):
    passes, finish = [], _finish.finish_matrix
    monkeypatch.setattr(
        _finish, "finish_matrix", lambda *given: (passes.append(given), finish(*given))[1]
    )
    for name, bias in (("float32", None), ("bfloat16", np.ones((8, 24), np.float32))):
        case = Layer(name, 24, 40, (1,) * 8, np, rng)
        y = linear(case, np, bias=bias, activation="silu", gated=True)
        before = case.exact.T + (0 if bias is None else bias)
        slope = np.abs(before[:, :12]) + np.abs(before[:, 12:])
        assert_near(y, gated(before, "silu"), name, slope)
    assert len(passes) == 2 * 2  # the activation, and the result; not for each expert


def test_nan_of_a_gate_stays_with_its_tokens(xp, rng):
    case = Layer("float16", 128, 32, FEW, xp, rng)
    case.x[3:10] = np.nan
    y = to_numpy(linear(case, xp, activation="silu", gated=True))
    assert np.isnan(y[3:10]).all()
    assert np.isfinite(np.delete(y, np.s_[3:10], axis=0)).all()


def test_integer_results_saturate_after_scales(rng):
    case = Layer("int8", 24, 40, FEW, np, rng)
    y = linear(case, np, scales=(None, 1000.0), dtype="int8")
    np.testing.assert_array_equal(y, np.clip(1000 * case.exact.T, -128, 127))


def test_fp8_as_bits_and_its_scales(rng):
    case = Layer("float8_e4m3fn", 24, 40, FEW, np, rng)
    bits = s24.grouped_linear(
        case.x.view(np.uint8), case.experts, offsets=case.offsets, x_dtype="float8_e4m3fn",
        scales=(0.5, 0.5),
    )  # fmt: skip
    np.testing.assert_array_equal(bits, linear(case, np, scales=(0.25, None)))


def test_scales_on_another_device_are_refused(cupy, rng):
    case = Layer("float16", 24, 40, FEW, cupy, rng)
    with pytest.raises(s24.DeviceError, match=r"scales\[1\] is on cpu, As on cuda:0; pass an"):
        linear(case, cupy, scales=(None, np.ones(4, np.float32)))
