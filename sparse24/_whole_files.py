"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from sparse24._errors import ArgumentError


def nothing() -> None:
    """Do nothing."""


@contextlib.contextmanager
def replacing(path: str | os.PathLike, last: Callable[[], None] = nothing) -> Iterator[Path]:
    """Give a temporary path beside `path`; put it in place at the end, or remove it on an error.

    Before it is put in place, `last` is called, which may refuse it.
    """
    check_writable(path)
    target = Path(os.path.realpath(path))
    # A name may have 255 bytes: of a long one only a part is in the temporary one.
    fresh = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.tmp")
    mode = _mode_of(target, fresh)
    try:
        with _named({None: path, str(fresh): path}):
            yield fresh
            with fresh.open("rb+") as file:
                os.fsync(file.fileno())
            last()
            fresh.chmod(mode)
            os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)


@contextlib.contextmanager
def _named(paths: Mapping[str | None, str | os.PathLike]) -> Iterator[None]:
    """Let an error name the file that was asked for in place of a temporary one, or of none."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in paths:
            error.filename = os.fspath(paths[error.filename])
        raise


@contextlib.contextmanager
def replacing_all(folder: str | os.PathLike, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Give temporary paths, by name, of files of a folder; put all in place at the end, or none.

    A folder that is not there is made.  The last name is that of the file that leads to the
    others: it is taken away first and comes back last, so that whatever stops the process leaves
    no mixture that looks whole.
    """
    check_folder(folder)
    made = not os.path.isdir(folder)
    if made:
        os.mkdir(folder)
    token, targets = secrets.token_hex(4), {}
    for i, name in enumerate(names):
        check_target(Path(folder, name))
        target = Path(os.path.realpath(Path(folder, name)))
        targets[name] = target, target.with_name(f".{name[:40]}.{i}.{token}.tmp")
    try:
        with _named({str(fresh): Path(folder, name) for name, (_, fresh) in targets.items()}):
            yield {name: fresh for name, (_, fresh) in targets.items()}
            _switch(list(targets.values()))
    finally:
        for _, fresh in targets.values():
            fresh.unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):  # it is empty only after an error
                os.rmdir(folder)


def _switch(pairs: list[tuple[Path, Path]]) -> None:
    """Put the second file of each pair in place of the first; on an error none is changed."""
    moves = [(target, fresh, fresh.with_suffix(".old")) for target, fresh in pairs]
    there = {target for target, _ in pairs if target.exists()}
    for target, fresh in pairs:
        if target in there:
            fresh.chmod(stat.S_IMODE(target.stat().st_mode))
    try:
        for target, _, old in reversed(moves):
            if target in there:
                os.replace(target, old)
        for target, fresh, _ in moves:
            os.replace(fresh, target)
    except BaseException:
        for target, _, old in moves:
            if old.exists():
                os.replace(old, target)
            elif target not in there:
                target.unlink(missing_ok=True)
        raise
    for _, _, old in moves:
        old.unlink(missing_ok=True)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep out others who enter this for the same folder, where the system has such locks."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have none
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_folder(path: str | os.PathLike) -> None:
    """Refuse a path that cannot be a folder, before the work that would fill it."""
    there = os.path.lexists(path)
    if not os.path.isdir(path) and (there or not Path(path).absolute().parent.is_dir()):
        what = "is not a folder" if there else "is in a folder that does not exist"
        raise ArgumentError(f"{str(path)!r} {what}; name a folder, or a new one in an existing one")
    _check_permission(Path(path) if there else Path(path).absolute().parent, path)


def check_writable(path: str | os.PathLike) -> None:
    """`check_target`, and refuse a path in a folder that this process may not write to."""
    check_target(path)
    _check_permission(Path(os.path.realpath(path)).parent, path)


def _check_permission(folder: Path, path: str | os.PathLike) -> None:
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES, "no permission to write to the folder; name another one", str(path)
        )


def check_target(path: str | os.PathLike) -> None:
    """Refuse a path that no file can be written to, before the work that would fill it."""
    target = Path(os.path.realpath(path))
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else "is in a folder that does not exist"
        raise ArgumentError(f"{str(path)!r} {what}; name a file in an existing one")
    # Of the path itself: that of a pipe behind /dev/stdout leads nowhere once it is resolved.
    if os.path.exists(path) and not os.path.isfile(path):
        raise ArgumentError(
            f"{str(path)!r} is a device, a pipe or a socket, which a file would replace; name a "
            "regular file, or a new one"
        )
    if _is_printed_to(path):
        raise ArgumentError(
            f"{str(path)!r} is the file that this process prints to, which another would replace "
            "with all that it holds; name another one"
        )


def _is_printed_to(path: str | os.PathLike) -> bool:
    """True of the file behind standard output or error, as /dev/stdout is after ``> log.txt``."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:  # closed by whoever started this process
            with contextlib.suppress(OSError, ValueError):  # closed since, or no such file
                if os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
                    return True
    return False


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
