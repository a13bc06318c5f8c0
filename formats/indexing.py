"""Parts of a sparse array by NumPy's keys: rows, whole groups of columns, one row, one element."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable
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
        """Rows, whole groups of columns and matrices of a batch; a single row or column is dense.

        Raises
        ------
        ArgumentError
            If columns are not taken in whole groups, or the key is none of NumPy's, adds an axis,
            pairs arrays of numbers or moves the axis of one.
        OutOfRangeError
            If it is out of range; also an `IndexError`.
        """
        each, dots = _each_axis(key, self.ndim)
        entries = tuple(map(_entry, each))
        _refuse_moved_axes(entries, dots)
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


def _is_all(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == ALL


def _each_axis(key: Any, ndim: int) -> tuple[tuple, int]:
    """A key as one entry for each axis, and before which of them its dots stood."""
    entries = key if isinstance(key, tuple) else (key,)
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    missing = ndim - (len(entries) - len(dots))
    if len(dots) > 1 or missing < 0:
        new = [entry for entry in entries if _adds_an_axis(entry)]
        if len(dots) < 2 and 0 < -missing <= len(new):  # all others have an axis of the array
            raise _no_key(new[0])
        raise OutOfRangeError(f"A[{_check.shown(key)}] has too many indices for {ndim} axes")
    at = dots[0] if dots else len(entries)
    return (*entries[:at], *(ALL,) * missing, *entries[at + 1 :]), at


def _adds_an_axis(entry: Any) -> bool:
    """Whether an entry stands for a new axis in NumPy: None, or a boolean without axes."""
    if entry is None or isinstance(entry, bool):
        return True
    return getattr(entry, "ndim", None) == 0 and entry.dtype == bool


def _entry(entry: Any) -> Any:
    """An entry of a key after its checks; of CuPy's arrays the elements are not looked at."""
    if isinstance(entry, slice):
        check_slice(entry)
        return entry
    if _check.is_index(entry):
        return entry
    index = _as_array(entry)
    if type(index) is np.ndarray and index.ndim == 0 and index.dtype.kind in "ui":
        return index[()]
    index = index.astype(np.intp) if index.size == 0 and index.dtype != bool else index
    if index.ndim != 1 or index.dtype.kind not in "bui":
        raise _no_key(entry)
    return index


def _as_array(entry: Any) -> Any:
    """An entry as an array of its library; refuses lists of several lengths, and JAX's tracers."""
    try:
        return entry if _arrays.is_cupy(entry) else np.asarray(entry)
    except (TypeError, ValueError) as error:  # which says what torch wants of a tensor on a GPU
        _refuse_traced(entry if isinstance(entry, list) else (entry,))
        raise _no_key(entry) from error


def _refuse_traced(values: Iterable[Any]) -> None:
    """Refuse arrays of JAX whose values compiled code does not know yet."""
    if any(_arrays.is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer) for x in values):
        raise ArgumentError(
            "a part is taken by a slice, whole numbers or booleans, got a tracer of JAX, whose "
            "value compiled code does not know yet; choose among parts with jax.lax.switch, or "
            "take them in a loop of Python"
        )


def _no_key(entry: Any) -> ArgumentError:
    return ArgumentError(
        f"a part is taken by a slice, whole numbers or booleans, got {_check.shown(entry)}; "
        "otherwise use .toarray()[...]"
    )


def check_kinds(key: tuple) -> None:
    """Refuse entries of a key that no array has: texts, other numbers, a sparse matrix."""
    for entry in key:
        if entry is None or entry is Ellipsis or isinstance(entry, slice):
            continue
        if _check.is_index(entry):  # also one beyond 64 bits, which is out of range
            continue
        index = _as_array(entry)
        if index.dtype.kind not in "bui" and not (index.size == 0 and index.ndim):
            raise _no_key(entry)


def check_slice(key: slice) -> None:
    """Refuse one whose ends are no whole numbers, or that takes no step."""
    ends = (key.start, key.stop, key.step)
    if not all(end is None or _is_end(end) for end in ends) or key.step == 0:
        _refuse_traced(ends)
        raise ArgumentError(f"a slice has whole numbers, and no step of 0, got {_check.shown(key)}")


def _refuse_moved_axes(entries: tuple, dots: int) -> None:
    """Refuse keys of which NumPy pairs arrays of numbers, or moves their axis to the front.

    It does so, too, where nothing but the dots of the key, of no axis, stands between them.
    """
    taken = [i for i, entry in enumerate(entries) if not isinstance(entry, slice)]
    arrays = [i for i in taken if not _check.is_index(entries[i])]
    if not arrays:
        return
    paired = len(arrays) > 1 and arrays[-1] >= len(entries) - 2
    slices = taken[-1] - taken[0] >= len(taken)
    apart = slices or taken[0] < dots <= taken[-1]
    moved = apart and any(isinstance(entry, slice) for entry in entries[: arrays[0]])
    if paired or moved:
        raise ArgumentError(
            "the key has arrays of numbers that NumPy would pair, or whose axis it would move to "
            "the front; take one after the other, as in A[matrices][..., rows, :]"
        )


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
    """A row, a column or an element; nothing is made dense but the row, or a group of columns."""
    if array.axis == -2:
        return _dense(array.mT, columns, rows)
    if _check.is_index(rows):
        start = _in_range(rows, array.shape[-2])
        array, rows = array._stored_rows(slice(start, start + 1)), 0
    else:
        group, columns = divmod(_in_range(columns, array.shape[-1]), array.pattern[1])
        array = array._stored_groups(group, group + 1)
    try:
        found = array.toarray()[..., rows, columns]
    except IndexError as error:
        raise out_of_range(error) from error
    return found if found.ndim else found[()]  # as in NumPy, which gives a number, and in CuPy


def _in_range(number: int, size: int) -> int:
    """A whole number that picks one of `size`, from 0 on."""
    if not -size <= number < size:
        raise OutOfRangeError(f"the index is out of range: {number} for an axis of {size}")
    return int(number) % size


def _places(rows: Any, m: int) -> Any:
    """Rows as a slice, or an array of their numbers."""
    if isinstance(rows, slice) or _arrays.is_cupy(rows):
        return rows
    try:
        return np.arange(m)[rows]
    except IndexError as error:
        raise out_of_range(error) from error


def _is_end(value) -> bool:
    """True for a whole number where a slice begins or ends, also in an array without axes."""
    try:
        _check.integer(value)
    except TypeError:
        return False
    return True


def is_slice(value) -> bool:
    """True for a slice of step 1 whose ends are whole numbers, or left out."""
    if not isinstance(value, slice):
        return False
    ends = (value.start, value.stop, value.step)  # arrays among them are no ends, nor compared
    return all(end is None or _is_end(end) for end in ends) and value.step in (None, 1)


def _is_whole(key: Any, k: int, group: int) -> bool:
    """Whether a key takes whole groups of that many of the k elements, or none."""
    if not is_slice(key):
        return False
    start, stop, _ = key.indices(k)
    return start >= stop or (start % group == 0 and (stop % group == 0 or stop == k))


def _whole_groups(key: Any, k: int, group: int) -> tuple[int, int]:
    """The groups of a slice of columns."""
    way_out = "otherwise use .toarray()[...] and compress the result"
    if not is_slice(key):
        raise ArgumentError(
            f"along the groups a part is a slice of step 1, got {_check.shown(key)}; {way_out}"
        )
    start, stop, _ = key.indices(k)
    if not _is_whole(key, k, group):
        raise ArgumentError(
            f"[{start}:{stop}] cuts a group of {group}; slice at multiples of {group}, {way_out}"
        )
    return (start // group, -(-stop // group)) if start < stop else (0, 0)
