"""Zeros where they save the most time, by measured times of each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sparse24 import _check
from sparse24._errors import ArgumentError
from sparse24._schedule.arrays import check_share, floor_count
from sparse24._schedule.distributions import Distribution, round_to_total, sizes_of


@dataclass(frozen=True)
class BySpeedup(Distribution):
    """Place zeros first where, by your measurements, they save the most time.

    Parameters
    ----------
    seconds : mapping of str to mapping of float to float
        For each layer its measured time at several sparsities, 0 among them.

    Examples
    --------
    >>> from sparse24.schedule import BySpeedup
    >>> seconds = {"up": {0.0: 41e-6, 0.8: 19e-6}, "down": {0.0: 40e-6, 0.8: 31e-6}}
    >>> BySpeedup(seconds).shares(0.5, {"up": (50, 10), "down": (10, 50)}, {})
    {'up': 0.8, 'down': 0.2}
    """

    seconds: Mapping[str, Mapping[float, float]]

    def __post_init__(self):
        _check.by_name(self.seconds, argument="seconds", of="times")
        for name, times in self.seconds.items():
            if not isinstance(times, Mapping):
                raise ArgumentError(
                    f"seconds[{name!r}] must map sparsities to times, such as "
                    f"{{0.0: 41e-6, 0.8: 19e-6}}, got {_check.shown(times)}"
                )
            for sparsity, seconds in times.items():
                check_share(sparsity, f"a sparsity in seconds[{name!r}]")
                if not 0 <= _check.number(seconds, argument=f"a time of {name!r}") < math.inf:
                    raise ArgumentError(f"a time of {name!r} must be 0 or more, got {seconds!r}")

    def shares(self, sparsity, shapes, memory, most=1.0):
        sizes = sizes_of(shapes)
        total = left = floor_count(sparsity, sum(sizes.values()))
        pieces = [piece for name in shapes for piece in self._pieces(name, sizes[name])]
        wanted = dict.fromkeys(shapes, 0.0)
        for _, name, count in sorted(pieces, key=lambda piece: -piece[0]):
            take = min(count, left, floor_count(most, sizes[name]) - wanted[name])
            wanted[name] += take
            left -= take
        return round_to_total(wanted, sizes, total, most)

    def _pieces(self, name: str, size: int):
        """(seconds saved per zero, layer, zeros): the steps of the best convex envelope."""
        if name not in self.seconds or 0.0 not in self.seconds[name]:
            raise ArgumentError(
                f"seconds must hold times of layer {name!r}, at sparsity 0 among others"
            )
        points = sorted(self.seconds[name].items())
        points = points if points[-1][0] == 1.0 else [*points, (1.0, points[-1][1])]
        here = 0
        while here < len(points) - 1:
            s0, t0 = points[here]
            rate, there = max(
                ((t0 - t) / (s - s0), i) for i, (s, t) in enumerate(points) if i > here
            )
            yield rate / size, name, (points[there][0] - s0) * size
            here = there
