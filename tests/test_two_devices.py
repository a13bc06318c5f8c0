"""What only a machine with two GPUs shows; no kernel's record depends on it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from sparse24._compress import compress
from sparse24._hybrid import hybrid

pytestmark = pytest.mark.gpu


def whole(rng, shape):
    return (rng.integers(-3, 4, shape) * (rng.random(shape) < 0.1)).astype(np.float16)


both_ways = functools.partial(compress, on_excess="prune", transposable=True)


@pytest.mark.parametrize("make", [hybrid, both_ways])
def test_torch_tensors_of_a_device_that_is_not_the_current_one(rng, make):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        a = make(cupy.asarray(whole(rng, (512, 512))))
        weight = a.toarray().get()
    for n in (2, 8, 40, 512):
        for _ in range(3):
            b = whole(rng, (512, n))
            right = torch.from_numpy(b).to("cuda:1")
            for got in (a @ right, (right.T.contiguous() @ a.T).T):
                assert got.device == right.device
                np.testing.assert_array_equal(got.cpu().numpy(), weight @ b)
    assert torch.cuda.current_device() == 0
