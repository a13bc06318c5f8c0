"""`report`: what pruning kept, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sparse24 import _arrays, _check, _foreign, _row_blocks, _scales, _select
from sparse24._errors import ArgumentError
from sparse24.formats.base import SparseArray


@dataclass(frozen=True)
class LayerReport:
    """What pruning kept of one layer.

    Attributes
    ----------
    name : str
    shape : tuple of int
    pattern : tuple (n, m)
    histogram : tuple of int, length m + 1
        How many groups hold 0, 1, … m non-zeros.
    density : float
        Share of elements that are not zero.
    kept_energy : float
        Sum of squares of the dense weights where the pruned ones are not zero, over that
        of all; NaN if the dense weights were not given.
    kept_magnitude : float
        The same of magnitudes.
    energy, magnitude : float
        Sums of squares and of magnitudes of the dense weights; NaN if not given.
    norm : float
        The root of `energy`, right also where that is too large or too small for a float.
    """

    name: str
    shape: tuple[int, ...]
    pattern: tuple[int, int]
    histogram: tuple[int, ...]
    density: float
    kept_energy: float
    kept_magnitude: float
    energy: float
    magnitude: float
    norm: float = math.nan

    @property
    def obeys(self) -> bool:
        """True if no group holds more than n non-zeros."""
        return not any(self.histogram[self.pattern[0] + 1 :])


@dataclass(frozen=True)
class Report:
    """Layers in order; printing it gives a table.

    Attributes
    ----------
    layers : tuple of LayerReport
    """

    layers: tuple[LayerReport, ...]

    @property
    def kept_energy(self) -> float:
        """The share of the energy that was kept of all layers together."""
        scale = _scales.of_largest(max((layer.norm for layer in self.layers), default=0.0))
        return _share([(layer.kept_energy, (layer.norm * scale) ** 2) for layer in self.layers])

    @property
    def kept_magnitude(self) -> float:
        """The share of the magnitude that was kept of all layers together."""
        return _share([(layer.kept_magnitude, layer.magnitude) for layer in self.layers])

    @property
    def obeys(self) -> bool:
        """True if every layer obeys its pattern."""
        return all(layer.obeys for layer in self.layers)

    def __getitem__(self, name: str) -> LayerReport:
        return {layer.name: layer for layer in self.layers}[name]

    def __str__(self) -> str:
        head = ("layer", "shape", "pattern", "obeys", "density", "energy", "magnitude",
                "groups with 0, 1, 2, …")  # fmt: skip
        rows = [head]
        for layer in self.layers:
            n, m = layer.pattern
            rows.append((
                layer.name, "x".join(map(str, layer.shape)), f"{n}:{m}",
                "yes" if layer.obeys else "no", f"{layer.density:.1%}",
                _percent(layer.kept_energy), _percent(layer.kept_magnitude),
                " ".join(map(str, layer.histogram)),
            ))  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
        if self.layers and not math.isnan(self.kept_energy):
            energy, magnitude = _percent(self.kept_energy), _percent(self.kept_magnitude)
            lines.append(f"kept of all: {energy} energy, {magnitude} magnitude")
        return "\n".join(lines)


def report(pruned, dense=None, *, pattern=None, axis=None) -> Report:
    """Report what pruning kept: energy, magnitude and how full the groups are.

    Parameters
    ----------
    pruned : array, sparse array of any format, or mapping of names to such
        The weights after pruning.
    dense : array, sparse or not, or mapping of names to such, optional
        The weights before, for the kept energy and magnitude.
    pattern : tuple (n, m), optional
        By default that of each compressed array, and (2, 4) for others.
    axis : int, optional
        The axis that the groups run along; by default that of each compressed array, else -1.

    Returns
    -------
    Report
        A table when printed.  Waits for the GPU.

    Raises
    ------
    ShapeError
        If shapes differ.
    ArgumentError
        If `dense` misses a name.
    DTypeError
        If an array holds the bits of fp8, or no real numbers.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> w = np.array([[4.0, 3.0, 0.0, 0.0, 1.0, 2.0, 2.0, 1.0]])
    >>> print(s24.report({"up": s24.prune(w)}, {"up": w}))
    layer  shape  pattern  obeys  density  energy  magnitude  groups with 0, 1, 2, …
    up     1x8    2:4      yes    50.0%    94.3%   84.6%      0 0 2 0 0
    kept of all: 94.3% energy, 84.6% magnitude
    """
    pattern = None if pattern is None else _check.pattern(pattern)
    if not isinstance(pruned, Mapping):
        pruned, dense = {"x": pruned}, None if dense is None else {"x": dense}
    layers = []
    for name, array in pruned.items():
        x = _host(array, name)
        _check.at_least_1d(x.shape, argument=name)
        if dense is not None and name not in dense:
            raise ArgumentError(f"dense has no {name!r}, which pruned has; name both alike")
        before = None if dense is None else _host(dense[name], name)
        if before is not None:
            _check.same_shape(before.shape, x.shape, argument=f"dense {name}", other="the pruned")
        along = getattr(array, "axis", -1) if axis is None else axis
        own = pattern or getattr(array, "pattern", (2, 4))
        layers.append(_layer(str(name), x, before, own, _check.axis(along, x.ndim)))
    return Report(tuple(layers))


@np.errstate(over="ignore", invalid="ignore")  # shares of what is not finite are NaN
def _layer(name: str, x: np.ndarray, dense, pattern: tuple[int, int], axis: int) -> LayerReport:
    shape = x.shape
    n, m = pattern
    histogram, kept = np.zeros(m + 1, np.int64), 0
    x, dense = np.moveaxis(x, axis, -1), None if dense is None else np.moveaxis(dense, axis, -1)
    for at in _row_blocks.blocks_of_rows(x.shape):
        nonzero = x[at] != 0
        groups = _select.in_groups(nonzero, m).view(np.uint8)
        counts = sum(groups[..., i] for i in range(m))  # NumPy is slow to sum over a short axis
        histogram += np.bincount(counts.ravel(), minlength=m + 1)
        kept += int(np.count_nonzero(nonzero))
    density = kept / x.size if x.size else 0.0
    sums = (math.nan,) * 5 if dense is None else _sums(x, dense)
    return LayerReport(name, shape, (n, m), tuple(map(int, histogram)), density, *sums)


def _percent(share: float) -> str:
    """A share in a table; a dash where the dense weights were not given."""
    return "-" if math.isnan(share) else f"{share:.1%}"


def _sums(x: np.ndarray, dense: np.ndarray) -> tuple[float, ...]:
    """Kept energy and magnitude as shares, energy, magnitude and norm of dense magnitudes."""
    blocks = list(_row_blocks.blocks_of_rows(x.shape))
    sizes = (np.abs(dense[at].astype(np.float64)) for at in blocks)
    scale = _scales.of_largest(max((float(d.max()) for d in sizes if d.size), default=0.0))
    # Sums of squares and of magnitudes: of all elements, and of those that were kept.
    energy, squares, magnitude, kept_squares, kept = np.zeros(5)
    for at in blocks:
        size = np.abs(dense[at].astype(np.float64))
        energy += (size**2).sum()
        size *= scale
        square = size**2
        nonzero = x[at] != 0
        squares, magnitude = squares + square.sum(), magnitude + size.sum()
        kept_squares, kept = kept_squares + square[nonzero].sum(), kept + size[nonzero].sum()
    of = lambda part, whole: float(part / whole) if whole else 1.0  # noqa: E731
    return (
        of(kept_squares, squares), of(kept, magnitude),
        float(energy), float(magnitude / scale), float(np.sqrt(squares) / scale),
    )  # fmt: skip


def _share(parts: list[tuple[float, float]]) -> float:
    whole = sum(weight for _, weight in parts)
    return sum(share * weight for share, weight in parts) / whole if whole else 1.0


def _host(array, name: str) -> np.ndarray:
    if isinstance(array, SparseArray):
        array = array.to_device("cpu").toarray()  # on a GPU fp8 would be bits
    found, _ = _foreign.take(array, argument=name)
    _check.not_bits(found, argument=name)
    _arrays.check_real(found, argument=name)
    return _arrays.to_numpy(found)
