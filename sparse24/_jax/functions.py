"""Functions of NumPy or CuPy arrays as operations of JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sparse24 import _check, _devices, _foreign
from sparse24._errors import DTypeError, ShapeError
from sparse24._jax.arrays import back, view
from sparse24._jax.calls import Work, is_traced, traced


def call(function: Callable[..., Any], result: Any, *arrays: Any) -> Any:
    """Run a function of NumPy or CuPy arrays on arrays of JAX, also in compiled code.

    Parameters
    ----------
    function : callable
        Takes an array of NumPy, or of CuPy on a GPU, for each of `arrays`, which it must not write
        to, and returns one for each leaf of `result`.  It must be pure: compiled code may call it
        more often, or less.  It works on CuPy's current stream, and need not wait for it.
    result : jax.ShapeDtypeStruct, or a tree of them
        Shapes and types of what it returns.
    arrays : jax.Array
        Any number of them.

    Returns
    -------
    jax.Array, or a tree of them like `result`

    Raises
    ------
    ShapeError, DTypeError
        If the function returns something else than `result` says; in compiled code as an error of
        JAX with its words.
    UnsupportedError
        Within ``jax.jit`` before JAX 0.6.1, and where a derivative is asked for; give it one by
        `jax.custom_vjp`.

    Notes
    -----
    fp8 is carried as bits in ``uint8`` on a GPU, and such bits of a function become the fp8 that
    `result` names.  Arrays and results are whole, whatever axes of a mesh split the arrays.
    `jax.vmap` calls the function for one element after the other; outside of ``jax.jit`` it
    compiles that anew for each new function object.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, numpy as np, sparse24 as s24
    >>> experts = s24.random((2, 8, 16), rng=0)
    >>> @jax.jit
    ... def up(x, offsets):
    ...     y = jax.ShapeDtypeStruct((len(x), 8), x.dtype)
    ...     of_experts = lambda x, offsets: s24.grouped_linear(x, experts, offsets=offsets)
    ...     return s24.jax.call(of_experts, y, x, offsets)
    >>> up(jnp.ones((5, 16)), jnp.array([0, 2, 5])).shape
    (5, 8)
    """
    leaves, tree = jax.tree_util.tree_flatten(result)
    wanted = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    operands = [_operand(x) for x in arrays]
    if is_traced(*operands):
        work = _Function(_hashable(function), tuple(wanted))
        return jax.tree_util.tree_unflatten(tree, traced(work, wanted, *operands))
    views = [view(x) for x in operands]  # held until `back` has waited
    with _devices.on_device_of(*views):
        found = zip(_made(function, wanted, views), wanted, strict=True)
        made = [_typed(back(x, *operands), y.dtype) for x, y in found]
    return jax.tree_util.tree_unflatten(tree, made)


def _operand(x: Any) -> Any:
    """An array, also of what becomes one, such as a number."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return x
    return _foreign.take(x, argument="each of arrays")[0]


def _hashable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; one without a hash, such as an object that defines ``==``, is wrapped."""
    try:
        hash(function)
    except TypeError:
        return functools.partial(function)
    return function


@dataclass(frozen=True)
class _Function(Work):
    """A function of arrays that returns its results."""

    function: Callable[..., Any]
    wanted: tuple[Any, ...]

    def __call__(self, outs: Sequence[Any], *views: Any) -> None:
        for out, x in zip(outs, _made(self.function, self.wanted, views), strict=True):
            out[...] = _typed(x, out.dtype)


def _made(function, wanted, views) -> list[Any]:
    """What the function returns, if it is what was said."""
    made = jax.tree_util.tree_leaves(function(*views))
    if len(made) != len(wanted):
        raise ShapeError(
            f"function must return {len(wanted)} arrays, as result says, got {len(made)}"
        )
    for x, expected in zip(made, wanted, strict=True):
        _check.is_array(x, argument="what function returns")
        if tuple(x.shape) != tuple(expected.shape):
            raise ShapeError(
                f"function must return an array of shape {tuple(expected.shape)}, as result says, "
                f"got {tuple(x.shape)}"
            )
        if x.dtype != expected.dtype and not _carries(x.dtype, expected.dtype):
            raise DTypeError(
                f"function must return an array of {np.dtype(expected.dtype).name}, as result "
                f"says, got {x.dtype}; convert it with .astype()"
            )
    return made


def _typed(x: Any, dtype: Any) -> Any:
    """An array that a function returned, as fp8 where it holds the bits of that."""
    return x.view(dtype) if _carries(x.dtype, dtype) else x


def _carries(carrier: Any, dtype: Any) -> bool:
    return carrier == np.uint8 and np.dtype(dtype).name.startswith("float8")
