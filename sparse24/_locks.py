"""Locks that a forked child finds free: the threads that held them are not in it."""

from __future__ import annotations

import os
import threading
import weakref

_made: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def reentrant() -> threading.RLock:
    """A new lock that its thread may take again."""
    lock = threading.RLock()
    _made.add(lock)
    return lock


def _free() -> None:
    for lock in _made:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the locks of `threading` do


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)
