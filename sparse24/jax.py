"""2:4 products and linear layers in JAX, with derivatives of their own.

>>> import jax, jax.numpy as jnp
>>> from sparse24.jax import linear
>>> x, weight = jnp.ones((3, 8)), jnp.arange(32.0).reshape(4, 8)
>>> linear(x, weight).shape
(3, 4)
>>> jax.grad(lambda w: linear(x, w).sum())(weight).shape
(4, 8)

JAX arrays are viewed as NumPy or CuPy arrays.  Outside of compiled code, a call waits for a result
on a GPU, which is copied into memory of JAX.  Within ``jax.jit``, ``jax.vmap``, ``jax.checkpoint``
and the like, which need JAX 0.6.1, compiled code calls Python for each of these operations, with
its own memory and, on a GPU, on its own stream; nothing goes by way of the host.  There an error
of the operation, such as for a mask that is not 2:4, becomes an error of JAX with its words.
Derivatives are those of reverse mode, as by `jax.grad`, `jax.vjp` and `jax.jacrev`; `jax.jvp`,
`jax.jacfwd` and `jax.linear_transpose` refuse them (so of the solvers of `jax.scipy.sparse.linalg`
only `cg` can multiply by a sparse array), and `jax.export` refuses such calls.

Of arrays that explicit axes of a mesh split, results and gradients are split as those of dense
products; what JAX would refuse there is refused.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparse24 import _arrays, _check, _dtypes
from sparse24._errors import ArgumentError
from sparse24._jax import splits
from sparse24._jax.axes import vary, varying
from sparse24._jax.calls import is_traced
from sparse24._jax.check import check_array
from sparse24._jax.functions import call
from sparse24._jax.linear import linear as _linear
from sparse24._jax.products import matmul
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
        See `sparse24.functional.linear` and `linear_backward`.  In compiled code all but `step`
        are constants; a `step` that is an argument there makes new samples without compiling anew.

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
        Within ``jax.jit`` before JAX 0.6.1, for a second derivative, for fp8 on a GPU, and within
        ``jax.vmap`` over an axis that a mesh splits.

    Notes
    -----
    The weight is packed at each call; within ``jax.jit`` and the like backward packs it again, and
    waits for the GPU where it samples with a `step` that is an argument.  A weight that does not
    change is compressed once, for `matmul`.

    `jax.vmap` over `x` alone packs the weight once and multiplies once, but makes a gradient of the
    weight for each element before JAX adds them up, so give large batches as axes of `x`.

    One call adds its decay once, also where `jax.vmap` maps over `x` alone, or a mesh splits the
    tokens.  Within ``jax.shard_map`` with ``check_vma=False``, which does not tell what devices
    share, each device adds it.

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
    for name, option in (("decay", decay), ("seed", seed)):
        if is_traced(option):
            raise ArgumentError(
                f"{name} must be a number, which is a constant of compiled code, got a tracer of "
                "JAX; close over it, or name it in static_argnums of jax.jit, which compiles anew "
                "for each"
            )
    rule = checked_rule(gradient, transposable, decay, seed)
    step, clock = _step(step)
    _check_arrays(x, weight, bias, mask)
    mesh = splits.mesh_of(x, weight, bias, mask)
    if rule.decay:
        axes = varying(weight, mask)
        kept = mask if mesh is None or mask is None else splits.as_split(mask, mesh, weight)
        weight = _decaying(vary(weight, axes), vary(kept, axes), rule)
        rule = dataclasses.replace(rule, decay=0.0)

    def layer(x, weight, bias, mask, clock):
        axes = varying(
            x, weight, bias, mask
        )  # a weight that is the same everywhere has one gradient
        return _linear(*(vary(a, axes) for a in (x, weight, bias, mask)), clock, rule, step)

    operands = x, weight, bias, mask, clock
    return layer(*operands) if mesh is None else splits.times_weight(layer, mesh, operands, rule)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _decaying(weight, mask, rule: Rule):
    """The weight, to whose gradient the decay is added.

    Apart from the layer: JAX adds up the weight's gradients of elements and of devices, and those
    of one pass have one decay.
    """
    return weight


def _decaying_forward(weight, mask, rule: Rule):
    return weight, (weight, mask)


def _decaying_backward(rule: Rule, residual, gradient):
    weight, given = residual
    kept = mask(weight, transposable=rule.transposable) if given is None else given
    wide = _dtypes.lookup(weight.dtype).accumulator
    decay = rule.decay * jnp.where(kept, 0, weight).astype(wide)
    decayed = (gradient.astype(wide) + decay).astype(weight.dtype)
    return decayed, None if given is None else np.zeros(given.shape, jax.dtypes.float0)


_decaying.defvjp(_decaying_forward, _decaying_backward)


def _step(step: Any) -> tuple[int, Any]:
    """A step as a number, or, if it is traced, as an array."""
    if not is_traced(step):
        return _check.whole(step, argument="step", least=0), None
    if step.shape or step.dtype.kind not in "iu":
        raise ArgumentError(
            f"step must be a whole number from 0 on, got an array of {step.dtype} and shape "
            f"{step.shape}; pass one integer"
        )
    return 0, step


def _check_arrays(x: Any, weight: Any, bias: Any, mask: Any) -> None:
    """Refuse by shapes and types, which compiled code knows while it is traced."""
    for name, given in (("x", x), ("weight", weight), ("bias", bias), ("mask", mask)):
        if given is not None or name in ("x", "weight"):
            check_array(given, argument=name)
    _check.layer_shapes(x.shape, weight.shape)
    for name, given in (("x", x), ("weight", weight)):
        _dtypes.lookup(given.dtype, argument=f"{name}.dtype")
    if bias is not None:
        _check.bias(bias, weight.shape[0])
        _arrays.check_real(bias, argument="bias")
    if mask is not None:
        _check.same_shape(mask.shape, weight.shape, argument="mask", other="weight")
        _check.boolean(mask)


def mask(x, *, transposable: bool = False):
    """Where `linear` keeps elements of a weight: `sparse24.mask` for JAX arrays.

    A constant to `jax.grad`.

    Parameters
    ----------
    x : jax.Array, shape (..., k), or (..., m, k) if transposable
    transposable : bool
        Choose by 4x4 tiles, as `linear` does with this option.

    Returns
    -------
    jax.Array of bool, shape of `x`

    Raises
    ------
    ShapeError, DTypeError, ArgumentError
        If `x` has too few axes or a type that sparse24 does not store, or the option is unknown.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from sparse24.jax import mask
    >>> mask(jnp.array([[1.0, 2, 3, 4]]))
    Array([[False, False,  True,  True]], dtype=bool)
    """
    check_array(x, argument="x")
    transposable = _check.flag(transposable, argument="transposable")
    _dtypes.lookup(x.dtype, argument="x.dtype")
    at_least = _check.at_least_2d if transposable else _check.at_least_1d
    at_least(x.shape, argument="x")
    # Without a tangent _mask needs none, and within shard_map a tangent would have to vary as it.
    x, mesh = jax.lax.stop_gradient(x), splits.mesh_of(x)
    choose = functools.partial(_mask, transposable=transposable)
    return choose(x) if mesh is None else splits.by_groups(choose, mesh, x, transposable)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _mask(x, transposable: bool):
    name = np.dtype(x.dtype).name
    choose = _chooser(transposable, name if name.startswith("float8") else None)
    return call(choose, jax.ShapeDtypeStruct(x.shape, bool), x)


@functools.cache
def _chooser(transposable: bool, dtype: str | None):
    """The function of arrays, of which a type of fp8 may be seen as bits; JAX compiles it once."""
    return functools.partial(choose_mask, transposable=transposable, dtype=dtype)


@_mask.defjvp
def _(transposable: bool, primals, tangents):
    kept = _mask(*primals, transposable)
    return kept, np.zeros(kept.shape, jax.dtypes.float0)
