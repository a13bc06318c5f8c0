"""Masks of arrays on the CPU, whose choices NumPy makes whatever their library is."""

from __future__ import annotations

import array_api_compat
import array_api_compat.numpy
import ml_dtypes
import numpy as np
import pytest

from sparse24 import schedule as S
from sparse24._schedule import arrays, largest, transposable

PATTERNS = (S.Unstructured(), S.Transposable24(), S.Elastic((4, 8)), S.Block((2, 2)))


def scores_of(rng, number):
    """Scores with ties, infinities, NaN, zeros alone, or signs."""
    scores = np.abs(rng.normal(size=(8, 16))).astype(np.float32)
    scores = np.round(scores, 1) if number % 2 else scores
    scores[rng.random(scores.shape) < (number % 3) / 20] = np.inf
    scores[rng.random(scores.shape) < (number % 5) / 40] = np.nan
    return scores * np.float32((1, 1, 0, -1)[number % 4] if number < 8 else 1)


@pytest.mark.parametrize("number", range(16))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_kernel_chooses_the_best_of_all_masks(number, rng):
    """As the array API does, also where it is not taken, for scores below zero."""
    strict = pytest.importorskip("array_api_strict")
    pattern = S.Transposable24()
    units = pattern.pool(scores_of(rng, number))
    want = pattern.choose(strict.asarray(units), 0.5)
    np.testing.assert_array_equal(pattern.choose(units, 0.5), np.asarray(want))


def test_scores_that_are_no_less_than_zero_take_the_kernel(monkeypatch, rng):
    taken = []
    best = transposable.best_of_tiles
    monkeypatch.setattr(
        transposable, "best_of_tiles", lambda scores: taken.append(scores.shape) or best(scores)
    )
    recipe = S.Recipe(S.ConstantScheduler(0.5), S.Taylor(), S.Transposable24())
    weights = {"w": rng.normal(size=(2, 8, 16))}
    S.MaskScheduler(recipe).step(weights=weights, gradients=weights)
    S.Transposable24().mask(-np.ones((4, 4)), 0.5)
    assert taken == [(16, 16)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_numpy_chooses(name, pattern, monkeypatch, rng):
    kinds = []
    inner = largest.top_in_rows if pattern.grows else type(pattern)._chosen
    owner, what = (largest, "top_in_rows") if pattern.grows else (type(pattern), "_chosen")
    monkeypatch.setattr(owner, what, lambda *args: kinds.append(args) or inner(*args))
    library = pytest.importorskip("torch" if name == "torch" else "jax.numpy")
    scores = scores_of(rng, 1)
    got = pattern.mask(library.asarray(scores), 0.5)
    assert type(got) is type(library.asarray(scores))
    assert any(type(x) is np.ndarray for args in kinds for x in args)
    np.testing.assert_array_equal(np.asarray(got), pattern.mask(scores, 0.5))


def test_tensors_whose_memory_says_not_all(rng):
    """Torch chooses among numbers that are stored with the other sign."""
    torch = pytest.importorskip("torch")
    scores = scores_of(rng, 0)
    turned = torch._neg_view(torch.from_numpy(-scores))
    got = S.Unstructured().choose(turned, 0.5)
    np.testing.assert_array_equal(got.numpy(), S.Unstructured().choose(scores, 0.5))


def test_masks_stay_on_the_device_of_their_weights(rng):
    torch = pytest.importorskip("torch")
    recipe = S.Recipe(S.ConstantScheduler(0.5))
    with torch.device("meta"):  # where new tensors would be made
        masks = S.MaskScheduler(recipe).step(weights={"w": torch.ones(4, 4, device="cpu")})
    assert masks["w"].device.type == "cpu"


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_torch_chooses_in_compiled_code(pattern, rng):
    torch = pytest.importorskip("torch")
    choose = lambda scores: pattern.mask(scores, 0.5)  # noqa: E731
    compiled = torch.compile(choose, backend="eager")
    for scores in (scores_of(rng, 8), scores_of(rng, 9)):
        np.testing.assert_array_equal(compiled(torch.from_numpy(scores)).numpy(), choose(scores))


@pytest.mark.parametrize("how", ["trace", "make_fx", "functionalize"])
def test_torch_chooses_tiles_where_it_records_operations(how, rng):
    """A trace would keep the mask of the scores that it was made with."""
    torch = pytest.importorskip("torch")
    choose = lambda scores: S.Transposable24().mask(scores, 0.5)  # noqa: E731
    first, second = scores_of(rng, 8), scores_of(rng, 9)
    if how == "trace":
        recorded = torch.jit.trace(choose, (torch.from_numpy(first),))
    elif how == "make_fx":
        make_fx = torch.fx.experimental.proxy_tensor.make_fx
        recorded = make_fx(choose)(torch.from_numpy(first))
    else:
        recorded = torch.func.functionalize(choose)
    np.testing.assert_array_equal(recorded(torch.from_numpy(second)).numpy(), choose(second))


DTYPES = ("int8", "bool", "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64", ">f4")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 64), (6000,), (3, 70, 41), (7, 5), (0, 8)])
def test_selected_elements_are_those_of_where(dtype, shape, rng):
    x, y = rng.integers(0, 256, (2, *shape, 16), np.uint8)
    x, y = (np.ascontiguousarray(part[..., : np.dtype(dtype).itemsize]) for part in (x, y))
    x, y = ((part & 1 if dtype == "bool" else part).view(dtype).reshape(shape) for part in (x, y))
    mask, zero = np.asarray(rng.random(shape) < 0.5), np.zeros((), x.dtype)
    turned = tuple(part.T for part in (mask, x, y)), tuple(part[..., ::2] for part in (mask, x, y))
    given = [(mask, x, y), (mask, x, zero), (mask, zero, x), *turned]
    for case in given:
        got, want = arrays.select(*case), np.where(*case)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()


def test_a_mask_may_be_a_view_of_other_bytes(rng):
    bytes_ = rng.integers(0, 256, (80, 64), np.uint8) * rng.integers(0, 2, (80, 64), np.uint8)
    w = rng.normal(size=(80, 64)).astype(np.float32)
    np.testing.assert_array_equal(S.apply_masks(w, bytes_.view(bool)), np.where(bytes_, w, 0))


@pytest.mark.parametrize("apply", [S.apply_masks, lambda w, mask: S.sr_ste_gradient(w, w, mask)])
def test_masks_without_a_pattern_are_applied_without_branches(apply, rng, monkeypatch):
    """NumPy's `where` has one for each element."""
    w, mask = rng.normal(size=(128, 64)).astype(np.float32), rng.random((128, 64)) < 0.5
    want = apply(w, mask)
    monkeypatch.setattr(array_api_compat.numpy, "where", lambda *_: pytest.fail("by NumPy"))
    np.testing.assert_array_equal(apply(w, mask), want)


def test_masks_are_applied_to_many_objects(rng):
    w, mask = rng.integers(1, 9, (80, 64)).astype(object), rng.random((80, 64)) < 0.5
    np.testing.assert_array_equal(S.apply_masks(w, mask), np.where(mask, w, 0))


@pytest.mark.parametrize("dtype", ["int8", "float16", ml_dtypes.bfloat16, "float32", "float64"])
def test_a_number_beside_an_array_of_numpy_takes_no_detour(dtype, monkeypatch):
    """It takes longer than a small array's mask."""
    x = np.ones((2, 4), dtype)
    want = np.full((), 0.5, x.dtype)
    monkeypatch.setattr(array_api_compat, "device", lambda *_: pytest.fail("a detour"))
    got = arrays.level(x, 0.5)
    assert (got.dtype, got.shape, got.tobytes()) == (x.dtype, (), want.tobytes())
