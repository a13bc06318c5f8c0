"""The kernels of grouped products against the reference and cuBLAS; what they may not touch."""

from __future__ import annotations

import numpy as np
import pytest
from grouped_cases import KERNELS, Layer, assert_right, kernel, offsets_of, only, poisoned, runs
from guards import Guarded
from matmul_cases import assert_close, logical

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._arrays import to_numpy
from sparse24.kernels import chip, grouped_mma
from sparse24.kernels.grouped import OUTPUTS

COUNTS = (0, 1, 7, 33, 0, 64, 129, 300, 0)
SMALL = (3, 0, 70, 1)
NAMES = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8")
SIZES = [(1, 1), (8, 16), (100, 201), (128, 256), (264, 1000), (520, 2500)]
RESULTS = [(name, result) for name in NAMES for result in OUTPUTS[name]]


@pytest.fixture(params=KERNELS)
def cupy(request, monkeypatch):
    return only(request.param, monkeypatch)


@pytest.fixture
def launches(cupy, monkeypatch):
    """Counts launches of the kernel; how many they should be on this GPU, for `n` products."""
    calls, module = [], kernel()
    bind = module.bind
    monkeypatch.setattr(module, "bind", lambda *given: (calls.append(given), bind(*given))[1])
    return lambda n, name="float16": len(calls) == (n if runs(name) else 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_type_and_size(cupy, launches, rng, name, size):
    case = Layer(name, *size, COUNTS, cupy, rng)
    out = poisoned(cupy, case.exact.shape, _dtypes.TABLE[name].result)
    offsets = cupy.asarray(case.offsets)
    assert case.multiply(out, offsets=offsets) is out
    assert launches(1, name)
    assert_right(out, case, _dtypes.TABLE[name].result)
    np.testing.assert_array_equal(to_numpy(case.multiply(offsets=offsets)), to_numpy(out))


@pytest.mark.parametrize(("name", "result"), RESULTS)
def test_every_type_of_result(cupy, rng, name, result):
    case = Layer(name, 136, 272, COUNTS, cupy, rng)
    out = poisoned(cupy, case.exact.shape, result)
    case.multiply(out, dtype=result, offsets=cupy.asarray(case.offsets))
    assert_right(out, case, result)


def test_types_of_fp8_meet(cupy, rng):
    case = Layer("float8_e4m3fn", 136, 272, COUNTS, cupy, rng)
    other = to_numpy(case.x).view(_dtypes.TABLE["float8_e4m3fn"].logical)
    other = other.astype(np.float32).astype(_dtypes.TABLE["float8_e5m2"].logical)
    case.x = cupy.asarray(other.view(np.uint8))
    got = case.multiply(b_dtype="float8_e5m2")
    want = case.one_by_one(b_dtype="float8_e5m2")
    assert_close(to_numpy(got), want, "float8_e5m2", 272)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("experts", [1, 2, 9, 128, 300])
@pytest.mark.parametrize("tokens", [0, 1, 8, 100, 5000])
def test_any_number_of_experts_and_tokens(cupy, launches, rng, name, experts, tokens):
    shares = 1 / (1 + rng.permutation(experts))
    counts = rng.multinomial(tokens, shares / shares.sum())
    case = Layer(name, 136, 144, counts, cupy, rng)
    out = poisoned(cupy, case.exact.shape, _dtypes.TABLE[name].result)
    case.multiply(out, offsets=cupy.asarray(case.offsets, np.int32))
    assert launches(int(tokens > 0), name)
    assert_right(out, case, _dtypes.TABLE[name].result)


@pytest.mark.parametrize("name", ["float16", "int8", "float8_e5m2"])
@pytest.mark.parametrize("size", [(136, 144), (301, 130), (77, 39)], ids=str)
@pytest.mark.parametrize("b_order", ["C", "F", "strided", "shifted"])
@pytest.mark.parametrize("out_order", ["C", "F", "strided", "wide"])
def test_every_layout_and_nothing_beside_the_result(cupy, rng, name, size, b_order, out_order):
    case = Layer(name, *size, SMALL, cupy, rng)
    (m, t), k = case.exact.shape, size[1]
    b = cupy.asarray(case.x.T, order="C" if b_order == "C" else "F")
    if b_order in ("strided", "shifted"):
        step = 2 if b_order == "strided" else 1
        room = cupy.zeros((t, step * k + 1), b.dtype)
        room[:, 1::step] = case.x
        b = room[:, 1::step].T
    result = np.int32 if name == "int8" else case.multiply().dtype
    room = cupy.full((t, 2 * m + 3), 77, result)
    out = {"C": cupy.empty((m, t), result), "F": cupy.empty((m, t), result, order="F"),
           "strided": room.T[1 : 2 * m : 2], "wide": room[:, 3 : 3 + m].T}[out_order]  # fmt: skip
    s24.grouped_matmul(case.experts, b, out, offsets=cupy.asarray(case.offsets), b_dtype=name)
    assert_right(out, case, "int32" if name == "int8" else _dtypes.TABLE[name].result)
    if out_order == "wide":
        assert bool((room[:, :3] == 77).all())
        assert bool((room[:, 3 + m :] == 77).all())
    if out_order == "strided":
        assert bool((room[:, ::2] == 77).all())


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn"])
def test_nan_stays_with_the_tokens_of_its_expert(cupy, rng, name):
    case = Layer(name, 136, 272, COUNTS, cupy, rng)
    want, nan = logical(case.multiply(), "bfloat16").astype(np.float64), slice(41, 105)
    case.x[nan] = 0x7F if name == "float8_e4m3fn" else np.nan
    got = to_numpy(case.multiply()).astype(np.float64)
    assert np.isnan(got[:, nan]).all()
    np.testing.assert_array_equal(np.delete(got, nan, axis=1), np.delete(want, nan, axis=1))


@pytest.mark.parametrize("kind", [list, np.int32, np.int64, "int32", "int64", "strided"])
def test_offsets_of_the_host_and_of_the_device(cupy, launches, rng, kind):
    case = Layer("bfloat16", 136, 272, COUNTS, cupy, rng)
    offsets = case.offsets
    given = {
        list: offsets.tolist(), np.int32: offsets.astype(np.int32), np.int64: offsets,
        "int32": cupy.asarray(offsets, np.int32), "int64": cupy.asarray(offsets),
        "strided": cupy.repeat(cupy.asarray(offsets), 3)[::3],
    }[kind]  # fmt: skip
    assert_right(case.multiply(offsets=given), case, "bfloat16")
    assert launches(1)


def test_the_same_bits_each_time(cupy, rng):
    case = Layer("bfloat16", 264, 1000, COUNTS, cupy, rng)
    first = to_numpy(case.multiply())
    for _ in range(3):
        np.testing.assert_array_equal(to_numpy(case.multiply()), first)


OUTSIDE = [
    [-5, 10, 20, 200], [0, 10, 20, 100], [90, 95, 99, 99], [99, 50, 20, 0], [0, 50, 20, 74],
    [-(2**31), 2**31 - 1, -(2**31), 2**31 - 1], [74, 74, 74, 74], [-9, -8, -7, -6],
]  # fmt: skip


@pytest.mark.parametrize("offsets", OUTSIDE, ids=str)
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_offsets_outside_of_the_tokens_touch_nothing_else(cupy, rng, name, offsets, kind):
    guards = Guarded(cupy)
    with cupy.cuda.using_allocator(guards):
        case = Layer(name, 136, 272, (3, 70, 1), cupy, rng)
        given = cupy.asarray(np.array(offsets, kind))
        for m_order in ("F", "C"):
            out = cupy.empty((136, 74), _dtypes.TABLE[name].result, order=m_order)
            try:
                case.multiply(out, offsets=given)
            except s24.ArgumentError:  # expert by expert they are looked at
                assert not runs()
        assert not guards.damage()


def test_an_expert_within_the_tokens_is_right_beside_those_that_are_not(cupy, rng):
    case = Layer("bfloat16", 136, 272, (3, 70, 1), cupy, rng)
    if not runs():
        pytest.skip("expert by expert such offsets are refused")
    got = to_numpy(case.multiply(offsets=cupy.asarray([-4, 3, 73, 2000])))
    np.testing.assert_array_equal(got, to_numpy(case.multiply()))


def test_parts_of_a_stack_and_kept_dense_matrices(cupy, launches, rng):
    case = Layer("float16", 136, 272, COUNTS, cupy, rng)
    got = s24.grouped_matmul(case.experts[2:6], case.x[1:105].T, offsets=offsets_of(COUNTS[2:6]))
    np.testing.assert_array_equal(to_numpy(got), to_numpy(case.multiply())[:, 1:105])
    kept = s24.compress(case.experts.toarray(), keep_dense=True)
    got = s24.grouped_matmul(kept, case.x.T, offsets=case.offsets)
    np.testing.assert_array_equal(to_numpy(got), to_numpy(case.multiply()))
    assert launches(4)


@pytest.mark.gpu
@pytest.mark.stem("grouped_mma")
@pytest.mark.parametrize("kib", [99, 163])
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
@pytest.mark.parametrize("counts", [(1, 0, 2), (30, 0, 3), (500, 0, 301)], ids=str)
@pytest.mark.parametrize("gated", [False, True])
def test_the_rings_of_chips_with_less_shared_memory(monkeypatch, rng, kib, name, counts, gated):
    cupy = only("grouped_mma", monkeypatch)
    smaller = chip.chip()._replace(most_shared=kib << 10)
    monkeypatch.setattr(grouped_mma, "chip", lambda *device: smaller)
    case = Layer(name, 160, 1100, counts, cupy, rng)
    offsets = cupy.asarray(case.offsets)
    if gated:
        got = s24.grouped_linear(
            case.x, case.experts, offsets=offsets, gated=True, dtype="float32", x_dtype=name
        )
        want = (case.exact[:80] * case.exact[80:]).T
        assert float(np.linalg.norm(to_numpy(got) - want)) <= 1e-4 * float(np.linalg.norm(want))
    else:
        assert_right(case.multiply(offsets=offsets), case, _dtypes.TABLE[name].result)
