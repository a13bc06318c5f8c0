"""A group of ranks that are threads of one process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError


def in_threads(size: int, *, timeout: float = 600.0) -> list[ThreadCommunicator]:
    """Communicators for threads of this process, one for each.

    Parameters
    ----------
    size : int
        The number of threads.
    timeout : float
        Seconds after which a thread no longer waits for the others.

    Returns
    -------
    list of Communicator
        That of rank i at place i.  They add in the order of ranks, so results are the same in each
        run, and wait for the device at each call.

    Raises
    ------
    ArgumentError
        If `size` or `timeout` does not fit; by the communicators, if a thread does not come.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import sparse24 as s24
    >>> from sparse24.distributed import all_reduce, in_threads
    >>> A = s24.random((8, 16), rng=0)
    >>> with ThreadPoolExecutor(2) as pool:
    ...     sums = list(pool.map(lambda comm: all_reduce(A, comm), in_threads(2)))
    >>> (sums[1].toarray() == 2 * A.toarray()).all()
    np.True_
    """
    size = _check.whole(size, argument="size", least=1)
    meeting = _Meeting(size, _check.positive(timeout, argument="timeout"))
    return [ThreadCommunicator(rank, meeting) for rank in range(size)]


class _Meeting:
    """Where threads show each other what they have."""

    def __init__(self, size: int, timeout: float):
        self.size, self._timeout = size, timeout
        self._shown: list[Any] = [None] * size
        self._barrier = threading.Barrier(size)

    def show(self, rank: int, item: Any) -> list[Any]:
        """What all ranks show; nobody may change it before `part`."""
        self._shown[rank] = item
        self.part()
        return list(self._shown)

    def part(self) -> None:
        try:
            self._barrier.wait(self._timeout)
        except threading.BrokenBarrierError:
            raise ArgumentError(
                f"comm is one of {self.size} ranks, and not all have come within {self._timeout} "
                "seconds; call the same functions in as many threads, and look for errors there"
            ) from None


class ThreadCommunicator:
    """A `Communicator` of a thread.  Made by `in_threads`."""

    def __init__(self, rank: int, meeting: _Meeting):
        self.rank, self.size = rank, meeting.size
        self._meeting = meeting

    def all_reduce(self, x: Any) -> None:
        _arrays.settle(x)
        first, *others = _of_one_library(self._meeting.show(self.rank, x))
        total = first.copy()
        for other in others:
            total += other
        _arrays.settle(total)
        self._meeting.part()
        x[...] = total if type(total) is type(x) else _arrays.namespace(x).asarray(total)

    def all_to_all(
        self, sent: Any, sent_sizes: Sequence[int], received: Any, received_sizes: Sequence[int]
    ) -> None:
        _arrays.settle(sent)
        shown = self._meeting.show(self.rank, (sent, sent_sizes))
        ends = itertools.accumulate(received_sizes)
        for (theirs, sizes), end, size in zip(shown, ends, received_sizes, strict=True):
            start = sum(sizes[: self.rank])
            received[end - size : end] = theirs[start : start + size]
        _arrays.settle(received)
        self._meeting.part()


def _of_one_library(arrays: Sequence[Any]) -> Sequence[Any]:
    """As they are or, if only some are on a GPU, on the host.

    A thread that was passed no array tells so by NumPy, not knowing where those of the others are.
    """
    on_gpu = [_arrays.is_cupy(x) for x in arrays]
    return arrays if all(on_gpu) or not any(on_gpu) else [_arrays.to_numpy(x) for x in arrays]
