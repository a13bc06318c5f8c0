"""Unstructured test matrices: generators of families, and readers of public formats.

`make` draws a dense NumPy matrix of a family, whose share of zeros is `zeros`, up to
chance.  The families, the keys of ``FAMILIES``, are those on which the block-hybrid product
is measured:

================================  ============================================================
``iid``                           every element is a zero with the same probability
``beta20``, ``beta5``, ``beta2``  the density of each 64x64 tile follows a Beta law, the
                                  wider the smaller the number
``dead_columns``                  half of the zeros sit in empty columns, as after channel
                                  pruning
``row_skewed``                    row densities follow a log-normal law
``banded``                        non-zeros lie near the diagonal
``power_law``                     degrees of rows and columns follow power laws, as in graphs
``block``                         32x32 blocks that are full or empty
================================  ============================================================
"""

from __future__ import annotations

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _file_checks, _matrix_market
from sparse24._errors import ArgumentError, DTypeError, FormatError

__all__ = ["FAMILIES", "make", "read_mtx", "read_smtx"]

TILE = 64


def _normal(rng, keep: np.ndarray, dtype) -> np.ndarray:
    """Random normal values where `keep` is true, zeros elsewhere; int8 in [-8, 8], never zero."""
    wanted = _dtypes.lookup(dtype)
    if wanted.name == "int8":
        values = rng.integers(1, 9, keep.shape) * rng.choice((-1, 1), keep.shape)
    else:
        values = rng.standard_normal(keep.shape, np.float32).astype(wanted.logical)
        values[values == 0] = 1  # fp8 has more zeros than float32
    return np.where(keep, values, 0).astype(wanted.logical)


def _from_density(rng, density: np.ndarray, shape) -> np.ndarray:
    """Keep each element with the probability that `density` broadcasts to it."""
    return rng.random(shape, np.float32) < np.broadcast_to(density, shape)


def _rescale(rows: np.ndarray, columns: np.ndarray, mean: float) -> np.ndarray:
    """Products of weights, (m, 1) and (1, k), scaled, and clipped to 1, to the mean `mean`."""
    if mean <= 0:
        return np.zeros((rows.size, columns.size))
    ranked = np.sort(columns, axis=None)
    sums = np.concatenate([[0], np.cumsum(ranked)])

    def mean_of(scale):
        below = np.searchsorted(ranked, 1 / (rows * scale))
        return (rows * scale * sums[below] + columns.size - below).mean() / columns.size

    low, high = 0.0, 1.0
    while mean_of(high) < mean and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if mean_of(middle) < mean:
            low = middle
        else:
            high = middle
    return np.minimum(rows * columns * high, 1)


def iid(rng, shape, zeros):
    """Every element is a zero with the same probability."""
    return _from_density(rng, np.full((), 1 - zeros, np.float32), shape)


def beta_tiles(rng, shape, zeros, *, nu=5.0):
    """The density of each 64x64 tile is drawn from a Beta law; a small `nu` spreads it widely."""
    grid = (-(-shape[0] // TILE), -(-shape[1] // TILE))
    if zeros in (0, 1):
        return iid(rng, shape, zeros)
    density = rng.beta((1 - zeros) * nu, zeros * nu, grid)
    wide = np.kron(density, np.ones((TILE, TILE), np.float32))[: shape[0], : shape[1]]
    return _from_density(rng, wide, shape)


def dead_columns(rng, shape, zeros):
    """Half of the zeros sit in columns that are empty, as after channel pruning."""
    dead = rng.permutation(shape[1]) < round(shape[1] * zeros / 2)
    live = (1 - zeros) / max(1 - dead.mean(), 1e-9)
    return _from_density(rng, np.where(dead, 0, live)[None, :], shape)


def row_skewed(rng, shape, zeros):
    """Row densities follow a log-normal law, as in recurrent layers pruned by magnitude."""
    rows = rng.lognormal(0, 1, (shape[0], 1))
    return _from_density(rng, _rescale(rows, np.ones((1, 1)), 1 - zeros), shape)


def banded(rng, shape, zeros):
    """Non-zeros lie near the diagonal and are half full there."""
    row = np.arange(shape[0])[:, None] / max(shape[0], 1)
    column = np.arange(shape[1])[None, :] / max(shape[1], 1)
    near = np.abs(row - column)
    width = np.quantile(near, min(1.0, 2 * (1 - zeros)))
    inside = near <= width
    return _from_density(rng, inside * ((1 - zeros) / max(inside.mean(), 1e-9)), shape)


def power_law(rng, shape, zeros):
    """Row and column degrees follow power laws, as in graphs."""
    rows = rng.permutation(np.arange(1, shape[0] + 1))[:, None] ** -0.5
    columns = rng.permutation(np.arange(1, shape[1] + 1))[None, :] ** -0.5
    return _from_density(rng, _rescale(rows, columns, 1 - zeros), shape)


def block(rng, shape, zeros):
    """32x32 blocks that are full or empty."""
    grid = (-(-shape[0] // 32), -(-shape[1] // 32))
    full = rng.random(grid) >= zeros
    return np.kron(full, np.ones((32, 32), bool))[: shape[0], : shape[1]]


FAMILIES = {
    "iid": iid,
    "beta20": lambda rng, shape, zeros: beta_tiles(rng, shape, zeros, nu=20.0),
    "beta5": lambda rng, shape, zeros: beta_tiles(rng, shape, zeros, nu=5.0),
    "beta2": lambda rng, shape, zeros: beta_tiles(rng, shape, zeros, nu=2.0),
    "dead_columns": dead_columns,
    "row_skewed": row_skewed,
    "banded": banded,
    "power_law": power_law,
    "block": block,
}


def make(name: str, shape, *, zeros: float, dtype="float32", rng=None) -> np.ndarray:
    """Return a random matrix of a family.

    Parameters
    ----------
    name : str
        A key of ``sparse24.families.FAMILIES``, which the module lists.
    shape : tuple of int
        (m, k).
    zeros : float
        Share of zeros, 0 to 1.
    dtype : str or dtype, default "float32"
        Element type of the result.
    rng : numpy.random.Generator or int, optional
        Source of randomness, or a seed.

    Returns
    -------
    ndarray, shape (m, k)

    Raises
    ------
    ArgumentError
        If the name is unknown or `zeros` is out of range.
    ShapeError
        If `shape` is not (m, k).

    Examples
    --------
    >>> from sparse24 import families
    >>> w = families.make("iid", (256, 256), zeros=0.7, rng=0)
    >>> bool(0.68 < (w == 0).mean() < 0.72)
    True
    """
    _check.one_of(name, tuple(FAMILIES), argument="name")
    if not 0 <= _check.number(zeros, argument="zeros") <= 1:
        raise ArgumentError(f"zeros must be between 0 and 1, got {zeros!r}")
    shape = _check.sizes(shape, argument="shape", count=2)
    rng = _check.generator(rng)
    keep = FAMILIES[name](rng, shape, zeros) if 0 not in shape else np.zeros(shape, bool)
    return _normal(rng, keep, dtype)


def read_smtx(path, *, dtype="float32", rng=None):
    """Read a ``.smtx`` file of the Deep Learning Matrix Collection.

    The files hold places only, so the values are random normal.

    Parameters
    ----------
    path : str or Path
        Three lines: ``rows, columns, nnz``, row offsets, column indices.
    dtype : {"float32", "float64", "int8"}, default "float32"
        Element type of the values.
    rng : numpy.random.Generator or int, optional
        Source of the values, or a seed.

    Returns
    -------
    scipy.sparse.csr_array, shape (rows, columns)

    Raises
    ------
    FormatError
        If the file is cut short or its numbers do not fit together.
    DTypeError
        If SciPy has no sparse matrices of `dtype`.

    References
    ----------
    .. [1] T. Gale et al., Sparse GPU Kernels for Deep Learning, SC 2020.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import sparse24 as s24
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.smtx")
    ...     _ = path.write_text("2, 4, 3\\n0 2 3\\n0 3 1\\n")
    ...     s24.families.read_smtx(path, rng=0).toarray() != 0
    array([[ True, False, False,  True],
           [False,  True, False, False]])
    """
    import scipy.sparse

    wanted = _type_in_scipy(dtype)
    lines = _file_checks.named(path).read_text(errors="replace").splitlines()
    if len(lines) < 2:
        raise FormatError(f"{path} must have a header, row offsets and column indices")
    try:
        header = np.array(lines[0].replace(",", " ").split(), np.int64).tolist()
        offsets = np.array(lines[1].split(), np.int64)
        columns = np.array(lines[2].split() if len(lines) > 2 else [], np.int64)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path} holds something other than whole numbers: {error}") from None
    if len(header) != 3:
        raise FormatError(f"{path}: its header must be rows, columns, nnz, got {lines[0]!r}")
    m, k, nnz = header
    if min(m, k) < 0:
        raise FormatError(f"{path}: its rows and columns must not be negative, got {m} and {k}")
    ordered = offsets.shape == (m + 1,) and offsets[0] == 0 and (np.diff(offsets) >= 0).all()
    if not ordered or offsets[-1] != nnz:
        raise FormatError(
            f"{path}: the row offsets must be {m + 1} numbers that rise from 0 to nnz = {nnz}"
        )
    if columns.shape != (nnz,):
        raise FormatError(f"{path} has {columns.size} column indices, not nnz = {nnz}; get it anew")
    if nnz and not (columns.min() >= 0 and columns.max() < k):
        raise FormatError(f"{path}: column indices must be in [0, {k})")
    values = _normal(_check.generator(rng), np.ones(nnz, bool), wanted)
    index = scipy.sparse.get_index_dtype(maxval=max(m, k, nnz))  # int32, as estimators require it
    places = columns.astype(index), offsets.astype(index)
    return scipy.sparse.csr_array((values, *places), shape=(m, k))


def read_mtx(path, *, dtype=None):
    """Read a Matrix Market file (``.mtx``, also compressed) as a CSR matrix.

    Parameters
    ----------
    path : str or Path
        File in coordinate or array form.
    dtype : {"float32", "float64", "int8"}, optional
        Element type of the result; by default that of the file.

    Returns
    -------
    scipy.sparse.csr_array

    Raises
    ------
    FormatError
        If the file is damaged, or not a Matrix Market file.
    DTypeError
        If SciPy has no sparse matrices of `dtype`, or complex elements were to become real.

    Examples
    --------
    >>> import pathlib, scipy.io, scipy.sparse, tempfile
    >>> import sparse24 as s24
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.mtx")
    ...     scipy.io.mmwrite(path, scipy.sparse.eye_array(3))
    ...     s24.families.read_mtx(path, dtype="float32").nnz
    3
    """
    import scipy.sparse

    from sparse24.kernels import reference

    wanted = None if dtype is None else _type_in_scipy(dtype)
    matrix = _matrix_market.read(path)
    if wanted is not None:
        _arrays.check_real(matrix, argument="the matrix")
        data = reference.to_dtype(matrix.data, wanted.logical)
        matrix = scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return matrix


def _type_in_scipy(dtype) -> _dtypes.DType:
    """An element type that SciPy's sparse matrices know."""
    wanted = _dtypes.lookup(dtype)
    if wanted.name not in ("float32", "float64", "int8"):
        raise DTypeError(
            f"SciPy has no sparse matrices of {wanted.name}; read float32, and pass "
            f"dtype={wanted.name!r} to sparse24.hybrid or sparse24.from_scipy"
        )
    return wanted
