"""`hybrid`: the public entry to the block-hybrid format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparse24 import _arrays, _foreign_streams

if TYPE_CHECKING:
    from sparse24.formats.hybrid import HybridArray


def hybrid(w, *, n_hint: int | None = None, dtype=None) -> HybridArray:
    """Store an unstructured sparse matrix, with all its elements, for fast products.

    The matrix is divided into 64x64 tiles; each is stored as empty, dense, 2:4 with a list of the
    elements that do not fit, a bitmap with its non-zeros, or non-zeros with their places, whichever
    a cost model finds cheapest.  Of a sparse matrix with fewer than one non-zero among 1000
    elements, such as a graph, only the rows of non-zeros are stored; from 2**30 elements on, as of
    32768 x 32768, with fewer than one among 20.

    Parameters
    ----------
    w : array or sparse matrix, shape (m, k)
        NumPy, CuPy, torch or any DLPack array, any strides; or a sparse matrix of sparse24, scipy
        or cupyx.  Elements are float16, bfloat16, float32, float64 or int8; other types need
        `dtype`.
    n_hint : int, optional
        Expected number of columns of the dense operands, for which the tiles are stored; 16
        if not given.  The kernel of a product is chosen by its own number of columns in any case.
    dtype : str or dtype, optional
        Convert the elements first, to one of these types; nothing is narrowed unless this asks
        for it.

    Returns
    -------
    HybridArray
        On the device of `w`; of a `HybridArray` without `n_hint` what ``w.astype(dtype)`` gives,
        or `w` itself.

    Raises
    ------
    ShapeError
        If `w` is not a matrix.
    DTypeError
        If the element type has no hybrid kernels.
    ArgumentError
        If `n_hint` is not a positive integer.
    PatternError
        If `w` is a `Sparse24Array` whose deferred check fails.
    UnsupportedError
        If a matrix that is stored in tiles on a GPU has more than 4194240 rows, which is 65535
        rows of tiles.

    See Also
    --------
    compress : For a matrix that obeys 2:4 or another pattern, or may be pruned to it.

    Notes
    -----
    On the GPU this waits for the counts of the first pass, and until all is built.  Building reads
    the non-zeros of a sparse matrix, and all m * k elements of a dense one, a few rows of tiles at
    a time.  Each of m * k / 4096 tiles takes 21 bytes, also an empty one.  Where only rows are
    stored, they take as much memory as CSR whose rows start at numbers of 64 bits, and nothing is
    counted.

    On the GPU the first product of a kind temporarily makes the whole matrix dense.  It does not,
    and the matrix is multiplied by its non-zeros, if fewer than one element in 1000 is a non-zero,
    or the dense matrix would take more than half of the device's memory.  If at least three
    quarters of the elements are zeros, products on the CPU do not make the matrix dense, and
    neither do `astype` and the transpose on either device.  On the CPU a matrix that has been
    multiplied takes more memory than SciPy's CSR, unless rows are stored.

    Deciding block by block, with a dense, a swing and a sparse band, is the idea of CROSS [1]_.

    References
    ----------
    .. [1] CROSS: compiler-driven optimization of sparse DNNs, HPCA 2025.

    Examples
    --------
    >>> import numpy as np, scipy.sparse, sparse24 as s24
    >>> w = scipy.sparse.random_array((300, 200), density=0.3, rng=0, dtype=np.float32)
    >>> h = s24.hybrid(w)
    >>> h.nnz == w.nnz
    True
    >>> b = np.ones((200, 8), np.float32)
    >>> bool(np.allclose(h @ b, w @ b, atol=1e-4))
    True
    """
    from sparse24.formats.base import SparseArray
    from sparse24.formats.hybrid import HybridArray

    if isinstance(w, SparseArray):
        w = w if dtype is None else w.astype(dtype)
        if isinstance(w, HybridArray) and n_hint is None:
            return w
        w, dtype = _elements_of(w), w.dtype
    home = w.data if _arrays.is_cupyx_sparse(w) else w  # where and in whose order work goes
    with _foreign_streams.stream_of(home):
        made = HybridArray.build(w, n_hint=n_hint, dtype=dtype)
        _arrays.settle(made.stored.home)  # products may run on other streams
    return made


def _elements_of(array):
    """What a hybrid matrix is built from in place of a sparse array of this library."""
    from sparse24.formats.hybrid import HybridArray
    from sparse24.formats.two_four import Sparse24Array

    if isinstance(array, HybridArray):
        return array._source()
    if isinstance(array, Sparse24Array):
        array.check()  # what it has lost cannot be seen in its dense form
    return array.toarray()
