"""Save and load compressed arrays: npz and safetensors.

A file holds for each compressed array ``NAME.values`` and ``NAME.metadata`` in
canonical form (:ref:`layout`), dense arrays under their own names, and a JSON
header, of which the first files lack ``"dense"`` and its own checksum::

    {"version": 1, "single": false,
     "arrays": {NAME: {"pattern": [2, 4], "shape": [...], "dtype": "bfloat16", "axis": -1,
                       "transposable": false, "layout": "codes",
                       "crc32": {"values": ..., "metadata": ...}}},
     "dense": {NAME: {"shape": [...], "dtype": "float32", "crc32": ...}},
     "crc32": ...}

A `HybridArray` has the layout ``"hybrid"`` and the eight arrays of its tiles as parts, or
``"hybrid_rows"`` and the three of its rows.  A `Quantised24Array` has the layout
``"quantised"``, the entry ``"bits"``, and in place of values ``NAME.integers``, of 4 bits two
in a byte, the earlier one low, and ``NAME.scales`` in float32, one for each 128 columns.  In
safetensors the header is the metadata entry ``sparse24``, and types are the format's
own.  In npz it is the member ``sparse24.json``, and types that NumPy does not know are
raw bits.  Nothing is pickled; a target is replaced only by a whole file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sparse24 import _file_checks, _raw_files, _raw_writers, _shards
from sparse24._errors import ArgumentError
from sparse24.formats import stored


def save_npz(path: str | os.PathLike, arrays: Any) -> None:
    """Save one compressed array, or several and dense ones by name, to an npz file.

    Parameters
    ----------
    path : path
        Taken as it is: no ``.npz`` is appended, as `numpy.savez` would.  An existing file is
        replaced only by a complete one.
    arrays : Sparse24Array, Quantised24Array, NMArray, HybridArray or mapping of str to arrays
        Arrays on a GPU are copied to the host, which waits for it.  Values of a mapping
        may be dense NumPy or CuPy arrays or tensors of torch too, as in the ``state_dict()`` of a
        model; a packed weight, `sparse24.torch.Sparse24Tensor`, is saved as its
        `Sparse24Array`.  A dense matrix kept by ``compress(keep_dense=True)`` is not saved.

    Raises
    ------
    ArgumentError
        If two names collide, NumPy makes no array of a value (numbers and lists become arrays), or
        the path has the other format's suffix.
    DTypeError
        If a dense array has a type that the format does not know, or is a tensor without elements
        in memory, such as a sparse one.
    PatternError
        If a deferred check of an array fails.

    See Also
    --------
    load_npz, save_safetensors

    Examples
    --------
    >>> import numpy as np, sparse24 as s24, tempfile, pathlib
    >>> A = s24.random((4, 8), rng=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "layer.npz")
    ...     s24.save_npz(path, {"weight": A, "bias": np.ones(4)})
    ...     loaded = s24.load_npz(path)
    >>> sorted(loaded), bool((loaded["weight"].toarray() == A.toarray()).all())
    (['bias', 'weight'], True)
    """
    _suited(path, "npz", "save")
    raw, header = stored.pack(arrays)
    _raw_writers.write_npz(path, raw, header)


def load_npz(path: str | os.PathLike, *, device: str = "cpu") -> Any:
    """Load what `save_npz` saved.

    Parameters
    ----------
    path : path
    device : str, default "cpu"
        ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``; copies to a GPU are enqueued.

    Returns
    -------
    Sparse24Array, Quantised24Array, NMArray, HybridArray or dict of str to arrays
        As it was saved.

    Raises
    ------
    FormatError
        If the file is damaged, truncated, of a newer version, or not sparse24's.
    FileNotFoundError
        If there is no such file.
    ArgumentError
        If the path is a folder or has the suffix of the other format.

    Examples
    --------
    >>> import sparse24 as s24, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.npz")
    ...     s24.save_npz(path, s24.random((4, 8), dtype="bfloat16", rng=0))
    ...     s24.load_npz(path).dtype.name
    'bfloat16'
    """
    _suited(path, "npz", "load")
    return stored.unpack(_raw_files.NpzFile(Path(path)), device)


def save_safetensors(path: str | os.PathLike, arrays: Any) -> None:
    """Save one compressed array, or several and dense ones by name, to a safetensors file.

    Parameters
    ----------
    path : path
        Taken as it is.  An existing file is replaced only by a complete one.
    arrays : Sparse24Array, Quantised24Array, NMArray, HybridArray or mapping of str to arrays
        As for `save_npz`.  Any safetensors reader can read the parts.

    Raises
    ------
    ArgumentError
        If two names collide, NumPy makes no array of a value (numbers and lists become arrays), or
        the path has the other format's suffix.
    DTypeError
        If a dense array has a type that the format does not know, or is a tensor without elements
        in memory, such as a sparse one.
    PatternError
        If a deferred check of an array fails.

    See Also
    --------
    load_safetensors, save_npz

    Examples
    --------
    >>> import sparse24 as s24, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.safetensors")
    ...     s24.save_safetensors(path, s24.random((4, 8), dtype="float8_e4m3fn", rng=0))
    ...     s24.load_safetensors(path).shape
    (4, 8)
    """
    _suited(path, "safetensors", "save")
    raw, header = stored.pack(arrays)
    _raw_writers.write_safetensors(path, raw, header)


def load_safetensors(path: str | os.PathLike, *, device: str = "cpu") -> Any:
    """Load what `save_safetensors` saved, or what ``python -m sparse24 convert`` made of shards.

    Parameters
    ----------
    path : path
        A safetensors file, the index of several (``model.safetensors.index.json``), or a folder
        with one index or one safetensors file.
    device : str, default "cpu"
        ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``; copies to a GPU are enqueued.

    Returns
    -------
    Sparse24Array, Quantised24Array, NMArray, HybridArray or dict of str to arrays
        As it was saved; of an index, the arrays of all its shards.

    Raises
    ------
    FormatError
        If a file is damaged, truncated, of a newer version, or not sparse24's, or an index and
        its shards do not fit together.
    FileNotFoundError
        If there is no such file.
    ArgumentError
        If the path is a folder with several checkpoints or none, or has the suffix of the other
        format.

    See Also
    --------
    save_safetensors

    Examples
    --------
    >>> import sparse24 as s24, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "layer.safetensors")
    ...     s24.save_safetensors(path, {"weight": s24.random((4, 8), rng=0)})
    ...     list(s24.load_safetensors(path))
    ['weight']
    """
    _suited(path, "safetensors", "load")
    sharded = _shards.may_be_sharded(path)
    open_it = _shards.open_sharded if sharded else _raw_files.SafetensorsFile
    return stored.unpack(open_it(Path(path)), device)


def _suited(path: str | os.PathLike, kind: str, task: str) -> None:
    """Refuse a name that says it is the other kind of file."""
    other = {"npz": "safetensors", "safetensors": "npz"}[kind]
    if _file_checks.named(path).suffix.lower() == f".{other}":
        raise ArgumentError(
            f"path names a file of {other}, got {str(path)!r}; {task} it with "
            f"sparse24.{task}_{other}, or rename it"
        )
