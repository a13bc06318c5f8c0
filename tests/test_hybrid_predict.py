"""The cost model of hybrid products: fitted, and what it expects of the paths and of cuBLAS."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24._dtypes import lookup
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import few_columns
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import predict as hybrid_predict
from sparse24.kernels import (
    hybrid_gather_plan,
    hybrid_kinds,
    hybrid_panel_plan,
    hybrid_rows_plan,
)
from sparse24.kernels.chip import H200, Chip
from sparse24.kernels.hybrid_scatter_plan import Units


def test_bands_are_ordered_and_move_with_n():
    dtype = lookup("float16")
    for n in (1, 16, 64, 512, 4096):
        low, high = hybrid_cost.bands(dtype, n, hybrid_cost.H200_TENSOR)
        assert 0 <= low <= high <= 1
    few, many = (hybrid_cost.bands(dtype, n, hybrid_cost.H200_TENSOR)[0] for n in (4, 4096))
    assert few > many


def test_kinds_follow_the_cost():
    dtype = lookup("float16")
    nonzeros = np.array([0, 50, 400, 4096])
    overflow = hybrid_cost.expected_overflow(nonzeros / 4096)
    kinds = hybrid_cost.choose(nonzeros, overflow, dtype, 4096, hybrid_cost.H200_TENSOR)
    assert kinds.tolist() == [0, 2, 2, 1]
    kinds = hybrid_cost.choose(nonzeros, overflow, dtype, 1, hybrid_cost.H200_TENSOR)
    assert kinds.tolist() == [0, 4, 3, 1]


@pytest.mark.parametrize("name", ["float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 16, 512])
def test_of_kinds_that_are_equally_fast_the_smallest_is_stored(name, n):
    dtype = lookup(name)
    nonzeros = np.arange(1, 4097)
    overflow = hybrid_cost.expected_overflow(nonzeros / 4096)
    rates = hybrid_cost.rates_for(dtype, True)
    kinds = hybrid_cost.choose(nonzeros, overflow, dtype, n, rates)
    sizes = hybrid_cost.tile_bytes(nonzeros, overflow, dtype.itemsize)
    assert (sizes[kinds - 1, np.arange(4096)] == sizes.min(0)).all()


def test_fit_recovers_a_line(rng):
    line = hybrid_lines.Line(4e-6, 2e-13, 3e-13)
    points = [(e, b, line.seconds(e, b)) for e, b in rng.uniform(1e6, 1e8, (6, 2))]
    found = hybrid_fit.solve(points)
    for name in ("fixed", "element", "byte"):
        assert getattr(found, name) == pytest.approx(getattr(line, name), rel=1e-6, abs=0)


def test_damaged_fits_are_ignored(tmp_path):
    file = tmp_path / "fit.json"
    assert hybrid_fit._read(file) is None
    for text in ("{", "[]", "{}", "[" * 100000):
        file.write_text(text)
        assert hybrid_fit._read(file) is None
    for lines in ({}, [], None):
        file.write_text(json.dumps({"key": hybrid_fit._key(), "lines": lines}))
        assert hybrid_fit._read(file) is None
    for fixed in ("x", None, -1.0, float("nan"), True):
        line = {"fixed": fixed, "element": 2.0, "byte": 3.0}
        lines = dict.fromkeys(hybrid_lines.H200_LINES, line)
        file.write_text(json.dumps({"key": hybrid_fit._key(), "lines": lines}))
        assert hybrid_fit._read(file) is None
    lines = {name: {"fixed": 1.0, "element": 2.0, "byte": 3.0} for name in hybrid_lines.H200_LINES}
    file.write_text(json.dumps({"key": hybrid_fit._key(), "lines": lines}))
    assert hybrid_fit._read(file)["rows/1"].byte == 3.0
    for key in (hybrid_fit._key() | {"sparse24": "0.0.1"}, hybrid_fit._key() | {"kernels": {}}):
        file.write_text(json.dumps({"key": key, "lines": lines}))  # of other kernels
        assert hybrid_fit._read(file) is None


def test_choices_are_as_near_as_times_hang_on_the_columns():
    found = {n: hybrid_cost.bucket(n) for n in (1, 3, 4, 5, 33, 64, 65, 96, 97, 128, 129, 192)}
    assert found == {1: 1, 3: 3, 4: 4, 5: 8, 33: 64, 64: 64, 65: 72, 96: 96, 97: 104, 128: 128,
                     129: 192, 192: 192}  # fmt: skip
    assert [hybrid_cost.bucket(n) for n in (511, 512, 513, 4096)] == [512, 512, 1024, 4096]


@pytest.mark.stem("hybrid_overflow")
@pytest.mark.gpu
def test_fit_is_kept_and_used(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setattr(hybrid_fit, "_known", {})
    monkeypatch.setattr(hybrid_fit, "SHAPES", ((1024, 1024), (2048, 2048)))
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    found = hybrid_fit.fit(0)
    assert hybrid_fit.lines(0) == found
    assert hybrid_fit._read(hybrid_fit.path(0)) == found
    assert all(line.seconds(1e6, 1e6) > 0 for line in found.values())


def scattered(base: bool) -> SimpleNamespace:
    """A float16 matrix of 8192 x 8192 on an H200 of which the units of scatter are known."""
    sizes = np.full((64, 128, 2), 1 if base else 6)
    known = {
        "scatter units": SimpleNamespace(value=Units(sizes, base)),
        "row lengths": SimpleNamespace(value=np.full(8192, 820)),
        "rows plan": SimpleNamespace(value=hybrid_rows_plan.plan(np.full(8192, 820), 8192)),
        "gather units": SimpleNamespace(value=hybrid_gather_plan.plan(np.full(8192, 820), 2)),
        "filled tiles": SimpleNamespace(value=16384.0),
        "panel units": SimpleNamespace(value=hybrid_panel_plan.plan(np.full(8192, 820), 2)),
    }
    return SimpleNamespace(
        _dtype=lookup("float16"), stored=SimpleNamespace(grid=(128, 128), bytes_in_tiles=1e8),
        size=8192 * 8192, shape=(8192, 8192), density=0.1, nnz=6.7e6, device="cuda:0",
        prepared=lambda name, make: known[name],
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 4096])
def test_tiles_that_are_alike_get_the_kind_of_one_alone(rng, n):
    held = rng.integers(0, 40, 5000)
    spill = rng.integers(0, 3, 5000) * (held > 8)
    how = lookup("float32"), n, hybrid_cost.H200_PLAIN
    kinds = hybrid_cost.choose(held, spill, *how)
    assert kinds.dtype == np.uint8
    for i in range(0, 5000, 97):
        assert kinds[i] == hybrid_cost.choose(held[i : i + 1], spill[i : i + 1], *how)[0]
    np.testing.assert_array_equal(kinds == hybrid_kinds.EMPTY, held == 0)


@pytest.mark.parametrize("base", [False, True])
def test_scatter_copies_no_few_columns_but_takes_a_little_longer(monkeypatch, base):
    monkeypatch.setattr(hybrid_fit, "lines", lambda number: hybrid_lines.H200_LINES)
    monkeypatch.setattr(hybrid_predict, "chip", lambda number: H200)
    h = scattered(base)
    longer = {
        n: hybrid_predict.predictions(h, n, True)["scatter"]
        - hybrid_predict.predictions(h, n, False)["scatter"]
        for n in (1, 8, 9)
    }
    assert longer[1] == longer[8] == pytest.approx(hybrid_predict.BY_WARPS[base])
    assert longer[9] > hybrid_lines.H200_LINES["copy/512"].fixed


def test_rows_across_lines_are_counted_where_much_of_b_is_read():
    plain, base = (Units(np.ones((32, 64, 2), int), base) for base in (False, True))
    flat = Units(np.ones((64, 32, 2), int), rows=64, columns=128)
    flat_base = Units(np.ones((64, 32, 2), int), True, 64, 128)
    longer = {n: [few_columns._longer(u, n) for u in (plain, base, flat, flat_base)]
              for n in (64, 96, 128)}  # fmt: skip
    across = few_columns.ACROSS_LINES
    many = few_columns.FLAT_BASE
    assert longer == {64: [1, 1, 1, many], 96: [1, across, across, across**2], 128: [1, 1, 1, many]}
    assert few_columns._longer(flat, 8) == few_columns.FLAT_FEW
    assert few_columns._longer(flat_base, 32) == 1
    small = Units(np.ones((8, 64, 2), int))
    found = [few_columns._longer(small, n) for n in (64, 96, 128)]
    assert found == [1, few_columns.WIDE_SMALL, few_columns.WIDE_SMALL]


def test_small_chips_get_no_path_that_wants_more_shared_memory():
    known = {
        "row lengths": SimpleNamespace(value=np.full(4096, 410)),
        "rows plan": SimpleNamespace(value=hybrid_rows_plan.plan(np.full(4096, 410), 4096)),
        "scatter units": SimpleNamespace(value=Units(np.full((32, 64, 2), 3))),
        "gather units": SimpleNamespace(value=hybrid_gather_plan.plan(np.full(4096, 410), 1)),
    }
    h = SimpleNamespace(
        _dtype=lookup("float16"), size=4096 * 4096, shape=(4096, 4096),
        density=0.1, nnz=1.6e6, prepared=lambda name, make: known[name],
    )  # fmt: skip
    lines = hybrid_lines.H200_LINES
    hopper, ampere, small = (
        few_columns.times(h, 4, lines, device)
        for device in (
            H200,
            Chip(108, 163 << 10, "80"),
            Chip(40, 48 << 10, "75"),
        )
    )
    assert hopper.keys() == {"stream", "scatter", "rows", "gather"}
    assert ampere.keys() == {"stream", "rows"}
    assert small.keys() == {"stream"}


def test_a_path_is_left_to_cublas_unless_it_is_clearly_faster():
    for seconds, choice in ((0.98e-5, "cublas"), (0.96e-5, "stream"), (2e-5, "cublas")):
        found, _ = hybrid_choice._best({"stream": seconds, "cublas": 1e-5, "tiles": 1e-3})
        assert found == choice


def with_even_rows(shape, zeros):
    """What predictions of the paths for few columns read of such a matrix."""
    m, k = shape
    lengths = np.full(m, round(k * (1 - zeros)))
    panels = -(-k // hybrid_gather_plan.PANEL)
    known = {"gather units": SimpleNamespace(value=hybrid_gather_plan.plan(lengths, panels))}
    return SimpleNamespace(
        _dtype=lookup("float16"), size=m * k, shape=shape, density=1 - zeros,
        nnz=int(lengths.sum()), prepared=lambda name, make: known[name],
    )  # fmt: skip


def test_gather_is_as_slow_as_the_block_with_most_columns():
    even, uneven = (with_even_rows((4096, k), 0.7) for k in (8192, 11008))
    seconds = [
        few_columns._gather_time(h, 8, hybrid_lines.H200_LINES, H200)["gather"]
        for h in (even, uneven)
    ]
    # 1.34 times as many elements, of which one block of two has 1.49 times its share.
    assert seconds[1] > 1.7 * seconds[0]


def test_gather_by_many_columns_has_at_most_two_panels():
    lines = hybrid_lines.H200_LINES
    for k, found in ((4096, True), (8192, True), (8193, False)):
        h = with_even_rows((4096, k), 0.95)
        assert bool(few_columns._gather_time(h, 16, lines, H200)) == found
        assert few_columns._gather_time(h, 8, lines, H200)
