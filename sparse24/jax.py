"""2:4 products and linear layers in JAX, with derivatives of their own.

>>> import jax, jax.numpy as jnp
>>> from sparse24.jax import linear
>>> x, weight = jnp.ones((3, 8)), jnp.arange(32.0).reshape(4, 8)
>>> linear(x, weight).shape
(3, 4)
>>> jax.grad(lambda w: linear(x, w).sum())(weight).shape
(4, 8)

JAX arrays are seen as NumPy or CuPy arrays.  Within ``jax.jit``, ``jax.vmap``, ``jax.checkpoint``
and the like, which need JAX 0.6.1, compiled code calls Python for each of these operations, with
its own memory and, on a GPU, on its own stream; nothing goes by way of the host.  There an error
of the operation, such as for a mask that is not 2:4, is one of JAX that holds its words.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from sparse24 import _check, _devices, functional
from sparse24._dtypes import numpy_dtype
from sparse24._errors import ArgumentError, ShapeError
from sparse24._jax_arrays import back, view
from sparse24._jax_axes import vary, varying
from sparse24._jax_calls import is_traced
from sparse24._jax_products import call, common, matmul
from sparse24._prune import mask as choose_mask
from sparse24._train_rule import Rule, checked_rule

__all__ = ["call", "linear", "mask", "matmul"]


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
    ShapeError, ArgumentError
        If the shapes or an option do not fit.
    PatternError
        If `mask` is not 2:4, as in `sparse24.functional.pack`.
    UnsupportedError
        Within ``jax.jit`` before JAX 0.6.1, and for a second derivative.

    Notes
    -----
    The weight is packed at each call; within ``jax.jit`` and the like backward packs it again, and
    `step` is a constant.  A weight that does not change is compressed once, for `matmul`.

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
    if is_traced(step):
        raise ArgumentError(
            "step must be a whole number, which is a constant of compiled code, got a tracer of "
            "JAX; name it in static_argnums of jax.jit, which compiles anew for each, or call "
            "linear outside of compiled code"
        )
    step = _check.whole(step, argument="step", least=0)
    for name, given in (("x", x), ("weight", weight), ("bias", bias), ("mask", mask)):
        if given is not None or name in ("x", "weight"):
            _check.is_array(given, argument=name)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"x must have shape (..., k) and weight (m, k), got {x.shape} and {weight.shape}"
        )
    axes = varying(x, weight, bias, mask)  # a weight that is the same everywhere has one gradient
    return _linear(*(vary(a, axes) for a in (x, weight, bias, mask)), rule, step)


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

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from sparse24.jax import mask
    >>> mask(jnp.array([[1.0, 2, 3, 4]]))
    Array([[False, False,  True,  True]], dtype=bool)
    """
    _check.is_array(x, argument="x")
    # Without a tangent _mask needs none, and within shard_map a tangent would have to vary as it.
    return _mask(jax.lax.stop_gradient(x), transposable)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _mask(x, transposable: bool):
    choose = functools.partial(choose_mask, transposable=transposable)
    return call(choose, jax.ShapeDtypeStruct(x.shape, bool), x)


@_mask.defjvp
def _(transposable: bool, primals, tangents):
    kept = _mask(*primals, transposable)
    return kept, np.zeros(kept.shape, jax.dtypes.float0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _linear(x, weight, bias, mask, rule: Rule, step: int):
    return _forward(x, weight, bias, mask, rule, step)[0]


def _forward(x, weight, bias, mask, rule: Rule, step: int):
    if is_traced(x, weight, bias, mask):
        return _traced_forward(x, weight, bias, mask, rule), (x, weight, bias, mask)
    views = [None if a is None else view(a) for a in (x, weight, bias, mask)]
    with _devices.on_device_of(*views):
        y, saved = functional.linear(*views[:3], mask=views[3], transposable=rule.transposable)
        return back(y), _Residual(saved, _results(x, weight, bias))


def _backward(rule: Rule, step: int, residual: Any, dy):
    if not isinstance(residual, _Residual):
        return _traced_backward(rule, step, residual, dy)
    saved, results = residual.saved, residual.results
    grads = call(_Gradients(rule, step, saved, results), results, dy)
    return *grads, *[None] * (3 - len(grads)), _of_mask(saved.mask)


def _traced_forward(x, weight, bias, mask, rule: Rule):
    def multiply(x, weight, *rest):
        b, m = _sorted(rest, bias, mask)
        return functional.linear(x, weight, b, mask=m, transposable=rule.transposable)[0]

    y = jax.ShapeDtypeStruct((*x.shape[:-1], weight.shape[0]), numpy_dtype(common(x, weight)))
    return call(multiply, y, x, weight, *_given(bias, mask))


def _traced_backward(rule: Rule, step: int, operands: tuple, dy):
    x, weight, bias, mask = operands
    results = _results(x, weight, bias)

    def differentiate(dy, x, weight, *rest):
        b, m = _sorted(rest, bias, mask)
        packed = functional.pack(weight, mask=m, transposable=rule.transposable)
        saved = functional.Saved(x, weight, m, packed, None if b is None else b.shape)
        return _Gradients(rule, step, saved, results)(dy)

    grads = call(differentiate, results, dy, x, weight, *_given(bias, mask))
    return *grads, *[None] * (3 - len(grads)), _of_mask(mask)


class _Gradients:
    """Those of x, the weight and, if there is one, the bias, in their types."""

    def __init__(self, rule: Rule, step: int, saved: functional.Saved, results: list):
        self._saved, self._results = saved, results
        self._how: dict[str, Any] = {
            "gradient": rule.gradient, "decay": rule.decay, "seed": rule.seed, "step": step,
        }  # fmt: skip

    def __call__(self, dy: Any) -> list[Any]:
        grads = _given(*functional.linear_backward(dy, self._saved, **self._how))
        pairs = zip(grads, self._results, strict=True)
        return [g.astype(like.dtype, copy=False) for g, like in pairs]


def _results(x: Any, weight: Any, bias: Any) -> list[jax.ShapeDtypeStruct]:
    """What backward gives: gradients like these."""
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _given(x, weight, bias)]


def _given(*arrays: Any) -> list[Any]:
    return [a for a in arrays if a is not None]


def _sorted(rest: tuple, *arrays: Any) -> list[Any]:
    """`rest` at the places of the arrays that there are."""
    left = iter(rest)
    return [None if a is None else next(left) for a in arrays]


def _of_mask(mask: Any) -> Any:
    return None if mask is None else np.zeros(mask.shape, jax.dtypes.float0)


_linear.defvjp(_forward, _backward)


@jax.tree_util.register_static
class _Residual:
    """What forward saves, as one object that JAX hands on unopened; equal only to itself."""

    def __init__(self, saved: functional.Saved, results: list[jax.ShapeDtypeStruct]):
        self.saved, self.results = saved, results
