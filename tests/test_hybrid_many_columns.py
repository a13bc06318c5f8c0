"""How long the dense product and the paths of 2:4 products are expected to take."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _chip_facts, _tuning_cache
from sparse24._dtypes import lookup
from sparse24._hybrid import choice as hybrid_choice
from sparse24._hybrid import cost as hybrid_cost
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import many_columns, room
from sparse24._hybrid import predict as hybrid_predict
from sparse24._hybrid.cublas import dense_time
from sparse24._tuning_cache import SCALES
from sparse24.kernels import (
    hybrid_panel_plan,
    hybrid_rows_plan,
    hybrid_wgmma_plan,
)
from sparse24.kernels.chip import H200
from sparse24.kernels.hybrid_wgmma_plan import Work
from sparse24.kernels.sparse_wgmma_plan import CHIP


def test_the_dense_product_has_tiles_for_columns_between_powers_of_two():
    def work(m, n, k=4096):
        whole = k + hybrid_cost.TILE_K
        return hybrid_cost.dense_work(m, k, n, 132, 0.3) / (m * whole * n)

    assert work(14336, 192) < 1.25  # one wave of 112 tiles
    assert work(8192, 384) < 1.05  # of 128
    assert work(8192, 256) < 1.05
    assert work(320, 128, k=14592) < 7  # ten tiles of 64 x 64 would be 22; they are cut along k


def planned(
    monkeypatch, excess: float, stages: int, gathered: int, longest: int = 410, anew: int = 32 * 128
) -> dict:
    """Predicted seconds for a float16 matrix of 8192 x 8192 by 4096 columns on an H200."""
    monkeypatch.setattr(hybrid_wgmma_plan, "multiprocessors", lambda: 132)
    known = {
        "excess": SimpleNamespace(value=excess),
        "row lengths": SimpleNamespace(value=np.array([longest])),
        "strips work slots": SimpleNamespace(value=Work(np.full(64, stages // 64), gathered)),
        "strips work regrouped": SimpleNamespace(value=Work(np.full(32, anew // 32), anew, 256)),
    }
    h = SimpleNamespace(
        _dtype=lookup("float16"), size=8192 * 8192, shape=(8192, 8192),
        density=0.2, prepared=lambda name, make: known[name],
    )  # fmt: skip
    lines = hybrid_lines.H200_LINES
    dense = dense_time(h.shape, h._dtype, 4096, lines, H200, 0.2)
    return {"cublas": dense} | many_columns.two_four_times(h, 4096, lines, H200)


def test_many_columns_are_planned_by_what_is_counted(monkeypatch):
    even = planned(monkeypatch, 8e3, 64 * 130, 64 * 2)  # 95 % zeros
    assert max(even["slots"], even["two_four"]) < even["cublas"]
    clustered = planned(monkeypatch, 2e6, 64 * 76, 64 * 40)  # blocks that are full or empty
    assert clustered["slots"] < even["slots"]
    assert clustered["two_four"] > clustered["cublas"]
    uneven = planned(monkeypatch, 8e3, 64 * 130, 64 * 2, longest=8192)  # a full row
    assert uneven["two_four"] > even["two_four"] + 4e-4
    swing = planned(monkeypatch, 2e6, 64 * 168, 64 * 40, anew=32 * 130)  # 80 %
    assert min(swing, key=swing.__getitem__) == "regrouped"
    dense = planned(monkeypatch, 3e7, 64 * 256, 64 * 128, anew=32 * 256)
    assert min(dense, key=dense.__getitem__) == "cublas"


def test_sorted_rows_whose_strips_tie_with_the_dense_product_leave_it(monkeypatch):
    """4096 x 4096 by 4096 at 70 % zeros, lengths by a power law: 201 us, and cuBLAS 195."""
    monkeypatch.setattr(hybrid_wgmma_plan, "multiprocessors", lambda: 132)
    work = Work(np.sort(np.arange(60, 92, 2))[::-1], 1206, 256, by_number=True)
    h = SimpleNamespace(prepared=lambda name, make: SimpleNamespace(value=work))
    lines, shape, dtype = hybrid_lines.H200_LINES, (4096, 4096), lookup("float16")
    seconds = many_columns._strips_time(h, "regrouped", 4096, lines)
    dense = dense_time(shape, dtype, 4096, lines, H200, 0.3)
    assert hybrid_choice.WORTH_LEAVING * dense < seconds < 1.05 * dense
    unsorted = dataclasses.replace(work, by_number=False, lengths=np.full(16, 76))
    h.prepared = lambda name, make: SimpleNamespace(value=unsorted)
    assert many_columns._strips_time(h, "regrouped", 4096, lines) < 0.92 * seconds


@pytest.mark.parametrize("n", [8, 64, 256])
def test_a_small_dense_product_is_by_its_row_and_a_large_one_by_its_bytes(n):
    lines, dtype = hybrid_lines.H100_LINES, lookup("float16")
    small, long, large = (
        dense_time(shape, dtype, n, lines, H200, 0.2)
        for shape in ((1024, 1024), (1024, 4096), (4096, 4096))
    )
    line = lines["small/512"]
    assert small == line.seconds(1024, 2 << 20)
    assert long == line.seconds(4096, 8 << 20)
    assert large >= lines[hybrid_lines.class_of("cublas", n)].seconds(4096, 32 << 20)


@pytest.mark.parametrize(
    ("dtype", "shape", "n", "microseconds"),
    [
        ("float32", (1024, 1024), 1, 3.9), ("float32", (768, 3072), 32, 19.0),
        ("float32", (2048, 2048), 256, 55.0), ("float32", (4096, 4096), 8, 42.7),
        ("float64", (2048, 2048), 8, 19.2), ("float64", (4096, 4096), 1024, 562.0),
    ],
)  # fmt: skip
def test_dense_products_of_wide_types_take_about_what_they_took(dtype, shape, n, microseconds):
    """On an H100."""
    lines = hybrid_lines.H100_LINES
    seconds = dense_time(shape, lookup(dtype), n, lines, H200, 0.1)
    assert seconds == pytest.approx(1e-6 * microseconds, rel=0.2)


@pytest.fixture
def planner_of_an_h200(monkeypatch):
    monkeypatch.setattr(_chip_facts, "facts", lambda number: CHIP)
    monkeypatch.setattr(_tuning_cache, "scale", lambda number, name: SCALES.get(name, 1.0))


def excess_by_chance(size: int, density: float) -> float:
    """Elements beyond two in a group of four."""
    return size / hybrid_cost.ELEMENTS * float(hybrid_cost.expected_overflow(density))


@pytest.mark.usefixtures("planner_of_an_h200")
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("float64", 8)])
@pytest.mark.parametrize("n", [1, 8, 64])
def test_small_matrices_of_wide_types_with_few_non_zeros_beat_the_dense_product(
    monkeypatch, dtype, itemsize, n
):
    monkeypatch.setattr(hybrid_fit, "lines", lambda number: hybrid_lines.H100_LINES)
    monkeypatch.setattr(hybrid_predict, "chip", lambda number: H200)
    lengths = np.full(1024, 51)
    known = {
        "row lengths": SimpleNamespace(value=lengths),
        "rows plan": SimpleNamespace(value=hybrid_rows_plan.plan(lengths, 1024)),
        "panel units": SimpleNamespace(value=hybrid_panel_plan.plan(lengths, itemsize)),
        "filled tiles": SimpleNamespace(value=256.0),
        "excess": SimpleNamespace(value=excess_by_chance(1 << 20, 0.05)),
    }
    h = SimpleNamespace(
        _dtype=lookup(dtype), stored=SimpleNamespace(grid=(16, 16), bytes_in_tiles=1e6),
        size=1 << 20, shape=(1024, 1024), density=0.05, nnz=51 << 10, device="cuda:0",
        prepared=lambda name, make: known[name],
    )  # fmt: skip
    times = hybrid_predict.predictions(h, n)
    assert hybrid_choice._best(times)[0] in ("panel", "rows", "csr")


@pytest.mark.usefixtures("planner_of_an_h200")
@pytest.mark.parametrize(
    ("size", "held", "n", "best"),
    [(40000, 20, 1, "csr"), (40000, 20, 256, "csr"), (16384, 49, 64, "csr"), (16384, 49, 1, "rows"),
     (16384, 164, 1, "rows"), (16384, 164, 64, "panel"), (4096, 410, 8, "panel"),
     (2048, 205, 128, "panel"), (2048, 61, 128, "panel")],
)  # fmt: skip
def test_where_each_non_zero_reads_its_row_of_b(monkeypatch, size, held, n, best):
    """In float32 on an H200: docs/benchmarks/log_hybrid.rst, "Nearly empty matrices"."""
    monkeypatch.setattr(hybrid_fit, "lines", lambda number: hybrid_lines.H200_LINES)
    monkeypatch.setattr(hybrid_predict, "chip", lambda number: H200)
    monkeypatch.setattr(room, "memory", lambda device: 141 << 30)
    lengths, tiles = np.full(size, held), (-(-size // 64),) * 2
    known = {
        "row lengths": SimpleNamespace(value=lengths),
        "rows plan": SimpleNamespace(value=hybrid_rows_plan.plan(lengths, size)),
        "panel units": SimpleNamespace(value=hybrid_panel_plan.plan(lengths, 4)),
        "filled tiles": SimpleNamespace(value=float(np.prod(tiles))),
        "live columns": SimpleNamespace(places=np.arange(size)),
        "excess": SimpleNamespace(value=excess_by_chance(size**2, held / size)),
    }
    h = SimpleNamespace(
        _dtype=lookup("float32"), stored=SimpleNamespace(grid=tiles, bytes_in_tiles=1e6),
        size=size**2, shape=(size, size), density=held / size, nnz=held * size, device="cuda:0",
        prepared=lambda name, make: known[name],
    )  # fmt: skip
    times = hybrid_predict.predictions(h, n)
    assert hybrid_choice._best(times)[0] == best
    by_columns = hybrid_predict.predictions(h, n, hybrid_predict.COLUMNS)
    copying = [path for path in hybrid_predict.TRANSPOSING if path in times and n > 1]
    assert copying == [path for path in times if by_columns[path] > times[path]]
    told = hybrid_choice.explain(h, n, copied=hybrid_predict.COLUMNS)
    assert told["copies_b"] == copying
    assert (times.keys() == {"tiles", "cublas", "csr"}) == (held / size < 0.001)


@pytest.mark.usefixtures("planner_of_an_h200")
@pytest.mark.parametrize(
    ("dtype", "zeros", "n", "best"),
    [("float32", 0.3, 512, "twice"), ("float32", 0.5, 4096, "twice"),
     ("float32", 0.8, 512, "two_four"), ("float32", 0.9, 4096, "two_four"),
     ("int8", 0.9, 64, "two_four"), ("int8", 0.5, 2048, "cublas")],
)  # fmt: skip
def test_products_that_are_added_up_beat_the_dense_one(monkeypatch, dtype, zeros, n, best):
    """Of a matrix of 4096 x 4096."""
    monkeypatch.setattr(hybrid_fit, "lines", lambda number: hybrid_lines.H200_LINES)
    monkeypatch.setattr(hybrid_predict, "chip", lambda number: H200)
    size, kind = 4096, lookup(dtype)
    lengths = np.full(size, round(size * (1 - zeros)))
    known = {
        "row lengths": SimpleNamespace(value=lengths),
        "panel units": SimpleNamespace(value=hybrid_panel_plan.plan(lengths, 4)),
        "filled tiles": SimpleNamespace(value=float(size // 64) ** 2),
        "live columns": SimpleNamespace(places=np.arange(size)),
        "excess": SimpleNamespace(value=excess_by_chance(size**2, 1 - zeros)),
    }
    h = SimpleNamespace(
        _dtype=kind, dtype=kind.logical, size=size**2, shape=(size, size), density=1 - zeros,
        stored=SimpleNamespace(grid=(size // 64,) * 2, bytes_in_tiles=1e7),
        nnz=int(lengths.sum()), device="cuda:0", prepared=lambda name, make: known[name],
    )  # fmt: skip
    assert hybrid_choice._best(hybrid_predict.predictions(h, n))[0] == best


@pytest.mark.usefixtures("planner_of_an_h200")
@pytest.mark.parametrize(("dtype", "left"), [("float32", {"twice"}), ("float16", set())])
def test_more_elements_than_a_kernel_counts_are_not_left_out(monkeypatch, dtype, left):
    monkeypatch.setattr(many_columns, "_strips_time", lambda *_: 1.0)
    find = many_columns.times_of_sums if dtype == "float32" else many_columns.two_four_times
    size, lines = 1 << 16, hybrid_lines.H200_LINES
    for excess, others in ((2**31 - 8, {"two_four"}), (2**31, set())):
        known = {"excess": excess, "row lengths": np.full(size, size)}
        h = SimpleNamespace(
            _dtype=lookup(dtype), size=size**2, shape=(size, size), density=1.0, device="cuda:0",
            prepared=lambda name, make, known=known: SimpleNamespace(value=known[name]),
        )  # fmt: skip
        assert find(h, 512, lines, H200).keys() - {"slots", "regrouped"} == left | others
