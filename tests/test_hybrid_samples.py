"""What a fit of the cost model measures."""

from __future__ import annotations

import contextlib
import functools
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from sparse24._hybrid import samples as hybrid_samples
from sparse24._hybrid.lines import H200_LINES
from sparse24.kernels import (
    hybrid_csr,
    hybrid_gather,
    hybrid_gather_plan,
    hybrid_overflow,
    hybrid_panel,
    hybrid_panel_plan,
    hybrid_rows,
    hybrid_rows_plan,
    hybrid_scatter,
    hybrid_scatter_plan,
    hybrid_stream,
    hybrid_wgmma,
)
from sparse24.kernels.chip import H200, Chip

LAYOUTS = (
    hybrid_csr, hybrid_gather, hybrid_overflow, hybrid_panel, hybrid_rows, hybrid_scatter,
    hybrid_stream, hybrid_wgmma,
)  # fmt: skip


class Layout:
    """Any matrix on a GPU that is not there."""

    nbytes, units, plan, values, shape = 1 << 24, None, None, np.empty(3), (256, 128)
    work = SimpleNamespace(
        choose=lambda n: "config", effort=lambda config, n: (7.0, n),
        exchange=lambda config, n: 4e-7 if n == 512 else 0.0,
    )  # fmt: skip

    def copy(self):
        return self


@pytest.fixture
def measured(monkeypatch):
    """The products that were timed."""
    for module in LAYOUTS:
        monkeypatch.setattr(module, "prepare", lambda *_, **__: Layout())
    for plan in (hybrid_gather_plan, hybrid_panel_plan, hybrid_rows_plan, hybrid_scatter_plan):
        monkeypatch.setattr(plan, "effort", lambda *_, **__: (5.0, 6.0))
    compiled, timed = [], []
    monkeypatch.setattr(hybrid_samples, "chip", lambda: H200)
    monkeypatch.setattr(hybrid_samples, "_compile", lambda _, found: compiled.extend(found))

    def time(_, one):
        assert one in compiled
        timed.append(one)
        return 5e-6

    monkeypatch.setattr(hybrid_samples, "_time", time)
    return timed


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(hybrid_samples, "SMALL", 1)


def test_every_figure_of_the_model_is_measured(measured, large):
    samples = {name: [] for name in H200_LINES}
    hybrid_samples.sample(np, (256, 128), 0.8, samples)
    left_out = {name.partition("/")[0] for name, rows in samples.items() if not rows}
    assert left_out == {
        "small", "short", "vector32", "vector64", "walk32", "walk64", "plain32", "plain64",
        "rows32", "rows64", "int8", "tiles", "copy",
    }  # fmt: skip
    assert {len(row) for rows in samples.values() for row in rows} == {3}
    few = [len(one.calls) for one in measured if len(one.calls) > 1]
    assert set(few) == {4, 8}  # the dense product's four, and copies


def test_small_matrices_are_measured_by_few_columns_and_of_few_non_zeros(measured):
    samples = {name: [] for name in H200_LINES}
    hybrid_samples.sample(np, (256, 128), 0.8, samples)
    found = {name.partition("/")[0] for name, rows in samples.items() if rows}
    panels = {"panel16", "panel", "panel64"}
    assert found == {"stream", "scatter", "base", "gather", "rows", "small", "csr"} | panels
    assert samples["small/512"] == [(128, 65536, 5e-6)] * 4
    assert not next(one for one in measured if one.line == "small/512").captured


@pytest.mark.parametrize(
    ("kib", "capability", "rows"), [(99, "89", [1, 2]), (163, "80", [1, 2, 4])]
)
def test_what_shared_memory_does_not_hold_is_not_measured(
    measured, monkeypatch, kib, capability, rows
):
    def prepare(*_):
        raise AssertionError("the path gather is for chips with clusters")

    monkeypatch.setattr(hybrid_gather, "prepare", prepare)
    monkeypatch.setattr(hybrid_samples, "chip", lambda: Chip(46, kib << 10, capability))
    samples = {name: [] for name in H200_LINES}
    hybrid_samples.sample(np, (16, 8192), 0.8, samples)
    assert {len(samples[f"rows/{n}"]) for n in rows} == {1}
    assert sum(len(samples[f"rows/{n}"]) for n in (1, 2, 4)) == len(rows)
    assert not any(samples[f"gather/{n}"] for n in (1, 2, 4, 8, 16))


def test_products_that_can_be_captured_run_once_in_threads_before_any_is_timed():
    """Each in a stream of its own, so that kernels compile side by side."""
    ran, streams = [], []

    @contextlib.contextmanager
    def stream(**how):
        streams.append(threading.get_ident())
        yield SimpleNamespace(synchronize=lambda: ran.append("synchronize"))

    cuda = SimpleNamespace(
        Device=contextlib.nullcontext, Stream=stream,
        get_current_stream=lambda: SimpleNamespace(synchronize=lambda: ran.append("operands")),
    )  # fmt: skip
    one = functools.partial(hybrid_samples._Sample, "rows/1", (1.0, 1.0))
    found = [one([lambda: ran.append("first"), lambda: ran.append("copy")])]
    found += [one([lambda: ran.append("cublas")], captured=False)]
    hybrid_samples._compile(SimpleNamespace(cuda=cuda), found)
    assert ran == ["operands", "first", "synchronize"]
    assert len(streams) == 1
    assert streams != [threading.get_ident()]


def test_strips_are_measured_as_they_are_chosen_without_their_exchange(measured, large):
    samples = {name: [] for name in H200_LINES}
    hybrid_samples.sample(np, (256, 128), 0.8, samples)
    for path in ("slots", "regrouped"):
        found = {n: samples[f"{path}/{n}"] for n in (128, 256, 512, 2048)}
        assert found.pop(512) == [(7.0, 512, pytest.approx(4.6e-6))]
        assert found == {n: [(7.0, n, 5e-6)] for n in found}
