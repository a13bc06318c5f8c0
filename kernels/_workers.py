"""Threads that help a caller with its work.

`concurrent.futures` has such, too, but a future takes several locks to be made, begun and awaited:
some 100 µs of each call, measured on two cores (docs/benchmarks/log_cpu.rst, "Small products on two
threads, again").  Here a job has two.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Job:
    """Work of a caller, which one worker may begin until the caller takes it back."""

    def __init__(self, work: Callable[[], None]):
        self._work: Callable[[], None] | None = work
        self._error: BaseException | None = None
        self._begun, self._running = threading.Lock(), threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """By a worker: do it, unless it was taken back."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            assert self._work is not None
            self._work()
        except BaseException as error:
            self._error = error  # for the caller
        finally:
            self._work = None  # and the arrays that it holds
            self._running.release()

    def settle(self) -> None:
        """By the caller: take it back, or wait for its end if a worker has begun."""
        if self._begun.acquire(blocking=False):
            self._work = None
        else:
            self._running.acquire()

    def reraise(self) -> None:
        """By the caller, once settled: raise what the work has raised."""
        if self._error is not None:
            raise self._error


class Workers:
    """Up to `most` threads, made as they are needed; each calls `join` first.

    They do not keep the interpreter from ending, as callers wait for what has begun.
    """

    def __init__(self, most: int, join: Callable[[], None]):
        self._most, self._join = most, join
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._made, self._making = 0, threading.Lock()

    def ask(self, work: Callable[[], None], helpers: int) -> list[Job]:
        """Ask so many workers to do `work` each.

        Raises
        ------
        RuntimeError
            If no thread can be made any more, as the interpreter ends.
        """
        if self._made < min(helpers, self._most):
            self._make(helpers)
        jobs = [Job(work) for _ in range(helpers)]
        for job in jobs:
            self._jobs.put(job)
        return jobs

    def _make(self, helpers: int) -> None:
        with self._making:
            while self._made < min(helpers, self._most):
                name = f"sparse24_{self._made}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._made += 1

    def _serve(self) -> None:
        self._join()
        while True:
            self._jobs.get().run()
