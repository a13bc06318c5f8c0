"""Write recorded times into CHANGELOG.md: ``python docs/update_changelog.py``.

The sentences that give them are those of ``_extensions/written.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_extensions"))

import written  # noqa: E402

if __name__ == "__main__":
    path = ROOT / "CHANGELOG.md"
    path.write_text(written.updated(path.read_text()))
