"""What the functions of `sparse24.distributed` need of a library that moves data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sparse24 import _arrays, _check
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


def checked(A: Any, comm: Any) -> Sparse24Array:
    """The array, after the messages for what is none, and for what is no communicator."""
    if not isinstance(A, Sparse24Array):
        raise ArgumentError(
            f"A must be a Sparse24Array, got {_check.shown(A)}; make one with sparse24.compress(x)"
        )
    if not isinstance(comm, Communicator):
        raise ArgumentError(
            f"comm must be a sparse24.distributed.Communicator, got {type(comm).__name__}; make "
            "one with from_torch(), from_nccl(comm) or in_threads(size)"
        )
    return A


def ranks_apart(comm: Communicator, facts: tuple, x: Any) -> list[int]:
    """The ranks whose facts are not those of rank 0; waits for the device of `x`."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8).digest()
    told = np.zeros(comm.size, np.int64)
    told[comm.rank] = int.from_bytes(digest, "little", signed=True)
    told = _arrays.namespace(x).asarray(told)
    comm.all_reduce(told)  # each place has one addend that is not zero
    found = _arrays.to_numpy(told).tolist()
    return [rank for rank, fact in enumerate(found) if fact != found[0]]
