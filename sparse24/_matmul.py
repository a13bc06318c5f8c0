"""The public products: `matmul` and `linear`."""

from __future__ import annotations

import math

from sparse24 import (
    _arrays,
    _check,
    _dtypes,
    _foreign,
    _gradients,
    _other_formats,
    _plain_operands,
)
from sparse24._errors import ArgumentError, DTypeError, ShapeError
from sparse24._options import NO_OPTIONS, Call, Epilogue
from sparse24._promotion import promoted_integers
from sparse24.formats import hybrid_products
from sparse24.formats.base import SparseArray, densified, one_dense
from sparse24.formats.hybrid import HybridArray
from sparse24.formats.n_m import NMArray
from sparse24.formats.products_24 import Products24
from sparse24.formats.windows import Windows24

OURS = (SparseArray, Windows24)  # what multiplies by itself


def matmul(
    a, b, /, out=None, *, c=None, alpha=1.0, beta=None, dtype=None, epilogue=None, scales=None,
    algorithm="auto", a_dtype=None, b_dtype=None, fast_accumulation=True, precision="full",
):  # fmt: skip
    """Multiply, sparsely where an operand is 2:4: ``alpha * (a @ b) + beta * c``.

    Parameters
    ----------
    a, b : Sparse24Array, Quantised24Array, NMArray, HybridArray, Windows24 or array
        Shapes (..., m, k) and (..., k, n); 1-D operands and batch axes as in
        `numpy.matmul`.  Of two plain arrays, one that obeys 2:4 is compressed at each call,
        which waits for the device; if neither does, the product is dense.  Nothing is ever
        pruned.  Use `compress` for an operand of more than one product.  NumPy or CuPy multiplies
        two plain arrays if one has a type that sparse24 does not store, as int64 or complex128.
    out : array, optional
        Where to write the result; any strides.  Must not overlap an operand.
    c : array, optional
        Array to add, with factor `beta`, which must be named; shape and dtype of the result.  May
        be `out` itself.  Not read where `beta` is 0.
    alpha : float, default 1.0
        Factor of the product.
    beta : float, optional
        Factor of `c`.
    dtype : dtype, optional
        Type of the result: int32, or any type that operands may have, but float64 operands give
        int8 and int32 on the CPU only.  By default that of the operands; int8 gives int32 and fp8
        gives bfloat16.
    epilogue : Epilogue, optional
        Bias, activation and scales in the same pass; for an `NMArray` that 2:4 cannot hold and a
        `HybridArray` in a second pass, over sums in float32.
    scales : (array or float, array or float), optional
        Factors of `a` and of `b`, such as the scales of quantised fp8 and int8 operands:
        numbers, or vectors of shape (m,) or (m, 1) for `a` and (n,) or (1, n) for `b`.
    algorithm : str, default "auto"
        A kernel's name, or ``"kernel/config"``, as `explain` lists them; ``"dense"``
        decompresses.  For 2:4 arrays, and n:m arrays that 2:4 can hold; `HybridArray.matmul` has
        its own, and other formats have no choice.
    a_dtype, b_dtype : dtype, optional
        Logical type of a plain operand that carries fp8 bits as ``uint8``.  For a sparse operand
        it can only be the type that this has.  For the same formats as `algorithm`.
    fast_accumulation : bool, default True
        fp8 on Hopper: keep sums inside the tensor core (14 bits of mantissa).  ``False``
        adds them up in float32 at short intervals.  For the same formats as `algorithm`.
    precision : {"full", "tf32"}
        ``"tf32"`` multiplies a float32 `NMArray` of pattern (1, 2) on the sparse tensor cores
        of Hopper, which round both operands to TF32 (10 bits of mantissa).

    Returns
    -------
    array
        In the library of the dense operand (NumPy, CuPy, torch, JAX); for others with DLPack in
        NumPy or CuPy.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        If operands or options do not fit, or a tensor of torch requires a gradient, which this
        product does not give.
    UnsupportedError
        If the named `algorithm` cannot multiply this, or no kernel stores the `dtype`.

    See Also
    --------
    linear : ``x @ A.T`` with a bias and an activation.
    explain : Which kernel a product runs, and why.
    grouped_matmul : The products of a mixture of experts.

    Notes
    -----
    Enqueues on CuPy's current stream (torch's for torch tensors) and does not wait, except for
    plain operands and in the first product of an `NMArray` or `HybridArray`.  Sums are in float32
    for 16-bit and 8-bit floats, in int32 for int8, and in the operands' type otherwise.  On a GPU a
    float32 product may run as products of bfloat16 pieces, as accurate as FP32; the first one
    stores the pieces of the sparse operand, 1.5 times the bytes of its values, with the array.
    Where the dense operand holds inf or NaN that a pruned element would multiply, the result may or
    may not be NaN.  On a GPU a `HybridArray` of 16 bits rounds its product before a second pass;
    for another `dtype` it keeps a float32 copy of itself, and multiplies with that.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((8, 16), rng=0)
    >>> x = np.ones((16, 3), np.float32)
    >>> np.allclose(s24.matmul(A, x), A.toarray() @ x)
    True
    """
    _gradients.refuse(a, "a")
    _gradients.refuse(b, "b")
    usual = fast_accumulation is True and type(algorithm) is type(precision) is str
    if not (usual and precision == "full"):
        fast_accumulation = _checked_options(algorithm, fast_accumulation, precision)
    if out is not None or c is not None or epilogue is not None or scales is not None:
        _gradients.refuse(out, "out")
        _gradients.refuse_options(c, epilogue, scales)
    if not isinstance(a, OURS) and not isinstance(b, OURS):
        a_dtype, b_dtype = _foreign.with_float8(a, a_dtype), _foreign.with_float8(b, b_dtype)
        a, b = _plain_operands.one_sparse(a, b, a_dtype, b_dtype)
    if precision == "full":
        a, b = embedded(a), embedded(b)
    if type(alpha) is float and beta is None and c is None:
        beta = 0.0
    else:
        alpha, beta = factors(alpha, beta, c)
    other_dtype = named_type(a, b, a_dtype, b_dtype)
    call = Call(c, alpha, beta, dtype, epilogue, scales, algorithm, other_dtype, fast_accumulation)
    call = NO_OPTIONS if call.is_plain else call
    if precision != "full":
        return _other_formats.in_tf32(a, b, out, call)
    a, b = one_dense(a, b) if call.fits_all_formats else (a, b)
    if isinstance(a, Products24):
        return a._multiply(b, out, call)
    if isinstance(b, Products24):
        return b._multiply_from_left(a, out, call)
    if isinstance(a, OURS) or isinstance(b, OURS):
        return _other_formats.multiply(a, b, out, call)
    return _plain_operands.product(a, b, a_dtype, out, call)


def _checked_options(algorithm, fast_accumulation, precision) -> bool:
    """Check three options; returns `fast_accumulation` as True or False."""
    check_algorithm(algorithm)
    _check.one_of(precision, ("full", "tf32"), argument="precision")
    return _check.flag(fast_accumulation, argument="fast_accumulation")


def check_algorithm(name) -> None:
    """Refuse what is no text; which names there are depends on the device and the operands."""
    _check.text(name, argument="algorithm", such_as="'auto' or a name that explain lists")


def factors(alpha, beta, c) -> tuple[float, float]:
    """Both factors as floats; refuses `beta` without an array `c` to add, and `c` without it."""
    if c is not None and beta is None:
        raise ArgumentError("c needs beta, its factor; pass beta=1.0 to add c as it is")
    beta = 0.0 if beta is None else _check.number(beta, argument="beta")
    alpha = _check.number(alpha, argument="alpha")
    if beta and c is None:
        raise ArgumentError(
            f"beta={beta:g} needs c, the array to add; pass c=out to add to what out holds"
        )
    return alpha, beta


def named_type(a, b, a_dtype, b_dtype):
    """The type that is named for the plain operand; a sparse one has no other than its own."""
    if a_dtype is None and b_dtype is None:
        return None
    for argument, x, named in (("a", a, a_dtype), ("b", b, b_dtype)):
        if named is None or not isinstance(x, OURS):
            continue
        if _dtypes.lookup(named, argument=f"{argument}_dtype").logical != x.dtype:
            raise ArgumentError(
                f"{argument}_dtype={named!r} names the type of a plain operand, but {argument} is "
                f"a {type(x).__name__} of {x.dtype.name}; drop it, or convert with .astype()"
            )
    return a_dtype if isinstance(b, SparseArray) else b_dtype


def embedded(x):
    """An n:m array that is a 2:4 matrix, such as 1:4, as `Sparse24Array`; all else unchanged."""
    array = x.embedded() if isinstance(x, NMArray) else None
    return x if array is None else array


def linear(x, A, bias=None, *, activation=None, scales=None, dtype=None, x_dtype=None):
    """The product of a linear layer, ``activation(x @ A.T + bias)``, fused.

    Parameters
    ----------
    x : array, shape (..., k)
    A : Sparse24Array, Quantised24Array, NMArray, HybridArray or Windows24, shape (m, k)
        The weight, with groups along its rows.
    bias : array, shape (m,) or (1, m), or float, optional
    activation : str, optional
        As in `Epilogue`.
    scales : pair, optional
        A factor of `x` and one of `A`, such as the scales of quantised operands, applied before
        the bias: each a number, None or an array, of shape (...,) or (..., 1) with one for each
        token, and of shape (m,) or (1, m) with one for each row of `A`.
    dtype : dtype, optional
        Type of the result, as in `matmul`.
    x_dtype : dtype, optional
        Logical type of an `x` that carries fp8 bits as ``uint8``.

    Returns
    -------
    array, shape (..., m)

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        As `matmul`.

    See Also
    --------
    matmul, grouped_linear
    sparse24.torch.linear, sparse24.jax.linear : With gradients, for a dense weight that learns.

    Notes
    -----
    Does not wait for the device, except in the first product of a `HybridArray` or `NMArray`.
    The kernels of 2:4 fuse the bias and the activation; for a `HybridArray`, and an `NMArray` that
    2:4 cannot hold, they take a second pass, over sums in float32.  On a GPU that pass reads the
    product of a `HybridArray` in its own type: results of 16 bits are then rounded twice, and
    products above 65504 are infinite in float16.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> W = s24.compress(np.eye(3, 4, dtype=np.float32))
    >>> s24.linear(np.array([1, -2, 3, 4], np.float32), W, activation="relu")
    array([1., 0., 3.], dtype=float32)

    Quantised to int8, with a scale for each token and each row of the weight:

    >>> x, W = np.array([[10, 20, 0, 0]], np.int8), s24.compress(np.eye(3, 4, dtype=np.int8))
    >>> s24.linear(x, W, scales=(np.array([0.5]), np.array([1.0, 0.1, 1.0])), dtype="float32")
    array([[5., 1., 0.]], dtype=float32)
    """
    if not isinstance(A, SparseArray):
        _check.is_array(A, argument="A")
        _check.at_least_2d(A.shape, argument="A")
        if _arrays.is_sparse_matrix(A) or not hasattr(A, "mT"):
            A, _ = _foreign.take(A, argument="A")  # refuses most, and says what to make of them
    _gradients.refuse(x, "x")
    _gradients.refuse(bias, "bias")
    if not _check.is_an_array(x):
        x, _ = _foreign.take(x, argument="x")  # a list, say, while its name is known
    shape = x.shape
    _check.not_scalar(shape, argument="x")
    if shape[-1] != A.shape[-1]:
        raise ShapeError(
            f"x must have shape (..., k) and A (m, k), got {tuple(shape)} and {tuple(A.shape)}"
            f"{_turned(shape, A.shape)}"
        )
    plain = bias is None and activation is None
    epilogue = None if plain else Epilogue(bias=bias, activation=activation)
    both = isinstance(x, SparseArray) or _arrays.is_sparse_matrix(x)  # `matmul` makes one dense
    if isinstance(A, HybridArray) and scales is dtype is x_dtype is None and not both:
        call = NO_OPTIONS if plain else NO_OPTIONS._replace(epilogue=epilogue)
        return hybrid_products.linear(A, x, call)
    try:
        if scales is None and dtype is None and x_dtype is None:
            return matmul(x, A.mT, epilogue=epilogue)
        rows, scales = _one_factor_a_row(x, A, scales)
        y = matmul(rows, A.mT, epilogue=epilogue, scales=scales, dtype=dtype, a_dtype=x_dtype)
    except DTypeError:
        _refuse_type(x, A, x_dtype)
        raise
    return y if rows is x else y.reshape((*shape[:-1], A.shape[0]))


def _turned(x: tuple[int, ...], weight: tuple[int, ...]) -> str:
    """Which operand of a linear layer fits transposed, by their shapes."""
    if x[-1] == weight[-2]:
        return "; pass A.mT if the layer computes x @ A"
    return "; pass x.T, as rows are tokens" if len(x) == 2 and x[0] == weight[-1] else ""


def _refuse_type(x, A, x_dtype) -> None:
    """Raise with the name `x` if a product has refused the type of its left operand."""
    if isinstance(A, SparseArray):
        array, _ = _foreign.take(x, argument="x")
        named = _foreign.with_float8(x, x_dtype)
        known = promoted_integers(array, A._dtype, x_dtype, argument="x")
        _arrays.logical_dtype(known, named, argument="x")


def _one_factor_a_row(x, A, scales):
    """Tokens along several axes as rows of one matrix, where each has a scale of its own.

    Not beside a stack of weights, whose axes are not those of rows: `matmul` refuses such scales.
    """
    if not isinstance(scales, tuple | list) or len(scales) != 2:
        return x, scales  # `matmul` says what is wrong with it
    own, lead = scales[0], tuple(x.shape[:-1])
    if isinstance(own, list | tuple):
        own, _ = _foreign.take(own, argument="scales[0]")
    is_of_tokens = tuple(getattr(own, "shape", ())) in (lead, (*lead, 1))
    if len(lead) < 2 or len(A.shape) > 2 or not is_of_tokens:
        return x, scales
    dense = densified(x, A if isinstance(A, SparseArray) else None)
    rows = dense.reshape((math.prod(lead), x.shape[-1]))
    return rows, (own.reshape(-1), scales[1])
