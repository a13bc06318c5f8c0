"""The layouts of 2:4 products and what is added to them, with NumPy in the place of kernels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from fake_device import Array

from sparse24 import _arrays, families
from sparse24._dtypes import TABLE, numpy_dtype
from sparse24._hybrid import two_four
from sparse24._spec import GROUP, KEPT
from sparse24.kernels import hybrid_overflow, transpose

pytestmark = pytest.mark.stem("hybrid_overflow")

M, K, N = 21, 38, 12  # the last group of a row is cut


def lie_otherwise(x):
    """The same elements by rows, by columns, in every other place, backwards and off a boundary."""
    wide = np.zeros((x.shape[0], 2 * x.shape[1]), x.dtype)
    wide[:, ::2] = x
    off = np.zeros((x.shape[0], x.shape[1] + 1), x.dtype)[:, 1:]
    off[...] = x
    return {
        "rows": x.copy(), "columns": x.T.copy().T, "strided": wide[:, ::2], "off": off,
        "backwards": x[:, ::-1].copy()[:, ::-1], "upwards": x[::-1].copy()[::-1],
    }  # fmt: skip


def test_overflow_keeps_every_element(rng):
    w = families.make("iid", (30, 50), zeros=0.95, rng=rng).view(np.uint32)
    kept = hybrid_overflow.prepare(w, TABLE["float32"])
    back = np.zeros_like(w)
    for i, row in enumerate(kept.rows):
        here = slice(kept.starts[i], kept.starts[i + 1])
        back[row, kept.columns[here]] = kept.values[here]
    np.testing.assert_array_equal(back, w)


def test_overflow_of_more_rows_than_a_grid_has_is_added_in_parts(rng, monkeypatch):
    monkeypatch.setattr(two_four, "MOST_BLOCKS", 2)
    w = families.make("iid", (30, 50), zeros=0.8, rng=rng).view(np.uint32)
    whole = hybrid_overflow.prepare(w, TABLE["float32"])
    parts = two_four.in_grids(whole)
    assert [part.rows.size for part in parts] == [8, 8, 8, whole.rows.size - 24]
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), whole.rows)
    for part in parts:
        for row, start, stop in zip(part.rows, part.starts[:-1], part.starts[1:], strict=True):
            np.testing.assert_array_equal(part.columns[start:stop], np.flatnonzero(w[row]))


def add(overflow, b, out) -> None:
    """What `cuda/hybrid_overflow.cu` does; its rows of b are contiguous."""
    assert b.strides[1] == b.itemsize
    values = overflow.values.view(overflow.dtype.logical).astype(out.dtype)
    for i, row in enumerate(overflow.rows):
        here = slice(overflow.starts[i], overflow.starts[i + 1])
        out[row] += values[here] @ b[overflow.columns[here]].astype(out.dtype)


class Product:
    """A 2:4 matrix; it refuses what none holds."""

    def __init__(self, bits, kept, h):
        assert kept.flags.c_contiguous
        groups = np.pad(kept, ((0, 0), (0, -K % GROUP))).reshape(M, -1, GROUP)
        assert groups.sum(axis=2).max() <= KEPT
        self.matrix = (bits * kept).view(h._dtype.logical)

    def multiply(self, b, out, call=None) -> None:
        product = self.matrix.astype(out.dtype) @ b.astype(out.dtype)
        if call is not None:
            assert out.dtype == np.float32  # integers would be added in float32
            product += call.beta * call.c
        out[...] = product


@pytest.fixture
def on_numpy(monkeypatch):
    monkeypatch.setattr(_arrays, "cupy_module", lambda: np)
    monkeypatch.setattr(two_four, "_Product", Product)
    monkeypatch.setattr(hybrid_overflow, "add", add)
    monkeypatch.setattr(transpose, "launch", lambda b: b.T.copy().T)


@pytest.mark.usefixtures("on_numpy")
@pytest.mark.parametrize("blocks", [2, 1 << 10], ids=["grids", "grid"])
@pytest.mark.parametrize("zeros", [0.0, 0.4, 0.9])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("float32", two_four.TwoFour), ("int8", two_four.TwoFour), ("float32", two_four.Twice),
     ("int8", two_four.Twice)],
)  # fmt: skip
def test_both_parts_are_the_product_however_its_operands_lie(
    rng, monkeypatch, name, kind, zeros, blocks
):
    monkeypatch.setattr(two_four, "MOST_BLOCKS", blocks)
    dtype, result = TABLE[name], numpy_dtype(TABLE[name].result)
    w = (rng.integers(-99, 100, (M, K)) * (rng.random((M, K)) >= zeros)).astype(dtype.logical)
    right = rng.integers(-99, 100, (K, N)).astype(dtype.logical)
    want = w.astype(result) @ right.astype(result)
    h = SimpleNamespace(toarray=w.copy, shape=w.shape, dtype=w.dtype, _dtype=dtype)
    product = kind(h)
    for b in lie_otherwise(right).values():
        for way, out in lie_otherwise(np.full((M, N), 77, result)).items():
            product(b, out)
            np.testing.assert_array_equal(out, want, err_msg=way)


@pytest.mark.usefixtures("on_numpy")
def test_an_infinity_is_left_out_of_one_part_alone():
    """Parts are taken from bits: infinity times False would be NaN, and in the other part, too."""
    w = np.ones((M, K), np.float32)
    w[3, :4] = np.inf, -np.inf, np.inf, np.nan
    h = SimpleNamespace(toarray=w.copy, shape=w.shape, dtype=w.dtype, _dtype=TABLE["float32"])
    product = two_four.TwoFour(h)
    rest = product._overflow.values.view(np.float32)
    np.testing.assert_array_equal(product._main.matrix[3, :5], [np.inf, -np.inf, 0, 0, 1])
    assert np.count_nonzero(~np.isfinite(product._main.matrix)) == 2
    np.testing.assert_array_equal(rest[~np.isfinite(rest)], [np.inf, np.nan])
    assert rest.size == M * (K // GROUP) * (GROUP - KEPT)


@pytest.mark.parametrize("n", [1, 4, 8, 12, 16, 100])
@pytest.mark.parametrize("name", ["float16", "float32", "int8"])
def test_vectors_are_read_and_stored_where_all_begin_on_their_boundaries(name, n):
    dtype, m = TABLE[name], 5
    result = numpy_dtype(dtype.result)
    own = hybrid_overflow.columns(dtype) // hybrid_overflow.WARP
    found = set()
    for b in operands(np.zeros((m, n), dtype.logical)):
        for out in operands(np.zeros((m, n), result)):
            form = hybrid_overflow.form_of(dtype, b, out)
            assert form.b_vector == (n % own == 0 and begins_everywhere(b, own))
            assert not form.out_vector or (form.b_vector and begins_everywhere(out, own))
            assert not (form.out_vector and form.turned)
            assert not form.turned or out.strides[0] == out.itemsize
            found.add(form)
    assert len(found) == (2 if n % own else 5)


def operands(x):
    """In the orders of `lie_otherwise`, each at the begin of 16 bytes and an element behind."""
    for y in (*lie_otherwise(x).values(), np.broadcast_to(x[:1], x.shape)):
        low = sum(min(0, step * (size - 1)) for step, size in zip(y.strides, y.shape))
        room = np.zeros(2 * x.nbytes + 64 * x.itemsize, np.uint8)
        for beyond in (0, x.itemsize):
            start = -room.ctypes.data % 16 + beyond - low
            made = np.ndarray(y.shape, y.dtype, room, start, y.strides)
            yield made.view(Array)


def begins_everywhere(x, own: int) -> bool:
    """Whether each `own` neighbours of a row lie side by side, on a multiple of their bytes."""
    if x.strides[1] != x.itemsize:
        return False
    first = x.data.ptr + np.arange(x.shape[0])[:, None] * x.strides[0]
    return not ((first + np.arange(0, x.shape[1], own) * x.itemsize) % (own * x.itemsize)).any()
