"""Make 2:4 arrays of other things: `asarray`, `from_scipy`, `random`."""

from __future__ import annotations

import numpy as np

from sparse24 import _check, _dtypes
from sparse24._compress import compress
from sparse24.formats import convert
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array


def asarray(x, *, dtype=None) -> Sparse24Array | Quantised24Array:
    """Return `x` as a 2:4 array; a `Sparse24Array` or a `Quantised24Array` is returned unchanged.

    Parameters
    ----------
    x : Sparse24Array, Quantised24Array, NMArray, HybridArray, array or scipy.sparse matrix
        Anything but the first two must obey 2:4, which is checked; this waits for the device.
    dtype : dtype, optional
        Convert to this type, as `astype` does: a quantised array of another one is dequantised.

    Returns
    -------
    Sparse24Array or Quantised24Array

    Raises
    ------
    PatternError
        If `x` does not obey 2:4.
    ShapeError, DTypeError
        If `x` has fewer than two axes or a type that sparse24 does not store.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.asarray(np.eye(4, dtype=np.float32))
    >>> s24.asarray(A) is A
    True
    """
    if isinstance(x, Sparse24Array | Quantised24Array):
        return x if dtype is None else x.astype(dtype)
    return compress(x, dtype=dtype)


def from_scipy(m, *, dtype=None, on_excess="raise") -> Sparse24Array:
    """Compress a scipy.sparse (or cupyx.scipy.sparse) matrix of any format.

    Parameters
    ----------
    m : sparse matrix or array, shape (m, k)
    dtype : dtype, optional
        Element type of the result; by default that of `m`.
    on_excess : {"raise", "prune"}
        What to do with a group of more than two non-zeros; see `sparse24.compress`.

    Returns
    -------
    Sparse24Array
        On the CPU for SciPy, on the GPU for cupyx matrices.

    Raises
    ------
    PatternError
        If the matrix does not obey 2:4; `sparse24.hybrid` stores such a matrix exactly.
    ArgumentError
        If `m` is not a sparse matrix.
    DTypeError
        If the elements are of a type that sparse24 does not store, and `dtype` is not given.
    DeviceError
        If the dense matrix does not fit the memory of the device; also a `MemoryError`.

    Notes
    -----
    The matrix is made dense on its device first.  Waits for the GPU where `sparse24.compress` does.

    Examples
    --------
    >>> import scipy.sparse, sparse24 as s24
    >>> A = s24.from_scipy(scipy.sparse.eye_array(8, format="csr"), dtype="float16")
    >>> A.nnz, A.dtype.name
    (8, 'float16')
    """
    dense = convert.densify(convert.as_numbers(m, dtype), argument="m")
    return compress(dense, on_excess=on_excess, dtype=dtype)


def random(shape, *, dtype="float32", rng=None, device="cpu") -> Sparse24Array:
    """Return a random 2:4 array: two normal values at random positions of every group.

    Parameters
    ----------
    shape : tuple of int
        Shape (..., m, k).
    dtype : dtype, default float32
        int8 draws integers from -100 to 100.
    rng : numpy.random.Generator or int, optional
        Source of randomness or a seed.
    device : str, default "cpu"
        Where the array goes: ``"cpu"``, ``"cuda"`` or ``"cuda:<index>"``.

    Returns
    -------
    Sparse24Array

    Raises
    ------
    ShapeError, DTypeError, ArgumentError, DeviceError
        If an argument does not fit, or the device is not there.

    Notes
    -----
    Made on the host and copied, so that a seed gives the same array on every device.

    Examples
    --------
    >>> import sparse24 as s24
    >>> A = s24.random((3, 8), rng=0)
    >>> A.density, s24.is_24(A.toarray())
    (0.5, True)
    """
    from sparse24.kernels import cpu

    wanted = _dtypes.lookup(dtype)
    shape = _check.sizes(shape, argument="shape")
    rng = _check.generator(rng)
    scores = rng.random(shape)
    if wanted.name == "int8":
        x = rng.integers(-100, 101, shape).astype(np.int8)
    else:
        x = rng.standard_normal(shape).astype(np.float32).astype(wanted.logical)
    x[x == 0] = 1  # rounding to fp8 makes zeros, too
    return compress(cpu.prune(x, scores)).to_device(device)
