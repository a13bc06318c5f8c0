"""Quantised 2:4 arrays: rounding, what they hold, their products and parts, and refusals."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from quantised_cases import near

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.kernels import bricks, reference, reference_quantised

gpu = pytest.mark.gpu
SHAPES = [(1, 4), (16, 128), (50, 300), (130, 1001), (64, 256), (3, 0), (0, 8)]
BITS = [4, 8]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def pruned(rng, shape, dtype="float32"):
    dense = reference.prune(rng.standard_normal(shape).astype(np.float32))
    return s24.compress(dense.astype(_dtypes.numpy_dtype(dtype)))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bricks_give_back_what_was_packed(rng, bits, shape):
    m, k = shape
    least, stored = -(1 << bits - 1), 2 * -(-k // 4)
    integers = rng.integers(least, -least, (m, stored)).astype(np.int8)
    atoms, high = -(-k // 128), -(-m // 64)
    codes = rng.integers(0, 256, (atoms, high, 1024)).astype(np.uint8)
    factors = rng.standard_normal((m, atoms)).astype(np.float32)
    packed = bricks.pack(bricks.Parts(integers, codes, factors), bits)
    assert packed.shape == (-(-m // 16), atoms, {4: 832, 8: 1344}[bits])
    found = bricks.unpack(packed, m, k, bits)
    np.testing.assert_array_equal(found.integers, integers)
    np.testing.assert_array_equal(found.factors, factors)
    own = slice(-(-m // 16))
    view = lambda x: x.reshape(atoms, 4 * high, 256)[:, own]  # noqa: E731
    np.testing.assert_array_equal(view(found.codes), view(codes))


@pytest.mark.parametrize("bits", BITS)
def test_a_brick_has_its_elements_where_lanes_read_them(bits):
    """One element at a time, against the words of cuda/include/bricks.cuh."""
    for row, stored in [(0, 0), (3, 1), (9, 7), (15, 63), (8, 8), (2, 18), (5, 37), (1, 56)]:
        integers = np.zeros((16, 64), np.int8)
        integers[row, stored] = -1
        codes, factors = np.zeros((1, 1, 1024), np.uint8), np.zeros((16, 1), np.float32)
        packed = bricks.pack(bricks.Parts(integers, codes, factors), bits)[0, 0]
        step, place = divmod(stored, 16)
        half, (lane, e) = place // 8, divmod(place % 8, 2)
        words = packed[: 128 * bits].view("<u4").reshape(bits // 2, 16, 4)
        if bits == 4:
            expected = 0xF << 4 * (2 * (step % 2) + half + 4 * e)
            found = words[step // 2, row, lane]
        else:
            expected, found = 0xFF << 8 * (2 * half + e), words[step, row, lane]
        assert found == expected
        assert np.count_nonzero(words) == 1


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_elements_are_integers_times_scales(rng, bits, shape, dtype):
    a = pruned(rng, shape, dtype)
    q = s24.quantise(a, bits=bits, method="absmax")
    integers, scales = reference_quantised.quantise(a.values, bits)
    np.testing.assert_array_equal(q.scales, scales)
    np.testing.assert_array_equal(q.integers, integers)
    np.testing.assert_array_equal(q.metadata, a.metadata)
    exact = reference_quantised.dequantise(integers, scales)
    whole = q.dequantise("float64")
    np.testing.assert_array_equal(whole.values, exact)
    wide = np.float64 if dtype == "float64" else np.float32  # in which elements are made
    np.testing.assert_array_equal(q.toarray(), whole.toarray().astype(wide).astype(a.dtype))
    assert (q.shape, q.dtype, q.bits, q.axis, q.pattern) == (shape, a.dtype, bits, -1, (2, 4))
    assert q.nnz == np.count_nonzero(integers)


@pytest.mark.parametrize(("bits", "least"), [(4, 0.07), (8, 0.0045)])
def test_the_error_is_that_of_the_bits(rng, bits, least):
    a = pruned(rng, (128, 1024))
    error = {
        method: np.linalg.norm(s24.quantise(a, bits=bits, method=method).toarray() - a.toarray())
        / np.linalg.norm(a.toarray())
        for method in ("absmax", "mse")
    }
    assert least < error["mse"] <= error["absmax"] < 1.1 * error["mse"]


def test_the_largest_becomes_the_least_integer():
    q = s24.quantise(np.array([[0, 7, 0, -8], [14, 0, 2, 0]], np.float32), method="absmax")
    np.testing.assert_array_equal(q.integers, [[7, -8], [-8, -1]])
    np.testing.assert_array_equal(q.scales, [[1], [-1.75]])


@pytest.mark.parametrize("bits", BITS)
def test_no_group_has_a_larger_error_than_with_absmax(rng, bits):
    a = pruned(rng, (40, 500)) * np.exp2(rng.integers(-20, 20, (40, 1))).astype(np.float32)
    exact = a.toarray().astype(np.float64)

    def errors(method):
        lost = s24.quantise(a, bits=bits, method=method).dequantise("float64").toarray() - exact
        return np.add.reduceat(np.square(lost), range(0, 500, 128), axis=1)

    least, absmax = errors("mse"), errors("absmax")
    assert (least <= absmax * (1 + 1e-5)).all()
    if bits == 4:  # with 8, cutting off is dearer than rounding for all normal elements
        assert (least < 0.99 * absmax).any()


@pytest.mark.filterwarnings("error")
def test_elements_that_float32_does_not_hold(rng):
    with pytest.raises(s24.ArgumentError, match="beyond float32"):
        s24.quantise(np.array([[0, 1e39, 0, 1]]))
    np.testing.assert_array_equal(s24.quantise(np.array([[0, 1e-50, 0, 1]])).toarray()[0, 1], 0)


def test_nnz_counts_elements_that_are_not_zero():
    a = s24.compress(np.array([[1, 2, 0, 0], [3, 0, 4, 0]], np.int8))
    make = s24.convert.from_quantised
    q = make(a.values, a.metadata, np.array([0, 1], np.float32), (2, 4), bits=4)
    assert q.nnz == np.count_nonzero(q.mask()) == 2
    tiny = np.array([1e-10, 1], np.float32)  # which float16 rounds to zero
    assert make(a.values, a.metadata, tiny, (2, 4), bits=4, dtype="float16").nnz == 2


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 3e-38, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("method", ["mse", "absmax"])
def test_tiny_and_large_elements(scale, method):
    dense = np.array([[0, 1, 0, -0.5]], np.float32) * np.float32(scale)
    got = s24.quantise(dense, bits=8, method=method).toarray()
    assert np.isfinite(got).all()
    if scale > 1e-35:
        np.testing.assert_allclose(got, dense, rtol=0.01)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_are_those_of_the_dequantised(rng, bits, dtype):
    a = pruned(rng, (50, 300), dtype)
    q = s24.quantise(a, bits=bits)
    whole = q.dequantise()
    x, y = (rng.standard_normal((3, size)).astype(a.dtype) for size in (300, 50))
    for _ in range(2):  # the second product is a repeated one
        near(x @ q.T, x @ whole.T)
        near(q @ x.T, whole @ x.T)
        np.testing.assert_array_equal(y @ q, y @ whole)
        np.testing.assert_array_equal(q.T @ y.T, whole.T @ y.T)
        near(q @ x[0], whole @ x[0])
    wide = rng.standard_normal((2, 4, 300)).astype(np.float64)
    np.testing.assert_array_equal(wide @ q.T, wide @ q.dequantise("float64").T)
    bias = rng.standard_normal(50).astype(np.float32)
    near(s24.linear(x, q, bias, activation="gelu"), s24.linear(x, whole, bias, activation="gelu"))
    out = np.zeros((3, 50), a.dtype)
    assert s24.matmul(x, q.T, out, alpha=2.0, c=out, beta=1.0) is out
    near(out, s24.matmul(x, whole.T, alpha=2.0))


def test_plans_and_other_functions_take_them(rng):
    q = s24.quantise(pruned(rng, (64, 256)))
    x = rng.standard_normal((256, 3)).astype(np.float32)
    for array, b in ((q, x), (q.T, x[:64])):
        for order in ("row", "column"):
            plan = s24.plan(array, (b.shape, "float32"), out_order=order)
            np.testing.assert_array_equal(plan.execute(b), array @ b)
            assert plan.explanation.reason == s24.explain(array, b).reason
    assert s24.asarray(q) is q
    assert type(s24.asarray(q, dtype="float16")) is s24.Sparse24Array
    assert type(s24.compress(q)) is s24.Sparse24Array
    np.testing.assert_array_equal(s24.convert.to_torch(q).numpy(), q.toarray())


def test_explain_says_how_the_dense_product_would_run(rng):
    q = s24.quantise(pruned(rng, (64, 64)))
    way_out = "a matrix that is not quantised, compressed with keep_dense=True, would let it run"
    for dtype in ("float32", "float64"):
        assert way_out in s24.explain(q, ((64, 8), dtype)).reason
    across = s24.explain(q.T, ((64, 300), "float32")).reason
    assert "an array that is not quantised can be transposable" in across
    assert across.endswith("keeps the result")


def test_what_the_first_product_on_the_cpu_keeps(rng):
    q = s24.quantise(pruned(rng, (64, 256), "float16"))
    x, before = np.ones((20, 256), np.float16), q.nbytes  # more than integers are multiplied by
    for array, b in ((q, x.T), (q.T, np.ones(64, np.float16))):
        assert "the first product dequantises the matrix" in s24.explain(array, b).reason
    x @ q.T
    kept = q.dequantise()
    assert q.nbytes == before + kept.values.nbytes + kept.metadata.nbytes
    x @ q.T
    assert q.nbytes == before + kept.values.nbytes + kept.metadata.nbytes
    assert pickle.loads(pickle.dumps(q)).nbytes == before


@pytest.mark.parametrize("bits", BITS)
def test_copies_views_and_pickles(rng, bits):
    q = s24.quantise(pruned(rng, (40, 260)), bits=bits)
    dense = q.toarray()
    for other in (q.copy(), copy.copy(q), copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert (other.bits, other.dtype, other.axis) == (bits, q.dtype, -1)
        np.testing.assert_array_equal(other.toarray(), dense)
    for name in ("integers", "scales", "metadata"):  # whose arrays may be written to
        for array in (q, q[:16, :128]):
            part = getattr(array, name)
            part[...] = 0
            assert not np.shares_memory(part, array._operand.stored.values)
    np.testing.assert_array_equal(q.toarray(), dense)
    assert q.T.T is q
    assert q.T.axis == -2
    for other in (q.T, q.T.copy(), pickle.loads(pickle.dumps(q.T))):
        assert other.shape == (260, 40)
        np.testing.assert_array_equal(other.toarray(), dense.T)
    assert q.astype("float32") is q
    assert type(q.astype("float16")) is s24.Sparse24Array
    out = np.empty_like(dense)
    assert q.toarray(out) is out
    np.testing.assert_array_equal(out, dense)
    np.testing.assert_array_equal(q.tocsr().toarray(), dense)
    np.testing.assert_array_equal(q.mask(), dense != 0)
    np.testing.assert_array_equal((q * 2).toarray(), dense * 2)
    np.testing.assert_allclose(q.sum(axis=1), dense.sum(axis=1), rtol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(17, 130), (2, 17, 130)], ids=str)
def test_reductions_and_norms_are_of_the_rounded_elements(rng, dtype, shape):
    q = s24.quantise(s24.random(shape, dtype=dtype, rng=rng))
    for array in (q, q.mT):
        whole = array.dequantise()
        for axis in (None, 0, -2, -1):
            for name in ("sum", "mean", "max", "min"):
                got, want = (getattr(x, name)(axis=axis) for x in (array, whole))
                np.testing.assert_array_equal(got, want)
            if axis is not None:
                for order in (None, 1, np.inf):
                    got, want = (np.linalg.norm(x, order, axis) for x in (array, whole))
                    np.testing.assert_array_equal(got, want)
        assert array.max() == array.toarray().astype(array.max().dtype).max()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda a: s24.quantise(a, bits=3), s24.ArgumentError, "bits"),
        (lambda a: s24.quantise(a, bits=4.0), s24.ArgumentError, r"bits .* got 4\.0"),
        (lambda a: s24.quantise(a, method="best"), s24.ArgumentError, "method"),
        (lambda a: s24.quantise(a.astype("int8")), s24.DTypeError, "int8; .*astype.*from_quant"),
        (lambda a: s24.quantise(np.ones((4, 8), np.float32)), s24.PatternError, "non-zeros"),
        (lambda a: s24.quantise(a * np.inf), s24.ArgumentError, "infinite"),
        (lambda a: s24.quantise(s24.quantise(a)), s24.DTypeError, r"Quantised.*compress\(A\)"),
        (lambda a: s24.compress(a, like=s24.quantise(a)), s24.ArgumentError, r"mask=like\.mask"),
        (lambda a: s24.quantise(a).values, AttributeError, r"\.dequantise\(\)\.values"),
        (lambda a: s24.quantise(a).diagonal, AttributeError, r"\.tocsr\(\)\.diagonal"),
        (lambda a: s24.quantise(a).nothing, AttributeError, "no attribute 'nothing'"),
        (lambda a: s24.Quantised24Array(a), s24.DTypeError, "sparse24.quantise"),
        (lambda a: s24.quantise(a) @ np.ones(7, np.float32), s24.ShapeError, "inner"),
    ],
)
def test_refusals(rng, make, error, words):
    with pytest.raises(error, match=words):
        make(pruned(rng, (8, 16)))


@gpu
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_on_a_gpu_as_on_the_cpu(cupy, rng, bits, dtype):
    a = pruned(rng, (130, 1001), dtype)
    here = s24.quantise(a, bits=bits, method="absmax")
    there = s24.quantise(a.to_device("cuda"), bits=bits, method="absmax")
    for name in ("integers", "scales", "metadata"):
        np.testing.assert_array_equal(getattr(there, name).get(), getattr(here, name))
    for moved in (there.to_device("cpu"), here.to_device("cuda").to_device("cpu")):
        np.testing.assert_array_equal(moved.toarray(), here.toarray())
    np.testing.assert_array_equal(there.toarray().get(), here.toarray())
    np.testing.assert_array_equal(there[3:90:2].toarray().get(), here[3:90:2].toarray())
    np.testing.assert_array_equal(np.concatenate([there, there[:5]]).toarray().get()[130:],
                                  here[:5].toarray())  # fmt: skip
    mse = s24.quantise(a.to_device("cuda"), bits=bits)
    error = np.linalg.norm((mse.toarray() - cupy.asarray(a.toarray())).get().astype(np.float64))
    wanted = np.linalg.norm(
        s24.quantise(a, bits=bits).toarray().astype(np.float64) - a.toarray().astype(np.float64)
    )
    assert error == pytest.approx(wanted, rel=1e-3)
