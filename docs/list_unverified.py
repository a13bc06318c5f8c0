"""Bring ``UNVERIFIED.md`` in line with the records: ``python docs/list_unverified.py [REASON]``.

Kernels that have a clean GPU run in their present form are taken off; others are added with the
reason, and keep a reason that they have.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

import recorded  # noqa: E402

TITLE = """# Kernels without a clean GPU run in their present form

Each line is ``- `stem`: reason``; `tests/test_evidence.py` reads them, and
`docs/list_unverified.py` writes them.
"""


def main(arguments: list[str]) -> int:
    reasons = recorded.unverified()
    lines = []
    for stem in recorded.STEMS:
        problem = recorded.complaint(stem)
        if problem is not None:
            reason = reasons.get(stem) or " ".join(arguments) or problem
            lines.append(f"- `{stem}`: {reason}\n")
    recorded.UNVERIFIED.unlink(missing_ok=True)
    if lines:
        recorded.UNVERIFIED.write_text("\n".join([TITLE, "".join(lines)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
