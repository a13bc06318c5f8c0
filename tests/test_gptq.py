"""Rounding that knows the inputs: smaller errors of outputs, zeros that stay, and refusals."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _dtypes
from sparse24._gptq import gptq

gpu = pytest.mark.gpu
ROWS, K = 64, 384


@pytest.fixture
def inputs(rng):
    """Some features go together."""
    return rng.standard_normal((2000, 48)) @ rng.standard_normal((48, K)) / 7 + (
        0.3 * rng.standard_normal((2000, K))
    )


@pytest.fixture
def array(rng, inputs):
    weights = rng.standard_normal((ROWS, K))
    pruned = s24.prune(weights, method="sparsegpt", calibration=inputs)
    return s24.compress(pruned.astype(np.float32))


def output_error(q, array, inputs) -> float:
    wanted = inputs @ array.toarray().T
    got = inputs @ q.dequantise("float64").toarray().T
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_change_less(array, inputs, bits):
    plain = s24.quantise(array, bits=bits)
    q = s24.quantise(array, bits=bits, method="gptq", calibration=inputs)
    assert output_error(q, array, inputs) < 0.8 * output_error(plain, array, inputs)
    assert (q.bits, q.dtype, q.shape) == (bits, array.dtype, array.shape)
    np.testing.assert_array_equal(q.metadata, array.metadata)
    assert not q.toarray()[array.toarray() == 0].any()
    assert np.isfinite(q.scales).all()


def test_the_inputs_may_be_given_in_three_ways(array, inputs):
    ways = (
        {"calibration": inputs},
        {"calibration": s24.Calibration(inputs)},
        {"hessian": inputs.T @ inputs},
    )
    first, *others = (s24.quantise(array, method="gptq", **way) for way in ways)
    for other in others:
        np.testing.assert_array_equal(other.integers, first.integers)
        np.testing.assert_array_equal(other.scales, first.scales)


def test_without_correlations_it_is_plain_rounding(array):
    """Nothing can make up for anything where X.T @ X is diagonal."""
    q = s24.quantise(array, method="gptq", hessian=np.diag(np.arange(1.0, K + 1)))
    plain = s24.quantise(array)
    np.testing.assert_array_equal(q.integers, plain.integers)
    np.testing.assert_array_equal(q.scales, plain.scales)


def test_a_column_makes_up_for_the_one_before_it():
    """Two equal features: what the first weight loses, the second gains."""
    weights = np.array([[0.6, 0.6]])
    integers, factors = gptq(
        weights, np.ones((1, 2), bool), np.ones((2, 2)), bits=4, group=128, damping=1e-9,
        choose=lambda group: np.ones((1, 1), np.float32),
    )  # fmt: skip
    assert factors == 1
    np.testing.assert_array_equal(integers, [[1, 0]])  # of 1.2 together; each alone gives 2


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (5, 7), (2, 130)])
def test_odd_sizes(rng, shape):
    array = s24.compress(s24.prune(rng.standard_normal(shape).astype(np.float32)))
    x = rng.standard_normal((50, shape[1]))
    for a in (array, array.T.copy()):
        q = s24.quantise(a, bits=8, method="gptq", calibration=x)
        assert q.axis == a.axis
        np.testing.assert_allclose(q.toarray(), a.toarray(), atol=0.1)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_elements_of_any_size(array, inputs, scale):
    usual = s24.quantise(array, method="gptq", calibration=inputs)
    other = s24.quantise(array * np.float32(scale), method="gptq", calibration=inputs)
    assert output_error(other, array * np.float32(scale), inputs) == pytest.approx(
        output_error(usual, array, inputs), rel=0.1
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_moved_elements_stay_within_the_type(dtype):
    """What the positive one loses, clipped at 7 of 8, goes to its equal in the next group."""
    number = _dtypes.numpy_dtype(dtype)
    most = ml_dtypes.finfo(np.float32 if dtype == "float64" else number).max
    dense = np.zeros((1, 132), number)
    dense[0, [0, 1, 128]] = -most, most, most
    inputs = np.zeros((4, 132))
    inputs[:, [1, 128]] = 1
    q = s24.quantise(dense, method="gptq", calibration=inputs, damping=1e-6)
    np.testing.assert_array_equal(q.integers[0, [0, 1, 64]], [-8, 7, -8])
    assert q.toarray()[0, 128] == most


@pytest.mark.parametrize("scale", [1e-39, 1e-38, 1e-37, 1e-36])
def test_scales_are_normal_numbers_or_zero(array, inputs, scale):
    tiny = s24.compress((array.toarray().astype(float) * scale).astype(np.float32))
    scales = np.abs(s24.quantise(tiny, method="gptq", calibration=inputs).scales)
    assert ((scales == 0) | (scales >= np.finfo(np.float32).tiny)).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"method": "gptq"}, s24.ArgumentError, "pass calibration=X"),
        ({"calibration": np.ones((2, K))}, s24.ArgumentError, "for method='gptq'"),
        ({"method": "gptq", "hessian": np.eye(3)}, s24.ShapeError, "hessian must have shape"),
        ({"method": "gptq", "calibration": np.ones((2, 5))}, s24.ShapeError, "5"),
        ({"method": "gptq", "hessian": -np.eye(K)}, s24.ArgumentError, "second moment"),
        ({"method": "gptq", "hessian": np.eye(K), "calibration": np.ones((2, K))},
         s24.ArgumentError, "say the same"),
        ({"method": "gptq", "hessian": np.eye(K), "damping": 0}, s24.ArgumentError, "damping"),
    ],
)  # fmt: skip
def test_refusals(array, options, error, words):
    with pytest.raises(error, match=words):
        s24.quantise(array, **options)


@gpu
def test_on_a_gpu(cupy, array, inputs):
    there = s24.quantise(array.to_device("cuda"), method="gptq", calibration=cupy.asarray(inputs))
    here = s24.quantise(array, method="gptq", calibration=inputs)
    assert output_error(there.to_device("cpu"), array, inputs) == pytest.approx(
        output_error(here, array, inputs), rel=0.02
    )
