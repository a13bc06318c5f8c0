"""What a fit of the cost model measures."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from sparse24 import _hybrid_samples
from sparse24._hybrid_cost import H200_LINES
from sparse24.kernels import (
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
from sparse24.kernels.chip import H200

LAYOUTS = (
    hybrid_gather, hybrid_overflow, hybrid_panel, hybrid_rows, hybrid_scatter, hybrid_stream,
    hybrid_wgmma,
)  # fmt: skip


class Layout:
    """Any matrix on a GPU that is not there."""

    nbytes, units, plan, values = 1 << 24, None, None, np.empty(3)
    work = SimpleNamespace(rows=128, effort=lambda config, n: (7.0, n))

    def copy(self):
        return self


@pytest.fixture
def measured(monkeypatch):
    """The calls that were timed."""
    for module in LAYOUTS:
        monkeypatch.setattr(module, "prepare", lambda *_, **__: Layout())
    for plan in (hybrid_gather_plan, hybrid_panel_plan, hybrid_rows_plan, hybrid_scatter_plan):
        monkeypatch.setattr(plan, "effort", lambda *_, **__: (5.0, 6.0))
    calls = []
    monkeypatch.setattr(_hybrid_samples, "chip", lambda: H200)
    monkeypatch.setattr(_hybrid_samples, "_time", lambda _, them, **__: calls.append(them) or 1e-6)
    return calls


def test_every_figure_of_the_model_is_measured(measured):
    samples = {name: [] for name in H200_LINES}
    _hybrid_samples.sample(np, (256, 128), 0.8, samples)
    assert all(samples.values())
    assert {len(row) for rows in samples.values() for row in rows} == {3}
    few = [calls for calls in measured if len(calls) > 1]
    assert {len(calls) for calls in few} == {4, 8}  # the dense product's four, and copies
