"""Threads that help a caller: jobs that are begun, taken back, and fail."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import pytest

from sparse24.kernels._workers import Job, Workers


@pytest.fixture
def joined():
    return []


@pytest.fixture
def workers(joined):
    return Workers(2, lambda: joined.append(threading.get_ident()))


def test_each_job_is_done_by_a_worker(workers, joined):
    done = []
    for _ in range(3):
        meeting = threading.Barrier(3)  # of two workers, and of this thread behind them

        def work(meeting=meeting):
            done.append(threading.get_ident())
            meeting.wait(60)

        jobs = workers.ask(work, 2)
        meeting.wait(60)
        for job in jobs:
            job.settle()
            job.reraise()
    assert len(done) == 6
    assert set(done) == set(joined)
    assert len(joined) == 2
    assert threading.get_ident() not in done


def test_no_more_threads_than_are_needed(workers, joined):
    for helpers, made in ((1, 1), (1, 1), (7, 2)):
        done = threading.Semaphore(0)
        jobs = workers.ask(done.release, helpers)
        for _ in jobs:
            assert done.acquire(timeout=60)
        for job in jobs:
            job.settle()
        assert len(joined) <= made


def test_a_job_that_was_taken_back_is_not_begun():
    done = []
    job = Job(lambda: done.append(1))
    job.settle()
    job.run()
    job.reraise()
    assert not done


def test_a_job_that_has_begun_is_waited_for(workers):
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go_on.wait(60)
        done.append(1)

    (job,) = workers.ask(work, 1)
    assert begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    job.settle()
    assert done == [1]


def test_errors_reach_the_caller_and_the_worker_goes_on(workers):
    def fail():
        begun.set()
        raise ZeroDivisionError("of the work")

    for _ in range(3):
        begun = threading.Event()
        (job,) = workers.ask(fail, 1)
        assert begun.wait(60)
        job.settle()
        with pytest.raises(ZeroDivisionError, match="of the work"):
            job.reraise()


@pytest.mark.parametrize("taken_back", [False, True])
def test_what_a_job_holds_is_given_back(workers, taken_back):
    class Held:
        pass

    held, begun = Held(), threading.Event()
    seen = weakref.ref(held)
    work = lambda held=held: begun.set()  # noqa: E731
    job = Job(work) if taken_back else workers.ask(work, 1)[0]
    del held, work
    if not taken_back:
        assert begun.wait(60)
    job.settle()
    assert seen() is None


def test_the_interpreter_ends_beside_waiting_workers():
    text = """
import atexit, threading, numpy as np
from sparse24.kernels import _numba
_numba.threads = lambda: 3
def products(when):
    done = []
    _numba.parallel(lambda i: done.append(i), 50)
    print(when, sorted(done) == list(range(50)))
products("at first")
atexit.register(products, "at exit")
ended = threading.main_thread().join
threading.Thread(target=lambda: (ended(), products("behind the main thread"))).start()
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=True
    )
    lines = ["at first True", "behind the main thread True", "at exit True"]
    assert (sorted(done.stdout.splitlines()), done.stderr) == (sorted(lines), "")
