"""Tables of what training recorded: accuracy on digits, times of steps, losses of a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

DATA = Path(__file__).resolve().parents[1] / "benchmarks" / "data"
Rows = list[tuple[str, ...]]


def digits(record: dict) -> Rows:
    """One row a method and library."""
    header = ("method", "library", "zeros", "accuracy", "± (seeds)", "against dense")
    return [header] + [
        (
            row["method"],
            row["library"],
            f"{row['sparsity']:.2f}",
            f"{row['accuracy']:.2f} %",
            f"{row['spread']:.2f}",
            f"{row['difference']:+.2f}",
        )
        for row in record["accuracy"]
    ]


def steps(record: dict) -> Rows:
    """One row a case that has a rival: times in milliseconds."""
    header = ("what", "dense, eager", "dense, compiled", "sparse24", "faster than compiled")
    rows = [header]
    for case in record["cases"]:
        eager, fast = (case["rivals"].get(f"torch_{way}") for way in ("eager", "compiled"))
        if fast:
            ratio = f"{fast / case['ours_us']:.2f}x"
            rows.append((case["name"], _ms(eager), _ms(fast), _ms(case["ours_us"]), ratio))
    return rows


def reductions(record: dict) -> Rows:
    """One row a case: times in milliseconds."""
    header = ("step", "without averages", "DDP", "reduce_packed", "faster than DDP")
    rows = [header]
    for case in record["cases"]:
        ours, theirs = case["ours_us"], case["rivals"]["ddp"]
        times = (case["without_averages_us"], theirs, ours)
        rows.append((case["name"], *map(_ms, times), f"{theirs / ours:.2f}x"))
    return rows


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.2f} ms"


def losses(record: dict) -> Rows:
    """One row a run."""
    names = {
        "dense": "dense",
        "weights": "2:4 weights by magnitude at every step, dense for the last tenth",
        "masks": "2:4 weights by 4x4 masks every 20 steps, dense for the last tenth",
        "activations": "2:4 activations, along the features",
    }
    header = ("run", "final loss", "against dense", "loss at half time", "time of a step")
    return [header] + [
        (
            names[run["name"]],
            f"{run['final_loss']:.4f}",
            f"{run['against_dense']:+.1%}" if "against_dense" in run else "",
            f"{run['loss_curve'][len(run['loss_curve']) // 2]:.3f}",
            f"{run['ms_a_step']:.0f} ms",
        )
        for run in record["runs"]
    ]


class RecordTable(SphinxDirective):
    """A table of a record; its rows come from `make`, its file is `file`."""

    file: str
    make: Callable[[dict], Rows]

    def run(self):
        path = DATA / self.file
        if not path.exists():
            return self.parse_text_to_nodes("No run has been recorded yet.")
        self.env.note_dependency(str(path))
        rows = type(self).make(json.loads(path.read_text()))
        header, *body = (", ".join(f'"{cell}"' for cell in cells) for cells in rows)
        lines = [".. csv-table::", f"   :header: {header}", "   :widths: auto", ""]
        return self.parse_text_to_nodes("\n".join([*lines, *(f"   {line}" for line in body)]))


def _directive(name: str, make: Callable[[dict], Rows]) -> type[RecordTable]:
    return type("RecordTable", (RecordTable,), {"file": name, "make": staticmethod(make)})


def setup(app):
    app.add_directive("digits-table", _directive("schedule.json", digits))
    app.add_directive("step-table", _directive("training.json", steps))
    app.add_directive("reduction-table", _directive("reduction.json", reductions))
    app.add_directive("loss-table", _directive("language_model.json", losses))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
