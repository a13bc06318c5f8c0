"""Directive ``spec-table``: tables of the bit layout, made from `sparse24._spec`."""

from __future__ import annotations

from sphinx.util.docutils import SphinxDirective

from sparse24 import _spec


def _csv(header: list[str], rows: list[list[str]]) -> list[str]:
    quote = lambda cells: "   " + ", ".join(f'"{cell}"' for cell in cells)  # noqa: E731
    options = ["   :header: " + ", ".join(f'"{cell}"' for cell in header), "   :widths: auto", ""]
    return [".. csv-table::", *options, *map(quote, rows)]


def codes() -> list[str]:
    """The six legal codes, with the places that they keep."""
    rows = []
    for pair, code in _spec.CODE_OF_PAIR.items():
        picture = " ".join("x" if i in pair else "." for i in range(_spec.GROUP))
        places = f"({pair[0]}, {pair[1]})"
        rows.append([places, f"``{picture}``", f"``{code:04b}``", f"``0x{code:X}``"])
    return _csv(["kept places", "group", "bits", "code"], rows)


def atom(itemsize: int) -> list[str]:
    """Nibble places of the first rows and groups of an atom."""
    places = _spec.atom_nibbles(itemsize)
    shown_rows = [0, 1, 7, 8, 15, 16, 63]
    shown_groups = [0, 1, 2, 3, 4, 5, 8, 31]
    header = ["row", *(f"group {g}" for g in shown_groups)]
    return _csv(header, [[str(r), *(str(places[r, g]) for g in shown_groups)] for r in shown_rows])


TABLES = {
    "codes": codes,
    "atom-16bit": lambda: atom(2),
    "atom-8bit": lambda: atom(1),
}


class SpecTable(SphinxDirective):
    required_arguments = 1

    def run(self):
        lines = TABLES[self.arguments[0]]()
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app):
    app.add_directive("spec-table", SpecTable)
    return {"parallel_read_safe": True}
