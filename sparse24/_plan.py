"""`plan`, which prepares a product, and `autotune`, which measures the fastest kernel."""

from __future__ import annotations

import contextlib
import numbers
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from sparse24 import (
    _arrays,
    _autotune,
    _check,
    _devices,
    _foreign,
    _foreign_streams,
    _gradients,
    _product,
    _tuning_cache,
)
from sparse24._errors import ArgumentError, DeviceError
from sparse24._explain import explained
from sparse24._matmul import check_algorithm, embedded
from sparse24._named_operands import made, without_dtype
from sparse24._options import NO_OPTIONS, Call
from sparse24._promotion import promoted_integers
from sparse24._target import Result, restored
from sparse24.formats.base import SparseArray, densified
from sparse24.formats.products_24 import Products24


class MatmulPlan:
    """A product prepared for one signature: chosen, compiled, ready to run.

    Made by `plan`.

    Attributes
    ----------
    candidates : tuple of Candidate
        What could run, fastest prediction first.
    chosen : str
        What runs, unless tuning finds a faster one later.
    explanation : Explanation
        What `explain` says of it.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> p = s24.plan(s24.random((64, 32), rng=0), ((32, 8), np.float32))
    >>> p
    <MatmulPlan: cpu_sparse, 0 candidates>
    """

    def __init__(self, a: Products24, b, out_order: str, b_dtype, options: dict):
        self._a = a
        call = Call(**options, other_dtype=b_dtype)
        self._call = NO_OPTIONS if call.is_plain else call
        self._out_order = out_order
        self._execute(b)  # compiles, lays out the launch, and within `autotune` measures first
        out, restore = _column_out(a, b, call) if out_order == "column" else (None, None)
        self.explanation = explained(a, b, out if restore is None else restore(out), call)
        self.candidates = self.explanation.candidates
        self.chosen = self.explanation.chosen

    def execute(self, b, out=None):
        """Multiply by an array of the shape, dtype, order and alignment of the plan.

        Any other `b` is multiplied as by `matmul` with the options of the plan, of which the type
        of fp8 is one.  Enqueues on CuPy's current stream and does not wait.

        Parameters
        ----------
        b : array, shape (k, n)
        out : array, shape (m, n), optional

        Returns
        -------
        array, shape (m, n)
            `out`, if that is given.

        Raises
        ------
        ShapeError, DTypeError, DeviceError, ArgumentError
            As `matmul`.
        """
        _gradients.refuse(b, "b")
        _gradients.refuse(out, "out")
        _gradients.refuse_options(self._call.c, self._call.epilogue, self._call.scales)
        return self._execute(b, out)

    def _execute(self, b, out=None):
        if out is None and self._out_order == "column":
            return _by_columns(self._a, densified(b), self._call)
        return self._a._multiply(b, out, self._call)

    def __repr__(self) -> str:
        return f"<MatmulPlan: {self.chosen}, {len(self.candidates)} candidates>"


def _by_columns(a: Products24, b, call: Call):
    """``a @ b`` in an array of column order."""
    call = _product.with_own_type(call, b)
    with _foreign_streams.stream_of(b):
        out, restore = _column_out(a, b, call)
        if restore is None:
            return a._multiply(b, None, call)
        if _arrays.is_jax(b):  # whose arrays cannot be written to
            product = a._multiply(_foreign.take(b, argument="b")[0], out, call)
            return restored(product, restore, call)
        return a._multiply(b, restored(out, restore, call), call)


def _column_out(a: Products24, b, call: Call) -> tuple[Any, Callable[[Any], Any] | None]:
    """An array of column order for ``a @ b``, and the way to the library of b.

    Neither for a vector, which has no order.
    """
    array, restore = _foreign.take(b, argument="b")
    if array.ndim < 2:
        return None, None
    array = promoted_integers(array, a._dtype, call.other_dtype, argument="b")
    _product.check_inner(a.shape, array.shape)
    shape = (*_product.batch_of(a._operand, array), array.shape[-1], a.shape[-2])
    types = Result.of(a._operand, array, None, call, shape)
    return types.allocate(None).swapaxes(-1, -2), restore


def plan(
    a, b_spec, *, dtype=None, epilogue=None, algorithm="auto", out_order="row", b_dtype=None
) -> MatmulPlan:
    """Choose and compile the kernel of ``matmul(a, b)`` before there is a `b`.

    Parameters
    ----------
    a : Sparse24Array, Quantised24Array, or NMArray that 2:4 can hold, such as 1:4, shape (m, k)
    b_spec : array or (shape, dtype)
        An array like the coming ones, or its shape and dtype (row order).
    dtype, epilogue, algorithm
        As for `matmul`.
    out_order : {"row", "column"}
        Memory order of the result; ``"column"`` for ``x @ a.T``, which is computed as the
        transpose of ``a @ x.T``: pass ``x.T``, and transpose the result.
    b_dtype : dtype, optional
        fp8 type of a `b` that carries its bits as ``uint8``, as in CuPy; not needed if `b_spec`
        names it.

    Returns
    -------
    MatmulPlan

    Raises
    ------
    ArgumentError, ShapeError, DTypeError, UnsupportedError
        As `matmul` of an operand like `b_spec`.

    Notes
    -----
    Multiplies `b_spec`, or zeros, once, so that nothing is compiled later, nor laid out, except for
    float32 in bfloat16 pieces, once these are made, and for a matrix that is converted at each
    call.  An `aux` of the epilogue is written then, too.
    This takes up to two seconds for a kernel that no process has compiled before.  Does not wait
    for the device.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A = s24.random((64, 32), rng=0)
    >>> p = s24.plan(A, ((32, 8), np.float32))
    >>> p.execute(np.ones((32, 8), np.float32)).shape
    (64, 8)

    A linear layer, ``x @ A.T``:

    >>> x = np.ones((8, 32), np.float32)
    >>> p = s24.plan(A, x.T, out_order="column")
    >>> y = p.execute(x.T).T
    >>> y.shape, y.flags.c_contiguous
    ((8, 64), True)
    """
    a = embedded(a)
    if not isinstance(a, Products24):
        way_out = "make one with sparse24.compress"
        if isinstance(a, SparseArray):
            way_out = "arrays of other formats compile their kernels in the first product"
        if isinstance(b_spec, Products24):
            way_out = "x @ A.T is the transpose of A @ x.T: plan(A, x.T, out_order='column')"
        if hasattr(a, "to_array"):  # a packed weight of torch
            way_out = "pass its .to_array()"
        if hasattr(b_spec, "to_array"):
            way_out = "x @ W.T: plan(W.to_array(), x.T, out_order='column')"
        raise ArgumentError(
            f"a must be a Sparse24Array or Quantised24Array, got {type(a).__name__}; {way_out}"
        )
    _check.one_of(out_order, ("row", "column"), argument="out_order")
    check_algorithm(algorithm)
    options = {"dtype": dtype, "epilogue": epilogue, "algorithm": algorithm}
    with _devices.on_device(a.device):
        b, b_dtype = _example(a, b_spec, b_dtype)
        return MatmulPlan(a, b, out_order, b_dtype, options)


def _example(a: Products24, b_spec, b_dtype):
    """An array like those that a plan is for, and what its bits mean if that must be said."""
    if isinstance(b_spec, numbers.Number):
        raise without_dtype(a, (a.shape[-1], b_spec), b_spec, argument="b_spec")
    if not isinstance(b_spec, tuple):
        own = _foreign.with_float8(b_spec, b_dtype)
        return _foreign.take(b_spec, argument="b_spec")[0], own
    if len(b_spec) != 2:
        raise ArgumentError(f"b_spec must be an array, or its shape and dtype, got {b_spec!r}")
    if isinstance(b_spec[1], numbers.Integral):
        raise without_dtype(a, b_spec, b_spec, argument="b_spec")
    return made(a, b_spec, b_dtype, argument="b_spec")


@contextlib.contextmanager
def autotune(enabled: bool = True, *, cache=None) -> Iterator[None]:
    """Measure every new product inside the block, and remember the fastest kernel.

    The first product with given sizes, types and layouts runs all candidates whose prediction
    is close to the best, checks each against the reference kernel (one with wrong results
    cannot win), and takes the median of interleaved rounds; it synchronises.  As layers do in a
    model, calls follow one another, each with another copy of the sparse operand: up to four, or
    three times the L2 cache.  Winners are used by all later calls, inside the block and after it.
    Whether a quantised matrix multiplies by its integers or dequantised is predicted; what is
    measured is the fastest tile for that.
    Products of a `HybridArray`, grouped products of one launch, products that a CUDA graph
    captures, and those of other threads, such as torch's in a backward pass, are not measured.

    Parameters
    ----------
    enabled : bool, default True
        ``False`` makes the block do nothing.
    cache : path, optional
        A tuning file: read at the start, written at the end.  A file of another GPU,
        driver or version is ignored and left alone, with a `RuntimeWarning`.

    Raises
    ------
    DeviceError
        If no GPU is there.
    ArgumentError
        If `cache` is not a path that a file can be written to.

    Examples
    --------
    >>> import numpy as np, sparse24 as s24
    >>> A, x = s24.random((64, 32), rng=0), np.ones((32, 8), np.float32)
    >>> with s24.autotune(enabled=A.device != "cpu"):    # here on the CPU, so nothing is measured
    ...     y = A @ x
    >>> y.shape
    (64, 8)
    """
    if not _check.flag(enabled, argument="enabled"):
        yield
        return
    if not _arrays.cuda_available():
        raise DeviceError(f"autotune measures on a GPU, but {_arrays.why_no_cuda()}")
    device = _arrays.cupy_module().cuda.Device().id
    file = None if cache is None else _tuning_cache.named(cache)
    if file is not None:
        _tuning_cache.merge(file, device)
    try:
        with _autotune.measuring():
            yield
    finally:
        if file is not None and not _tuning_cache.write(file, device, replace=False):
            warnings.warn(
                f"what was measured is not written: {file} belongs to another GPU, driver or "
                "version, or is not a complete tuning file; name another one, or remove it",
                RuntimeWarning,
                stacklevel=3,
            )
