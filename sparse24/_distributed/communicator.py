"""What the functions of `sparse24.distributed` need of a library that moves data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sparse24 import _arrays, _check, _devices
from sparse24._errors import ArgumentError
from sparse24.formats.two_four import Sparse24Array


@runtime_checkable
class Communicator(Protocol):
    """A group of ranks, seen from one of them.

    `from_torch`, `from_nccl` and `in_threads` make communicators; another library becomes one by
    these two attributes and two methods.  All ranks call the same methods in the same order, with
    arrays of the same type: contiguous NumPy or CuPy arrays.  Work on CuPy arrays goes to CuPy's
    current stream, and a method need not wait for it.

    Attributes
    ----------
    rank : int
        The number of this one, from 0 on.
    size : int
        How many there are.
    device : str, optional
        ``"cpu"`` or ``"cuda"``, of a communicator that moves arrays of NumPy, or of CuPy, alone.  A
        rank that was passed no array tells the others so by such an array.

    Examples
    --------
    One rank alone has nothing to add and nobody to send to:

    >>> import sparse24 as s24
    >>> class Alone:
    ...     rank, size = 0, 1
    ...     def all_reduce(self, x):
    ...         pass
    ...     def all_to_all(self, sent, sent_sizes, received, received_sizes):
    ...         received[:] = sent
    >>> A = s24.random((8, 16), rng=0)
    >>> (s24.distributed.all_reduce(A, Alone()).toarray() == A.toarray()).all()
    np.True_
    """

    rank: int
    size: int

    def all_reduce(self, x: Any) -> None:
        """Replace `x`, of floats or int64, by its sum over all ranks."""

    def all_to_all(
        self, sent: Any, sent_sizes: Sequence[int], received: Any, received_sizes: Sequence[int]
    ) -> None:
        """Exchange bytes: part i of `sent` goes to rank i, part i of `received` comes from it.

        Vectors of uint8, whose parts lie one after the other, ``sent_sizes[i]`` and
        ``received_sizes[i]`` bytes long; parts may be empty.
        """


NOTHING = 0  # what a rank tells that has nothing to tell of


def checked(A: Any, comm: Any, check: bool) -> Sparse24Array:
    """The array, after the messages for what is none, and for what is no communicator.

    With `check` the ranks that have an array hear of one that has none, and do not wait for it.
    """
    if not isinstance(comm, Communicator):
        raise ArgumentError(
            f"comm must be a sparse24.distributed.Communicator, got {type(comm).__name__}; make "
            "one with from_torch(), from_nccl(comm) or in_threads(size)"
        )
    if not isinstance(A, Sparse24Array):
        if check:
            with _devices.on_device_of(A):
                _told(comm, NOTHING, _namespace(comm, A))
        raise ArgumentError(
            f"A must be a Sparse24Array, got {_check.shown(A)}; make one with sparse24.compress(x)"
        )
    return A


def _namespace(comm: Communicator, A: Any) -> Any:
    """NumPy or CuPy, as the other ranks have it: by what `comm` moves, or where `A` is."""
    device = getattr(comm, "device", None) or getattr(A, "device", "cpu")
    on_gpu = "cuda" in str(device).lower() and _arrays.cuda_available()
    return _arrays.cupy_module() if on_gpu else np


def ranks_apart(comm: Communicator, facts: tuple, x: Any) -> list[int]:
    """The ranks whose facts are not those of rank 0; waits for the device of `x`.

    Raises if a rank has no array at all.
    """
    found = _told(comm, fact_of(facts), _arrays.namespace(x))
    without = [rank for rank, theirs in enumerate(found) if theirs == NOTHING]
    if without:
        raise ArgumentError(
            f"A must be a Sparse24Array on all ranks, and ranks {without} passed something else; "
            "compress it there as well, or call this in a group of the other ranks only"
        )
    return [rank for rank, theirs in enumerate(found) if theirs != found[0]]


def fact_of(facts: tuple) -> int:
    """One number in place of several facts; never `NOTHING`."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) | 1


def _told(comm: Communicator, fact: int, xp: Any) -> list[int]:
    """One number of each rank."""
    told = np.zeros(comm.size, np.int64)
    told[comm.rank] = fact
    told = xp.asarray(told)
    comm.all_reduce(told)  # each place has one addend that is not zero
    return _arrays.to_numpy(told).tolist()
