"""Figures: what is drawn, on which axes, and what is refused."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import sparse24 as s24

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib.figure import Figure  # noqa: E402


@pytest.fixture
def ax():
    return Figure().subplots()


def test_spy_draws_on_the_axes_given(ax):
    assert s24.plot.spy(s24.random((4, 12), rng=0), ax=ax) is ax
    assert len(ax.lines) == 2  # between three groups
    shown = ax.images[0].get_array()
    np.testing.assert_array_equal(shown, s24.random((4, 12), rng=0).mask())


@pytest.mark.parametrize("shape", [(16, 32), (1, 1), (2, 64)])
def test_rows_and_columns_are_counted_in_whole_numbers(shape, ax):
    s24.plot.spy(np.eye(*shape), values=True, ax=ax)
    ax.figure.draw_without_rendering()  # which fixes the ticks
    for axis in (ax.xaxis, ax.yaxis):
        assert all(place == int(place) for place in axis.get_majorticklocs())


def test_spy_by_value_is_symmetric_about_zero(ax):
    s24.plot.spy(np.array([[1.0, -3.0, 0.0, 0.0]]), values=True, ax=ax)
    assert ax.images[0].get_clim() == (-3.0, 3.0)


@pytest.mark.filterwarnings("error")
def test_spy_by_value_shows_finite_numbers_of_any_size(ax):
    s24.plot.spy(np.array([[1e200, -2e200, np.inf, np.nan]]), values=True, ax=ax)
    assert ax.images[0].get_clim() == (-2e200, 2e200)
    with pytest.raises(s24.DTypeError, match=r"a must hold real numbers, got complex128"):
        s24.plot.spy(np.ones((2, 4)) * 1j, values=True, ax=ax)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1)])
def test_small_matrices_can_be_shown(shape, ax):
    s24.plot.spy(np.ones(shape), values=True, ax=ax)
    assert [image.get_array().shape for image in ax.images] == [shape] * bool(np.prod(shape))
    s24.plot.group_histogram(np.ones(shape), ax=ax)
    assert sum(bar.get_height() for bar in ax.patches) == np.prod(shape)  # groups of this size


def test_groups_are_counted_with_a_short_last_one(ax):
    s24.plot.group_histogram(np.array([[1, 1, 1, 0, 1, 0]]), ax=ax)
    assert [int(bar.get_height()) for bar in ax.patches] == [0, 1, 0, 1, 0]


def test_only_a_matrix_can_be_shown(ax):
    with pytest.raises(s24.ShapeError, match=r"two axes, got shape \(2, 2, 2\); pick one"):
        s24.plot.spy(np.ones((2, 2, 2)), ax=ax)


def test_a_rival_that_nobody_timed_is_refused(ax):
    with pytest.raises(s24.ArgumentError, match="a key of some case's rivals, got 'x'"):
        s24.plot.speedup([{"name": "a", "ours_us": 1.0, "rivals": {}}], rival="x", ax=ax)


def test_cases_without_a_field_are_refused(ax):
    with pytest.raises(s24.ArgumentError, match="must have the field 'ours_us'"):
        s24.plot.speedup([{"name": "a", "rivals": {"x": 2.0}}], rival="x", ax=ax)


def test_a_roof_needs_rates(ax):
    with pytest.raises(s24.ArgumentError, match="must be positive"):
        s24.plot.roofline(bandwidth=0, ax=ax)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(s24.UnsupportedError, match=r"pip install 'sparse24\[plot\]'"):
        s24.plot.spy(np.eye(4))


def test_other_rows_than_those_of_a_file_are_named(ax):
    cases = [{"name": "a", "ours_us": 1.0, "rivals": {"x": 2.0}}]
    for given in ({"header": {}, "cases": cases}, ["a"]):
        with pytest.raises(s24.ArgumentError, match=r"cases must be .*; of a whole file pass file"):
            s24.plot.speedup(given, rival="x", ax=ax)
    with pytest.raises(s24.ArgumentError, match="label must be a field of every case, got 'size'"):
        s24.plot.speedup(cases, rival="x", label="size", ax=ax)
    with pytest.raises(s24.ArgumentError, match=r"points must be a mapping of .*, rate\)"):
        s24.plot.roofline([(1.0, 2.0)], ax=ax)
