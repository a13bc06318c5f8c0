"""Copies before and after a product: which, what they cost, and that they are made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planner_cases import problem

from sparse24 import _staging
from sparse24._records import PLAIN
from sparse24._staging import Variant
from sparse24.kernels import transpose

CASE = problem(m=64, n=24, k=128, dtype="float16", b_order="strided")
BANDWIDTH = 1e12


def test_a_copy_costs_a_launch_and_all_bytes_read_and_written():
    strided, row = _staging.STAGING_EFFICIENCY, _staging.TRANSPOSE_EFFICIENCY
    b, out = 2 * 128 * 24 * 2 / BANDWIDTH, 2 * 64 * 24 * 2 / BANDWIDTH
    of_b, of_out = Variant(CASE, stage_b=True), Variant(CASE, stage_out=True)
    for batch, batched in ((1, False), (3, False), (3, True)):
        case = dataclasses.replace(CASE, batch=batch, b_batched=batched)
        cost = lambda variant, case=case: _staging.seconds(variant, case, BANDWIDTH)  # noqa: E731
        share = batch if batched else 1
        assert cost(Variant(case)) == 0
        assert cost(of_b) == pytest.approx(share * b / strided + _staging.STAGING_LAUNCH)
        assert cost(of_out) == pytest.approx(batch * out / strided + _staging.STAGING_LAUNCH)
        both = cost(Variant(case, stage_b=True, stage_out=True))
        assert both == pytest.approx(cost(of_b) + cost(of_out))
        case = dataclasses.replace(case, b_order="row")
        want = share * b / row + _staging.TRANSPOSE_LAUNCH
        assert _staging.seconds(of_b, case, BANDWIDTH) == pytest.approx(want)


@pytest.mark.parametrize(
    ("order", "aligned", "scratch"),
    [("strided", True, "row"), ("column", False, "column"), ("row", False, "row")],
)
def test_scratch_for_a_result_lies_as_that_does_or_by_rows(order, aligned, scratch):
    case = dataclasses.replace(CASE, b_order="column", out_order=order, aligned=aligned)
    last = _staging.variants(case)[-1]
    assert last.stage_out
    assert last.problem.out_order == scratch


@pytest.mark.parametrize("order", ["row", "column"])
@pytest.mark.parametrize(("stage_b", "stage_out"), [(True, False), (False, True), (True, True)])
def test_the_product_sees_the_copies_and_the_caller_the_result(
    monkeypatch, rng, order, stage_b, stage_out
):
    monkeypatch.setattr(transpose, "takes", lambda b: False)
    b, out = rng.standard_normal((2, 8, 5)), np.zeros((2, 4, 10))[..., ::2]
    seen = []

    def launch(a, inner_b, inner_out, epilogue):
        seen.extend((inner_b, inner_out))
        inner_out[...] = a @ inner_b

    a = rng.standard_normal((4, 8))
    variant = Variant(dataclasses.replace(CASE, out_order=order), stage_b, stage_out)
    _staging.staged(launch, variant)(a, b, out, PLAIN)
    inner_b, inner_out = seen
    assert (inner_b is b) != stage_b
    assert (inner_out is out) != stage_out
    assert inner_b.strides[-2:] == ((8, 64) if stage_b else (40, 8))
    if stage_out:
        assert inner_out.strides[-2:] == ((40, 8) if order == "row" else (8, 32))
    np.testing.assert_allclose(out, a @ b)
