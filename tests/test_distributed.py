"""Sums of compressed arrays over ranks: values, places, messages; in threads."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import distributed_cases as cases
import numpy as np
import pytest
from distributed_cases import device_of, on_host

import sparse24 as s24
from sparse24 import _arrays, _dtypes
from sparse24 import distributed as D
from sparse24._distributed.communicator import _namespace
from sparse24._distributed.reduce import _hash
from sparse24._errors import ArgumentError, DTypeError, ShapeError


def on_ranks(size, function, timeout=20.0):
    """What `function(comm)` gives in each of several threads."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, D.in_threads(size, timeout=timeout)))


@pytest.mark.parametrize("dtype", cases.DTYPES[:4])
@pytest.mark.parametrize("shape", [(6, 20), (2, 5, 13), (0, 8), (4, 0)])
@pytest.mark.stem("compress", "decompress")
def test_arrays_in_the_same_places_are_added(xp, dtype, shape):
    def arrays(rank):
        full = 0 not in shape
        array = cases.alike if full else cases.apart
        return array(rank, dtype, shape, device_of(xp))

    found = on_ranks(3, lambda comm: D.all_reduce(arrays(comm.rank), comm))
    one, two, three = (arrays(rank) for rank in range(3))
    for total in found:
        assert isinstance(total, s24.Sparse24Array)
        assert (total.shape, total.dtype, total.device) == (one.shape, one.dtype, one.device)
        expected = on_host(one.values + two.values + three.values)
        np.testing.assert_array_equal(on_host(total.values), expected)
        np.testing.assert_array_equal(on_host(total.metadata), on_host(one.metadata))


def test_sums_of_zero_stay_stored():
    total, _ = on_ranks(2, lambda comm: D.all_reduce(cases.alike(comm.rank, "float32"), comm))
    first = cases.alike(0, "float32")
    gone = (first.toarray() != 0) & (total.toarray() == 0)
    assert gone[:, 0].any()
    np.testing.assert_array_equal(total.metadata, first.metadata)
    again = s24.compress(total.toarray(), like=first)
    np.testing.assert_array_equal(again.values, total.values)


@pytest.mark.stem("compress", "decompress", "like", "transposable")
def test_both_orientations_of_a_transposable_array_hold_the_sum(xp):
    rng = np.random.default_rng(0)
    x = xp.asarray(rng.standard_normal((8, 12)).astype(np.float32))
    A = s24.compress(x, on_excess="prune", transposable=True, keep_dense=True)
    for total in on_ranks(2, lambda comm: D.all_reduce(A, comm)):
        assert total.transposable
        expected = 2 * on_host(A.toarray())
        for found in (total.toarray(), total.T.toarray().T, total._operand.dense):
            np.testing.assert_array_equal(on_host(found), expected)


def test_a_transposed_array_stays_one():
    A = s24.random((8, 12), rng=0)
    kept = s24.compress(A.toarray(), keep_dense=True)
    for given in (A.T, kept.T):
        (total,) = on_ranks(1, lambda comm, given=given: D.all_reduce(given, comm))
        assert total.axis == -2
        np.testing.assert_array_equal(total.toarray(), given.toarray())
    np.testing.assert_array_equal(total._operand.dense, kept.T.toarray())


@pytest.mark.parametrize("dtype", cases.DTYPES)
@pytest.mark.parametrize("shape", [(7, 22), (2, 8), (0, 8), (3, 0)])
@pytest.mark.stem("compress", "decompress", "cast")
def test_arrays_in_other_places_are_added_row_block_by_row_block(xp, dtype, shape):
    size = 3

    def arrays(rank):
        return cases.apart(rank, dtype, shape, device_of(xp))

    found = on_ranks(size, lambda comm: D.reduce_scatter(arrays(comm.rank), comm))
    wide = _dtypes.lookup(dtype).accumulator
    total = np.zeros(shape, wide)
    for rank in range(size):
        total += cases.apart(rank, dtype, shape).toarray().astype(wide)
    for rank, part in enumerate(found):
        expected = total[D.row_block(shape[0], rank, size)]
        np.testing.assert_array_equal(on_host(part), expected, strict=True)


def test_what_is_returned_is_not_what_was_given():
    A = s24.random((8, 16), rng=0)
    (comm,) = D.in_threads(1)
    before = A.values.copy()
    total, part = D.all_reduce(A, comm), D.reduce_scatter(A, comm)
    part[...] = 7
    assert not np.shares_memory(total.values, A.values)
    np.testing.assert_array_equal(A.values, before)


def test_a_check_that_was_put_off_is_still_made():
    A = s24.compress(np.ones((1, 4), np.float32), check="deferred")
    (comm,) = D.in_threads(1)
    with pytest.raises(s24.PatternError, match=r"x\[0, 0:4\] has more than 2 non-zeros"):
        D.all_reduce(A, comm).check()


@pytest.mark.parametrize("m", range(8))
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_row_blocks_cover_all_rows(m, size):
    blocks = [D.row_block(m, rank, size) for rank in range(size)]
    assert [row for block in blocks for row in range(m)[block]] == list(range(m))


# --- messages ---------------------------------------------------------------------------


def test_ranks_that_differ_are_named_on_all_ranks():
    arrays = [cases.apart(0, "float32"), cases.apart(0, "float32"), cases.apart(1, "float32")]

    def message(comm):
        with pytest.raises(ArgumentError) as error:
            D.all_reduce(arrays[comm.rank], comm)
        return str(error.value)

    for text in on_ranks(3, message):
        assert "same shape, type and places on all ranks, and those of ranks [2]" in text
        assert "or use reduce_scatter" in text
    one, other = cases.apart(0, "float32"), cases.apart(0, "float16")

    def scattered(comm):
        with pytest.raises(ArgumentError) as error:
            D.reduce_scatter((one, other)[comm.rank], comm)
        return str(error.value)

    first, second = on_ranks(2, scattered)
    assert "A must have the same shape, type and axis on all ranks, and those of ranks [1]" in first
    assert "(7, 22) of float16 along axis -1 on this one; convert or cut them first" in second


@pytest.mark.parametrize(
    ("function", "refused"),
    [
        (D.all_reduce, s24.random((8, 16), dtype="int8", rng=0)),
        (D.reduce_scatter, s24.random((2, 8, 16), rng=0)),
        (D.reduce_scatter, s24.random((16, 8), rng=0).T),
    ],
)
def test_what_one_rank_is_refused_keeps_no_other_waiting(function, refused):
    def message(comm):
        with pytest.raises(ArgumentError) as error:
            function(refused if comm.rank else s24.random((8, 16), rng=0), comm)
        return str(error.value)

    for text in on_ranks(2, message):
        assert "on all ranks, and those of ranks [1]" in text


@pytest.mark.parametrize("function", [D.all_reduce, D.reduce_scatter])
@pytest.mark.parametrize("other", [None, np.ones((8, 16), np.float32), "what"])
def test_ranks_hear_of_one_without_an_array(xp, function, other):
    A = s24.random((8, 16), rng=0).to_device(device_of(xp))

    def message(comm):
        with pytest.raises(ArgumentError) as error:
            function(A if comm.rank == 1 else other, comm)
        return str(error.value)

    without, there, again = on_ranks(3, message)
    assert "A must be a Sparse24Array on all ranks, and ranks [0, 2] passed something else" in there
    assert "compress it there as well, or call this in a group of the other ranks only" in there
    assert without == again
    assert "A must be a Sparse24Array, got" in without


@pytest.mark.parametrize(
    ("device", "given", "xp"), [("cuda", None, "cupy"), ("cpu", None, "numpy"), (None, 3, "numpy")]
)
def test_a_rank_without_an_array_tells_so_by_one_that_the_communicator_moves(
    monkeypatch, device, given, xp
):
    monkeypatch.setattr(_arrays, "cuda_available", lambda: True)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: "cupy")
    comm = SimpleNamespace(device=device)
    assert getattr(_namespace(comm, given), "__name__", "cupy") == xp


def test_places_along_both_axes_are_compared():
    def array(*places):
        x = np.zeros((4, 4), np.float32)
        x[tuple(zip(*places))] = 1
        return s24.compress(x, transposable=True)

    one = array((0, 2), (1, 3), (2, 1), (3, 2))
    other = array((0, 2), (1, 0), (2, 1), (2, 3), (3, 2), (3, 3))
    np.testing.assert_array_equal(one.metadata, other.metadata)  # a sum would be 2:4 along rows

    def message(comm):
        with pytest.raises(ArgumentError) as error:
            D.all_reduce((one, other)[comm.rank], comm)
        return str(error.value)

    for text in on_ranks(2, message):
        assert "places on all ranks, and those of ranks [1]" in text


def test_without_the_check_nobody_asks():
    asked = []

    class Counts(D.in_threads(1)[0].__class__):
        def all_reduce(self, x):
            asked.append(x.size)
            super().all_reduce(x)

    comm = Counts(0, D.in_threads(1)[0]._meeting)
    A = s24.random((8, 16), rng=0)
    D.all_reduce(A, comm, check=False)
    D.reduce_scatter(A, comm, check=False)
    assert asked == [A.values.size]


@pytest.mark.parametrize("function", [D.all_reduce, D.reduce_scatter])
def test_wrong_arguments_are_named(function):
    (comm,) = D.in_threads(1)
    A = s24.random((8, 16), rng=0)
    with pytest.raises(ArgumentError, match=r"A must be a Sparse24Array, got ndarray of shape"):
        function(A.toarray(), comm)
    with pytest.raises(ArgumentError, match=r"comm must be a .*Communicator, got NoneType; make"):
        function(A, None)
    with pytest.raises(ArgumentError, match="check must be one of True, False, got 'deferred'"):
        function(A, comm, check="deferred")


def test_what_cannot_be_added_is_refused():
    (comm,) = D.in_threads(1)
    for dtype in ("int8", "float8_e5m2"):
        with pytest.raises(DTypeError, match=rf"got {dtype}, whose sums would not fit; use A.as"):
            D.all_reduce(s24.random((8, 16), dtype=dtype, rng=0), comm)
    with pytest.raises(ShapeError, match=r"A must be a matrix \(m, k\), got shape \(2, 8, 16\)"):
        D.reduce_scatter(s24.random((2, 8, 16), rng=0), comm)
    with pytest.raises(ArgumentError, match=r"its groups along axis -2; pass A\.T"):
        D.reduce_scatter(s24.random((8, 16), rng=0).T, comm)


def test_numbers_of_ranks_and_rows_are_checked():
    with pytest.raises(ArgumentError, match="size must be a whole number from 1 on, got 0"):
        D.in_threads(0)
    with pytest.raises(ArgumentError, match="timeout must be above 0, got 0"):
        D.in_threads(1, timeout=0)
    with pytest.raises(ArgumentError, match="timeout must be finite, got inf"):
        D.in_threads(2, timeout=math.inf)
    with pytest.raises(ArgumentError, match="m must be a whole number from 0 on, got -1"):
        D.row_block(-1, 0, 1)
    with pytest.raises(ArgumentError, match="rank must be below size, 2, got 2; ranks count"):
        D.row_block(4, 2, 2)


def test_a_thread_that_does_not_come_is_not_waited_for_without_end():
    comm, _ = D.in_threads(2, timeout=0.05)
    with pytest.raises(ArgumentError, match=r"one of 2 ranks, and not all have come within 0\.05"):
        D.all_reduce(s24.random((8, 16), rng=0), comm)


def test_nothing_is_imported_before_it_is_needed():
    script = "import sys, sparse24; sparse24.distributed.in_threads(1); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {"cupy", "torch", "jax"}


@pytest.mark.parametrize("size", [1, 8, 21])
def test_hashes_of_places_that_differ_in_a_bit_differ(size):
    codes = np.arange(size, dtype=np.uint8)
    found = {_hash(codes)}
    for place in range(size):
        for bit in range(8):
            other = codes.copy()
            other[place] ^= 1 << bit
            found.add(_hash(other))
    assert len(found) == 8 * size + 1


def test_places_that_differ_in_two_groups_are_found():
    """In those that fill the highest bits of two words of codes."""
    mask = np.zeros((1, 128), bool)
    mask[:, ::4] = mask[:, 1::4] = True
    other = mask.copy()
    for group in (15, 31):
        other[0, 4 * group + 1], other[0, 4 * group + 3] = False, True
    arrays = [s24.compress(x.astype(np.float32)) for x in (mask, other)]
    with pytest.raises(ArgumentError, match=r"those of ranks \[1\] are not those of rank 0"):
        on_ranks(2, lambda comm: D.all_reduce(arrays[comm.rank], comm))
