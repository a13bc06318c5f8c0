"""The linear layer of `sparse24.jax`, as JAX differentiates it.

Where the arrays are there, forward packs the weight and backward uses that; where they are traced,
each is an operation of compiled code that packs it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sparse24 import _devices, functional
from sparse24._dtypes import numpy_dtype
from sparse24._errors import UnsupportedError
from sparse24._jax.arrays import at, back, home, view
from sparse24._jax.calls import Work, elements, is_traced, traced
from sparse24._jax.functions import call
from sparse24._jax.products import common
from sparse24._train_rule import Rule


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def linear(x, weight, bias, mask, clock, rule: Rule, step: int):
    """The layer, of arrays that were checked; a `clock` is a step that is an array."""
    return _forward(x, weight, bias, mask, clock, rule, step)[0]


def _forward(x, weight, bias, mask, clock, rule: Rule, step: int):
    if is_traced(x, weight, bias, mask, clock):
        y = jax.ShapeDtypeStruct((*x.shape[:-1], weight.shape[0]), numpy_dtype(common(x, weight)))
        work = _Layer(rule.transposable, (bias is not None, mask is not None))
        (made,) = traced(work, [y], x, weight, *_given(bias, mask))
        return made, (x, weight, bias, mask, clock)
    views = [None if a is None else view(a) for a in (x, weight, bias, mask)]
    _refuse_bits(x, weight, views)
    with _devices.on_device_of(*views):
        y, saved = functional.linear(*views[:3], mask=views[3], transposable=rule.transposable)
        results, step = _results(x, weight, bias), step if clock is None else int(clock)
        return back(y, x, weight), _Residual(saved, results, step, clock, home(x, weight))


def _refuse_bits(x, weight, views: Sequence[Any]) -> None:
    """Refuse fp8 on a GPU, where arrays are seen as bits without a type."""
    for name, given, seen in zip(("x", "weight"), (x, weight), views, strict=False):
        if seen.dtype != given.dtype:
            raise UnsupportedError(
                f"{name} must not be {np.dtype(given.dtype).name} on a GPU, where layers take only "
                "wider types; multiply by an array of sparse24.compress with sparse24.jax.matmul"
            )


def _backward(rule: Rule, step: int, residual: Any, dy):
    if isinstance(residual, _Residual):
        saved, results, clock = residual.saved, residual.results, residual.clock
        mask, gradients = saved.mask, _Gradients(rule, residual.step, saved, results)
        grads = call(gradients, results, at(residual.home, dy))
    else:
        x, weight, bias, mask, clock = residual
        results, used = _results(x, weight, bias), clock if rule.samples else None
        work = _Slopes(
            rule, step, None if bias is None else tuple(bias.shape),
            (mask is not None, used is not None), tuple(np.dtype(r.dtype) for r in results),
        )  # fmt: skip
        grads = traced(work, results, dy, x, weight, *_given(mask, used))
    return *grads, *[None] * (3 - len(grads)), _without_slope(mask), _without_slope(clock)


linear.defvjp(_forward, _backward)


@dataclass(frozen=True)
class _Layer(Work):
    """The forward pass in compiled code."""

    transposable: bool
    given: tuple[bool, bool]  # a bias, a mask

    def __call__(self, outs: Sequence[Any], *views: Any) -> None:
        x, weight, bias, mask = *views[:2], *_placed(views[2:], self.given)
        y, _ = functional.linear(x, weight, bias, mask=mask, transposable=self.transposable)
        outs[0][...] = y

    def together(self, lead: int, outs: Sequence[Any], *views: Any) -> bool:
        """Elements of x alone are more tokens."""
        same = _same_for_all(lead, *views[1:])
        if same is not None:
            self(outs, views[0], *same)
        return same is not None


@dataclass(frozen=True)
class _Slopes(Work):
    """The backward pass in compiled code."""

    rule: Rule
    step: int
    bias_shape: tuple[int, ...] | None
    given: tuple[bool, bool]  # a mask, a clock
    kinds: tuple[np.dtype, ...]

    def __call__(self, outs: Sequence[Any], *views: Any) -> None:
        dy, x, weight, mask, clock = *views[:3], *_placed(views[3:], self.given)
        self._differentiate(outs, dy, x, clock, weight, mask, self._packed(weight, mask))

    def together(self, lead: int, outs: Sequence[Any], *views: Any) -> bool:
        """One weight is packed once."""
        dy, x, weight, mask, clock = *views[:3], *_placed(views[3:], self.given)
        same = _same_for_all(lead, *_given(weight, mask))
        if same is None:
            return False
        weight, mask = same[0], same[1] if self.given[0] else None
        packed = self._packed(weight, mask)
        for dy_, x_, clock_, *outs_ in elements(lead, dy, x, clock, *outs):
            self._differentiate(outs_, dy_, x_, clock_, weight, mask, packed)
        return True

    def _packed(self, weight: Any, mask: Any) -> tuple[Any, ...]:
        return functional.pack(weight, mask=mask, transposable=self.rule.transposable)

    def _differentiate(self, outs, dy, x, clock, weight, mask, packed) -> None:
        saved = functional.Saved(x, weight, mask, packed, self.bias_shape)
        step = self.step if clock is None else int(clock)  # on a GPU this waits
        results = [jax.ShapeDtypeStruct((), kind) for kind in self.kinds]
        made = _Gradients(self.rule, step, saved, results)(dy)
        for out, gradient in zip(outs, made, strict=True):
            out[...] = gradient


class _Gradients:
    """Those of x, the weight and, if there is one, the bias, in their types."""

    def __init__(self, rule: Rule, step: int, saved: functional.Saved, results: list):
        self._saved, self._results = saved, results
        self._how: dict[str, Any] = {
            "gradient": rule.gradient, "seed": rule.seed, "step": step,
        }  # fmt: skip

    def __call__(self, dy: Any) -> list[Any]:
        grads = _given(*functional.linear_backward(dy, self._saved, **self._how))
        pairs = zip(grads, self._results, strict=True)
        return [g.astype(like.dtype, copy=False) for g, like in pairs]


@jax.tree_util.register_static
class _Residual:
    """What forward saves, as one object that JAX hands on unopened; equal only to itself."""

    def __init__(self, saved: functional.Saved, results: list, step: int, clock: Any, home: Any):
        self.saved, self.results, self.home = saved, results, home
        self.step, self.clock = step, clock


def _results(x: Any, weight: Any, bias: Any) -> list[jax.ShapeDtypeStruct]:
    """What backward gives: gradients like these."""
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _given(x, weight, bias)]


def _given(*arrays: Any) -> list[Any]:
    return [a for a in arrays if a is not None]


def _placed(rest: Sequence[Any], given: Sequence[bool]) -> list[Any]:
    """`rest` at the places where something is given."""
    left = iter(rest)
    return [next(left) if there else None for there in given]


def _same_for_all(lead: int, *views: Any) -> list[Any] | None:
    """The arrays without the axes of maps, if none of them is mapped over."""
    if any(n != 1 for x in views for n in x.shape[:lead]):
        return None
    return [x[(0,) * lead] for x in views]


def _without_slope(x: Any) -> Any:
    return None if x is None else np.zeros(x.shape, jax.dtypes.float0)
