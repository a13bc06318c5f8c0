"""Products of stacks of quantised 2:4 matrices, grouped ones too, and the inputs of experts."""

from __future__ import annotations

import pickle

import fake_grouped
import numpy as np
import pytest
from fake_grouped import array
from grouped_cases import offsets_of
from quantised_cases import near

import sparse24 as s24
from sparse24 import _dispatch, _quantised
from sparse24._grouped import choice as grouped_choice
from sparse24._records import Compressed24
from sparse24.kernels import cpu_few_bricks, reference

gpu = pytest.mark.gpu
BITS = [4, 8]
COUNTS = (3, 0, 40, 1)
OFFSETS = offsets_of(COUNTS)


@pytest.fixture
def no_dequantising(monkeypatch):
    def refuse(*args):
        raise AssertionError("dequantised")

    monkeypatch.setattr(_quantised, "dequantised", refuse)


def stack_of(rng, shape, bits=4, dtype="float32"):
    return s24.quantise(s24.random(shape, dtype=dtype, rng=rng), bits=bits)


def sample(rng, *shape, dtype="float32"):
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_products_are_those_of_the_dequantised(rng, dtype, bits, n):
    q = stack_of(rng, (3, 50, 300), bits, dtype)
    whole = q.dequantise()
    for shape in ((300, n), (3, 300, n), (2, 1, 300, n), (1, 300, n)):
        b = sample(rng, *shape, dtype=q.dtype)
        for _ in range(2):  # what the first product has kept serves the second
            near(q @ b, whole @ b)
        near(b.swapaxes(-1, -2) @ q.mT, b.swapaxes(-1, -2) @ whole.mT)
    y = sample(rng, 3, n, 50, dtype=q.dtype)
    np.testing.assert_array_equal(y @ q, y @ whole)
    near(q @ b[0, :, 0], whole @ b[0, :, 0])
    near(q[:1] @ y.repeat(6, axis=2).swapaxes(1, 2), whole[:1] @ y.repeat(6, axis=2).swapaxes(1, 2))


@pytest.mark.skipif(not cpu_few_bricks.AVAILABLE, reason="needs AVX-512")
@pytest.mark.parametrize("bits", BITS)
def test_few_columns_read_the_bricks(rng, no_dequantising, bits):
    q, n = stack_of(rng, (3, 50, 300), bits), cpu_few_bricks._MOST[bits]
    before = q.nbytes
    c = sample(rng, 3, 50, n)
    for b in (sample(rng, 300, n), sample(rng, 3, 300, n)):
        each = b if b.ndim == 3 else [b] * 3
        np.testing.assert_array_equal(q @ b, [one @ x for one, x in zip(q, each, strict=True)])
        np.testing.assert_array_equal(
            s24.matmul(q, b, alpha=2.0, c=c, beta=1.0),
            [s24.matmul(*given, alpha=2.0, c=y, beta=1.0) for *given, y in zip(q, each, c)],
        )
        told = s24.explain(q, b)
        assert told.chosen == "cpu_sparse"
        assert "it reads integers and scales" in told.reason
    assert q.nbytes == before


def test_explain_tells_what_is_kept(rng):
    q = stack_of(rng, (3, 40, 256))
    b, before = sample(rng, 256, 20), q.nbytes
    assert "the first product dequantises the matrix" in s24.explain(q, b).reason
    one = s24.explain(q[:1], sample(rng, 3, 256, 1)).reason  # of one matrix with three of b
    assert "the first product dequantises the matrix" in one
    q @ b
    kept = q.dequantise()
    assert q.nbytes == before + kept.values.nbytes + kept.metadata.nbytes
    q @ b
    assert q.nbytes == before + kept.values.nbytes + kept.metadata.nbytes
    assert pickle.loads(pickle.dumps(q)).nbytes == before


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_each_expert_multiplies_its_tokens(rng, bits, dtype):
    q = stack_of(rng, (4, 64, 300), bits, dtype)
    x = sample(rng, OFFSETS[-1], 300, dtype=q.dtype)
    of_each = [x[i:j] @ one.T for one, i, j in zip(q, OFFSETS, OFFSETS[1:])]
    for _ in range(2):  # the second product is a repeated one
        np.testing.assert_array_equal(
            s24.grouped_linear(x, q, offsets=OFFSETS), np.concatenate(of_each)
        )
    got = s24.grouped_matmul(q, x.T, offsets=OFFSETS, dtype="float32")
    near(got, s24.grouped_matmul(q.dequantise(), x.T, offsets=OFFSETS, dtype="float32"))
    whole, bias = q.dequantise(), sample(rng, 4, 64)
    options = {"offsets": OFFSETS, "activation": "silu", "gated": True, "scales": (None, bias)}
    near(s24.grouped_linear(x, q, bias, **options), s24.grouped_linear(x, whole, bias, **options))
    assert s24.explain(q, x.T, offsets=OFFSETS).chosen == "cpu"


def test_experts_keep_what_they_dequantise_once(rng, monkeypatch):
    q = stack_of(rng, (4, 64, 256))
    made, dequantised = [], _quantised.dequantised
    monkeypatch.setattr(
        _quantised, "dequantised", lambda *given: made.append(given) or dequantised(*given)
    )
    before, one = q.nbytes, q[0].dequantise()._operand.stored
    made.clear()
    for counts in ((20, 0, 30, 0), (30, 0, 20, 0), (5, 0, 5, 40)):
        offsets = offsets_of(counts)
        s24.grouped_linear(sample(rng, offsets[-1], 256), q, offsets=offsets)
    assert len(made) == 3
    assert q.nbytes == before + 3 * (one.values.nbytes + one.metadata.nbytes)


def on_stand_in(q):
    """The array on the stand-in for a GPU, which `fake_grouped` has installed."""
    record = q._operand.stored
    return q._of(
        _quantised.with_bricks(array(record.values), q.shape, record.quantised, record.dtype)
    )


def test_on_a_gpu_one_launch_serves_all_experts_dequantised(rng, monkeypatch):
    monkeypatch.setattr(grouped_choice, "CONVERTING_PAYS", {4: 0})
    here, x = stack_of(rng, (4, 24, 16)), sample(rng, 44, 16)
    whole = here.dequantise()
    want = s24.grouped_linear(x, whole, offsets=OFFSETS)
    kernel, made = fake_grouped.installed(monkeypatch), []

    def dequantised(record, dtype):
        made.append(record)
        codes = array(reference.pack_metadata(whole.metadata, 16, dtype.itemsize))
        return Compressed24(array(whole.values), None, codes, record.shape, dtype)

    monkeypatch.setattr(_quantised, "dequantised", dequantised)
    q = on_stand_in(here)
    for times in (1, 2):  # nothing is kept
        got = s24.grouped_linear(array(x), q, offsets=array(OFFSETS))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert (len(made), len(kernel.given)) == (times, times)
    assert q.nbytes == here.nbytes


def test_on_a_gpu_experts_without_a_kernel_multiply_one_by_one(rng, monkeypatch):
    monkeypatch.setattr(grouped_choice, "CONVERTING_PAYS", {4: 0})
    here, x, given = stack_of(rng, (4, 24, 16)), array(sample(rng, 44, 16)), []
    fake_grouped.installed(monkeypatch).refusal = "it is float99"
    monkeypatch.setattr(_dispatch, "fill", lambda a, *rest: given.append(a))
    for _ in range(2):
        s24.grouped_linear(x, on_stand_in(here), offsets=OFFSETS)
    for a, number in zip(given, (0, 2, 3) * 2, strict=True):
        assert (a.shape, a.rows.quantised) == ((24, 16), 4)
        np.testing.assert_array_equal(a.rows.values, here[number]._operand.stored.values)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda q: q[0], s24.ShapeError, r"must have shape \(e, m, k\)"),
        (lambda q: q.mT, s24.UnsupportedError, r"pass As\.mT"),
        (lambda q: q.toarray(), s24.DTypeError, "As must be a Sparse24Array, Quantised24Array or"),
    ],
)
def test_refusals_of_grouped_products(rng, make, error, words):
    with pytest.raises(error, match=words):
        s24.grouped_linear(np.ones((44, 8)), make(stack_of(rng, (4, 8, 8))), offsets=OFFSETS)


@pytest.fixture
def inputs(rng):
    """Those of two experts, of which some features go together."""
    common = rng.standard_normal((2, 48, 256)) / 7
    return rng.standard_normal((2, 500, 48)) @ common + 0.3 * rng.standard_normal((2, 500, 256))


@pytest.mark.parametrize("batch", [(2,), (1, 2)])
def test_each_expert_is_rounded_for_its_own_inputs(rng, inputs, batch):
    a = s24.random((*batch, 32, 256), rng=rng)
    sizes = [inputs[0, :300], inputs[1]]  # not all have as many tokens
    nested = sizes if len(batch) == 1 else [sizes]
    hessian = np.stack([x.T @ x for x in sizes]).reshape(*batch, 256, 256)
    seen = [s24.Calibration(x) for x in sizes] if len(batch) == 1 else nested
    alone = [s24.quantise(a[at], method="gptq", calibration=x)
             for at, x in zip(np.ndindex(*batch), sizes, strict=True)]  # fmt: skip
    for known in ({"calibration": nested}, {"calibration": seen}, {"hessian": hessian}):
        q = s24.quantise(a, method="gptq", **known)
        for at, one in zip(np.ndindex(*batch), alone, strict=True):
            np.testing.assert_array_equal(q[at].integers, one.integers)
            np.testing.assert_array_equal(q[at].scales, one.scales)
    turned = s24.quantise(a.mT, method="gptq", hessian=hessian)
    np.testing.assert_array_equal(turned.mT.integers, q.integers)


@pytest.mark.parametrize("batch", [(3,), (2, 3)])
def test_an_expert_without_tokens_is_rounded_without_them(rng, inputs, batch):
    a = s24.random((*batch, 32, 256), rng=rng)
    seen = [inputs[0], None, inputs[1]]
    moments = [None if x is None else x.T @ x for x in seen]
    with_none = s24.quantise(a[..., 1, :, :], bits=8)
    for name, one in (("calibration", seen), ("hessian", moments)):
        known = one if len(batch) == 1 else [one, None]
        q = s24.quantise(a, bits=8, method="gptq", **{name: known})
        first = q if len(batch) == 1 else q[0]
        np.testing.assert_array_equal(q[..., 1, :, :].integers, with_none.integers)
        np.testing.assert_array_equal(q[..., 1, :, :].scales, with_none.scales)
        for i in (0, 2):
            alone = s24.quantise(a[(*(0,) * (len(batch) - 1), i)], bits=8, method="gptq",
                                 **{name: one[i]})  # fmt: skip
            np.testing.assert_array_equal(first[i].integers, alone.integers)


def test_errors_name_the_matrix_of_a_stack(rng):
    seen = [[np.ones((9, 16))] * 3, [np.ones((9, 16)), np.ones((0, 16)), np.ones((9, 16))]]
    a = s24.random((2, 3, 8, 16), rng=rng)
    words = r"matrix \[1, 1\] of the stack: .*no inputs.* None in its place"
    with pytest.raises(s24.ArgumentError, match=words):
        s24.quantise(a, method="gptq", calibration=seen)
    factor = np.where(np.arange(3) == 2, np.inf, 1)[:, None, None]
    words = r"matrix \[0, 2\] of the stack: A has elements that are infinite.*nan_to_num"
    with np.errstate(invalid="ignore"), pytest.raises(s24.ArgumentError, match=words):
        s24.quantise(a * factor)


def test_a_stack_of_no_experts_needs_no_inputs(rng):
    q = s24.quantise(s24.random((0, 8, 16), rng=rng), method="gptq", calibration=[])
    assert q.shape == (0, 8, 16)


@pytest.mark.parametrize(
    ("known", "error", "words"),
    [
        ({"calibration": np.ones((9, 16))}, s24.ShapeError, "calibration must be a sequence of 2"),
        ({"calibration": s24.Calibration(np.ones((9, 16)))}, s24.ShapeError, r"\[x\] \* 2"),
        ({"calibration": [np.ones((9, 16))]}, s24.ShapeError, "one for each matrix of a stack"),
        ({"calibration": [np.ones((9, 16)), np.ones((9, 8))]}, s24.ShapeError, "16 features"),
        ({"hessian": np.array(1.0)}, s24.ShapeError, "hessian must be a sequence of 2"),
        ({"hessian": np.eye(16)}, s24.ShapeError, "hessian must be a sequence of 2"),
        ({"hessian": np.ones((2, 16))}, s24.ShapeError, r"hessian must have shape \(16, 16\)"),
        ({}, s24.ArgumentError, "needs to know the inputs"),
    ],
)
def test_refusals_of_inputs(rng, known, error, words):
    with pytest.raises(error, match=words):
        s24.quantise(s24.random((2, 8, 16), rng=rng), method="gptq", **known)


@gpu
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(4, 64, 256), (4, 50, 304)])
def test_on_a_gpu(cupy, rng, bits, dtype, shape):
    here = stack_of(rng, shape, bits, dtype)
    q = here.to_device("cuda")
    whole = q.dequantise()
    tokens = sample(rng, OFFSETS[-1], shape[2], dtype=here.dtype)
    x, y = cupy.asarray(tokens), tokens[:20].T

    def assert_close(got, want):  # elements of `whole` are rounded to its type, those of `q` not
        got, want = (c.get().astype(np.float64) for c in (got, want))
        assert np.linalg.norm(got - want) <= 0.01 * np.linalg.norm(want)

    for b in map(cupy.asarray, (y, np.stack([y, 2 * y, 3 * y, 4 * y]))):
        assert_close(q @ b, whole @ b)
    for offsets in (OFFSETS, cupy.asarray(OFFSETS)):
        for _ in range(2):
            got = s24.grouped_linear(x, q, offsets=offsets)
            assert_close(got, s24.grouped_linear(x, whole, offsets=offsets))
