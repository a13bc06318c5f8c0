"""The public products: `matmul`, `linear` and their `Epilogue`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparse24 import _arrays, _check, _dtypes, _foreign, _product
from sparse24 import _records as records
from sparse24._errors import ArgumentError, ShapeError
from sparse24.formats.base import SparseArray
from sparse24.formats.two_four import Sparse24Array

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True)
class Epilogue:
    """What happens to a product before it is stored, in one pass.

    For element (i, j) of the result::

        x   = alpha * alpha_vector * scales * (a @ b)[i, j] + beta * c[i, j] + bias
        aux = x
        out = out_scale * activation(x)

    Attributes
    ----------
    bias : array, optional
        Shape (n,) or (1, n) adds to columns, (m, 1) to rows.
    activation : {None, "relu", "relu2", "gelu", "gelu_tanh", "silu"}
        ``relu2`` is the square of relu; ``gelu`` uses erf, ``gelu_tanh`` its usual
        approximation.
    alpha_vector : array, optional
        Factors of the product, shaped like `bias`.
    out_scale : float, default 1
        Factor of the result, for instance before it is rounded to fp8 or int8.
    lower, upper : float
        relu only: values at or below `lower` become 0, values above `upper` become it.
    aux : array, optional
        Receives the value before the activation; shape and dtype of the result.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.compress(np.eye(4, dtype=np.float32))
    >>> e = s24.Epilogue(bias=np.array([[-1.], [0.], [1.], [2.]]), activation="relu")
    >>> s24.matmul(A, np.zeros((4, 2), np.float32), epilogue=e)[:, 0]
    array([0., 0., 1., 2.], dtype=float32)
    """

    bias: Any = None
    activation: str | None = None
    alpha_vector: Any = None
    out_scale: float = 1.0
    lower: float = 0.0
    upper: float = float("inf")
    aux: Any = None


def matmul(
    a, b, /, out=None, *, c=None, alpha=1.0, beta=0.0, dtype=None, epilogue=None, scales=None,
    algorithm="auto", a_dtype=None, b_dtype=None, fast_accumulation=True,
):  # fmt: skip
    """Multiply, sparsely where an operand is 2:4: ``alpha * (a @ b) + beta * c``.

    Parameters
    ----------
    a, b : Sparse24Array or array
        Shapes (..., m, k) and (..., k, n); 1-D operands and batch axes as in
        `numpy.matmul`.  Plain arrays of which one obeys 2:4 are compressed at each call,
        which waits for the device; nothing is ever pruned.  Whoever multiplies twice
        compresses once.
    out : array, optional
        Where to write the result; any strides.  Must not overlap an operand.
    c : array, optional
        Added with factor `beta`; shape and dtype of the result.
    alpha, beta : float
        Factors.
    dtype : dtype, optional
        Type of the result.  By default that of the operands; int8 gives int32 and fp8
        gives bfloat16.
    epilogue : Epilogue, optional
        Bias, activation and scales in the same pass.
    scales : (array or float, array or float), optional
        Factors of `a` and of `b`: a number, or a vector of shape (m, 1) for `a` and
        (1, n) for `b`; the scales of quantised fp8 and int8 operands.
    algorithm : str, default "auto"
        A kernel's name, or ``"kernel/config"``, as `explain` lists them; ``"dense"``
        decompresses.
    a_dtype, b_dtype : dtype, optional
        Logical type of a plain operand that carries fp8 bits as ``uint8``.
    fast_accumulation : bool, default True
        fp8 on Hopper: keep sums inside the tensor core (14 bits of mantissa).  ``False``
        moves them to float32 at short intervals.

    Returns
    -------
    array
        In the library of the dense operand (NumPy, CuPy, torch, JAX).

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        If operands do not fit; the message gives both.
    UnsupportedError
        If the named `algorithm` cannot multiply this.

    Notes
    -----
    Enqueues on CuPy's current stream (torch's for torch tensors) and does not wait, save
    for plain operands.  Sums are in float32 for 16-bit and 8-bit floats, in the operands'
    type otherwise, in int32 for int8.  Where the dense operand holds inf or NaN against a
    pruned place, the result may be either NaN or not.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((8, 16), rng=0)
    >>> x = np.ones((16, 3), np.float32)
    >>> np.allclose(s24.matmul(A, x), A.toarray() @ x)
    True
    """
    given = (out, c, dtype, epilogue, scales, a_dtype, b_dtype)
    plain = alpha == 1.0 and algorithm == "auto" and fast_accumulation
    if plain and all(argument is None for argument in given):
        if isinstance(a, Sparse24Array):
            return a._multiply(b)
        if isinstance(b, Sparse24Array):
            return b._multiply_from_left(a)
    if not isinstance(a, SparseArray) and not isinstance(b, SparseArray):
        a, b = _one_sparse(a, b, a_dtype, b_dtype)
    if isinstance(a, SparseArray) and isinstance(b, SparseArray):
        b = b.toarray()
    sparse, other = (a, b) if isinstance(a, SparseArray) else (b, a)
    if not isinstance(sparse, SparseArray):
        return _dense(a, b, out, c, alpha, beta, dtype, epilogue, scales)
    if not isinstance(sparse, Sparse24Array):
        return _other_format(a, b, out, c, alpha, beta, dtype, epilogue, scales)
    target = None if out is None else _foreign.take(out, argument="out")[0]
    options = _product.Options(
        target, _fuse(a, b, c, alpha, beta, epilogue, scales), dtype,
        b_dtype if sparse is a else a_dtype, algorithm, fast_accumulation,
    )  # fmt: skip
    if sparse is a:
        result = _product.multiply(a._operand, other, options, a._plans)
    else:
        result = _product.multiply_from_left(other, b._operand, options, b._plans)
    return result if out is None else out


def linear(x, A, bias=None, *, activation=None):
    """A layer's product ``activation(x @ A.T + bias)``, fused.

    Parameters
    ----------
    x : array, shape (..., k)
    A : Sparse24Array, shape (m, k)
        The weight, compressed along its rows.
    bias : array, shape (m,), optional
    activation : str, optional
        As in `Epilogue`.

    Returns
    -------
    array, shape (..., m)

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> W = s24.compress(np.eye(3, 4, dtype=np.float32))
    >>> s24.linear(np.array([1, -2, 3, 4], np.float32), W, activation="relu")
    array([1., 0., 3.], dtype=float32)
    """
    if bias is None and activation is None:
        return matmul(x, A.mT)
    return matmul(x, A.mT, epilogue=Epilogue(bias=bias, activation=activation))


def _one_sparse(a, b, a_dtype, b_dtype):
    """Plain operands: compress the first that obeys 2:4 along the contracted axis."""
    from sparse24._obeys import is_24

    if _capturing(a) or _capturing(b):
        return a, b  # a check would wait for the device, which a capture forbids
    from sparse24._compress import compress

    for x, axis, row, other in ((a, -1, a_dtype, b), (b, -2, b_dtype, a)):
        array, _ = _foreign.take(x)
        wide_enough = array.ndim >= 2 and min(array.shape[-2:]) > 1
        if wide_enough and array.dtype in _known_dtypes(row) and is_24(array, axis=axis):
            packed = compress(array, axis=axis, dtype=row, check=False)
            return (packed, other) if x is a else (other, packed)
    return a, b


def _known_dtypes(named) -> tuple[np.dtype, ...]:
    rows = _dtypes.TABLE.values()
    known = tuple(row.logical for row in rows)
    return (*known, np.dtype(np.uint8)) if named is not None else known


def _capturing(x) -> bool:
    if not _arrays.is_cupy(x):
        return False
    cupy = _arrays.cupy_module()
    return cupy.cuda.get_current_stream().is_capturing()


def _dense(a, b, out, c, alpha, beta, dtype, epilogue, scales):
    """Neither operand is sparse: NumPy's or CuPy's own product."""
    if epilogue is not None or scales is not None:
        raise ArgumentError("epilogue= and scales= need a sparse operand; see sparse24.compress")
    a, restore_a = _foreign.take(a, argument="a")
    b, restore_b = _foreign.take(b, argument="b")
    xp = _arrays.namespace(a)
    result = xp.matmul(a, b)
    result = result if alpha == 1.0 else alpha * result
    result = result if c is None or beta == 0.0 else result + beta * _foreign.take(c)[0]
    result = result if dtype is None else result.astype(dtype)
    if out is None:
        return (restore_a if restore_a is not _foreign.identity else restore_b)(result)
    _foreign.take(out)[0][...] = result
    return out


def _other_format(a, b, out, c, alpha, beta, dtype, epilogue, scales):
    """Formats that multiply by their own rules: only the plain product is defined."""
    if epilogue is not None or scales is not None:
        raise ArgumentError("epilogue= and scales= are for Sparse24Array operands")
    result = a @ b
    result = result if alpha == 1.0 else alpha * result
    result = result if c is None or beta == 0.0 else result + beta * c
    result = result if dtype is None else result.astype(dtype)
    if out is None:
        return result
    out[...] = result
    return out


def _fuse(a, b, c, alpha, beta, epilogue, scales) -> records.Epilogue:
    """All factors, biases and the activation as one record."""
    plain = alpha == 1.0 and epilogue is None and scales is None and (c is None or beta == 0.0)
    if plain:
        return records.PLAIN
    e = epilogue if epilogue is not None else Epilogue()
    if e.activation is not None:
        _check.one_of(e.activation, ACTIVATIONS, argument="activation")
    m, n = _matrix_shape(a, -2), _matrix_shape(b, -1)
    xp, real = _vectors_of(a, b)
    row_bias, column_bias, _ = _vector("bias", e.bias, m, n, xp, real)
    row, column, factor = _vector("alpha_vector", e.alpha_vector, m, n, xp, real)
    for name, scale in zip(("scales[0]", "scales[1]"), scales or (), strict=False):
        more_row, more_column, more = _vector(name, scale, m, n, xp, real)
        row, column = _times(row, more_row), _times(column, more_column)
        factor *= more
    take = lambda x, name: None if x is None else _foreign.take(x, argument=name)[0]  # noqa: E731
    return records.Epilogue(
        float(alpha) * factor, float(beta), take(c, "c") if beta else None, row, column, row_bias,
        column_bias, e.activation or "identity", e.lower, e.upper, float(e.out_scale),
        take(e.aux, "aux"),
    )  # fmt: skip


def _matrix_shape(x, axis: int) -> int:
    shape = tuple(x.shape)
    return 1 if len(shape) < 2 else int(shape[axis])


def _vectors_of(a, b):
    """Library and type of the epilogue's vectors: float64 only beside float64 operands."""
    sparse = a if isinstance(a, SparseArray) else b
    xp = np if sparse.device == "cpu" else _arrays.cupy_module()
    return xp, np.float64 if sparse.dtype == np.float64 else np.float32


def _times(x, y):
    if x is None or y is None:
        return x if y is None else y
    return x * y


def _vector(name: str, x, m: int, n: int, xp, real):
    """(row vector, column vector, number) of a factor or bias; two of them neutral."""
    if x is None:
        return None, None, 1.0
    if np.isscalar(x):
        if name == "bias":
            return None, xp.full(n, x, real), 1.0
        return None, None, float(x)  # type: ignore[arg-type]
    x, _ = _foreign.take(x, argument=name)
    if x.size == 1 and x.ndim == 0:
        return _vector(name, xp.broadcast_to(xp.asarray(x), (n,)), m, n, xp, real)
    vector = xp.ascontiguousarray(xp.asarray(x).reshape(-1).astype(real, copy=False))
    if x.shape in ((n,), (1, n)):
        return None, vector, 1.0
    if x.shape == (m, 1):
        return vector, None, 1.0
    raise ShapeError(
        f"{name} must have shape ({n},) or (1, {n}) for columns or ({m}, 1) for rows, got {x.shape}"
    )
