"""2:4 linear layers in JAX, for eager use: forward and a derivative of its own.

>>> import jax, jax.numpy as jnp
>>> from sparse24.jax import linear
>>> x, weight = jnp.ones((3, 8)), jnp.arange(32.0).reshape(4, 8)
>>> linear(x, weight).shape
(3, 4)
>>> jax.grad(lambda w: linear(x, w).sum())(weight).shape
(4, 8)

JAX arrays are seen as NumPy or CuPy arrays.  Inside ``jax.jit`` and ``jax.vmap`` there are no
arrays yet, nor inside ``jax.checkpoint`` and gradients of gradients, so these raise; JAX code
around the layer may be jitted.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse24 import _arrays, _check, functional
from sparse24._errors import ShapeError, UnsupportedError
from sparse24._prune import mask as choose_mask
from sparse24._train_rule import Rule, checked_rule

__all__ = ["linear", "mask"]


def linear(
    x, weight, bias=None, *, mask=None, gradient: str = "ste", transposable: bool = False,
    decay: float = 0.0, seed: int = 0, step: int = 0,
):  # fmt: skip
    """``x @ prune(weight).T + bias`` with a 2:4 weight; differentiable by `jax.grad`.

    Parameters
    ----------
    x : jax.Array, shape (..., k)
    weight : jax.Array, shape (m, k)
        Dense; pruned on the way.
    bias : jax.Array, shape (m,) or (1, m), optional
    mask : jax.Array of bool, shape (m, k), optional
        The elements to keep; without it the largest magnitudes.
    gradient, transposable, decay, seed, step
        See `sparse24.functional.linear` and `linear_backward`.

    Returns
    -------
    jax.Array, shape (..., m)

    Raises
    ------
    UnsupportedError
        Inside ``jax.jit`` or ``jax.vmap``.
    ShapeError
        If the shapes do not fit.
    PatternError
        If `mask` is not 2:4, as in `sparse24.functional.pack`.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from sparse24.jax import linear
    >>> weight = jnp.array([[1.0, 2, 3, 4]])
    >>> linear(jnp.ones((1, 4)), weight)
    Array([[7.]], dtype=float32)
    >>> jax.grad(lambda w: linear(jnp.ones((1, 4)), w).sum())(weight)
    Array([[1., 1., 1., 1.]], dtype=float32)
    """
    rule = checked_rule(gradient, transposable, decay, seed)
    step = _check.whole(step, argument="step", least=0)
    for name, given in (("x", x), ("weight", weight), ("bias", bias), ("mask", mask)):
        if given is not None or name in ("x", "weight"):
            _check.is_array(given, argument=name)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"x must have shape (..., k) and weight (m, k), got {x.shape} and {weight.shape}"
        )
    return _linear(x, weight, bias, mask, rule, step)


def mask(x, *, transposable: bool = False):
    """Where `linear` keeps elements of a weight: `sparse24.mask` for JAX arrays, a constant to
    `jax.grad`.

    Parameters
    ----------
    x : jax.Array, shape (m, k)
    transposable : bool

    Returns
    -------
    jax.Array of bool, shape (m, k)

    Raises
    ------
    UnsupportedError
        Inside ``jax.jit`` or ``jax.vmap``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from sparse24.jax import mask
    >>> mask(jnp.array([[1.0, 2, 3, 4]]))
    Array([[False, False,  True,  True]], dtype=bool)
    """
    _check.is_array(x, argument="x")
    return _mask(x, transposable)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _mask(x, transposable: bool):
    return _back(choose_mask(_view(x), transposable=transposable))


@_mask.defjvp
def _(transposable: bool, primals, tangents):
    kept = _mask(*primals, transposable)
    return kept, np.zeros(kept.shape, jax.dtypes.float0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _linear(x, weight, bias, mask, rule: Rule, step: int):
    return _forward(x, weight, bias, mask, rule, step)[0]


def _forward(x, weight, bias, mask, rule: Rule, step: int):
    views = [None if a is None else _view(a) for a in (x, weight, bias, mask)]
    y, saved = functional.linear(*views[:3], mask=views[3], transposable=rule.transposable)
    return _back(y), _Residual(saved, [None if a is None else a.dtype for a in (x, weight, bias)])


def _backward(rule: Rule, step: int, residual: _Residual, dy):
    saved = residual.saved
    dx, dweight, dbias = functional.linear_backward(
        _view(dy), saved, gradient=rule.gradient, decay=rule.decay, seed=rule.seed, step=step
    )
    flat = None if saved.mask is None else np.zeros(saved.mask.shape, jax.dtypes.float0)
    pairs = zip((dx, dweight, dbias), residual.dtypes, strict=True)  # as those of JAX's own
    return *(None if g is None else _back(g).astype(dtype) for g, dtype in pairs), flat


_linear.defvjp(_forward, _backward)


@jax.tree_util.register_static
class _Residual:
    """What forward saves, as one object that JAX hands on unopened; equal only to itself."""

    def __init__(self, saved: functional.Saved, dtypes: list):
        self.saved = saved
        self.dtypes = dtypes  # of x, the weight and the bias


def _view(x: Any) -> Any:
    """The array's memory as NumPy or CuPy sees it."""
    if isinstance(x, jax.core.Tracer):
        raise UnsupportedError(
            "sparse24.jax works on arrays, eagerly, and has first derivatives; call it outside "
            "jax.jit, jax.vmap, jax.checkpoint and gradients of gradients; what is around it may "
            "be jitted"
        )
    if isinstance(x, jax.Array) and next(iter(x.devices())).platform == "gpu":
        if x.dtype == jnp.bfloat16:
            bits = jax.lax.bitcast_convert_type(x, jnp.uint16)
            return _arrays.cupy_module().from_dlpack(bits).view(x.dtype)
        return _arrays.cupy_module().from_dlpack(x)
    return np.asarray(x)


def _back(x: Any) -> jax.Array:
    if _arrays.is_cupy(x):
        if x.dtype == jnp.bfloat16:
            return jax.lax.bitcast_convert_type(jnp.from_dlpack(x.view(np.uint16)), jnp.bfloat16)
        return jnp.from_dlpack(x)
    return jnp.asarray(x)
