"""Products with sparse arrays as operations of JAX."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse24 import _check, _devices, _dtypes, _product, _target
from sparse24 import _matmul as ours
from sparse24._jax import splits
from sparse24._jax.arrays import at, back, check_numbers, home, of_bits, view
from sparse24._jax.calls import Work, is_traced, traced
from sparse24._jax.check import check_array, not_one_sparse
from sparse24._promotion import promote, result_of
from sparse24.formats.base import SparseArray


def matmul(a, b, *, dtype=None):
    """``a @ b`` with one sparse array, also in compiled code; differentiable in the dense one.

    Parameters
    ----------
    a, b : Sparse24Array, Quantised24Array, NMArray or HybridArray, and jax.Array
        One is sparse, a constant of compiled code: the function closes over it, or names it in
        ``static_argnums``.  Shapes and types as for `sparse24.matmul`.
    dtype : dtype, optional
        Type of the result, as in `sparse24.matmul`.

    Returns
    -------
    jax.Array

    Raises
    ------
    ArgumentError, ShapeError, DTypeError
        If the operands do not fit.
    UnsupportedError
        Within ``jax.jit`` before JAX 0.6.1, for a second derivative, and within ``jax.vmap`` over
        an axis that a mesh splits.

    Notes
    -----
    The derivative is a product with the transposed array, which is a sparse one for an array that
    was compressed with ``transposable=True``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, sparse24 as s24
    >>> A = s24.random((8, 16), rng=0)
    >>> layer = jax.jit(lambda x: jax.nn.relu(s24.jax.matmul(x, A.T)))
    >>> layer(jnp.ones((3, 16))).shape
    (3, 8)
    >>> jax.grad(lambda x: layer(x).sum())(jnp.ones((3, 16))).shape
    (3, 16)
    """
    turned = isinstance(b, SparseArray)
    if turned == isinstance(a, SparseArray):
        raise not_one_sparse(a, b)
    sparse, x = (b, a) if turned else (a, b)
    argument = "a" if turned else "b"
    check_array(x, argument=argument)
    _check.at_least_1d(x.shape, argument=argument)
    factor, mesh = _Factor(sparse, turned, dtype), splits.mesh_of(x)
    product = functools.partial(_multiplied, factor=factor)
    if mesh is None:
        return product(x)
    factor.check(x)
    return splits.times_array(product, mesh, x, sparse.shape, turned)


@dataclass(frozen=True)
class _Factor:
    """The sparse operand of a product: the right one if `turned`, else the left one."""

    sparse: Any
    turned: bool
    dtype: Any

    def times(self, x: Any) -> Any:
        name = self._result(x)
        dtype = _dtypes.numpy_dtype(name)
        if is_traced(x):
            work = _Times(self, x.dtype.name, name)
            return traced(work, [jax.ShapeDtypeStruct(self._shape(x), dtype)], x)[0]
        seen = view(x)  # held until `back` has waited
        with _devices.on_device_of(seen):
            made = back(self.product(seen, x.dtype.name, name), x)
            return of_bits(made, dtype)

    def transposed(self) -> _Factor:
        return _Factor(self.sparse.mT, self.turned, None)

    def product(self, x: Any, kind: str, name: str, out: Any = None) -> Any:
        """That with an array of NumPy or CuPy of a kind, which may be bits, as one of a name."""
        named = kind if x.dtype == np.uint8 else None  # only what is carried as bits has to tell
        if self.turned:
            return ours.matmul(x, self.sparse, out, dtype=name, a_dtype=named)
        return ours.matmul(self.sparse, x, out, dtype=name, b_dtype=named)

    def check(self, x: Any) -> tuple[tuple[int, ...], ...]:
        """The shapes of both operands, if they can be multiplied."""
        shapes = (x.shape, self.sparse.shape) if self.turned else (self.sparse.shape, x.shape)
        _product.check_inner(*shapes)
        return shapes

    def _shape(self, x: Any) -> tuple[int, ...]:
        shapes = self.check(x)
        operands = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
        return jax.eval_shape(jnp.matmul, *operands).shape

    def _result(self, x: Any) -> str:
        """The type of the result; JAX may have no float64."""
        check_numbers(x)
        own = _dtypes.lookup(self.sparse.dtype)
        name = result_of(own, np.dtype(x.dtype), argument="a" if self.turned else "b")
        if self.dtype is not None:
            name = _target.result_name(self.dtype)
        return jax.dtypes.canonicalize_dtype(_dtypes.numpy_dtype(name)).name


@dataclass(frozen=True)
class _Times(Work):
    """A product in compiled code."""

    factor: _Factor
    kind: str
    name: str

    def __call__(self, outs: Sequence[Any], *views: Any) -> None:
        self.factor.product(views[0], self.kind, self.name, outs[0])

    def together(self, lead: int, outs: Sequence[Any], *views: Any) -> bool:
        """Elements are a batch, and vectors the rows or columns of a matrix."""
        if self.factor.sparse.ndim > 2:
            return False
        x, out = views[0], outs[0]
        if x.ndim == lead + 1 and not self.factor.turned:
            count = math.prod(x.shape[:lead])
            x, out = (a.reshape(count, a.shape[-1]).T for a in (x, out))
        self([out], x)
        return True


def common(x: Any, weight: Any) -> str:
    """The name of the type of a product of two operands."""
    types = (
        _dtypes.lookup(operand.dtype, argument=f"{argument}.dtype")
        for argument, operand in (("weight", weight), ("x", x))
    )
    return promote(*types)[0].result


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _multiplied(x, factor: _Factor):
    return factor.times(x)


def _forward(x, factor: _Factor):
    return factor.times(x), _Like(x.shape, x.dtype, home(x))


def _backward(factor: _Factor, like: _Like, dy):
    if len(like.shape) == 1 < dy.ndim:  # of a stack, to which the vectors in dy are one matrix
        axis = -2 if factor.turned else -1
        dx = factor.transposed().times(at(like.home, jnp.expand_dims(dy, axis))).squeeze(axis)
    else:
        dx = factor.transposed().times(at(like.home, dy))
    extra = dx.ndim - len(like.shape)
    spread = [i for i, n in enumerate(like.shape) if n == 1 != dx.shape[extra + i]]
    dx = dx.sum((*range(extra), *(extra + i for i in spread))).reshape(like.shape)
    return (dx.astype(like.dtype),)


_multiplied.defvjp(_forward, _backward)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Like:
    """An operand without its elements."""

    shape: tuple[int, ...]
    dtype: Any
    home: Any
