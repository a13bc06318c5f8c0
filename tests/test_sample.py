"""Sampling to 2:4 without bias: the kernel against `reference.sample`, and its statistics."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from sparse24 import _dtypes
from sparse24 import schedule as S
from sparse24._schedule.arrays import random_key
from sparse24._schedule.gradients import compress_mvue_24
from sparse24.kernels import reference

pytestmark = pytest.mark.stem("sample")

SHAPES = [(1, 1), (4, 4), (3, 37), (64, 128), (65, 132), (130, 515), (200, 640), (0, 8), (8, 0)]
DTYPES = ("float16", "bfloat16", "float32")


def gradient(rng, shape, dtype):
    """Normal numbers of many sizes, with zeros of both signs and groups of nothing else."""
    x = rng.standard_normal(shape) * np.exp(2 * rng.standard_normal(shape))
    x[rng.random(shape) < 0.2] = 0.0
    x[rng.random(shape) < 0.05] = -0.0
    x[: shape[0] // 8] = 0.0
    return x.astype(_dtypes.numpy_dtype(dtype))


def bits(x):
    return x.view(f"u{x.dtype.itemsize}")


def assert_samples(array, x):
    want = reference.sample(x, random_key(7, 3, "", "mvue"))
    values, metadata = reference.compress(reference.prune(want))
    to_numpy = lambda a: a.get() if hasattr(a, "get") else a  # noqa: E731
    np.testing.assert_array_equal(bits(to_numpy(array.values)), bits(values))
    np.testing.assert_array_equal(to_numpy(array.metadata), metadata)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_cpu_draws_what_the_reference_draws(rng, shape, dtype):
    x = gradient(rng, shape, dtype)
    assert_samples(compress_mvue_24(x, step=3, seed=7), x)
    sampled = S.mvue_24(x, step=3, seed=7)
    want = reference.sample(x, random_key(7, 3, "", "mvue"))
    np.testing.assert_array_equal(sampled, want)


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_a_gpu_draws_what_the_reference_draws(rng, shape, dtype, turned):
    cupy = pytest.importorskip("cupy")
    x = gradient(rng, shape, dtype)
    on_gpu = cupy.asarray(np.ascontiguousarray(x.T)).T if turned else cupy.asarray(x)
    assert_samples(compress_mvue_24(on_gpu, step=3, seed=7), x)


@pytest.mark.gpu
def test_strided_and_misaligned_gradients(rng):
    cupy = pytest.importorskip("cupy")
    x = gradient(rng, (66, 130), "bfloat16")
    for step, turned in ((1, True), (2, True), (2, False)):
        shape = (2 * 130, 2 * 66 + 1) if turned else (2 * 66, 2 * 130 + 1)
        wide = cupy.zeros(shape, x.dtype)
        view = wide[::step, 1::step][:130, :66].T if turned else wide[::step, 1::step][:66, :130]
        view[...] = cupy.asarray(x)
        assert_samples(compress_mvue_24(view, step=3, seed=7), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormal_gradients_are_drawn_as_all_others(xp, rng, dtype):
    normal = float(ml_dtypes.finfo(_dtypes.numpy_dtype(dtype)).smallest_normal)
    size = normal * 2.0 ** rng.integers(-8, 4, (96, 160 // 4)).repeat(4, axis=1)
    x = (gradient(rng, (96, 160), "float64") * size).astype(_dtypes.numpy_dtype(dtype))
    largest = np.abs(x.astype(np.float64)).reshape(96, -1, 4).max(-1)
    assert np.mean((largest > 0) & (largest < normal / 4)) > 0.2  # sums of groups are subnormal
    array = compress_mvue_24(xp.asarray(x), step=3, seed=7)
    assert_samples(array, x)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_visible(xp, bad):
    x = np.full((1, 8), 2.0, np.float32)
    x[0, 2] = bad
    sampled = compress_mvue_24(xp.asarray(x), step=0).toarray()
    assert not np.isfinite(float(sampled[0, 2]))
    assert float(sampled[0, 0]) == 2.0
    assert np.isfinite(sampled[0, 4:].astype(np.float64)).all()


def test_the_mean_of_many_samples_is_the_gradient(rng):
    x = np.tile(rng.standard_normal((1, 16)) ** 3, (4000, 1)).astype(np.float32)
    mean = reference.sample(x, key=5).mean(0)
    np.testing.assert_allclose(mean, x[0], atol=0.06 * np.abs(x).max())
    assert (reference.sample(x, key=5).reshape(-1, 4) != 0).sum(-1).max() == 2
