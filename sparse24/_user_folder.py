"""The folder of this user's files."""

from __future__ import annotations

import functools
import os
from pathlib import Path


def user_folder() -> Path:
    """Where sparse24 keeps files of this user: ``$SPARSE24_CACHE_DIR`` or the platform's place.

    Raises
    ------
    FileNotFoundError
        If there is neither, as for a user without a home directory.
    """
    chosen = os.environ.get("SPARSE24_CACHE_DIR")
    if chosen:
        return _named(chosen)
    import platformdirs

    try:
        found = platformdirs.user_cache_dir("sparse24", appauthor=False)
    except RuntimeError:  # in older versions a path in which ~ stays
        found = "~"
    if found.startswith("~"):
        raise FileNotFoundError(
            "the folder for this user's files is unknown, as there is no home directory; name one "
            "by SPARSE24_CACHE_DIR"
        )
    return Path(found)


@functools.cache
def _named(chosen: str) -> Path:
    """The absolute path, cached: a relative one stays put if the process changes its directory."""
    return Path(os.path.abspath(os.path.expanduser(chosen)))
