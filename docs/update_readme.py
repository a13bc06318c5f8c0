"""Write the figures in README.md from the recorded runs: ``python docs/update_readme.py``.

With ``--check`` nothing is written, and the exit code says whether the table is current.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

import headlines  # noqa: E402
import recorded  # noqa: E402

BEGIN = "<!-- figures: made by docs/update_readme.py -->"
END = "<!-- end of figures -->"
BEGIN_SHORT = "<!-- figures in short: made by docs/update_readme.py -->"
END_SHORT = "<!-- end of figures in short -->"


def figures() -> str:
    """The table, in Markdown."""
    lines = headlines.rows()
    if lines:
        where = "; ".join(headlines.machines())
        marked = any(headlines.STALE in line for line in lines)
        note = "† A kernel changed after some of these cases ran. " if marked else ""
        below = textwrap.wrap(f"{note}Machines: {where}.", 120, break_on_hyphens=False)
        lines = [*headlines.header(), *lines, "", *below]
    else:
        lines = ["No benchmark run against a rival has been recorded yet."]
    listed = recorded.unverified_lines()
    if listed:
        lines += ["", "Not yet verified on a GPU in their present form:", "", *listed]
    return "\n".join(lines)


def updated(text: str) -> str:
    """The README with what stands between its marks renewed."""
    text = _between(text, BEGIN_SHORT, END_SHORT, headlines.in_short())
    return _between(text, BEGIN, END, figures())


def _between(text: str, begin: str, end: str, new: str) -> str:
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n{new}\n{end}{after}"


def main(arguments: list[str]) -> int:
    path = ROOT / "README.md"
    text = path.read_text()
    fresh = updated(text)
    if "--check" in arguments:
        return int(fresh != text)
    path.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
