"""How grouped products reach their kernel on a GPU, without one: layouts, copies, offsets."""

from __future__ import annotations

import fake_grouped
import numpy as np
import pytest
from fake_grouped import Array, Kernel, array
from grouped_cases import offsets_of

import sparse24 as s24
from sparse24 import _arrays, _dispatch, _dtypes, _planner
from sparse24._records import MAKING, Compressed24, Operand24
from sparse24._settled import MADE_ANEW
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import reference, reference_grouped

M, K, COUNTS = 24, 16, (3, 0, 7, 1)
OFFSETS = offsets_of(COUNTS)


@pytest.fixture
def kernel(monkeypatch):
    return fake_grouped.installed(monkeypatch)


def operands(rng, m=M, k=K, dtype="float32"):
    """Experts on the stand-in for a GPU, tokens (t, k), and the exact result (m, t)."""
    matrices = s24.random((len(COUNTS), m, k), dtype=dtype, rng=rng)
    codes = array(reference.pack_metadata(matrices.metadata, k, matrices.dtype.itemsize))
    row = _dtypes.TABLE[dtype]
    record = Compressed24(array(matrices.values), None, codes, matrices.shape, row)
    experts = Sparse24Array(Operand24(record, None, None, matrices.shape, record.dtype))
    x = rng.standard_normal((OFFSETS[-1], k)).astype(np.float32)
    return experts, array(x), reference_grouped.grouped_matmul(matrices.toarray(), x.T, OFFSETS)


def close(got, want):
    np.testing.assert_allclose(np.array(got), want, rtol=1e-5, atol=1e-5)


def test_tokens_in_rows_and_offsets_on_the_device_go_to_the_kernel_as_they_are(kernel, rng):
    experts, x, exact = operands(rng)
    out, offsets = array(np.full((11, M), 99, np.float32)).T, array(OFFSETS)
    assert s24.grouped_matmul(experts, x.T, out, offsets=offsets) is out
    close(out, exact)
    ((b, read, written),) = kernel.given
    assert [y.data.ptr for y in (b, read, written)] == [y.data.ptr for y in (x, offsets, out)]
    (problem,) = kernel.problems
    assert (problem.m, problem.n, problem.k, problem.batch) == (M, 11, K, 4)
    assert (problem.dtype, problem.b_dtype, problem.out_dtype) == ("float32",) * 3
    assert (problem.b_order, problem.out_order) == ("column", "column")
    assert problem.aligned
    assert problem.a_batched
    assert problem.compute_capability == 90


@pytest.mark.parametrize("m", [24, 23, 1])
@pytest.mark.parametrize("k", [16, 13])
@pytest.mark.parametrize("b_order", ["C", "F", "shifted"])
@pytest.mark.parametrize("out_order", ["C", "F", "wide", None])
def test_other_layouts_go_through_copies(kernel, rng, m, k, b_order, out_order):
    experts, x, exact = operands(rng, m, k)
    b = array(x.T, order="F" if b_order == "F" else "C")
    if b_order == "shifted":
        b = array(np.concatenate([x[:, :1], x], axis=1)).T[1:]
    room = array(np.full((11, 32), 77, np.float32))
    outs = {"C": array(np.full((m, 11), 77, np.float32)), "F": array(np.ones((m, 11), "f4"), "F"),
            "wide": room[:, :m].T, None: None}  # fmt: skip
    out = outs[out_order]
    got = s24.grouped_matmul(experts, b, out, offsets=OFFSETS)
    close(got, exact)
    assert got is out or out is None
    assert (room[:, m:] == 77).all()
    written = kernel.given[0][2]
    whole = m * 4 % 16 == 0  # the kernel stores 16 bytes at a time
    assert (written.data.ptr == got.data.ptr) == (whole and out_order != "C")
    assert (kernel.given[0][0].data.ptr == b.data.ptr) == (b_order == "F" and k == 16)


@pytest.mark.parametrize("kind", [list, np.int64, np.int32])
def test_offsets_of_the_host_are_checked_and_copied(kernel, rng, kind):
    experts, x, exact = operands(rng)
    given = OFFSETS.tolist() if kind is list else OFFSETS.astype(kind)
    close(s24.grouped_linear(x, experts, offsets=given), exact.T)
    with pytest.raises(s24.ArgumentError, match="offsets must end with the number of tokens"):
        s24.grouped_linear(x, experts, offsets=OFFSETS // 2)


def test_offsets_of_the_device_are_not_looked_at(kernel, rng, monkeypatch):
    experts, x, exact = operands(rng)
    monkeypatch.setattr(Array, "get", None)
    wrong = array(np.array([0, 3, 3, 10, 900], np.int32))
    close(s24.grouped_linear(x, experts, offsets=wrong), exact.T)
    every_other = array(np.repeat(OFFSETS, 2))[::2]
    close(s24.grouped_linear(x, experts, offsets=every_other), exact.T)
    with pytest.raises(s24.DTypeError, match=r"offsets on a GPU must be int32 or int64, got int16"):
        s24.grouped_linear(x, experts, offsets=array(OFFSETS.astype(np.int16)))
    with pytest.raises(s24.ShapeError, match=r"offsets must have shape \(e \+ 1,\)"):
        s24.grouped_linear(x, experts, offsets=array(OFFSETS[1:]))


def test_types_meet_before_the_kernel(kernel, rng, monkeypatch):
    from sparse24 import _storage

    monkeypatch.setattr(
        _storage, "converted", lambda x, own, wanted: array(np.array(x).astype(wanted.logical))
    )
    experts, x, exact = operands(rng, dtype="float16")
    got = s24.grouped_linear(x, experts, offsets=OFFSETS)
    assert got.dtype == np.float32
    close(got, exact.T)
    assert kernel.problems[0].dtype == "float32"


@pytest.mark.parametrize("counts", [COUNTS, (11, 0, 0, 0), (0, 0, 0, 11)])
def test_the_kernel_adds_the_bias_of_the_expert_of_each_token(kernel, rng, counts):
    experts, x, _ = operands(rng)
    bias, offsets = rng.standard_normal((4, M)).astype(np.float32), array(offsets_of(counts))
    plain = s24.grouped_linear(x, experts, offsets=offsets)
    got = s24.grouped_linear(x, experts, array(bias), offsets=offsets)
    close(got, np.array(plain) + np.repeat(bias, counts, axis=0))
    with pytest.raises(s24.DeviceError, match=r"bias is on cpu, As on cuda:0; pass an array"):
        s24.grouped_linear(x, experts, bias, offsets=OFFSETS)


@pytest.fixture
def single(monkeypatch):
    """The products that are computed one by one: experts' values, tokens and results."""
    calls = []

    def fill(a, b, out, epilogue, call, types):
        calls.append((a.rows, b, out))
        out[...] = 5 if epilogue.row_bias is None else np.array(epilogue.row_bias)[:, None]

    monkeypatch.setattr(_dispatch, "fill", fill)
    return calls


@pytest.mark.parametrize("on_device", [False, True])
def test_what_the_kernel_refuses_is_multiplied_expert_by_expert(kernel, single, rng, on_device):
    kernel.refusal = "not this"
    experts, x, _ = operands(rng)
    offsets = array(OFFSETS) if on_device else OFFSETS
    got = s24.grouped_linear(x, experts, offsets=offsets)
    assert (got == 5).all()
    assert [b.shape[1] for _, b, _ in single] == [3, 7, 1]
    assert [b.data.ptr - x.data.ptr for _, b, _ in single] == [0, 3 * 64, 10 * 64]
    assert [out.data.ptr - got.data.ptr for _, _, out in single] == [0, 3 * 96, 10 * 96]
    strides = experts.values.strides[0]
    assert [a.values.data.ptr - experts.values.data.ptr for a, _, _ in single] == [
        0, 2 * strides, 3 * strides
    ]  # fmt: skip
    bias = array(np.repeat(np.arange(4.0)[:, None], M, axis=1))
    got = s24.grouped_linear(x, experts, bias, offsets=offsets)
    np.testing.assert_array_equal(got[:, 0], np.repeat(np.arange(4.0), COUNTS))
    wrong = array(OFFSETS[::-1].copy()) if on_device else OFFSETS[::-1]
    with pytest.raises(s24.ArgumentError, match="offsets must begin with 0"):
        s24.grouped_linear(x, experts, offsets=wrong)
    assert not kernel.given


def test_what_kernels_derive_from_an_expert_is_kept_and_counted(kernel, single, rng):
    kernel.refusal = "not this"
    experts, x, _ = operands(rng)
    before = experts.nbytes
    s24.grouped_linear(x, experts, offsets=OFFSETS)
    assert experts.nbytes == before
    first = [record for record, _, _ in single]
    first[1].derived["masks"] = np.zeros(10, np.uint8)
    assert experts.nbytes == before + 10
    s24.grouped_linear(x, experts, offsets=OFFSETS)
    assert all(a is record for a, (record, _, _) in zip(first, single[3:], strict=True))


def test_experts_of_a_stack_that_a_graph_makes_are_made_anew(kernel, single, rng):
    """What kernels derive from them is then made at each product."""
    kernel.refusal = "not this"
    experts, x, _ = operands(rng)
    experts._operand.rows.derived[MAKING] = MADE_ANEW
    s24.grouped_linear(x, experts, offsets=OFFSETS)
    assert single
    assert all(record.derived[MAKING] is MADE_ANEW for record, _, _ in single)


def test_where_the_kernel_of_hopper_refuses_the_other_one_runs(kernel, single, rng, monkeypatch):
    of_hopper = Kernel()
    of_hopper.refusal = "this is another chip"
    kernels = {"grouped_wgmma": of_hopper, "grouped_mma": kernel}
    monkeypatch.setattr(_planner, "kernel_module", kernels.__getitem__)
    experts, x, exact = operands(rng)
    close(s24.grouped_linear(x, experts, offsets=array(OFFSETS)), exact.T)
    assert len(kernel.given) == 1
    assert not of_hopper.given
    assert not single
    assert s24.explain(experts, x.T, offsets=array(OFFSETS)).chosen == "grouped_mma"


def test_a_capture_never_waits(kernel, single, rng, monkeypatch):
    monkeypatch.setattr(_arrays, "is_capturing", lambda: True)
    experts, x, exact = operands(rng)
    close(s24.grouped_linear(x, experts, offsets=array(OFFSETS)), exact.T)
    assert not single
    with pytest.raises(s24.UnsupportedError, match="pass an array on the GPU, which the graph"):
        s24.grouped_linear(x, experts, offsets=OFFSETS)
    kernel.refusal = "it is float99"
    s24.grouped_linear(x, experts, offsets=OFFSETS)
    assert len(single) == 3
    words = r"runs expert by expert.*\(grouped_mma: it is float99\); pass offsets as a list"
    with pytest.raises(s24.UnsupportedError, match=words):
        s24.grouped_linear(x, experts, offsets=array(OFFSETS))


def test_operands_on_two_devices_are_refused(kernel, rng):
    experts, x, _ = operands(rng)
    there = array(OFFSETS)
    there.number = 1
    with pytest.raises(s24.DeviceError, match="offsets are on cuda:1, the operands on cuda:0; "):
        s24.grouped_linear(x, experts, offsets=there)
    on_cpu = s24.random((4, M, K), rng=rng)
    with pytest.raises(s24.DeviceError, match=r"offsets are on cuda:0, .* on cpu; .*\.get\(\)"):
        s24.grouped_linear(np.array(x), on_cpu, offsets=array(OFFSETS))
    with pytest.raises(s24.DeviceError, match="one operand is on cuda:0, the other on cpu"):
        s24.grouped_linear(np.array(x), experts, offsets=OFFSETS)
    with pytest.raises(s24.DeviceError, match="out is on cpu, the operands are not"):
        s24.grouped_matmul(experts, x.T, np.ones((M, 11), np.float32), offsets=OFFSETS)


def test_nothing_to_do_asks_no_kernel(kernel, rng):
    experts, x, _ = operands(rng)
    assert s24.grouped_linear(x[:0], experts, offsets=array(0 * OFFSETS)).shape == (0, M)
    none = Compressed24(
        experts._operand.rows.values[:0], None, experts.packed[:0], (0, M, K),
        experts._operand.dtype,
    )  # fmt: skip
    nobody = Sparse24Array(Operand24(none, None, None, (0, M, K), none.dtype))
    assert s24.grouped_linear(x, nobody, offsets=array(OFFSETS[:1])).shape == (11, M)
    assert not kernel.problems


def test_explain_says_whether_the_kernel_runs_and_what_is_copied(kernel, single, rng):
    experts, x, _ = operands(rng)
    found = s24.explain(experts, x.T, offsets=array(OFFSETS))
    words = "one launch serves all 4 experts, by tiles of 128x32x128 for the 11 tokens of all"
    assert str(found) == f"grouped_wgmma: {words}"
    copied = s24.explain(experts, array(x.T), offsets=OFFSETS)
    assert copied.reason.startswith(words + "; tokens or results are copied")
    kernel.refusal = "it is float99"
    found = s24.explain(experts, x.T, offsets=OFFSETS)
    assert (found.chosen, found.candidates) == ("each", ())
    assert found.reason.endswith("of its own, since grouped_mma cannot: it is float99")
    assert s24.explain(experts, x[:0].T, offsets=0 * OFFSETS).chosen == "none"
    assert not kernel.given
    assert not single
