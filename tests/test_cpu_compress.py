"""The CPU's prune, compress, decompress and like, bit for bit against the reference."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse24 import _dtypes, _record_parts, _spec
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24.kernels import _numba, cpu_compress, reference

SHAPES = [(0, 8), (3, 0), (1, 1), (1, 4), (5, 3), (7, 10), (2, 3, 13), (4, 64), (300, 130)]
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 0.5, 0.5, -2.0)


laws = settings(max_examples=60, deadline=None)


def bits(x):
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind != "b" else x


def assert_same_bits(got, want):
    """Equal in shape, type and every bit, but that any NaN equals any NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(bits(got), bits(want))


def random_matrix(rng, shape, name):
    """Normal numbers, mixed with zeros of both signs, ties, infinities and NaNs."""
    dtype = _dtypes.TABLE[name].logical
    if name == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8) * (rng.random(shape) > 0.3)
    with np.errstate(invalid="ignore"):
        odd = rng.choice(SPECIAL, shape)
        return np.where(rng.random(shape) < 0.4, odd, rng.standard_normal(shape)).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_magnitude_matches_reference(rng, name, shape):
    x = random_matrix(rng, shape, name)
    want = reference.prune(x)
    assert_same_bits(cpu_compress.prune(x), want)
    values, metadata, status = cpu_compress.compress(x)
    want_values, want_metadata = reference.compress(want)
    assert_same_bits(values, want_values)
    assert_same_bits(metadata, want_metadata)
    assert status == (-1, 0)
    assert_same_bits(
        cpu_compress.decompress(values, metadata, shape[-1]),
        reference.decompress(values, metadata, shape[-1]),
    )


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_every_bit_pattern_of_narrow_types(rng, name):
    carrier = _dtypes.TABLE[name].storage
    x = rng.integers(0, np.iinfo(carrier).max, (64, 256), dtype=carrier, endpoint=True)
    x = x.view(_dtypes.TABLE[name].logical)
    assert_same_bits(cpu_compress.prune(x), reference.prune(x))


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("scores_type", [np.float16, np.float32, np.float64, np.int64])
def test_scores_rule(rng, name, scores_type):
    x = random_matrix(rng, (9, 23), name)
    scores = rng.integers(-3, 4, x.shape).astype(scores_type)
    if scores.dtype.kind == "f":
        scores[rng.random(x.shape) < 0.2] = np.nan
        scores[rng.random(x.shape) < 0.2] = -np.inf
    want = reference.prune(x, scores)
    assert_same_bits(cpu_compress.prune(x, scores), want)
    values, metadata, status = cpu_compress.compress(x, "scores", scores=scores)
    assert_same_bits(values, reference.compress(want)[0])
    assert_same_bits(metadata, reference.compress(want)[1])
    assert status == (-1, 0)


@pytest.mark.parametrize("name", ["float16", "float64", "float8_e5m2"])
def test_mask_rule_keeps_zeros_under_the_mask(rng, name):
    x = random_matrix(rng, (6, 21), name)
    mask = reference.top_mask(rng.random(x.shape), 2, 4)
    mask[rng.random(x.shape) < 0.3] = False
    values, metadata, status = cpu_compress.compress(x, "mask", mask=mask)
    want = reference.compress(x, mask)
    assert_same_bits(values, want[0])
    assert_same_bits(metadata, want[1])
    assert status == (-1, 0)


@pytest.mark.parametrize("shape", [(3, 8), (2, 5, 11), (200, 333)])
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_check_rule_reports_excess(rng, name, shape):
    x = random_matrix(rng, shape, name)
    bad = np.flatnonzero(reference.excess_groups(x))
    values, metadata, status = cpu_compress.compress(x, "check")
    assert status == ((int(bad[0]), bad.size) if bad.size else (-1, 0))
    want = reference.compress(x)
    assert_same_bits(values, want[0])
    assert_same_bits(metadata, want[1])


def test_mask_of_more_than_two_is_reported():
    x = np.arange(1.0, 9.0, dtype=np.float32).reshape(1, 8)
    mask = np.array([[1, 1, 0, 0, 1, 1, 1, 0]], bool)
    values, _, status = cpu_compress.compress(x, "mask", mask=mask)
    assert status == (1, 1)
    assert values.tolist() == [[1, 2, 5, 7]]


def test_golden_codes():
    """Worked by hand: (1,3) (0,3) (0,1) (2,3) and their codes d c 4 e, low K first."""
    rows = [[0, 5, 0, 7], [1, 0, 0, 0], [-0.0, 0, 0, 0], [0, 0, 3, 4]]
    x = np.array(rows, np.float16).reshape(1, 16)
    values, metadata, _ = cpu_compress.compress(x, "check")
    assert metadata.tolist() == [[0xCD, 0xE4]]
    assert values.tolist() == [[5, 7, 1, 0, 0, 0, 3, 4]]


@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_strided_transposed_misaligned_and_read_only_views(rng, name):
    base = random_matrix(rng, (40, 52), name)
    raw = np.zeros(base.nbytes + 1, np.uint8)
    shifted = raw[1:].view(base.dtype).reshape(base.shape)
    shifted[...] = base
    shifted.flags.writeable = False
    views = (base[3:, 1::3], base.T, base[::-1, ::-1], shifted, np.broadcast_to(base[:1], (5, 52)))
    for x in views:
        want = reference.compress(reference.prune(x))
        values, metadata, _ = cpu_compress.compress(x)
        assert_same_bits(values, want[0])
        assert_same_bits(metadata, want[1])
        assert_same_bits(cpu_compress.like(metadata[..., ::1], x), values)
        dense = reference.prune(x)
        dense[dense == 0] = 0
        assert_same_bits(cpu_compress.decompress(values[:, ::1], metadata, x.shape[-1]), dense)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_decompress_out(rng, order):
    x = reference.prune(rng.standard_normal((6, 10)).astype(np.float32))
    values, metadata, _ = cpu_compress.compress(x, "check")
    out = {
        "C": np.full((6, 10), 9, np.float32),
        "F": np.full((6, 10), 9, np.float32, order="F"),
        "strided": np.full((12, 30), 9, np.float32)[::2, ::3],
    }[order]
    assert cpu_compress.decompress(values, metadata, 10, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), x)


@pytest.mark.parametrize("dtype", [bool, np.int16, np.float32, np.int64, ">f8"])
def test_elements_at_places_keep_their_bits(dtype, rng):
    _, metadata, _ = cpu_compress.compress(rng.standard_normal((2, 5, 18)), "magnitude")
    x = (rng.integers(0, 2, (2, 5, 18)) * -0.0).astype(dtype)
    got = cpu_compress.at_places(metadata, x)
    columns = np.minimum(_record_parts.columns_of(metadata, got.shape[-1]), 17)
    assert got.dtype == x.dtype
    inside = columns < 17  # beyond the last one is filler
    want = np.take_along_axis(x, columns, axis=-1)
    assert got[inside].tobytes() == want[inside].tobytes()


def test_like_takes_new_values_at_old_places(rng):
    old, new = rng.standard_normal((2, 5, 18)).astype(np.float32)
    _, metadata, _ = cpu_compress.compress(old)
    values = cpu_compress.like(metadata, new)
    keep = reference.top_mask(reference.magnitude_rank(old), 2, 4)
    dense = cpu_compress.decompress(values, metadata, 18)
    assert_same_bits(dense[:, :16], np.where(keep, new, 0)[:, :16].astype(np.float32))


@laws
@given(st.integers(1, 9), st.integers(1, 40), st.sampled_from(_dtypes.NAMES), st.integers(0, 2**32))
def test_laws(m, k, name, seed):
    x = random_matrix(np.random.default_rng(seed), (m, k), name)
    pruned = cpu_compress.prune(x)
    assert_same_bits(cpu_compress.prune(pruned), pruned)
    values, metadata, status = cpu_compress.compress(pruned, "check")
    assert status == (-1, 0)
    codes = reference.metadata_to_codes(metadata, k)
    assert set(np.unique(codes)) <= set(_spec.LEGAL_CODES)
    positive_zeros = pruned.copy()
    positive_zeros[positive_zeros == 0] = 0
    assert_same_bits(cpu_compress.decompress(values, metadata, k), positive_zeros)


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores whose threads can be placed",
)
def test_workers_keep_off_the_core_of_their_caller(monkeypatch):
    places = _numba._Places()
    monkeypatch.setattr(_numba, "_places", places)
    monkeypatch.setattr(_numba, "_pool", None)  # a new one, in which there is room for one worker
    monkeypatch.setattr(_numba, "threads", lambda: 2)
    _numba.parallel(lambda i: None, 8)
    _numba.parallel(lambda i: None, 8)  # by now it is there
    (worker,) = places._workers
    assert places._barred in os.sched_getaffinity(0)
    assert os.sched_getaffinity(worker) == os.sched_getaffinity(0) - {places._barred}


def test_threads_share_the_pool(rng):
    x = rng.standard_normal((512, 512)).astype(np.float32)
    want, failures = reference.prune(x), []

    def work():
        for _ in range(5):
            if not np.array_equal(cpu_compress.prune(x), want):
                failures.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_an_error_in_a_task_reaches_the_caller():
    def task(i):
        if i == 3:
            raise ZeroDivisionError(i)

    with pytest.raises(ZeroDivisionError):
        _numba.parallel(task, 8)


def test_messages(rng):
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(DTypeError, match=r"x\.dtype must be one of .*got dtype\('complex64'\)"):
        cpu_compress.prune(x.astype(np.complex64))
    with pytest.raises(ShapeError, match=r"mask must have the shape of x, \(2, 4\), got \(2, 5\)"):
        cpu_compress.compress(x, "mask", mask=np.ones((2, 5), bool))
    with pytest.raises(ArgumentError, match="rule='mask' needs mask="):
        cpu_compress.compress(x, "mask")
    with pytest.raises(ArgumentError, match="does not take scores="):
        cpu_compress.compress(x, scores=x)
