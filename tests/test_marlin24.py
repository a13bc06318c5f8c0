"""The marlin-24 form of compressed-tensors, read bit for bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from marlin_cases import packed, quantised, weight

import sparse24 as s24

# The SHA-256 of the three arrays, shortened: Marlin24Compressor of compressed-tensors 0.12.2 packed
# the same weights with the same factors, on a CPU.  Version 0.7.1 gives the same, but for the
# factors of three groups and more.
DIGESTS = {
    (64, 32, 4, 1): ("c9511a5a731a2e02", "853404e8829a51e8", "2a2b1009307651f0"),
    (64, 32, 8, 1): ("36cc1ec3419c27b2", "853404e8829a51e8", "153a88e3a1e793a3"),
    (128, 512, 4, 1): ("bbd54947c1aa3c74", "17386bf265cc5fed", "d52719389c165019"),
    (128, 512, 8, 1): ("c2bd3d6f7544a914", "17386bf265cc5fed", "289799ce15bbb3cc"),
    (128, 512, 4, 4): ("bbd54947c1aa3c74", "b972164eead1b866", "d52719389c165019"),
    (64, 256, 4, 2): ("13746f2e3e37f480", "dec7e77601878452", "d01bd4b0c6d75200"),
    (192, 384, 8, 3): ("a92bac6e8408c5f0", "f3ecb920d6b19adf", "43d123e71902a549"),
}  # fmt: skip
OLD_FACTORS = {(128, 512, 4, 4): "3e976577fc3e3014", (192, 384, 8, 3): "4127eac12d6a239a"}
READ = [*DIGESTS, (64, 160, 4, 1), (320, 896, 4, 7), (64, 128, 8, 1)]


def digest(x):
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("case", DIGESTS)
def test_the_cases_are_what_compressed_tensors_writes(case):
    m, k, bits, groups = case
    parts = packed(*quantised(m, k, bits, groups), bits)
    assert tuple(digest(x) for x in parts) == DIGESTS[case]
    older = packed(*quantised(m, k, bits, groups), bits, permuted=False)
    assert digest(older[1]) == OLD_FACTORS.get(case, DIGESTS[case][1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "k", "bits", "groups"), READ)
def test_the_matrix_is_read(m, k, bits, groups, dtype):
    integers, scales = quantised(m, k, bits, groups, dtype)
    a = s24.convert.from_marlin24(*packed(integers, scales, bits))
    assert isinstance(a, s24.Sparse24Array)
    assert a.dtype == scales.dtype
    np.testing.assert_array_equal(a.toarray(), weight(integers, scales))
    np.testing.assert_array_equal(a.toarray() != 0, integers != 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "k", "bits", "groups"), READ)
def test_the_very_integers_and_factors_are_read(m, k, bits, groups, dtype):
    integers, scales = quantised(m, k, bits, groups, dtype)
    parts = packed(integers, scales, bits)
    q = s24.convert.from_marlin24(*parts, quantised=True)
    assert isinstance(q, s24.Quantised24Array)
    assert (q.shape, q.dtype, q.bits) == ((m, k), scales.dtype, bits)
    whole = s24.convert.from_parts(q.integers, q.metadata, (m, k)).toarray()
    np.testing.assert_array_equal(whole, integers)
    columns = np.arange(k) // 128
    of_columns = scales.T[:, columns if groups > 1 else 0 * columns]
    np.testing.assert_array_equal(q.scales[:, columns], of_columns.astype(np.float32))
    np.testing.assert_array_equal(q.toarray(), s24.convert.from_marlin24(*parts).toarray())


@pytest.mark.parametrize(("m", "k", "bits", "groups"), OLD_FACTORS)
def test_factors_of_old_versions_are_not_permuted(m, k, bits, groups):
    integers, scales = quantised(m, k, bits, groups)
    parts = packed(integers, scales, bits, permuted=False)
    a = s24.convert.from_marlin24(*parts, scales_permuted=False)
    np.testing.assert_array_equal(a.toarray(), weight(integers, scales))
    assert (s24.convert.from_marlin24(*parts).toarray() != a.toarray()).any()
    q = s24.convert.from_marlin24(*parts, scales_permuted=False, quantised=True)
    np.testing.assert_array_equal(q.toarray(), a.toarray())
    with pytest.raises(s24.ArgumentError, match="quantised must be one of"):
        s24.convert.from_marlin24(*parts, quantised=4)
    with pytest.raises(s24.ArgumentError, match="scales_permuted must be one of"):
        s24.convert.from_marlin24(*parts, scales_permuted="no")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_parts_may_be_tensors_or_not_contiguous(dtype):
    integers, scales = quantised(128, 512, 4, 4, dtype)
    parts = packed(integers, scales, 4)
    strided = [np.repeat(x, 2, axis=1)[:, ::2] for x in parts]
    want = weight(integers, scales)
    np.testing.assert_array_equal(s24.convert.from_marlin24(*strided).toarray(), want)
    pytest.importorskip("torch")
    from sparse24._foreign import to_torch

    tensors = [to_torch(x.copy()) for x in parts]
    np.testing.assert_array_equal(s24.convert.from_marlin24(*tensors).toarray(), want)


def test_the_parts_are_left_as_they_are():
    parts = packed(*quantised(64, 128, 4, 1), 4)
    before = [x.copy() for x in parts]
    a = s24.convert.from_marlin24(*parts)
    for part, x in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part, x)
        assert not np.shares_memory(part, a.values)
        assert not np.shares_memory(part, a.metadata)


@pytest.mark.parametrize(("m", "k"), [(0, 128), (64, 0), (0, 0)])
def test_an_empty_matrix(m, k):
    arrays = ((k // 32, 2 * m, np.int32), (1, m, np.float16), (k // 32, 2 * m, np.int16))
    a = s24.convert.from_marlin24(*(np.zeros((rows, cols), dtype) for rows, cols, dtype in arrays))
    assert a.shape == (m, k)
    assert a.dtype == np.float16
    q = s24.convert.from_marlin24(
        *(np.zeros((rows, cols), dtype) for rows, cols, dtype in arrays), quantised=True
    )
    assert (q.shape, q.dtype, q.bits) == ((m, k), np.float16, 4)


def wide(x):
    return x.astype(f"{x.dtype.kind}{2 * x.itemsize}")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (0, wide, "weight_packed must be int32 and have two axes, got int64 of shape"),
        (0, lambda x: x[None], r"int32 and have two axes, got int32 of shape \(1, 16, 256\)"),
        (1, wide, "scale_packed must be float16 or bfloat16 and have two axes, got float32"),
        (1, lambda x: x[0], r"bfloat16 and have two axes, got float16 of shape \(128,\)"),
        (2, lambda x: x.view(np.uint16), "meta must be int16 and have two axes, got uint16 of"),
        (1, lambda x: x[:, :96], "scale_packed must have a column for each row .* 64, got 96"),
        (0, lambda x: x[:, :192], "256 columns for 128 rows of 4 bits, or 512 for 8 .* got 192"),
        (1, lambda x: x[:, :64], r"meta must have shape \(16, 128\) .* \(64, 512\), got \(16, 256"),
        (0, lambda x: x[:8], r"meta must have shape \(8, 256\) for a matrix of shape \(128, 256\)"),
        (2, lambda x: x[:, 1:], r"meta must have shape \(16, 256\) .*, got \(16, 255\)"),
        (2, lambda x: x.reshape(128, 32), r"meta must have shape .*, got \(128, 32\)"),
        (1, lambda x: x[:2], "must have 1 row, or one for each 128 of 512 columns, got 2"),
        (1, lambda x: x[:0], "must have 1 row, or one for each 128 of 512 columns, got 0"),
        (2, np.zeros_like, r"meta: metadata\[0, 0\] is 0x00, which holds an illegal code"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part, change, message):
    parts = list(packed(*quantised(128, 512, 4, 4), 4))
    parts[part] = change(parts[part])
    with pytest.raises(s24.FormatError, match=message):
        s24.convert.from_marlin24(*parts)


def test_one_damaged_code_is_found():
    parts = packed(*quantised(128, 512, 8, 4), 8)
    parts[2][5, 77] &= ~15  # two elements at place 0
    with pytest.raises(s24.FormatError, match=r"meta: metadata\[\d+, \d+\] is 0x.0, which holds"):
        s24.convert.from_marlin24(*parts)
    with pytest.raises(s24.FormatError, match=r"marlin-24: metadata\[\d+, \d+\] is 0x.0, which"):
        s24.convert.from_marlin24(*parts, quantised=True)


def test_a_factor_of_a_quantised_matrix_is_finite():
    integers, scales = quantised(128, 512, 8, 4)
    scales[2, 70] = np.inf
    parts = packed(integers, scales, 8)
    with pytest.raises(s24.FormatError, match=r"marlin-24: scales\[70, 2\] is inf, no finite"):
        s24.convert.from_marlin24(*parts, quantised=True)
