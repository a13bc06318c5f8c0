"""Directive ``digits-table``: accuracy by training method, from the recorded ``schedule`` run."""

from __future__ import annotations

import json
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

RECORD = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "schedule.json"
HEADER = ("method", "library", "zeros", "accuracy", "± (seeds)", "against dense")


def rows() -> list[tuple[str, ...]]:
    """Cells of the table, one row a method and library."""
    return [
        (
            row["method"],
            row["library"],
            f"{row['sparsity']:.2f}",
            f"{row['accuracy']:.2f} %",
            f"{row['spread']:.2f}",
            f"{row['difference']:+.2f}",
        )
        for row in json.loads(RECORD.read_text())["accuracy"]
    ]


class DigitsTable(SphinxDirective):
    def run(self):
        if not RECORD.exists():
            return self.parse_text_to_nodes("No run has been recorded yet.")
        self.env.note_dependency(str(RECORD))
        quoted = (", ".join(f'"{cell}"' for cell in cells) for cells in (HEADER, *rows()))
        header, *body = quoted
        lines = [".. csv-table::", f"   :header: {header}", "   :widths: auto", ""]
        return self.parse_text_to_nodes("\n".join([*lines, *(f"   {line}" for line in body)]))


def setup(app):
    app.add_directive("digits-table", DigitsTable)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
