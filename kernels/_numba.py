"""How the CPU kernels are compiled, at their first call, and how they share cores.

Kernels release the GIL, and `parallel` runs them on ordinary threads.  That is safe from
several Python threads at once and after a fork, which not all of Numba's threading layers
are, and it compiles in half the time of ``parallel=True``.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
from collections.abc import Callable

import numba
from numba.core import caching
from numba.core.compiler_lock import global_compiler_lock

from sparse24._errors import UnsupportedError
from sparse24.kernels import _fenv
from sparse24.kernels._dispatcher import Dispatcher
from sparse24.kernels._numba_cache import Cache
from sparse24.kernels._workers import Job, Workers


class _Kernel(Dispatcher):
    """A `Dispatcher` that threads may call at once, also with types that it does not know yet.

    Where two of them had made the same types known, Numba would find them ambiguous, and compile,
    which makes them known once more, at each later call.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._known: set[tuple[int, ...]] = set()

    def _insert(self, codes, *args, **kwargs):
        with global_compiler_lock:
            if tuple(codes) not in self._known:
                super()._insert(codes, *args, **kwargs)
                self._known.add(tuple(codes))


def njit(function: Callable) -> Callable:
    """Compile `function` at its first call: no GIL, IEEE arithmetic, cached.

    Raises
    ------
    UnsupportedError
        If the environment has Numba run the text itself, which parts of the kernels have not.
    """
    if numba.config.DISABLE_JIT:
        raise UnsupportedError(
            "the CPU kernels of sparse24 exist as machine code only, and Numba was told not to "
            "compile; unset NUMBA_DISABLE_JIT"
        )
    options = {"nopython": True, "nogil": True, "error_model": "numpy"}
    kernel = _Kernel(function, targetoptions=options)
    try:
        kernel._cache = Cache(function)
    except RuntimeError:  # no writable folder
        kernel._cache = caching.NullCache()
    return kernel


def threads() -> int:
    """Threads that a kernel may use: ``NUMBA_NUM_THREADS``, or the cores of this process."""
    return numba.config.NUMBA_NUM_THREADS


_pool: Workers | None = None
_pool_lock = threading.Lock()


def _workers() -> Workers:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Workers(max(1, threads() - 1), _places.join)
        return _pool


class _Places:
    """Keeps the workers off the core of the thread that calls them.

    Linux likes to wake a thread on the core of the one that wakes it, and then takes ten
    milliseconds to notice that another core is idle: measured on two cores, products of
    that length ran on one.
    """

    def __init__(self):
        self._workers: list[int] = []
        self._barred = -1  # the core that the workers may not use now
        known = hasattr(os, "sched_setaffinity") and sys.platform == "linux"
        self._cores = os.sched_getaffinity(0) if known else set()
        self._core = ctypes.CDLL(None).sched_getcpu if known else None

    def join(self) -> None:
        """Called by each new worker."""
        self._workers.append(threading.get_native_id())
        self._barred = -1

    def clear(self) -> None:
        """Called before work is given out."""
        if self._core is None or len(self._cores) < 2:
            return
        core = self._core()
        if core != self._barred and core in self._cores:
            self._barred = core  # first: who joins from here on undoes it, for the next call
            try:
                for worker in self._workers:
                    os.sched_setaffinity(worker, self._cores - {core})
            except OSError:  # the process was given other cores meanwhile: leave it to Linux
                self._core = None


_places = _Places()


def _forget_workers() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _pool_lock, _places
    _pool, _pool_lock, _places = None, threading.Lock(), _Places()
    global_compiler_lock.release()


if hasattr(os, "register_at_fork"):
    # A fork waits for a thread that compiles: in the child, no thread would give back the lock.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=_forget_workers,
    )


_thread = threading.local()


# Multiplications or copied bytes that take as long as to wake the threads, some 100 µs: measured
# on two cores, where products of half as many are up to three times as fast on one.
WAKING = 1 << 22


def _ask_workers(work: Callable[[], None], helpers: int) -> list[Job]:
    """Ask workers for help; none once the main thread has ended, if they can't be made any more.

    Threads that outlive it, and functions of `atexit`, then do their work alone.
    """
    try:
        return _workers().ask(work, helpers)
    except RuntimeError:
        if threading.main_thread().is_alive():
            raise
        return []


def parallel(task: Callable[[int], None], count: int, work: float = float("inf")) -> None:
    """Call ``task(i)`` for every i below `count`, on several threads, each taking the next i.

    Where all tasks together are less `work` than `WAKING`, this thread does them.
    `task` must spend its time in kernels or NumPy, which release the GIL.  Where a
    task calls `parallel` itself, the inner tasks run on its own thread.  All threads compute in the
    floating-point environment of this one.
    """
    helpers = min(threads(), count) - 1
    if helpers <= 0 or work < WAKING or getattr(_thread, "busy", False):
        for i in range(count):
            task(i)
        return
    numbers = itertools.count()

    def drain():
        _thread.busy = True
        try:
            while (i := next(numbers)) < count:
                task(i)
        finally:
            _thread.busy = False

    environment = _fenv.of_this_thread()

    def help_out():
        _fenv.take_over(environment)
        drain()

    _places.clear()
    jobs: list[Job] = []
    try:
        jobs = _ask_workers(help_out, helpers)
        drain()
    finally:  # a worker that has not woken up yet has nothing to do any more
        for job in jobs:
            job.settle()
    for job in jobs:
        job.reraise()


def slices(
    total: int,
    at_least: int,
    at_most: int | None = None,
    multiple: int = 1,
    work: float = float("inf"),
) -> list[slice]:
    """Cut ``range(total)`` into even pieces: enough for all threads, none needlessly small.

    Four for each thread, so that none waits long for another one, but fewer of little work: each
    takes some ten microseconds of Python.  All but the last are multiples of `multiple`.  Where
    all are too little `work` to wake the threads for, see `parallel`, only `at_most` cuts.
    """
    several = threads() > 1 and work >= WAKING
    wanted = 1
    if several:
        pieces = max(threads(), min(4 * threads(), 2 * work / WAKING))
        wanted = min(int(pieces), -(-total // at_least))
    if at_most is not None:
        wanted = max(wanted, -(-total // at_most))
    step = max(-(-total // (max(wanted, 1) * multiple)), 1) * multiple
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
