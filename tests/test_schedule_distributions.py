"""Distributions of the scheduler: the total is met exactly, within what a pattern reaches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_cases import SHARE, layers

from sparse24 import schedule as S
from sparse24._errors import ArgumentError
from sparse24._schedule.distributions import round_to_total


@settings(deadline=None, max_examples=60)
@given(SHARE, st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6))
def test_erk_meets_the_total_exactly(sparsity, shapes):
    shapes = {str(i): s for i, s in enumerate(shapes)}
    sizes = {n: math.prod(s) for n, s in shapes.items()}
    shares = S.ERK().shares(sparsity, shapes, {})
    zeros = {n: round(shares[n] * sizes[n]) for n in shapes}
    assert sum(zeros.values()) == math.floor(round(sparsity * sum(sizes.values()), 6))
    assert all(0 <= shares[n] <= 1 for n in shapes)


def test_erk_follows_the_papers_density():
    shapes = {"a": (64, 64), "b": (64, 256)}
    shares = S.ERK().shares(0.9, shapes, {})
    ratio = (1 - shares["a"]) / (1 - shares["b"])
    assert ratio == pytest.approx((128 / 4096) / (320 / 16384), rel=2e-3)


def test_by_speedup_fills_the_best_layer_first():
    seconds = {"a": {0.0: 1.0, 0.5: 0.5, 0.9: 0.45}, "b": {0.0: 1.0, 0.5: 0.9}}
    shapes = {"a": (10, 10), "b": (10, 10)}
    assert S.BySpeedup(seconds).shares(0.25, shapes, {}) == {"a": 0.5, "b": 0.0}
    assert S.BySpeedup(seconds).shares(0.5, shapes, {}) == {"a": 0.5, "b": 0.5}


def test_custom_and_hierarchical():
    shapes = {"enc.a": (8, 8), "enc.b": (8, 24), "dec.a": (16, 16)}
    halved = S.Custom({"dec.*": 0.5}).shares(0.5, shapes, {})
    assert halved == {"enc.a": 0.5, "enc.b": 0.5, "dec.a": 0.25}
    outer = S.Custom(lambda s, blocks: {"enc": 0.25, "dec": 0.75})
    shares = S.Hierarchical(outer, S.ERK()).shares(0.5, shapes, {})
    assert shares["enc.a"] * 64 + shares["enc.b"] * 192 == pytest.approx(64)
    assert shares["dec.a"] == 0.75
    with pytest.raises(ArgumentError, match="rule must name the layers"):
        S.Custom(lambda s, shapes: {}).shares(0.5, shapes, {})


def test_blocks_are_named_by_as_many_parts_as_asked_for():
    shapes = {"a.x.up": (64, 16), "a.x.head": (4, 16), "a.y.up": (64, 16)}
    shares = S.Hierarchical(depth=2).shares(0.5, shapes, {})
    assert shares == {"a.x.up": 0.53125, "a.x.head": 0.0, "a.y.up": 0.5}
    shares = S.Hierarchical(depth=1).shares(0.5, shapes, {})
    assert shares["a.y.up"] == shares["a.x.up"] > 0.5


@pytest.mark.parametrize("outer", [S.Uniform(), S.Custom({"b1": 0.5})])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.77, 1.0])
def test_blocks_of_odd_sizes_lose_no_zeros(outer, sparsity):
    """Each of them rounded down by itself, and the model had a zero less for each block."""
    shapes = {f"b{i}.{name}": (3, 5) for i in range(7) for name in ("up", "down", "gate")}
    shares = S.Hierarchical(outer).shares(sparsity, shapes, {})
    zeros = sum(share * 15 for share in shares.values())
    blocks = outer.shares(sparsity, {f"b{i}": (45,) for i in range(7)}, {})
    assert round(zeros, 6) == math.floor(round(sum(blocks.values()) * 45, 6))


def test_no_share_is_beyond_what_a_pattern_reaches():
    shapes = {"a": (64, 64), "b": (4, 16)}
    assert S.Custom({"b": 2.0}).shares(0.5, shapes, {}, 0.75) == {"a": 0.5, "b": 0.75}
    assert S.ERK().shares(0.9, shapes, {}, 0.75) == {"a": 0.75, "b": 0.75}


@pytest.mark.parametrize(
    ("wanted", "total", "zeros"),
    [
        ((2.9, 4.0), 7, (3, 4)),  # the nearest to the next one rises first
        ((2.9, 4.0), 9, (3, 6)),  # until it has no room
        ((2.9, 4.0), 12, (3, 6)),
        ((3.0, 3.0), 5, (3, 2)),  # the last one gives way
        ((3.0, 4.0), 2, (2, 0)),
    ],
)
def test_zeros_are_rounded_to_a_total(wanted, total, zeros):
    sizes = {"a": 4, "b": 8}
    shares = round_to_total(dict(zip("ab", wanted)), sizes, total, most=0.75)
    assert tuple(shares[name] * sizes[name] for name in "ab") == zeros


def test_adapters_keep_more_where_gradients_are_large(rng):
    weights = layers(rng, busy=(32, 32), calm=(32, 32))
    grads = {"busy": 10 * weights["busy"], "calm": 0.1 * weights["calm"]}
    scheduler = S.DynamicScheduler(0.3, S.CosineScheduler(0.6, stop=4))
    for t in range(6):
        masks = scheduler.step(weights=weights, gradients=grads)
        zeros = {n: int((~m).sum()) for n, m in masks.items()}
        assert sum(zeros.values()) == math.floor(round(scheduler.scheduler.sparsity(t) * 2048, 6))
        assert zeros["busy"] < zeros["calm"]
        assert abs(zeros["busy"] / 1024 - scheduler.sparsity) <= 0.2 + 1e-3


@pytest.mark.parametrize("distribution", [S.Adaptive(), S.ERK(), S.Hierarchical(S.Uniform())])
@pytest.mark.parametrize(
    ("pattern", "target"),
    [(S.Elastic((4, 16)), 0.7), (S.Elastic((4, 16), least=2), 0.45), (S.TileHybrid((8, 16)), 0.9)],
)
def test_layers_stay_within_what_the_pattern_reaches(distribution, pattern, target, rng):
    """Gradients of very different size pull the layers apart, but not beyond the pattern."""
    weights = layers(rng, **{"x.a": (16, 64), "x.b": (16, 64), "x.c": (64, 128)})
    grads = {n: w * (100.0 if n == "x.a" else 1e-3) for n, w in weights.items()}
    ramp = S.CosineScheduler(target, stop=4)
    scheduler = S.MaskScheduler(S.Recipe(ramp, pattern=pattern, distribution=distribution))
    for t in range(6):
        masks = scheduler.step(weights=weights, gradients=grads)
        zeros = sum(int((~m).sum()) for m in masks.values())
        size = sum(m.size for m in masks.values())
        unit = math.prod(pattern.tile) // 2  # a layer rounds down by less than a unit
        assert ramp.sparsity(t) * size - 3 * unit - 1 < zeros <= ramp.sparsity(t) * size + 1e-9
        assert all((~m).mean() <= pattern.most for m in masks.values())


def test_by_speedup_stays_within_what_the_pattern_reaches():
    seconds = {name: {0.0: 1.0, 1.0: 0.1} for name in "ab"}
    shares = S.BySpeedup(seconds).shares(0.5, {"a": (8, 8), "b": (8, 8)}, {}, 0.75)
    assert shares == {"a": 0.75, "b": 0.25}


def test_budgets_of_blocks_do_not_look_at_gradients():
    with pytest.raises(ArgumentError, match="Adaptive does; use it as inner"):
        S.Hierarchical(outer=S.Adaptive())


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_overflow_is_no_statistic_of_a_layer(rng, at, bad):
    adapter, memory, squares = S.LayerWiseAdapter(beta=0.5), {}, []
    for step in range(8):
        gradient = np.full((4, 8), bad if step == at else 1.0 + step)
        memory = adapter.observe(memory, gradient)
        squares.append(float(memory["grad_square"]))
    kept = [1.0 + step for step in range(8) if step != at]
    want = kept[0] ** 2
    for value in kept[1:]:
        want = 0.5 * want + 0.5 * value**2
    assert squares[-1] == want
    assert at == 0 or squares[at] == squares[at - 1]


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_layer_whose_gradients_overflowed_has_the_common_density(bad):
    """As at the first step of a loss scaler: it is not the layer that learns the least."""
    shapes = dict.fromkeys("abc", (64, 64))
    squares = {"a": bad, "b": 1.0, "c": 4.0}
    memory = {name: {"grad_square": np.array(x)} for name, x in squares.items()}
    shares = S.Adaptive().shares(0.5, shapes, memory)
    assert shares["c"] < shares["a"] < shares["b"]
    assert abs(shares["a"] - 0.5) < 0.01
    for name in "bc":
        memory[name]["grad_square"] = np.array(bad)
    assert S.Adaptive().shares(0.75, shapes, memory) == dict.fromkeys("abc", 0.75)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ({0.0: 1.0, 50: 0.7}, r"a sparsity in seconds\['w'\] must be in \[0, 1\], got 50"),
        ({0.0: 1.0, 0.5: -0.1}, "a time of 'w' must be 0 or more, got -0.1"),
        ({0.0: math.nan}, "a time of 'w' must be 0 or more, got nan"),
        ({0.0: "fast"}, "a time of 'w' must be a number, got 'fast'"),
    ],
)
def test_measurements_that_are_none_are_refused(times, words):
    with pytest.raises(ArgumentError, match=words):
        S.BySpeedup({"w": times})


def test_the_strength_of_an_adapter_is_a_number():
    with pytest.raises(ArgumentError, match="strength must be a number, got 'x'"):
        S.LayerWiseAdapter(strength="x")


def test_coupled_layers_of_two_sizes_keep_the_total(rng):
    weights = layers(rng, up=(12, 32), down=(2, 12))
    shares = S.Custom(lambda sparsity, shapes: {"up": 0.75, "down": 0.25})
    recipe = S.Recipe(
        S.OneShot(0.5), pattern=S.Channel(), distribution=shares,
        coupled=((("up", 0), ("down", 1)),),
    )  # fmt: skip
    masks = S.MaskScheduler(recipe).step(weights=weights)
    zeros = math.floor((0.75 * 384 + 0.25 * 24) / 408 * 12)  # of 12 channels
    assert (~masks["up"].any(1)).sum() == (~masks["down"].any(0)).sum() == zeros


def test_whole_zeros_go_to_the_largest_remainders_and_of_equal_ones_to_the_first():
    sizes = {"a": 10, "b": 10, "c": 10}

    def rounded(*wanted, total, most=1.0):
        by_name = dict(zip(sizes, wanted, strict=True))
        shares = round_to_total(by_name, sizes, total, most)
        return [round(10 * share) for share in shares.values()]

    assert rounded(1.2, 1.7, 1.1, total=4) == [1, 2, 1]
    assert rounded(1.5, 4.5, 1.0, total=7) == [2, 4, 1]
    assert rounded(1.5, 4.5, 1.0, total=8) == [2, 5, 1]
    assert rounded(1.2, 4.9, 9.0, total=20, most=0.75) == [6, 7, 7]  # what is full takes no more
    assert rounded(1.2, 4.9, 9.0, total=30, most=0.75) == [7, 7, 7]
    assert rounded(2.9999999, 1.0, 0.0, total=4) == [3, 1, 0]
    assert rounded(2.0, 3.0, 4.0, total=7) == [2, 3, 2]  # too many leave the last one first
