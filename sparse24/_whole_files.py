"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from sparse24._errors import ArgumentError


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Give a temporary path beside `path`; put it in place at the end, or remove it on an error."""
    check_target(path)
    target = Path(os.path.realpath(path))
    # A name may have 255 bytes: of a long one only a part is in the temporary one.
    fresh = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.tmp")
    mode = _mode_of(target, fresh)
    try:
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())
        fresh.chmod(mode)
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)


def check_target(path: str | os.PathLike) -> None:
    """Refuse a path that no file can be written to, before the work that would fill it."""
    target = Path(os.path.realpath(path))
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else "is in a folder that does not exist"
        raise ArgumentError(f"{str(path)!r} {what}; name a file in an existing one")


def _mode_of(target: Path, fresh: Path) -> int:
    """Permissions for what takes the target's place: its own, or those of any new file.

    The writer of safetensors makes files that only their owner can read.
    """
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    fresh.touch(exist_ok=False)
    mode = stat.S_IMODE(fresh.stat().st_mode)
    fresh.unlink()
    return mode
