"""What the CPU product with many columns reads, and its loop."""

from __future__ import annotations

import re

import numba
import numpy as np
import pytest

import sparse24 as s24
from sparse24.kernels import _simd, cpu_few, cpu_operand, cpu_panels


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("vectors", [1, 8])
@pytest.mark.parametrize(("k", "n"), [(5, 3), (37, 300), (64, 64), (50, 129)])
def test_panels_hold_b_and_zeros(rng, k, n, vectors, kind):
    width = vectors * _simd.VECTOR_BYTES // np.dtype(kind).itemsize
    large = rng.standard_normal((3 * k, 3 * n)).astype(kind)
    raw = np.zeros(k * n * large.itemsize + 1, np.uint8)[1:].view(kind).reshape(k, n)
    b = large[:k, :n]
    raw[...] = b
    for other in (
        b, b.copy(), np.asfortranarray(b), large[::3, ::3], b[::-1], b[:, ::-1], raw,
        np.broadcast_to(b[0], b.shape), np.broadcast_to(b[:, :1], b.shape),
    ):  # fmt: skip
        panels = cpu_operand.pack_panels(other, k + 3, width)
        rows = panels.swapaxes(0, 1).reshape(k + 3, -1)
        np.testing.assert_array_equal(rows[:k, :n], other)
        assert not rows[k:].any()
        assert not rows[:, n:].any()


def test_memory_of_panels_serves_later_products(rng):
    """Of other sizes and types, too; that of products that run at once is apart."""
    cpu_operand._spare.clear()
    kept = cpu_operand.pack_panels(np.full((50, 200), np.nan, np.float32), 52, 64)
    cpu_operand.give_back(kept)
    b = rng.standard_normal((13, 70)).astype(np.float64)
    panels, beside = (cpu_operand.pack_panels(b, 16, 32) for _ in range(2))
    assert np.shares_memory(panels, kept)
    assert not np.shares_memory(panels, beside)
    assert panels.ctypes.data % cpu_operand.LINE_BYTES == 0
    for made in (panels, beside):
        rows = made.swapaxes(0, 1).reshape(16, -1)
        np.testing.assert_array_equal(rows[:13, :70], b)
        assert not rows[13:].any()
        assert not rows[:, 70:].any()
    cpu_operand.give_back(beside)
    assert not np.shares_memory(cpu_operand.pack_panels(np.ones((99, 200)), 100, 32), beside)


def test_memory_of_large_panels_is_not_kept(monkeypatch):
    cpu_operand._spare.clear()
    monkeypatch.setattr(cpu_operand, "_MOST_KEPT", 1000)
    cpu_operand.give_back(cpu_operand.pack_panels(np.ones((64, 64), np.float32), 64, 16))
    assert not cpu_operand._spare
    for _ in range(9):
        cpu_operand._spare.append(np.empty(9, np.uint8))
    assert len(cpu_operand._spare) == 2


@pytest.mark.parametrize("make", [s24.asarray, s24.hybrid])
@pytest.mark.parametrize("n", [64, 300])
def test_a_product_gives_the_memory_of_its_panels_back(rng, make, n):
    sparse = s24.prune(rng.standard_normal((256, 320)).astype(np.float32))
    sparse[:, rng.random(320) < 0.5] = 0  # else a hybrid matrix may be multiplied as a dense one
    a, b = make(sparse), np.ones((320, n), np.float32)
    cpu_operand._spare.clear()
    first = a @ b
    kept = {room.ctypes.data for room in cpu_operand._spare}
    assert len(kept) == len(cpu_operand.widths(n, 4)) <= 2
    np.testing.assert_array_equal(a @ b, first)
    assert {room.ctypes.data for room in cpu_operand._spare} == kept


@pytest.mark.parametrize("n", [1, 16, 17, 40, 64, 70, 128, 150, 511, 1024])
def test_panels_of_all_widths_share_the_columns(n):
    runs, at = cpu_operand.widths(n, 4), 0
    for first, columns, vectors in runs:
        lanes = _simd.VECTOR_BYTES // 4
        assert first == at
        assert vectors in _simd.ROWS_OF_TILE
        assert vectors <= 4 or columns % (vectors * lanes) == 0
        at += columns
    assert at == n


def test_sums_stay_in_registers():
    """The loop over stored elements multiplies and adds in vectors, without touching the sums."""
    register = {64: "%zmm", 32: "%ymm"}.get(_simd.VECTOR_BYTES)
    if "fma" not in _simd.FEATURES or register is None:
        pytest.skip("this CPU has no fused multiply-add of wide vectors")
    # Compiled anew: Numba does not show code that it loads from its cache.
    multiply = numba.njit(error_model="numpy")(cpu_panels.multiply_panels.py_func)
    rows, width = _simd.ROWS_OF_TILE[8], 8 * _simd.VECTOR_BYTES // 4
    a = np.ones(32 * rows, np.float32), True, np.zeros(32 * rows, np.uint16)
    panels, sums = np.ones((1, 64, width), np.float32), np.zeros((rows, width), np.float32)
    shape = ((0,) * rows, (0,) * width, (0,) * 32)
    multiply(a, rows, 32, (2, 4), panels, sums, 0, 0, shape)
    assert (sums == 32).all()
    listing = "".join(multiply.inspect_asm().values())
    fused = [line for line in listing.splitlines() if "vfmadd" in line and register in line]
    assert len(fused) >= 8 * rows


@pytest.mark.skipif(_simd.VECTOR_BYTES != 32, reason="these are instructions of AVX2")
@pytest.mark.parametrize(("kind", "wanted"), [("float32", "vpermilps"), ("float64", "vperm(ps|d)")])
def test_avx2_looks_up_partners_by_permutations(kind, wanted):
    """Two for each vector of stored elements, of four rows by one column."""
    multiply = numba.njit(error_model="numpy")(cpu_few.multiply_columns.py_func)
    lanes = _simd.lanes_of_dots(np.dtype(kind).itemsize)
    values, b = np.ones((4, 2 * lanes), kind), np.ones((1, 4 * lanes), kind)
    codes, nothing = np.full((4, lanes // 2), 0x44, np.uint8), np.zeros((0, 0), np.uint8)
    sums, shape = np.zeros((4, 1), kind), ((0,) * _simd.ROWS_OF_DOTS[1], (0,))
    multiply(values, codes, np.zeros((4, 0), kind), nothing, b, b, 0, lanes, sums, shape)
    assert (sums == 2 * lanes).all()
    listing = "".join(multiply.inspect_asm().values()).splitlines()
    found = [line for line in listing if re.match(rf"\s{wanted}\s.*%ymm", line)]
    assert len(found) >= 2 * _simd.ROWS_OF_DOTS[1]


def test_a_repeated_product_is_not_cut_into_panels_anew(monkeypatch, rng):
    a = s24.compress(rng.integers(-3, 4, (64, 64)).astype(np.float32), on_excess="prune")
    b = rng.integers(-3, 4, (64, 40)).astype(np.float32)
    want = a.toarray() @ b
    np.testing.assert_array_equal(a @ b, want)
    monkeypatch.setattr(cpu_panels, "widths", None)
    np.testing.assert_array_equal(a @ b, want)
    np.testing.assert_array_equal(a @ (2 * b), 2 * want)
