"""Figures: what is drawn, on which axes, and what is refused."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

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


@pytest.mark.parametrize("shape", [(30, 50), (0, 8), (7, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_matrices_of_non_zeros_are_shown_as_dense_ones(shape, dtype, rng):
    dense = (rng.integers(-9, 9, shape) * (rng.random(shape) < 0.3)).astype(dtype)
    scipy = sparse.csr_array(dense.astype(np.float32))
    coo = scipy.tocoo()  # and with each element in two halves
    halves = sparse.coo_array((np.tile(coo.data / 2, 2), np.tile(coo.coords, 2)), shape)
    for values in (False, True):
        want = _shown(dense, values=values)
        for a in (s24.hybrid(dense), s24.hybrid(dense.T.copy()).T, scipy, scipy.tolil(), halves):
            np.testing.assert_equal(_shown(a, values=values), want)


def _shown(a, *, values: bool):
    """Everything that figures of a matrix show."""
    ax = Figure().subplots()
    s24.plot.spy(a, values=values, ax=ax)
    images = [(x.get_array().tolist(), x.get_clim(), x.get_extent()) for x in ax.images]
    bars = s24.plot.group_histogram(a, ax=Figure().subplots()).patches
    return images, [bar.get_height() for bar in bars]


def test_large_matrices_are_shown_without_their_zeros(ax):
    size = 50_000  # 2.5 GB as a dense matrix of bytes
    at = np.array([0, 0, 1, size - 1]), np.array([0, 1, 5, size - 1])
    csr = sparse.csr_array((np.float32([1, -8, np.nan, 2]), at), (size, size))
    for a in (csr, s24.hybrid(csr)):
        tracemalloc.start()
        s24.plot.spy(a, values=True, ax=ax)
        s24.plot.group_histogram(a, ax=Figure().subplots())
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1 << 27
        cells = ax.images[-1].get_array()
        assert cells.mask[0, 0]
        assert cells.mask.sum() == 1
        assert cells[-1, -1] == 2
        assert np.count_nonzero(cells.filled(0)) == 1
        assert ax.images[-1].get_extent() == [-0.5, size - 0.5, size - 0.5, -0.5]
    s24.plot.spy(sparse.csr_array(np.float32([[3, -8, 2]] * 5000)), values=True, ax=ax)
    assert (np.unique(ax.images[-1].get_array(), axis=0) == [[3, -8, 2]]).all()
    heights = [int(x.get_height()) for x in s24.plot.group_histogram(csr).patches]
    assert heights == [size * size // 4 - 3, 2, 1, 0, 0]


@pytest.mark.parametrize("made", [s24.hybrid, sparse.csr_array])
def test_a_cell_of_several_elements_shows_the_least_int8(ax, made):
    s24.plot.spy(made(np.tile(np.int8([-128, 5, 127]), (1, 2048))), values=True, ax=ax)
    assert (ax.images[-1].get_array() == -128).all()


def test_only_a_matrix_can_be_shown(ax):
    with pytest.raises(s24.ShapeError, match=r"two axes, got shape \(4,\)"):
        s24.plot.spy(sparse.coo_array([1, 0, 2, 0]), ax=ax)
    with pytest.raises(s24.ShapeError, match=r"two axes, got shape \(2, 2, 2\); pick one"):
        s24.plot.spy(np.ones((2, 2, 2)), ax=ax)


def test_a_rival_that_nobody_timed_is_refused(ax):
    with pytest.raises(s24.ArgumentError, match="a key of some case's rivals, got 'x'"):
        s24.plot.speedup([{"name": "a", "ours_us": 1.0, "rivals": {}}], rival="x", ax=ax)


def test_options_that_are_arrays_are_named(ax):
    wrong = np.ones(2)
    for name in ("values", "groups"):
        with pytest.raises(s24.ArgumentError, match=f"^{name} must be one of True, False, got"):
            s24.plot.spy(np.eye(8), ax=ax, **{name: wrong})
    cases = [{"name": "a", "ours_us": 1.0, "rivals": {"cublas": 2.0}}]
    for name, given in (("rival", wrong), ("label", [1])):
        with pytest.raises(s24.ArgumentError, match=f"^{name} must be a string, .*got"):
            s24.plot.speedup(cases, ax=ax, **{"rival": "cublas", name: given})


def test_cases_without_a_field_are_refused(ax):
    with pytest.raises(s24.ArgumentError, match="must have the field 'ours_us'"):
        s24.plot.speedup([{"name": "a", "rivals": {"x": 2.0}}], rival="x", ax=ax)
    for time in (None, 0.0):
        rows = [{"name": "a", "ours_us": time, "rivals": {"x": 2.0}}]
        with pytest.raises(s24.ArgumentError, match="'ours_us', a time above 0, got"):
            s24.plot.speedup(rows, rival="x", ax=ax)


def test_rows_of_an_iterator_are_all_shown_but_those_without_rivals(ax):
    rows = [{"name": str(n), "ours_us": 1.0, "rivals": {"x": n}} for n in (2.0, 3.0)]
    s24.plot.speedup(
        iter([*rows, {"name": "alone", "ours_us": 1.0, "rivals": None}]), rival="x", ax=ax
    )
    assert [bar.get_width() for bar in ax.patches] == [2, 3]


def test_an_empty_hybrid_matrix_has_a_map_without_tiles(ax):
    for shape in ((0, 128), (128, 0)):
        for what in ("kind", "density"):
            assert s24.plot.tile_map(s24.hybrid(np.zeros(shape)), what=what, ax=ax) is ax
            assert ax.get_xlabel() == "tile along k"
            assert not ax.images[-1].get_array().size


def test_a_roof_needs_rates(ax):
    for rate in ("bandwidth", "dense_peak", "sparse_peak"):
        with pytest.raises(s24.ArgumentError, match=f"{rate} must be above 0, got 0"):
            s24.plot.roofline(**{rate: 0}, ax=ax)
        with pytest.raises(s24.ArgumentError, match=f"{rate} must be a number, got 'fast'"):
            s24.plot.roofline(**{rate: "fast"}, ax=ax)
        with pytest.raises(s24.ArgumentError, match=f"{rate} must be above 0, got nan"):
            s24.plot.roofline(**{rate: float("nan")}, ax=ax)


def test_points_that_no_roofline_shows_are_refused(ax):
    for point in (1.0, None, "12", (1.0, 2.0, 3.0), np.ones(1)):
        with pytest.raises(s24.ArgumentError, match=r"pairs \(intensity, rate\), got .* for 'a'"):
            s24.plot.roofline({"a": point}, ax=ax)
    with pytest.raises(s24.ArgumentError, match="the intensity of 'a' must be above 0, got 0"):
        s24.plot.roofline({"a": (0, 1e12)}, ax=ax)
    with pytest.raises(s24.ArgumentError, match="the rate of 'a' must be above 0, got -1"):
        s24.plot.roofline({"a": (1, -1)}, ax=ax)
    assert not ax.lines
    s24.plot.roofline({"a": np.float32([1, 2e12])}, ax=ax)
    assert ax.lines[-1].get_ydata()[0] == pytest.approx(2)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(s24.UnsupportedError, match=r"pip install 'sparse24\[plot\]'"):
        s24.plot.spy(np.eye(4))


def test_other_rows_than_those_of_a_file_are_named(ax):
    cases = [{"name": "a", "ours_us": 1.0, "rivals": {"x": 2.0}}]
    for given in ({"header": {}, "cases": cases}, ["a"], None):
        with pytest.raises(s24.ArgumentError, match=r"cases must be .*; of a whole file pass file"):
            s24.plot.speedup(given, rival="x", ax=ax)
    with pytest.raises(s24.ArgumentError, match="label must be a field of every case, got 'size'"):
        s24.plot.speedup(cases, rival="x", label="size", ax=ax)
    with pytest.raises(s24.ArgumentError, match=r"points must be a mapping of .*, rate\)"):
        s24.plot.roofline([(1.0, 2.0)], ax=ax)
