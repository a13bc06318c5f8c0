"""What the page on unstructured matrices makes of recorded cases."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "_extensions"))
hybrid_figures = pytest.importorskip("hybrid_figures")


def case(zeros, ours, *, family="iid", n=8, kernel="stream", **extra):
    return {
        "family": family, "zeros": zeros, "n": n, "m": 64, "k": 64, "ours_us": ours,
        "ours_kernel": kernel, "rivals": {"cublas": 10.0}, **extra,
    }  # fmt: skip


def test_break_even_is_the_start_of_the_last_run_of_wins():
    cases = [case(0.6, 8.0), case(0.7, 11.0), case(0.8, 9.0), case(0.9, 4.0)]
    cases += [case(0.9, 10.0, n=64, kernel="cublas"), case(0.8, 20.0, family="block")]
    table = hybrid_figures.break_even(cases)
    assert table == {"iid": {8: 0.8, 64: None}, "block": {8: None}}


def test_curves_are_sorted_by_zeros():
    found = hybrid_figures.curves([case(0.9, 4.0), case(0.6, 8.0), case(0.7, 5.0, family="block")])
    assert found == {((64, 64), 8): {0.6: 1.25, 0.9: 2.5}}


def test_balance_is_a_mean_of_ratios():
    cases = [case(0.6, 10.0, unbalanced_us=20.0), case(0.7, 10.0, unbalanced_us=5.0)]
    assert hybrid_figures.balance_gain(cases) == {"iid": pytest.approx(1.0)}


def test_the_page_has_a_picture_and_two_tables(tmp_path, monkeypatch):
    cases = [case(0.6, 8.0, unbalanced_us=9.0), case(0.9, 4.0)]
    monkeypatch.setattr(hybrid_figures.recorded, "suites", lambda: {"hybrid": {"cases": cases}})
    hybrid_figures.write(tmp_path)
    text = (tmp_path / "hybrid_figures.txt").read_text()
    assert (tmp_path / "hybrid_curves.png").stat().st_size > 1000
    assert text.count("list-table") == 2
    assert "60%" in text
