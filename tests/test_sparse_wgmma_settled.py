"""The Hopper kernel where it fetches A before the kernel in front of it has ended, and b never."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from wgmma_cases import compressed, device_matrix, make_problem, poisoned, random_matrix

import sparse24 as s24
from sparse24 import _settled
from sparse24._records import PLAIN
from sparse24.kernels import reference, sparse_wgmma, sparse_wgmma_configs

gpu = pytest.mark.gpu
on_gpu = pytest.mark.stem("sparse_wgmma")


def test_the_more_columns_the_fewer_stages():
    assert [sparse_wgmma.stages_ahead(n) for n in (1, 64, 65, 256, 257, 4096)] == [4, 4, 2, 2, 0, 0]


@gpu
@on_gpu
@pytest.mark.parametrize("config", sparse_wgmma_configs.TABLE, ids=lambda c: c.name)
@pytest.mark.parametrize("ahead", [1, 3, 99])
def test_b_is_read_only_once_it_is_written(rng, monkeypatch, config, ahead):
    """Each b comes from a kernel just before, and then is overwritten."""
    monkeypatch.setattr(sparse_wgmma, "stages_ahead", lambda n: ahead)
    for (m, n, k), dtype in (((300, 456, 2048), "float16"), ((600, 20, 4120), "int8")):
        problem = make_problem(m, n, k, dtype, b_order="column")
        if config not in sparse_wgmma.configs(problem):
            continue
        a = reference.prune(random_matrix(rng, (m, k), dtype, integers=True))
        x = random_matrix(rng, (k, n), dtype, integers=True)
        given = device_matrix(x, dtype, "column")
        record = dataclasses.replace(compressed(a, dtype), settled=True)
        launch = sparse_wgmma.prepare(problem, config, PLAIN)
        b, outs = device_matrix(np.zeros_like(x), dtype, "column"), []
        for _ in range(5):
            outs.append(poisoned((m, n), problem.out_dtype, problem.out_order))
            b[...] = given
            launch(record, b, outs[-1], PLAIN)
            b[...] = 0
        want = reference.matmul(a, x).astype(outs[0].dtype)
        for out in outs:
            np.testing.assert_array_equal(out.get(), want)


@gpu
@on_gpu
@pytest.mark.parametrize("n", [33, 64, 100, 256])
def test_products_of_a_settled_matrix_are_the_same(rng, n):
    cupy = pytest.importorskip("cupy")
    w = s24.prune(rng.standard_normal((1000, 2056)).astype(np.float16))
    A = s24.compress(cupy.asarray(w))
    b = cupy.asarray(rng.standard_normal((n, 2056)).astype(np.float16)).T
    first = s24.matmul(A, b, algorithm="sparse_wgmma")
    for _ in range(3):
        cupy.cuda.Device().synchronize()
        assert (s24.matmul(A, b, algorithm="sparse_wgmma") == first).all()
    assert _settled.is_settled(A._operand.rows)
    assert all(plan.settled for plan in A._plans.values())
