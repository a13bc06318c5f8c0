"""`Telemetry`: how masks changed, as rows per update, warnings, CSV and a live plot."""

from __future__ import annotations

import csv
import math
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparse24 import _check, _whole_files
from sparse24._errors import ArgumentError
from sparse24._pyplot import pyplot
from sparse24._schedule.arrays import check_share
from sparse24._schedule.records import Update

COLUMNS = (
    "step",
    "name",
    "sparsity",
    "nnz",
    "size",
    "flips",
    "flip_rate",
    "kept_norm",
    "age",
    "seconds",
)


class MaskWarning(UserWarning):
    """A mask statistic crossed a limit that the user set."""


@dataclass
class Telemetry:
    """Records the events of a scheduler, as rows, CSV and a plot.

    Parameters
    ----------
    flip_limit : float, optional
        Warn when more than this share of a layer's mask flips in an update, besides the flips
        that a new sparsity needs, as on a ramp or where a mask is lifted; a high flip rate late
        in training shows that masks do not settle [1]_.
    live : bool, default False
        Redraw the plot at every update; needs matplotlib.

    Attributes
    ----------
    rows : list of dict
        One per layer and update; the keys are the columns of the CSV file.

    Raises
    ------
    ArgumentError
        If `flip_limit` is not in [0, 1].

    References
    ----------
    .. [1] Y. Hu et al., *Accelerating Transformer Pre-training with 2:4 Sparsity*, 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from sparse24 import schedule
    >>> telemetry = schedule.Telemetry()
    >>> recipe = schedule.Recipe(schedule.StepScheduler({0: 0.0, 2: 0.5}))
    >>> scheduler = schedule.MaskScheduler(recipe, telemetry=telemetry)
    >>> for _ in range(4):
    ...     masks = scheduler.step(weights={"w": np.arange(8.0)[None]})
    ...
    >>> telemetry.column("step"), telemetry.column("nnz", "w")
    ([0, 2], [8, 4])
    """

    flip_limit: float | None = None
    live: bool = False
    rows: list[dict[str, Any]] = field(default_factory=list, init=False)
    _axes: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self):
        if self.flip_limit is not None:
            check_share(self.flip_limit, "flip_limit")

    def record(self, events: tuple[Update, ...]) -> None:
        """Add the events of one step.  Reads counts back, so it waits for the device."""
        warned = []
        for event in events:
            row = {key: getattr(event, key) for key in COLUMNS if key != "flip_rate"}
            row["flips"] = None if _is_nan(event.flips) else int(event.flips)
            row["kept_norm"] = float(event.kept_norm)
            row["flip_rate"] = None if row["flips"] is None else row["flips"] / max(1, event.size)
            warned += self._warnings(row)
            self.rows.append(row)
        if events and self.live:
            self.plot(self._axes)
        for message in warned:  # after all else, as a filter may raise them
            warnings.warn(message, MaskWarning, stacklevel=3)

    def _warnings(self, row: dict[str, Any]) -> list[str]:
        """What to warn of in a row that comes after those recorded."""
        limit = self.flip_limit
        before = next((old for old in reversed(self.rows) if old["name"] == row["name"]), None)
        if limit is None or row["flips"] is None or before is None:
            return []
        needed = abs(row["nnz"] - before["nnz"])
        rate = (row["flips"] - needed) / max(1, row["size"])
        if rate <= limit:
            return []
        share = needed / row["size"]
        but = f" beside those of the new sparsity, {share:.1%}," if needed else ","
        return [
            f"{row['name']}: {rate:.1%} of the mask flipped at step {row['step']}{but} "
            f"more than flip_limit={limit:.1%}; raise the decay, or renew masks less often"
        ]

    def column(self, key: str, name: str | None = None) -> list[Any]:
        """The values of one column, in order.

        Parameters
        ----------
        key : str
            Its name in the CSV file, such as ``"flip_rate"``.
        name : str, optional
            Of a layer; by default all.

        Raises
        ------
        ArgumentError
            If there is no such column.
        """
        if key not in COLUMNS:
            raise ArgumentError(f"key must be one of {', '.join(COLUMNS)}, got {key!r}")
        return [row[key] for row in self.rows if name in (None, row["name"])]

    def to_csv(self, path: str | Path) -> None:
        """Write all rows to a regular file, `path`; what stops it leaves that as it was before."""
        with _whole_files.replacing(path) as fresh, open(fresh, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def plot(self, axes=None):
        """Sparsity and flip rate over the steps, one line a layer; returns the two Axes.

        They are those given as `axes`, or of a new figure.  Without matplotlib it is an
        `UnsupportedError`.
        """
        if axes is None:
            _, axes = pyplot().subplots(2, 1, sharex=True, figsize=(7, 5), layout="constrained")
        self._axes = axes
        for ax, key, label in zip(
            axes, ("sparsity", "flip_rate"), ("share of zeros", "flip rate"), strict=True
        ):
            ax.clear()
            for name in dict.fromkeys(row["name"] for row in self.rows):
                ax.plot(self.column("step", name), self.column(key, name), ".-", label=name)
            ax.set_ylabel(label)
            ax.grid(alpha=0.3)
        axes[1].set_xlabel("step")
        if self.rows:
            axes[0].legend(fontsize="small")
        if self.live:
            axes[0].figure.canvas.draw_idle()
            axes[0].figure.canvas.flush_events()
        return axes


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def check_telemetry(given) -> Telemetry | None:
    """Refuse what cannot record events, such as True."""
    if given is not None and not hasattr(given, "record"):
        raise ArgumentError(f"telemetry must be a Telemetry() or None, got {_check.shown(given)}")
    return given
