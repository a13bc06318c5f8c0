"""Figures: patterns, groups, speed-ups and rooflines.

Matplotlib is imported when a figure is drawn.  Every function takes ``ax=None``
and returns the `Axes` it drew on, so figures can be combined and changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparse24 import _arrays, _check, _plot_cells, _spec
from sparse24._errors import ArgumentError
from sparse24._pyplot import pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["group_histogram", "roofline", "speedup", "spy", "tile_map"]


def _axes(ax: Axes | None) -> Axes:
    return pyplot().subplots()[1] if ax is None else ax


def spy(a: Any, *, values: bool = False, groups: bool = True, ax: Axes | None = None) -> Axes:
    """Show which elements of a matrix are not zero.

    Parameters
    ----------
    a : array or sparse24 array, shape (m, k)
        Copied to the host, so this waits for the device.
    values : bool, default False
        Colour by value instead of black and white.
    groups : bool, default True
        Draw a line between neighbouring groups of four, if there are at most 64.
    ax : matplotlib.axes.Axes, optional
        Drawn on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ShapeError
        If `a` is not a matrix.
    DTypeError
        If complex numbers are to be coloured by value.
    UnsupportedError
        If matplotlib is not installed.

    Notes
    -----
    A `HybridArray` and matrices of SciPy and cupyx are not made dense.  If they have more than
    2048 rows or columns, a cell of the figure stands for several elements, and shows the one of
    the largest magnitude.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import plot
    >>> ax = plot.spy(np.eye(8))
    >>> ax.get_xlabel()
    'k'
    """
    values, groups = _check.flag(values, argument="values"), _check.flag(groups, argument="groups")
    matrix = _plot_cells.matrix_of(a)
    m, k = matrix.shape
    ax = _axes(ax)
    ax.set(xlabel="k", ylabel="m")
    if not (m and k):
        return ax
    if values:
        _arrays.check_real(matrix, argument="a")
    shown = _plot_cells.image(matrix, values=values)
    place = (-0.5, k - 0.5, m - 0.5, -0.5)
    if values:
        most = float(np.max(np.abs(shown), initial=0, where=np.isfinite(shown))) or 1.0
        image = ax.imshow(
            shown, "RdBu_r", vmin=-most, vmax=most, interpolation="none", extent=place
        )
        ax.figure.colorbar(image, ax=ax, shrink=0.8)
    else:
        ax.imshow(shown, cmap="Greys", vmin=0, vmax=1, interpolation="none", extent=place)
    if groups and _spec.groups(k) <= 64:
        for edge in range(_spec.GROUP, k, _spec.GROUP):
            ax.axvline(edge - 0.5, color="tab:orange", linewidth=0.6)
    ax.locator_params(integer=True, min_n_ticks=1)
    return ax


def group_histogram(a: Any, *, ax: Axes | None = None) -> Axes:
    """Count the groups of four along the rows that hold 0, 1, 2, 3 and 4 non-zeros.

    Parameters
    ----------
    a : array or sparse24 array, shape (m, k)
        Copied to the host, so this waits for the device.
    ax : matplotlib.axes.Axes, optional
        Drawn on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ShapeError
        If `a` is not a matrix.
    UnsupportedError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import plot
    >>> ax = plot.group_histogram(np.eye(8))
    >>> [int(bar.get_height()) for bar in ax.patches]
    [8, 8, 0, 0, 0]
    """
    heights = _plot_cells.counts_by_group(_plot_cells.matrix_of(a))
    ax = _axes(ax)
    colours = ["tab:blue"] * (_spec.KEPT + 1) + ["tab:red"] * (_spec.GROUP - _spec.KEPT)
    ax.bar(range(_spec.GROUP + 1), heights, color=colours)
    ax.set(xlabel="non-zeros in a group of four", ylabel="groups")
    return ax


def speedup(
    cases: Sequence[Mapping[str, Any]], *, rival: str, label: str = "name", ax: Axes | None = None
) -> Axes:
    """Show how many times faster than a rival each benchmark case is, one bar below another.

    Parameters
    ----------
    cases : sequence of mappings
        Rows of a file in ``docs/benchmarks/data``: ``ours_us`` and ``rivals`` are used.
    rival : str
        A key of ``rivals``; cases without it are left out.
    label : str, default "name"
        The field that names a bar, such as ``"n"``.
    ax : matplotlib.axes.Axes, optional
        Drawn on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ArgumentError
        If `cases` are something else, no case has that rival, or one has no time of its own or not
        the field `label`.
    UnsupportedError
        If matplotlib is not installed.

    Examples
    --------
    >>> from sparse24 import plot
    >>> cases = [{"name": "a", "ours_us": 10.0, "rivals": {"cublas": 15.0}}]
    >>> ax = plot.speedup(cases, rival="cublas")
    >>> float(ax.patches[0].get_width())
    1.5
    """
    several = isinstance(cases, Iterable) and not isinstance(cases, Mapping)
    given: list[Any] = list(cases) if several else [cases]  # an iterator gives its rows once
    if not several or not all(isinstance(case, Mapping) for case in given):
        raise ArgumentError(
            f"cases must be a sequence of mappings, got {_check.shown(cases)}; of a whole file "
            "pass file['cases']"
        )
    _check.text(rival, argument="rival", such_as="a key of some case's rivals")
    _check.text(label, argument="label", such_as="a field of every case")
    rows = [case for case in given if (case.get("rivals") or {}).get(rival)]
    if not rows:
        raise ArgumentError(f"rival must be a key of some case's rivals, got {rival!r}")
    for row in rows:
        if not row.get("ours_us"):
            raise ArgumentError(
                f"cases must have the field 'ours_us', a time above 0, got {_check.shown(row)}"
            )
        if label not in row:
            raise ArgumentError(f"label must be a field of every case, got {label!r}; use 'name'")
    ax = _axes(ax)
    ratios = [row["rivals"][rival] / row["ours_us"] for row in rows]
    colours = ["tab:blue" if ratio >= 1 else "tab:gray" for ratio in ratios]
    ax.barh(range(len(rows)), ratios, color=colours)
    ax.axvline(1.0, color="black", linewidth=0.8)
    ax.set_yticks(range(len(rows)), [str(row[label]) for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)  # the first case on top
    ax.set_xlabel(f"times faster than {rival}")
    return ax


def roofline(
    points: Mapping[str, tuple[float, float]] | None = None,
    *,
    bandwidth: float = 4.8e12,
    dense_peak: float = 989e12,
    sparse_peak: float = 1979e12,
    ax: Axes | None = None,
) -> Axes:
    """Draw the roofs of a chip, and measured points below them.

    Parameters
    ----------
    points : mapping of str to (intensity, rate), optional
        Operations a byte and operations a second, both counted as if dense.
    bandwidth : float
        Of the memory, bytes a second.  The defaults are the data sheet of the H200, 16-bit types.
    dense_peak, sparse_peak : float
        Operations a second of the dense and the sparse Tensor Cores.
    ax : matplotlib.axes.Axes, optional
        Drawn on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ArgumentError
        If a rate or an intensity is not a number above 0, or `points` are not pairs by name.
    UnsupportedError
        If matplotlib is not installed.

    Examples
    --------
    >>> from sparse24 import plot
    >>> ax = plot.roofline({"4096^3": (1365.0, 9.0e14)})
    >>> ax.get_xscale()
    'log'
    """
    bandwidth = _check.positive(bandwidth, argument="bandwidth")
    dense_peak = _check.positive(dense_peak, argument="dense_peak")
    sparse_peak = _check.positive(sparse_peak, argument="sparse_peak")
    _check.by_name(points, argument="points", of="(intensity, rate)", optional=True)
    shown = {name: _point(name, given) for name, given in (points or {}).items()}
    ax = _axes(ax)
    intensity = np.geomspace(1, 1e4, 200)
    for name, peak in (("dense", dense_peak), ("2:4", sparse_peak)):
        ax.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e12, label=f"{name} roof")
    for name, (at, rate) in shown.items():
        ax.plot([at], [rate / 1e12], "o", label=name)
    ax.set(xscale="log", yscale="log")
    ax.set(xlabel="operations a byte", ylabel="10¹² operations a second")
    ax.legend(frameon=False)
    return ax


def _point(name: str, given: Any) -> list[float]:
    """Intensity and rate of a point; a logarithmic axis would leave out what is not above 0."""
    if not isinstance(given, Sequence | np.ndarray) or np.shape(given) != (2,):
        shown = _check.shown(given)
        raise ArgumentError(f"points must be pairs (intensity, rate), got {shown} for {name!r}")
    names = (f"the intensity of {name!r}", f"the rate of {name!r}")
    return [_check.positive(x, argument=own) for x, own in zip(given, names, strict=True)]


def tile_map(h: Any, *, what: str = "kind", ax: Axes | None = None) -> Axes:
    """Show the tiles of a hybrid matrix.

    Parameters
    ----------
    h : HybridArray
        Copied to the host, so this waits for the device.
    what : {"kind", "density"}
        Colour by what a tile became, or by its share of non-zeros.
    ax : matplotlib.axes.Axes, optional
        Drawn on; by default a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ArgumentError
        If `what` is neither, or `h` is no `HybridArray`.
    UnsupportedError
        If matplotlib is not installed.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> h = s24.hybrid(np.diag(np.ones(256, np.float32)))
    >>> ax = s24.plot.tile_map(h)
    """
    from sparse24._hybrid import summary as hybrid_summary
    from sparse24.formats.hybrid import HybridArray
    from sparse24.kernels.hybrid_kinds import NAMES

    if not isinstance(h, HybridArray):
        raise ArgumentError(
            f"h must be a HybridArray, got {type(h).__name__}; make one with sparse24.hybrid"
        )
    _check.one_of(what, ("kind", "density"), argument="what")
    ax = _axes(ax)
    from matplotlib import colors

    rows, columns = (max(size, 1) for size in h.kinds.shape)  # an axis without tiles has a length
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    if what == "density":
        image = ax.imshow(
            hybrid_summary.tile_fill(h), vmin=0, vmax=1, cmap="viridis", extent=extent
        )
        ax.figure.colorbar(image, ax=ax)
    else:
        shades = colors.ListedColormap(["white", "tab:gray", "tab:orange", "tab:blue", "tab:cyan"])
        most = len(NAMES) - 0.5
        image = ax.imshow(h.kinds, vmin=-0.5, vmax=most, cmap=shades, extent=extent)
        bar = ax.figure.colorbar(image, ax=ax, ticks=range(len(NAMES)))
        bar.ax.set_yticklabels(NAMES)
    ax.set(xlabel="tile along k", ylabel="tile along m")
    ax.locator_params(integer=True, min_n_ticks=1)
    return ax
