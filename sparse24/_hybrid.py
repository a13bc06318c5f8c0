"""`hybrid`: the public entry to the block-hybrid format."""

from __future__ import annotations

from sparse24 import _check


def hybrid(w, *, n_hint: int | None = None, dtype=None):
    """Store an unstructured sparse matrix so that products with it are exact and fast.

    The matrix is cut into 64x64 tiles; each becomes empty, dense, 2:4 with a little
    overflow, or bitmap-coded, whichever a cost model finds cheapest.

    Parameters
    ----------
    w : array or sparse matrix, shape (m, k)
        NumPy or CuPy array, or a scipy or cupyx sparse matrix, of float16, bfloat16,
        float32, float64 or int8.  Any strides.
    n_hint : int, optional
        Columns of the dense operands to expect.  The path of a product is chosen for
        its own number of columns all the same.
    dtype : str or dtype, optional
        Convert the elements first; nothing is narrowed unless this asks for it.

    Returns
    -------
    HybridArray
        On the device of `w`.

    Raises
    ------
    ShapeError
        If `w` is not a matrix.
    DTypeError
        If the element type has no hybrid kernels.
    ArgumentError
        If `n_hint` is no whole number from 1 on.

    Notes
    -----
    On the GPU this waits, once, for the counts of the first pass.  Building reads all m * k
    places, a few rows of tiles at a time.  The transpose, and on the GPU the first product of
    a kind and `tocsr`, make the whole matrix dense for a moment, so that must fit into memory.
    On the CPU SciPy's CSR is smaller, and with few columns faster, where fewer than about one
    place in a hundred holds a non-zero.

    The idea of deciding block by block with a dense, a swing and a sparse band is CROSS's [1]_.

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
    from sparse24.formats.hybrid import HybridArray

    n_hint = None if n_hint is None else _check.whole(n_hint, argument="n_hint", least=1)
    return HybridArray.build(w, n_hint=n_hint, dtype=dtype)
