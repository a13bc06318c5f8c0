"""Parts of a sparse array by NumPy's keys: rows, whole groups of columns, one row, one element."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from sparse24 import _arrays, _check
from sparse24._errors import ArgumentError, OutOfRangeError

ALL = slice(None)


class Indexing:
    """``A[key]`` of a format whose rows are stored one by one, in groups."""

    shape: Any
    ndim: Any

    @abstractmethod
    def _matrices(self, key: tuple) -> Self:
        """Matrices of a batch, by a key for its batch axes."""

    @abstractmethod
    def _stored_rows(self, rows: slice | Any) -> Self:
        """Rows of what is stored: a slice, or an array of their numbers."""

    @abstractmethod
    def _stored_groups(self, start: int, stop: int) -> Self:
        """Groups start:stop of all rows of what is stored."""

    def __getitem__(self, key: Any) -> Any:
        """Rows, whole groups of columns and matrices of a batch; a single row or element is dense.

        Raises
        ------
        ArgumentError
            If columns are not taken in whole groups, the key is none of NumPy's, or NumPy would
            pair its arrays or move the axis of one.
        OutOfRangeError
            If it is out of range; also an `IndexError`.
        """
        entries = each_axis(key, self.ndim)
        _check_order(entries)
        *batch, rows, columns = entries
        return _of_matrix(self._picked(batch), rows, columns)

    def _picked(self, batch: list) -> Any:
        """The matrices of a batch that a key's entries for its axes name."""
        if all(_is_all(entry) for entry in batch):
            return self
        sizes = self.shape[:-2]
        picked = (x if _check.is_index(x) else _places(x, n) for x, n in zip(batch, sizes))
        try:
            return self._matrices(tuple(picked))
        except IndexError as error:
            key = ", ".join(_check.shown(entry) for entry in batch)
            batch_of = " x ".join(map(str, sizes))
            raise OutOfRangeError(f"A[{key}] is out of range for {batch_of} matrices") from error


def out_of_range(error: IndexError) -> OutOfRangeError:
    """NumPy's error as one of the library's."""
    return OutOfRangeError(f"the index is out of range: {error}")


def no_key(entry: Any) -> ArgumentError:
    """The error of what takes no part."""
    return ArgumentError(
        f"a part is taken by a slice, whole numbers or booleans, got {_check.shown(entry)}; "
        "otherwise use .toarray()[...]"
    )


def _is_all(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == ALL


def each_axis(key: Any, ndim: int) -> tuple:
    """A key as one entry for each axis: slices, whole numbers, and arrays of these or booleans."""
    entries = key if isinstance(key, tuple) else (key,)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    missing = ndim - (len(entries) - len(dots))
    if len(dots) > 1 or missing < 0:
        raise OutOfRangeError(f"A[{_check.shown(key)}] has too many indices for {ndim} axes")
    at = dots[0] if dots else len(entries)
    return tuple(map(_checked, (*entries[:at], *(ALL,) * missing, *entries[at + 1 :])))


def _check_order(entries: tuple) -> None:
    """Refuse a key of which NumPy makes another order of axes than one axis after the other."""
    picks = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    lists = [i for i in picks if not _check.is_index(entries[i])]
    if not lists or picks[-1] < len(entries) - 2:  # the batch axes alone: NumPy itself picks
        return
    paired = len(lists) > 1 and lists[-1] >= len(entries) - 2
    apart = picks[-1] - picks[0] >= len(picks)  # then NumPy puts the axis of the list first
    if paired or (apart and any(isinstance(entry, slice) for entry in entries[: lists[0]])):
        raise ArgumentError(
            "NumPy pairs the numbers of two lists, and moves the axis of one apart from other "
            "numbers; take a part along one axis after the other, as in A[i][:, j]"
        )


def _checked(entry: Any) -> Any:
    """An entry of a key, if it can be one; of CuPy's arrays nothing is looked at."""
    if isinstance(entry, slice):
        _check_ends(entry)
    elif not _check.is_index(entry) and not _arrays.is_cupy(entry):
        index = np.asarray(entry)
        if not index.ndim and index.dtype.kind in "iu":
            return int(index)
        if not index.ndim or (index.size and index.dtype.kind not in "bui"):
            raise no_key(entry)
    return entry


def _of_matrix(array: Any, rows: Any, columns: Any) -> Any:
    """Some rows and columns of the matrices of an array."""
    if _check.is_index(rows) or _check.is_index(columns):
        return _dense(array, rows, columns)
    if array.axis == -2 or (
        getattr(array, "transposable", False)  # both orientations are stored
        and not _is_whole(columns, array.shape[-1], array.pattern[1])
        and _is_whole(rows, array.shape[-2], array.pattern[1])
    ):
        return _of_matrix(array.mT, columns, rows).mT
    if not _is_all(rows):
        array = array._stored_rows(_places(rows, array.shape[-2]))
    if not _is_all(columns):
        array = array._stored_groups(*_whole_groups(columns, array.shape[-1], array.pattern[1]))
    return array


def _dense(array: Any, rows: Any, columns: Any) -> Any:
    """A row, a column or an element; of the other rows that are stored nothing is made dense."""
    try:
        if array.axis == -1 and _check.is_index(rows):
            array, rows = _one_row(array, rows), 0
        elif array.axis == -2 and _check.is_index(columns):
            array, columns = _one_row(array.mT, columns).mT, 0
        return array.toarray()[..., rows, columns]
    except IndexError as error:
        raise out_of_range(error) from error


def _one_row(array: Any, number: int) -> Any:
    m = array.shape[-2]
    if not -m <= number < m:
        raise IndexError(f"{number} for an axis of {m}")
    return array._stored_rows(slice(number % m, number % m + 1))


def _places(rows: Any, m: int) -> Any:
    """Rows as a slice, or an array of their numbers."""
    if isinstance(rows, slice) or _arrays.is_cupy(rows):
        return rows
    index = np.asarray(rows)
    index = index.astype(np.intp) if index.size == 0 and index.dtype != bool else index
    if index.ndim != 1:
        raise no_key(rows)
    try:
        return np.arange(m)[index]
    except IndexError as error:
        raise out_of_range(error) from error


def _check_ends(key: slice) -> None:
    if any(end is not None and not _check.is_index(end) for end in (key.start, key.stop, key.step)):
        raise ArgumentError(f"a slice has whole numbers, got {_check.shown(key)}")


def _is_whole(key: Any, k: int, group: int) -> bool:
    """Whether a key takes whole groups of so many of the k elements."""
    if not _check.is_slice(key):
        return False
    start, stop, _ = key.indices(k)
    return start % group == 0 and (max(start, stop) % group == 0 or stop == k)


def _whole_groups(key: Any, k: int, group: int) -> tuple[int, int]:
    """The groups of a slice of columns."""
    way_out = "otherwise use .toarray()[...] and compress the result"
    if not _check.is_slice(key):
        raise ArgumentError(
            f"along the groups a part is a slice of step 1, got {_check.shown(key)}; {way_out}"
        )
    start, stop, _ = key.indices(k)
    if not _is_whole(key, k, group):
        raise ArgumentError(
            f"[{start}:{stop}] cuts a group of {group}; slice at multiples of {group}, {way_out}"
        )
    return start // group, -(-max(start, stop) // group)
