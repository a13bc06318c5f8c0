"""Laws that hold for every array: round trips, products of parts, views, files, damaged codes."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from file_cases import FORMATS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sparse24 as s24
from sparse24 import _dtypes, _raw_writers, _spec, _storage
from sparse24.formats import stored
from sparse24.kernels import reference
from sparse24.testing import arrays

NAMES = tuple(_dtypes.NAMES)
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
sides = st.integers(0, 70)
seeds = st.integers(0, 999)


def bits(x):
    return np.ascontiguousarray(x).view(np.uint8)


def integers(rng, shape, dtype=np.float32):
    """Small numbers, whose products and sums every type of accumulator holds exactly."""
    return rng.integers(-4, 5, shape).astype(dtype)


@quick
@given(m=st.integers(0, 150), k=st.integers(0, 300), name=st.sampled_from(NAMES), seed=seeds)
def test_codes_survive_both_orders(m, k, name, seed):
    a = s24.random((m, k), dtype=name, rng=seed)
    size = a.dtype.itemsize
    np.testing.assert_array_equal(reference.unpack_metadata(a.packed, m, k, size), a.metadata)
    assert a.packed.shape == _spec.packed_shape(m, k)


@quick
@given(arrays(special=False))
def test_compressing_again_changes_nothing(x):
    once = s24.compress(x, on_excess="prune")
    again = s24.compress(once.toarray())
    np.testing.assert_array_equal(bits(again.values), bits(once.values))
    np.testing.assert_array_equal(again.metadata, once.metadata)


@quick
@given(m=sides, k=sides, n=st.integers(0, 40), seed=seeds)
def test_rows_and_sides_of_a_product_may_be_exchanged(m, k, n, seed):
    rng = np.random.default_rng(seed)
    x, b = s24.prune(integers(rng, (m, k))), integers(rng, (k, n))
    product = s24.compress(x) @ b
    order = rng.permutation(m)
    np.testing.assert_array_equal(s24.compress(x[order]) @ b, product[order])
    np.testing.assert_array_equal(b.T @ s24.compress(x).T, product.T)
    middle = m // 2
    rows = s24.compress(x)
    np.testing.assert_array_equal(rows[:middle] @ b, product[:middle])
    np.testing.assert_array_equal(rows[middle:] @ b, product[middle:])


@quick
@given(
    name=st.sampled_from(("float16", "float32", "float64", "int8")),
    steps=st.tuples(*[st.sampled_from((-2, -1, 1, 3))] * 2),
    offset=st.integers(0, 9), turned=st.booleans(), seed=seeds,
)  # fmt: skip
def test_views_of_any_strides_and_alignment_are_operands(name, steps, offset, turned, seed):
    rng = np.random.default_rng(seed)
    dtype = _dtypes.TABLE[name].logical
    raw = np.zeros(60 * 50 * dtype.itemsize + 16, np.uint8)
    base = raw[offset : offset + 60 * 50 * dtype.itemsize].view(dtype).reshape(60, 50)
    base[...] = integers(rng, base.shape, dtype)
    view = (base.T if turned else base)[:: steps[0], :: steps[1]]
    plain = view.copy()
    np.testing.assert_array_equal(s24.prune(view), s24.prune(plain))
    packed = s24.compress(view, on_excess="prune")
    np.testing.assert_array_equal(packed.toarray(), s24.prune(plain))
    weight = s24.compress(integers(rng, (7, view.shape[0]), dtype), on_excess="prune")
    result = weight @ plain
    out = np.full((14, 2 * view.shape[1]), 77, result.dtype)
    s24.matmul(weight, view, out[::2, ::-2])
    np.testing.assert_array_equal(out[::2, ::-2], result)
    assert (out[1::2] == 77).all()
    assert (out[:, ::2] == 77).all()


@quick
@given(arrays(), st.sampled_from(("npz", "safetensors")))
def test_files_keep_every_bit(tmp_path, x, suffix):
    array, path = s24.compress(x, on_excess="prune"), tmp_path / f"a.{suffix}"
    {"npz": s24.save_npz, "safetensors": s24.save_safetensors}[suffix](path, {"a": array, "x": x})
    loaded = {"npz": s24.load_npz, "safetensors": s24.load_safetensors}[suffix](path)
    np.testing.assert_array_equal(bits(loaded["x"]), bits(x))
    np.testing.assert_array_equal(bits(loaded["a"].values), bits(array.values))
    np.testing.assert_array_equal(loaded["a"].metadata, array.metadata)
    assert (loaded["a"].shape, loaded["a"].dtype) == (array.shape, array.dtype)


@quick
@given(
    place=st.tuples(st.integers(0, 5), st.integers(0, 4)),
    code=st.integers(0, 255),
    suffix=st.sampled_from(tuple(FORMATS)),
)
def test_illegal_codes_of_a_file_are_refused(tmp_path, place, code, suffix):
    """With a checksum that fits, as a faulty writer would leave it."""
    raw, header = stored.pack({"w": s24.random((6, 40), rng=0)})
    metadata = raw["w.metadata"].copy()
    metadata[place] = code
    header = json.loads(json.dumps(header))
    header["arrays"]["w"]["crc32"]["metadata"] = zlib.crc32(metadata.tobytes())
    path = tmp_path / f"a.{suffix}"
    _raw_writers.write(path, {**raw, "w.metadata": metadata}, stored.sealed(header))
    _, load = FORMATS[suffix]
    if {code & 15, code >> 4} <= set(_spec.LEGAL_CODES):
        np.testing.assert_array_equal(load(path)["w"].metadata, metadata)
    else:
        with pytest.raises(s24.FormatError, match=f"0x{code:02X}, which holds an illegal code"):
            load(path)


@quick
@given(m=st.integers(1, 40), k=st.integers(1, 40), seed=seeds)
def test_a_transposable_array_obeys_along_both_axes(m, k, seed):
    x = np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)
    array = s24.compress(x, on_excess="prune", transposable=True)
    dense = array.toarray()
    assert s24.is_24(dense)
    assert s24.is_24(dense, axis=-2)
    turned = _storage.decompress(array._operand.columns)
    np.testing.assert_array_equal(turned, dense.T)
    again = s24.compress(dense, transposable=True)
    np.testing.assert_array_equal(again.toarray(), dense)
    np.testing.assert_array_equal(again.T.toarray(), dense.T)
