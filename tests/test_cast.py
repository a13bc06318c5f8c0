"""Conversion between element types on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24
from sparse24 import _dtypes, _storage
from sparse24._arrays import to_numpy
from sparse24.kernels import cast, reference, reference_arrays


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("source", _dtypes.NAMES)
@pytest.mark.parametrize("target", _dtypes.NAMES)
def test_equals_the_reference(source, target, rng):
    import cupy

    row, wanted = _dtypes.TABLE[source], _dtypes.TABLE[target]
    x = rng.normal(scale=60, size=(3, 5, 11)).astype(np.float32)
    x[0, 0, :3] = [0, -0.0, 1e-3]
    x = reference.to_dtype(x, row.logical)
    carried = x.view(np.uint8) if row.is_float8 else x
    got = to_numpy(cast.launch(cupy.asarray(carried), row, wanted))
    expected = reference.to_dtype(x, wanted.logical)
    np.testing.assert_array_equal(got.view(wanted.storage), expected.view(wanted.storage))
    assert got.shape == x.shape


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize(
    ("source", "target"),
    [("int8", "bfloat16"), ("float8_e5m2", "float16"), ("float32", "int8"), ("float64", "float16")],
)
@pytest.mark.parametrize("columns", [256, 261])
@pytest.mark.parametrize("first", [0, 1])
def test_rows_of_any_length_and_place(rng, source, target, columns, first):
    """Vectors and what is left of a row, or elements one by one; more of them than threads."""
    import cupy

    row, wanted = _dtypes.TABLE[source], _dtypes.TABLE[target]
    x = reference.to_dtype(rng.normal(scale=30, size=(5000, columns)), row.logical)
    carried = cupy.asarray(x.view(np.uint8) if row.is_float8 else x)[:, first:]
    got = to_numpy(cast.launch(carried, row, wanted))
    expected = reference.to_dtype(np.ascontiguousarray(x[:, first:]), wanted.logical)
    np.testing.assert_array_equal(got.view(wanted.storage), expected.view(wanted.storage))


@pytest.mark.parametrize("source", [n for n in _dtypes.NAMES if _dtypes.TABLE[n].itemsize < 4])
@pytest.mark.parametrize("target", _dtypes.NAMES)
def test_many_elements_of_narrow_types_are_looked_up(source, target):
    row, wanted = _dtypes.TABLE[source], _dtypes.TABLE[target]
    bits = np.arange(1 << 8 * row.itemsize, dtype=row.storage)
    x = np.stack([bits, bits[::-1]]).T.view(row.logical)[:, ::-1]
    with np.errstate(invalid="ignore"):  # NaN
        expected = reference.to_dtype(x, wanted.logical)
    got = _storage.converted(x, row, wanted)
    np.testing.assert_array_equal(got.view(wanted.storage), expected.view(wanted.storage))
    assert not np.shares_memory(got, x)


@pytest.mark.parametrize("target", ["bfloat16", "float32", "float64"])
def test_what_numpy_converts_sooner_is_not_looked_up(monkeypatch, target):
    monkeypatch.setattr(_storage, "_table", lambda *_: pytest.fail("looked up"))
    x = np.arange(-128, 128, dtype=np.int8).repeat(4).reshape(32, 32)
    got = _storage.converted(x, _dtypes.TABLE["int8"], _dtypes.TABLE[target])
    assert got.dtype == _dtypes.numpy_dtype(target)
    np.testing.assert_array_equal(got.astype(np.float64), x)


def test_halves_are_rounded_to_int8_in_float32(monkeypatch):
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = every[~np.isnan(every)][: 1 << 15].reshape(128, 256).T
    wanted, to_dtype = reference.to_dtype(x, np.dtype(np.int8)), reference.to_dtype

    def convert(x, dtype):
        assert x.dtype == np.float32, "NumPy rounds float16 slowly"
        return to_dtype(x, dtype)

    monkeypatch.setattr(reference, "to_dtype", convert)
    got = _storage.converted(x, _dtypes.TABLE["float16"], _dtypes.TABLE["int8"])
    assert got.dtype == np.int8
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("source", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_many_halves_and_8_bit_floats_are_widened_by_our_loops(monkeypatch, source):
    row, wanted = _dtypes.TABLE[source], _dtypes.TABLE["float32"]
    monkeypatch.setattr(reference, "to_dtype", lambda *_: pytest.fail("by NumPy"))
    x = np.arange(1 << 14).astype(row.storage).reshape(128, 128).view(row.logical)
    for given in (x, x.T, x[::2]):
        got = _storage.converted(given, row, wanted)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, given.astype(np.float32))


def around_halves() -> np.ndarray:
    """All float16 that are finite, the middle of neighbours, and what lies next to these."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = np.sort(every[np.isfinite(every)].astype(np.float32))
    middle = (exact[:-1] + exact[1:]) / 2
    points = np.concatenate([exact, middle])
    beside = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([points, *beside, [-0.0]], dtype=np.float32)


def test_much_float32_is_narrowed_to_halves_by_our_loops(monkeypatch):
    row, wanted = _dtypes.TABLE["float32"], _dtypes.TABLE["float16"]
    x = np.resize(around_halves(), (768, 16, 32))
    expected = x.astype(np.float16)
    monkeypatch.setattr(reference, "to_dtype", lambda *_: pytest.fail("by NumPy"))
    for given, want in ((x, expected), (x.T, expected.T), (x[:, ::2], expected[:, ::2])):
        got = _storage.converted(given, row, wanted)
        assert got.dtype == np.float16
        np.testing.assert_array_equal(got.view(np.uint16), want.copy("K").view(np.uint16))


def test_halves_out_of_range_and_nan_are_those_of_numpy():
    row, wanted = _dtypes.TABLE["float32"], _dtypes.TABLE["float16"]
    x = np.ones(1 << 14, np.float32)
    for strange in (0x7FC12345, 0xFFC54321, 0x7F800000, 0xFF800000):  # NaN, infinities
        x[77] = np.uint32(strange).view(np.float32)
        got = _storage.converted(x, row, wanted)
        np.testing.assert_array_equal(got.view(np.uint16), x.astype(np.float16).view(np.uint16))
    for large in (65520, -65520, 1e30):
        x[77] = large
        with pytest.warns(RuntimeWarning, match="overflow encountered in cast"):
            assert np.isinf(_storage.converted(x, row, wanted)).sum() == 1


def halves(row) -> tuple[np.ndarray, np.ndarray]:
    """float64 numbers beside the middle of two neighbours of a narrow type, and the nearer one."""
    bits = np.arange(1 << 8 * row.itemsize - 1, dtype=row.storage)
    values = np.arange(-128, 128) if row.name == "int8" else bits.view(row.logical)
    with np.errstate(invalid="ignore"):  # NaN
        values = np.unique(values.astype(np.float64))
    values = values[np.isfinite(values)]
    low, high = values[:-1], values[1:]
    middle, away = (low + high) / 2, (high - low) * 2.0**-40
    return np.concatenate((middle - away, middle + away)), np.concatenate((low, high))


@pytest.mark.parametrize("name", [n for n in _dtypes.NAMES if n not in ("float32", "float64")])
def test_float64_is_rounded_once(name):
    row = _dtypes.TABLE[name]
    x, wanted = halves(row)
    np.testing.assert_array_equal(reference.to_dtype(x, row.logical).astype(np.float64), wanted)


@pytest.mark.parametrize("make", [sparse24.compress, sparse24.hybrid])
@pytest.mark.parametrize("whole", [np.int64, np.int32, np.uint32])
def test_whole_numbers_are_rounded_once(make, whole):
    """2**24 + 2**16 + 1 is beyond the middle of two neighbours; float32 does not hold it."""
    x = np.zeros((4, 8), whole)
    x[:, 1] = 2**24 + 2**16 + 1
    assert float(make(x, dtype="bfloat16").toarray()[0, 1]) == 2**24 + 2**17
    assert float(make(x, dtype="float32").toarray()[0, 1]) == 2**24 + 2**16
    assert float(make(x, dtype="float64").toarray()[0, 1]) == 2**24 + 2**16 + 1


def test_what_float32_does_not_hold_is_rounded_to_odd():
    x = np.array([1e39, -1e39, np.inf, -np.inf, np.nan, 1e-50, 0.0, -0.0, 1.5, 1 + 2.0**-30])
    bits = reference_arrays.to_odd(x).view(np.uint32)
    expected = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0, 0x80000000,
                0x3FC00000, 0x3F800001]  # fmt: skip
    np.testing.assert_array_equal(bits, np.array(expected, np.uint32))


def test_halves_that_are_too_small_are_announced_where_numpy_is_told_to():
    row, wanted = _dtypes.TABLE["float32"], _dtypes.TABLE["float16"]
    x = np.full(1 << 14, 1e-7, np.float32)
    with np.errstate(under="warn"), pytest.warns(RuntimeWarning, match="underflow .* in cast"):
        got = _storage.converted(x, row, wanted)
    np.testing.assert_array_equal(got, x.astype(np.float16))


def test_rounding_to_odd_of_any_bits(rng, monkeypatch):
    """As by its definition; NumPy's `nextafter` would take most of the time."""
    x = rng.integers(0, 1 << 64, 1 << 16, dtype=np.uint64).view(np.float64)
    x = np.concatenate([x, rng.standard_normal(1 << 12) * 10.0 ** rng.integers(-50, 40, 1 << 12)])
    x = x[~np.isnan(x)].reshape(2, -1)
    with np.errstate(over="ignore"):
        near = x.astype(np.float32)
    cut = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    expected = cut.view(np.uint32) | (cut != x)
    monkeypatch.setattr(np, "nextafter", lambda *_: pytest.fail("one by one"))
    np.testing.assert_array_equal(reference_arrays.to_odd(x).view(np.uint32), expected)
    np.testing.assert_array_equal(reference_arrays.to_odd(x.T).T.view(np.uint32), expected)


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("name", [n for n in _dtypes.NAMES if n not in ("float32", "float64")])
def test_float64_is_rounded_once_on_the_gpu(name):
    import cupy

    row = _dtypes.TABLE[name]
    x, wanted = halves(row)
    got = to_numpy(cast.launch(cupy.asarray(x[None]), _dtypes.TABLE["float64"], row))
    np.testing.assert_array_equal(got.view(row.logical)[0].astype(np.float64), wanted)


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_subnormal_float64_on_the_gpu(rng, name):
    import cupy

    row = _dtypes.TABLE[name]
    x = rng.standard_normal((3, 1000)) * 10.0 ** rng.integers(-50, -30, (3, 1000))
    x[0, :6] = 1e-40, -1e-39, 2.0**-150, 2.0**-149, 3 * 2.0**-150, -0.0
    got = to_numpy(cast.launch(cupy.asarray(x), _dtypes.TABLE["float64"], row))
    wanted = reference.to_dtype(x, row.logical)
    np.testing.assert_array_equal(got.view(row.storage), wanted.view(row.storage))


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "int8"])
def test_subnormal_numbers_as_float64_on_the_gpu(name):
    import cupy

    row = _dtypes.TABLE[name]
    x = np.arange(128).astype(row.storage).view(row.logical)[None]  # of floats all are subnormal
    got = to_numpy(cast.launch(cupy.asarray(x), row, _dtypes.TABLE["float64"]))
    np.testing.assert_array_equal(got.view(np.uint64), x.astype(np.float64).view(np.uint64))


@pytest.mark.gpu
@pytest.mark.stem("cast")
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty(shape):
    import cupy

    table = _dtypes.TABLE
    got = cast.launch(cupy.empty(shape, np.float32), table["float32"], table["float16"])
    assert got.shape == shape
