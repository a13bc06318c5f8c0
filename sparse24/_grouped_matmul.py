"""Products of mixture-of-experts layers: `grouped_matmul` and `grouped_linear`."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from sparse24 import (
    _check,
    _cuda_graphs,
    _dispatch,
    _foreign_streams,
    _gradients,
    _overlap,
    _product,
    _replay,
)
from sparse24._errors import ArgumentError, DTypeError, ShapeError, UnsupportedError
from sparse24._grouped import dispatch as grouped_dispatch
from sparse24._grouped import fuse as grouped_fuse
from sparse24._grouped import offsets as grouped_offsets
from sparse24._grouped import replay as grouped_replay
from sparse24._grouped.product import Grouped
from sparse24._matmul import embedded
from sparse24._options import NO_OPTIONS, Call, Epilogue
from sparse24._records import Operand24
from sparse24._target import Result, restored
from sparse24.formats.base import SparseArray
from sparse24.formats.products_24 import Products24


def grouped_matmul(
    As, b, /, out=None, *, offsets, dtype=None, b_dtype=None, scales=None, fast_accumulation=True
):
    """Multiply each expert's matrix by its own tokens, as in a mixture-of-experts layer.

    ``out[:, i0:i1] = As[i] @ b[:, i0:i1]`` with ``i0, i1 = offsets[i], offsets[i + 1]``.

    Parameters
    ----------
    As : Sparse24Array, Quantised24Array or NMArray, shape (e, m, k)
        A matrix for each of e experts, groups along the last axis; in n:m those that 2:4 can hold,
        such as 1:4.
    b : array, shape (k, t)
        Tokens as columns, sorted by expert.  The fast layout is that of a transposed (t, k)
        array: each token's elements are contiguous.
    out : array, shape (m, t), optional
        Where to write the result; any strides.  Must not overlap an operand.  By default it is
        stored token by token, as the transpose of a (t, m) array in C order.
    offsets : array or list of integers, shape (e + 1,)
        Tokens ``offsets[i]`` to ``offsets[i + 1]`` belong to expert i, which may have none.  The
        first one is 0, the last one t, and none is less than the one before.  On the host, or on
        a GPU as int32 or int64.
    dtype : dtype, optional
        Type of the result, as in `matmul`.
    b_dtype : dtype, optional
        Logical type of a `b` that carries fp8 bits as ``uint8``.
    scales : pair, optional
        A factor of `As` and one of `b`, each a number, an array or None: of shape (e,) or (e, m),
        one for each expert or each of its rows; of shape (t,), one for each token.
    fast_accumulation : bool, default True
        For fp8 on Hopper, as in `matmul`.

    Returns
    -------
    array, shape (m, t)
        In the library of `b` (NumPy, CuPy, torch, JAX); `out`, if that is given.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError
        If operands, offsets or `out` do not fit.
    UnsupportedError
        If the groups of `As` run along the axis of its rows, no kernel stores the `dtype`, or the
        capture of a CUDA graph would have to copy offsets from or to the host.

    Notes
    -----
    Enqueues on CuPy's current stream (torch's for torch tensors).  Offsets on the host are
    validated, and the call does not wait.  Offsets on a GPU are not read by the host and so not
    validated: the kernel clamps them to [0, t], so that nothing outside of the arrays is touched,
    and columns that no expert owns keep undefined values.  A captured CUDA graph reads them anew
    at each replay.

    For types of 16 and 8 bits (fp8 from compute capability 8.9 on) one launch serves all experts.
    A `b` or an `out` of another layout, such as C order, goes through a copy.  Other types take one
    product for each expert that has tokens.  For these, offsets on a GPU are copied to the host,
    which waits, and validated; a graph can only be captured with offsets on the host, which it
    keeps.  The first product of an `NMArray` converts it, which waits.

    Types are promoted, and sums accumulated, as in `matmul`.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> As = s24.random((3, 8, 16), rng=0)
    >>> tokens = np.ones((16, 5), np.float32)
    >>> y = s24.grouped_matmul(As, tokens, offsets=[0, 2, 2, 5])    # 2, 0 and 3 tokens
    >>> np.allclose(y[:, :2], As[0] @ tokens[:, :2]), np.allclose(y[:, 2:], As[2] @ tokens[:, 2:])
    (True, True)
    """
    _gradients.refuse(b, "b")
    _gradients.refuse(out, "out")
    _gradients.refuse_options(None, None, scales)
    call = _call_of(dtype=dtype, other_dtype=b_dtype, scales=scales)
    if not _check.flag(fast_accumulation, argument="fast_accumulation"):
        call = call._replace(fast_accumulation=False)
    return _multiplied(As, b, out, offsets, call, by_rows=False)


def grouped_linear(
    x, As, bias=None, *, offsets, activation=None, gated=False, scales=None, dtype=None,
    x_dtype=None,
):  # fmt: skip
    """The linear layers of experts on their tokens: ``x[i0:i1] @ As[i].T + bias[i]``.

    As `grouped_matmul`, with tokens as rows; ``i0, i1 = offsets[i], offsets[i + 1]``.  Scales,
    bias, activation and gate are applied before the result is rounded and stored.

    Parameters
    ----------
    x : array, shape (t, k)
        Tokens, sorted by expert.
    As : Sparse24Array, Quantised24Array or NMArray, shape (e, m, k)
        The weights, as for `grouped_matmul`.
    bias : array, shape (e, m), optional
        On the device of the operands.
    offsets : array or list of integers, shape (e + 1,)
        As for `grouped_matmul`.
    activation : {None, "relu", "relu2", "gelu", "gelu_tanh", "silu"}
        See `Epilogue`.
    gated : bool, default False
        With ``y = x[i0:i1] @ As[i].T + bias[i]``, the result is
        ``activation(y[:, :m // 2]) * y[:, m // 2:]``, as in layers with SwiGLU: `As` has the rows
        of the gate over those of the other projection, which is often called *up*.
    scales : pair, optional
        A factor of `x` and one of `As`, each a number, an array or None: of shape (t,), one for
        each token; of shape (e,) or (e, m), one for each expert or each of its rows.
    dtype : dtype, optional
        Type of the result, as in `matmul`.
    x_dtype : dtype, optional
        Logical type of an `x` that carries fp8 bits as ``uint8``.

    Returns
    -------
    array, shape (t, m), or (t, m / 2) if gated
        In the library of `x`, in C order.

    Raises
    ------
    ShapeError, DTypeError, DeviceError, ArgumentError, UnsupportedError
        As `grouped_matmul`.

    Notes
    -----
    Waits where `grouped_matmul` does.  Biases and scales in float32 are read where they are;
    others, and a scale for each expert, are converted at each call.  A gate is part of the one
    launch if it has a multiple of 64 rows; otherwise, and where there is no such launch, the
    product of the whole `As` is stored first, in float32.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> As = s24.compress(np.stack([np.eye(4), 2 * np.eye(4)]))
    >>> s24.grouped_linear(np.ones((3, 4)), As, np.array([[0.] * 4, [5.] * 4]), offsets=[0, 1, 3])
    array([[1., 1., 1., 1.],
           [7., 7., 7., 7.],
           [7., 7., 7., 7.]])

    The gate and the other projection of a layer of experts in one product:

    >>> gate_and_up = s24.random((2, 256, 64), rng=0)
    >>> x = np.ones((3, 64), np.float32)
    >>> s24.grouped_linear(x, gate_and_up, offsets=[0, 1, 3], activation="silu", gated=True).shape
    (3, 128)
    """
    _gradients.refuse(x, "x")
    _gradients.refuse(bias, "bias")
    _gradients.refuse_options(None, None, scales)
    options = {"dtype": dtype, "other_dtype": x_dtype, "scales": scales}
    return linear_of_experts(x, As, bias, offsets, activation, gated=gated, **options)


def linear_of_experts(x, As, bias, offsets, activation, *, gated, **options):
    """`grouped_linear` for operators of torch, which know gradients by themselves."""
    call = _call_of(**options)
    if bias is not None or activation is not None:
        call = call._replace(epilogue=Epilogue(bias=bias, activation=activation))
    gated = _check.flag(gated, argument="gated")
    return _multiplied(As, x, None, offsets, call, by_rows=True, gated=gated)


def _call_of(**options) -> Call:
    """The call with these options, and `NO_OPTIONS` itself without."""
    given = {name: value for name, value in options.items() if value is not None}
    return NO_OPTIONS._replace(**given) if given else NO_OPTIONS


def _multiplied(As, x, out, offsets, call: Call, *, by_rows: bool, gated: bool = False):
    """A product, by the prepared launch of an earlier call like it if there is one.

    `by_rows`: tokens are the rows of `x` and of the result, not the columns.
    """
    As = embedded(As)
    a = _experts(As)
    key = grouped_replay.signature(x, out, offsets, call, by_rows=by_rows, gated=gated)
    known = _replay.find(As._plans, key, x)
    if known is not None:
        return known(x, out, offsets)
    call = _product.with_own_type(call, x)
    with _foreign_streams.stream_of(x):
        with _cuda_graphs.keeping(a.rows, x):
            tokens, restore, _ = _product.taken(x, a, call, "x" if by_rows else "b")
        _check_tokens(tokens.shape, a.shape, by_rows=by_rows)
        prepared = _prepared(a, tokens, out, offsets, call, by_rows=by_rows, gated=gated)
        with prepared as (product, types):
            bind = grouped_dispatch.fill(product, call, types, As._plans)
        made = product.out.T if by_rows else product.out
        result = restored(made, restore, call) if out is None else out
    if key is not None and bind is not None:
        given = x, result, offsets
        grouped_replay.remember(As._plans, key, bind, product, given, call, by_rows=by_rows)
    return result


def _check_tokens(shape: tuple[int, ...], of_experts: tuple[int, ...], *, by_rows: bool) -> None:
    k = of_experts[2]
    if len(shape) == 2 and shape[1 if by_rows else 0] == k:
        return
    if by_rows:
        raise ShapeError(
            f"x must have shape (t, k), with k = {k} as As of shape {of_experts}, got "
            f"{tuple(shape)}; fold other axes of tokens by x.reshape(-1, k)"
        )
    raise ShapeError(
        f"b must have shape (k, t), with k = {k} as As of shape {of_experts}, got "
        f"{tuple(shape)}; tokens are its columns"
    )


def _experts(As) -> Operand24:
    """The matrices of the experts, stored along their rows."""
    if not isinstance(As, Products24):
        way_out = (
            "compress the stacked weights, sparse24.compress(w), or numpy.stack those of single "
            "experts"
        )
        if isinstance(As, SparseArray):
            way_out = "multiply the tokens of each expert by its own matrix, with sparse24.linear"
        raise DTypeError(
            "As must be a Sparse24Array, Quantised24Array or NMArray that 2:4 can hold, of shape "
            f"(e, m, k), got {_check.shown(As)}; {way_out}"
        )
    if As.ndim != 3:
        raise ShapeError(
            f"As must have shape (e, m, k), a matrix for each expert, got {As.shape}; for a single "
            "matrix use matmul"
        )
    if As._operand.rows is None:
        raise UnsupportedError(
            "As must have its groups along the last axis, got axis=-2; pass As.mT if that is the "
            "weight, or compress with transposable=True"
        )
    return As._operand


def explained(As, b, out, offsets, call: Call, *, gated: bool) -> tuple[str, str]:
    """What would multiply, and why, for the options of `grouped_matmul`; nothing runs."""
    a, call = _experts(embedded(As)), _product.with_own_type(call, b)
    with _foreign_streams.stream_of(b):
        tokens, _, _ = _product.taken(b, a, call, "b")
        _check_tokens(tokens.shape, a.shape, by_rows=False)
        prepared = _prepared(a, tokens, out, offsets, call, by_rows=False, gated=gated)
        with prepared as (product, types):
            return grouped_dispatch.explained(product, call, types)


@contextlib.contextmanager
def _prepared(a: Operand24, tokens, out, offsets, call: Call, *, by_rows: bool, gated: bool):
    """Check the rest of a call; a context that gives the product and its types.

    What is allocated inside is kept for a CUDA graph, if one is captured.
    """
    b = tokens.T if by_rows else tokens
    types = Result.of(a, b, out, call, (_rows(a, gated=gated), b.shape[1]))
    if out is None:  # token by token
        target = replace(types, shape=types.shape[::-1]).allocate(None).T
    else:
        target = types.allocate(None)
        _dispatch.refuse_overlap("out", target, a, b)
    with _cuda_graphs.keeping(a.rows, target):
        offsets = grouped_offsets.taken(offsets, a.shape[0], b.shape[1], like=b)
        if out is not None and _overlap.shares_memory(target, offsets):
            raise ArgumentError(_dispatch.OVERLAP.format("out"))
        epilogue = grouped_fuse.fused(call, a, b.shape[1], types.name, by_rows=by_rows)
        yield Grouped(a, b, target, offsets, types.fitted(epilogue, None), gated), types


def _rows(a: Operand24, *, gated: bool) -> int:
    """Rows of the result, if tokens are its columns."""
    rows = a.shape[1]
    if gated and rows % 2:
        raise ShapeError(
            "As must have an even number of rows with gated=True, of which the first half are a "
            f"gate for the others, got {a.shape}"
        )
    return rows // 2 if gated else rows
