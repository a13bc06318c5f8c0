"""The folder of this user's files."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def user_folder() -> Path:
    """Where sparse24 keeps files of this user: ``$SPARSE24_CACHE_DIR`` or the platform's place."""
    chosen = os.environ.get("SPARSE24_CACHE_DIR")
    if chosen:
        return _named(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("sparse24", appauthor=False))


@functools.cache
def _named(chosen: str) -> Path:
    """The same folder for a whole process, also where it changes its working directory."""
    return Path(os.path.abspath(os.path.expanduser(chosen)))
