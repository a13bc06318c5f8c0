"""Parts of quantised 2:4 arrays, and arrays joined of several."""

from __future__ import annotations

import numpy as np
import pytest
from quantised_cases import near

import sparse24 as s24
from sparse24.kernels import reference

BITS = [4, 8]


def pruned(rng, shape):
    return s24.compress(reference.prune(rng.standard_normal(shape).astype(np.float32)))


@pytest.mark.parametrize("bits", BITS)
def test_parts_stay_quantised(rng, bits):
    q = s24.quantise(pruned(rng, (70, 400)), bits=bits)
    dense = q.toarray()
    keys = [
        np.s_[3:20], np.s_[::3], np.s_[[5, 1, 1]], np.s_[dense[:, 1] > 0], np.s_[:, 128:384],
        np.s_[:, 256:], np.s_[2:9, :128], np.s_[:0], np.s_[:, :0],
    ]  # fmt: skip
    for key in keys:
        part = q[key]
        assert type(part) is s24.Quantised24Array, key
        np.testing.assert_array_equal(part.toarray(), dense[key])
        np.testing.assert_array_equal(q.T[key[::-1] if type(key) is tuple else (np.s_[:], key)]
                                      .toarray(), dense[key].T)  # fmt: skip
    assert type(q[:, 4:12]) is s24.Sparse24Array
    np.testing.assert_array_equal(q[:, 4:12].toarray(), dense[:, 4:12])
    np.testing.assert_array_equal(q[7], dense[7])
    np.testing.assert_array_equal(q[:, 9], dense[:, 9])
    assert q[7, 9] == dense[7, 9]


@pytest.mark.parametrize("bits", BITS)
def test_joined_arrays_stay_quantised(rng, bits):
    a, b = (s24.quantise(pruned(rng, (m, 256)), bits=bits) for m in (40, 24))
    rows = np.concatenate([a, b])
    assert (type(rows), rows.bits) == (s24.Quantised24Array, bits)
    np.testing.assert_array_equal(rows.toarray(), np.concatenate([a.toarray(), b.toarray()]))
    wide = np.concatenate([a, s24.quantise(pruned(rng, (40, 100)), bits=bits)], axis=1)
    assert wide.shape == (40, 356)
    np.testing.assert_array_equal(wide[:, :256].toarray(), a.toarray())
    with pytest.raises(s24.ArgumentError, match=r"4 and of 8 bits.*bits="):
        np.concatenate([a, s24.quantise(pruned(rng, (8, 256)), bits=12 - bits)])
    with pytest.raises(s24.ShapeError, match=r"multiples of 128.*dequantise"):
        np.concatenate([wide, a], axis=1)


@pytest.mark.parametrize("shape", [(70, 400), (64, 256), (16, 131), (1, 128), (5, 3), (0, 128)])
def test_any_slices(rng, shape):
    q = s24.quantise(pruned(rng, shape), bits=8)
    dense = q.toarray()
    ends = [-200, -3, 0, 1, 15, 16, 17, 32, 48, 64, 65, 70, 100]
    for start in ends:
        for stop in ends:
            for key in (np.s_[start:stop], np.s_[start:stop:-3]):
                np.testing.assert_array_equal(q[key].toarray(), dense[key], str(key))
            if min(start, stop) >= 0:
                columns = np.s_[:, 4 * start : 4 * stop]
                np.testing.assert_array_equal(q[columns].toarray(), dense[columns], str(columns))


def test_whole_blocks_of_rows_share_memory(rng):
    q = s24.quantise(pruned(rng, (70, 256)))
    bricks = lambda array: array._operand.stored.values  # noqa: E731
    for rows in (np.s_[16:48], np.s_[64:], np.s_[:]):
        part = q[rows]
        assert np.shares_memory(bricks(part), bricks(q))
        assert part.nbytes == bricks(part).nbytes == -(-len(part) // 16) * 2 * 832
    for key in (np.s_[16:47], np.s_[1:17], np.s_[[0, 1]], np.s_[:, 128:]):
        assert not np.shares_memory(bricks(q[key]), bricks(q))


@pytest.mark.parametrize("bits", BITS)
def test_parts_multiply_as_the_rows_and_columns_do(rng, bits):
    q = s24.quantise(pruned(rng, (70, 400)), bits=bits)
    x = rng.standard_normal((400, 3)).astype(np.float32)
    near(q[16:32] @ x, q.dequantise()[16:32] @ x)
    part = q[:, 128:256]
    near(part @ x[128:256], part.dequantise() @ x[128:256])
    np.testing.assert_array_equal(np.concatenate([q[:32], q[32:]]).toarray(), q.toarray())
    np.testing.assert_array_equal(
        np.hstack(np.split(q[:, :256], 2, 1)).toarray(), q[:, :256].toarray()
    )
