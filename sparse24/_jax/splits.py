"""Arrays that are split over explicit axes of a mesh, which their types say.

To a callback arrays are whole.  So work on arrays that are split is done within ``jax.shard_map``,
by each device for its own tokens and its own rows of the weight; groups are never cut.  Results are
split as JAX splits those of dense products, and so are gradients, as each step here has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from sparse24 import _spec
from sparse24._errors import ArgumentError, UnsupportedError

Parts = tuple[Any, ...]  # for each axis of an array the axes of the mesh that split it, or None


def mesh_of(*arrays: Any) -> Any:
    """The mesh that has explicit axes, if one of the arrays is split over some of them."""
    if not hasattr(jax.sharding, "reshard"):  # before JAX 0.7
        return None
    _refuse_mapped()
    kinds = [jax.typeof(x).sharding for x in arrays if hasattr(x, "aval")]
    mesh = next((kind.mesh for kind in kinds if any(kind.spec)), None)
    if mesh is not None and any(kind.name == "Manual" for kind in mesh.axis_types):
        raise UnsupportedError(
            "within jax.shard_map over some axes of a mesh, arrays must not be split over others "
            "that are explicit; name all of them in axis_names of jax.shard_map"
        )
    return mesh


def _refuse_mapped() -> None:
    """Within ``jax.vmap`` over an axis that is split, types do not say so, and splits are lost."""
    try:
        from jax._src.core import get_axis_env  # JAX has no public name for it
    except ImportError:
        return
    axes = getattr(get_axis_env(), "explicit_mesh_axis_names", ())
    if axes:
        raise UnsupportedError(
            f"jax.vmap must not map over an axis that the mesh splits over {sorted(axes)}; leave "
            "the axis to linear and matmul, whose x may have any number of them, or put the array "
            "together by jax.sharding.reshard first"
        )


def of_dense(function: Callable[..., Any], *arrays: Any) -> Parts:
    """How JAX splits the result of a dense function of these arrays."""
    try:
        (found,) = jax.make_jaxpr(function)(*arrays).out_avals
    except Exception as error:
        if type(error).__name__ != "ShardingTypeError":
            raise
        raise ArgumentError(
            "operands must be split over the mesh as those of a dense product in JAX, which says: "
            f"{error}; split them otherwise by jax.sharding.reshard"
        ) from error
    return _parts(found.sharding.spec, found.ndim)


def _parts(spec: PartitionSpec, ndim: int) -> Parts:
    return (*spec, *[None] * (ndim - len(spec)))


def on_shards(
    function: Callable[..., Any], mesh: Any, given: Sequence[tuple[Any, Parts]], made: Parts,
    wanted: Parts,
):  # fmt: skip
    """``function(*arrays)`` on the parts of arrays.

    Parameters
    ----------
    given : sequence of (array or None, parts)
        How the function takes each.
    made, wanted : tuple
        How the function makes its result, and how the caller wants it.
    """
    arrays = [None if x is None else _resplit(x, mesh, parts) for x, parts in given]
    specs = tuple(PartitionSpec(*parts) for _, parts in given)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    names = {name for name, kind in kinds if kind.name == "Explicit"}
    shards = jax.shard_map(
        function, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(*made), axis_names=names
    )
    return _resplit(shards(*arrays), mesh, wanted)


def as_split(x: Any, mesh: Any, other: Any) -> Any:
    """An array, split as another one of its shape."""
    return _resplit(x, mesh, _parts(jax.typeof(other).sharding.spec, other.ndim))


def _resplit(x: Any, mesh: Any, parts: Parts) -> Any:
    now = _parts(jax.typeof(x).sharding.spec, x.ndim)
    return (
        x if now == parts else jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*parts)))
    )


def times_weight(function: Callable[..., Any], mesh: Any, operands: Sequence[Any], rule: Any):
    """A linear layer ``function(x, weight, bias, mask, clock)`` on the parts of arrays.

    Samples of gradients are drawn of whole arrays, as the parts would all draw the same.
    """
    x, weight, bias, mask, clock = operands
    wanted = of_dense(_dense_layer, x, weight, bias, mask)
    *lead, rows = wanted
    if rule.samples:
        lead, rows = [None] * len(lead), None
    elif rule.transposable and weight.shape[0] % (_spec.GROUP * _count(mesh, rows)):
        rows = None  # tiles would be cut
    matrix = rows, None
    vector = () if bias is None else (*[None] * (bias.ndim - 1), rows)
    takes = [(x, (*lead, None)), (weight, matrix), (bias, vector), (mask, matrix), (clock, ())]
    return on_shards(function, mesh, takes, (*lead, rows), wanted)


def _count(mesh: Any, axes: Any) -> int:
    """Into how many parts these axes split."""
    names = () if axes is None else axes if isinstance(axes, tuple) else (axes,)
    count = 1
    for name in names:
        count *= mesh.shape[name]
    return count


def _dense_layer(x, weight, bias, mask):
    x, weight = x.astype(jnp.float32), weight.astype(jnp.float32)
    y = x @ (weight if mask is None else jnp.where(mask, weight, 0)).T
    return y if bias is None else y + bias.reshape(-1)


def times_array(function: Callable[..., Any], mesh: Any, x: Any, shape: Parts, turned: bool):
    """A product ``function(x)`` with a sparse array of a shape, which no axis splits.

    A stack of sparse arrays is multiplied by all of x on each device.
    """

    def dense(x, other):
        x = x.astype(jnp.float32)
        return x @ other if turned else other @ x

    kind = NamedSharding(mesh, PartitionSpec(*_stack_parts(x, shape)))
    wanted = of_dense(dense, x, jax.ShapeDtypeStruct(shape, jnp.float32, sharding=kind))
    if len(shape) > 2:
        parts, made = (None,) * x.ndim, (None,) * len(wanted)
    else:
        parts, made = _without_inner(x, turned), wanted
    return on_shards(function, mesh, [(x, parts)], made, wanted)


def _stack_parts(x: Any, shape: Parts) -> Parts:
    """As if the stack were split as that of x is, which JAX asks for."""
    own = _parts(jax.typeof(x).sharding.spec, x.ndim)[:-2]
    stack = zip(reversed(shape[:-2]), reversed(own), reversed(x.shape[:-2]))
    parts = [axes if n == size else None for n, axes, size in stack]
    return (*[None] * (len(shape) - 2 - len(parts)), *reversed(parts), None, None)


def _without_inner(x: Any, turned: bool) -> Parts:
    parts = list(_parts(jax.typeof(x).sharding.spec, x.ndim))
    parts[-1 if turned or x.ndim == 1 else -2] = None
    return tuple(parts)


def by_groups(function: Callable[..., Any], mesh: Any, x: Any, transposable: bool):
    """A function of groups along the last axis, or of 4x4 tiles, whose result is like x."""
    wanted = _parts(jax.typeof(x).sharding.spec, x.ndim)
    inner = 2 if transposable else 1
    parts = (*wanted[:-inner], *[None] * inner)
    return on_shards(function, mesh, [(x, parts)], parts, wanted)
