"""The same scores give the same masks in every array library, at every step."""

from __future__ import annotations

import array_api_compat
import ml_dtypes
import numpy as np
import pytest

from sparse24 import _arrays, _dtypes
from sparse24 import schedule as S

RECIPES = {
    "cosine": S.Recipe(S.CosineScheduler(0.6, 0.3, stop=3)),
    "rigl": S.rigl(0.7, total_steps=5, every=1),
    "set-2:4": S.Recipe(
        S.ConstantScheduler(0.5, every=1), pattern=S.NM(), grower=S.RandomGrowth(0.3)
    ),
    "transposable": S.Recipe(S.OneShot(0.5), S.Taylor(), S.Transposable24()),
    "elastic": S.Recipe(S.LinearScheduler(0.6, stop=3), pattern=S.Elastic((4, 16))),
    "tile-hybrid": S.Recipe(S.LinearScheduler(0.6, stop=3), pattern=S.TileHybrid((8, 8))),
    "block-momentum": S.Recipe(
        S.LinearScheduler(0.6, stop=3), pattern=S.Block((8, 8)), grower=S.MomentumGrowth()
    ),
    "adaptive": S.Recipe(
        S.LinearScheduler(0.6, stop=3), S.Accumulated(S.Taylor()), distribution=S.Adaptive()
    ),
    "channels": S.Recipe(
        S.LinearScheduler(0.5, stop=3),
        pattern=S.Channel(),
        coupled=((("a", 0), ("b.c", 0)),),
        grower=S.GradientGrowth(),
    ),
    "shared": S.Recipe(
        S.ConstantScheduler(0.5, every=1), S.Movement(), S.NM(), shared=(("a", "b.c"),)
    ),
    "movement": S.Recipe(
        S.LinearScheduler(0.6, stop=3), S.Movement(), distribution=S.Hierarchical()
    ),
}


def library(name):
    if name == "strict":
        return pytest.importorskip("array_api_strict").asarray
    if name == "torch":
        return pytest.importorskip("torch").as_tensor
    if name == "jax":
        return pytest.importorskip("jax").numpy.asarray
    if name == "cupy":
        return pytest.importorskip("cupy").asarray
    return np.asarray


def masks_of(convert, recipe, rng):
    weights = {n: rng.normal(size=(32, 64)).astype(np.float32) for n in ("a", "b.c")}
    weights["a"][0, :3] = np.nan
    weights["a"][1, :] = 1.0
    grads = {n: rng.normal(size=w.shape).astype(np.float32) for n, w in weights.items()}
    state = S.init(recipe, {n: convert(w) for n, w in weights.items()}, seed=3)
    for t in range(5):
        now = {n: convert(w * np.float32(1 + t)) for n, w in weights.items()}
        slopes = {n: convert(np.roll(g, t)) for n, g in grads.items()}
        state, masks, _ = S.step(state, weights=now, gradients=slopes)
        yield {n: _arrays.to_numpy(m) for n, m in masks.items()}


@pytest.mark.parametrize(
    "name", ["strict", "torch", "jax", pytest.param("cupy", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_same_masks_as_numpy(name, recipe):
    other = masks_of(library(name), recipe, np.random.default_rng(5))
    ours = masks_of(np.asarray, recipe, np.random.default_rng(5))
    for got, want in zip(other, ours, strict=True):
        for layer in want:
            np.testing.assert_array_equal(got[layer], want[layer])


@pytest.mark.parametrize(
    "name", ["strict", "torch", "jax", pytest.param("cupy", marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_state_goes_from_library_to_library(name, recipe, rng):
    """Saved in one, loaded in NumPy, the next masks are the same."""
    convert = library(name)
    weights = {n: rng.normal(size=(32, 64)).astype(np.float32) for n in ("a", "b.c")}
    theirs = {n: convert(w) for n, w in weights.items()}
    state, ours = (S.init(recipe, w, seed=3) for w in (theirs, weights))
    for _ in range(2):
        state, _, _ = S.step(state, weights=theirs, gradients=theirs)
    ours = S.from_dict(ours, S.to_dict(state))
    _, masks, _ = S.step(state, weights=theirs, gradients=theirs)
    _, want, _ = S.step(ours, weights=weights, gradients=weights)
    for layer in want:
        np.testing.assert_array_equal(_arrays.to_numpy(masks[layer]), want[layer])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8"])
def test_other_dtypes(dtype, rng):
    import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy

    weight = np.round(rng.normal(size=(8, 16)) * 20).astype(dtype)
    mask = S.MaskScheduler(S.Recipe(S.OneShot(0.5), pattern=S.NM())).step(weights={"w": weight})
    want = S.NM().mask(np.abs(weight.astype(np.float64)), 0.5)
    np.testing.assert_array_equal(mask["w"], want)
    applied = S.apply_masks({"w": weight}, mask)["w"]
    assert applied.dtype == weight.dtype


class LikeCuPy:
    """The array API on NumPy's arrays with the `where` of CuPy, which has none for bfloat16."""

    def __getattr__(self, name):
        return getattr(array_api_compat.numpy, name)

    def where(self, condition, x, y):
        found = np.where(condition, x, y)
        return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


@pytest.mark.parametrize("pattern", [S.NM(), S.Transposable24(), S.Unstructured()])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", ">f4", "float8_e4m3fnuz"])
def test_weights_of_types_that_no_kernel_reads(dtype, pattern, rng):
    numbers = rng.integers(0, 100, (8, 16))
    found = np.dtype(getattr(ml_dtypes, dtype, dtype))
    weight = numbers.astype(found)
    recipe = S.Recipe(S.OneShot(0.5), pattern=pattern)
    want = pattern.mask(weight.astype(np.float32), 0.5)
    arrays = [weight]
    if found.isnative:
        torch = pytest.importorskip("torch")
        arrays.append(torch.from_numpy(numbers).to(getattr(torch, dtype)))
    for array in arrays:
        masks = S.MaskScheduler(recipe).step(weights={"w": array})
        np.testing.assert_array_equal(masks["w"], want)


@pytest.fixture
def like_cupy(monkeypatch):
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: isinstance(x, np.ndarray))
    monkeypatch.setattr(array_api_compat, "array_namespace", lambda *arrays: LikeCuPy())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_masked_arrays_keep_their_type_and_bits(name, like_cupy, rng):
    row = _dtypes.TABLE[name]
    bits = rng.integers(0, 256, (6, 8 * row.itemsize)).astype(np.uint8).view(row.storage)
    weight, keep = bits.view(row.logical).T, rng.random((8, 6)) < 0.5  # not contiguous
    old = rng.random((8, 6)) < 0.5
    for got, kept in (
        (S.apply_masks({"w": weight}, {"w": keep})["w"], keep),
        (S.apply_masks(weight, keep.astype(np.int8)), keep),
        (S.transition(weight, old, keep, grown="zero"), ~keep | old),
        (S.mask_slots({"momentum": weight}, old, keep)["momentum"], keep == old),
    ):
        assert got.dtype == row.logical
        np.testing.assert_array_equal(got.view(row.storage), np.where(kept, bits.T, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_a_gpu_keeps_types(name, rng):
    cupy = pytest.importorskip("cupy")
    row = _dtypes.TABLE[name]
    host, keep = rng.normal(size=(8, 12)).astype(row.logical), rng.random((8, 12)) < 0.5
    weight, mask = cupy.asarray(host.view(row.storage)).view(row.logical), cupy.asarray(keep)
    applied = S.apply_masks(weight, mask)
    assert applied.dtype == row.logical
    got = applied.view(row.storage).get()
    np.testing.assert_array_equal(got, np.where(keep, host.view(row.storage), 0))
    for more in (
        S.transition(weight, mask, ~mask, grown="zero"),
        S.mask_slots({"m": weight}, mask, ~mask)["m"],
        S.sr_ste_gradient(weight, weight, mask),
        S.soft_threshold_24(weight),
        S.mvue_24(weight, step=0),
    ):
        assert more.dtype == row.logical


def test_torch_parameters_need_no_detach():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(16, 8)
    masks = S.MaskScheduler(S.Recipe(S.OneShot(0.5), pattern=S.NM())).step(
        weights=dict(layer.named_parameters())
    )
    assert set(masks) == {"weight"}
    assert not masks["weight"].requires_grad
    assert masks["weight"].sum() == 64
