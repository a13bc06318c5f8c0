"""Sums of two `Sparse24Tensor`, and torch's averages of models with such weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch.optim import swa_utils  # noqa: E402
from torch_cases import CLOSE, WAYS  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import PatternError, ShapeError, UnsupportedError  # noqa: E402

pack = st.to_sparse_semi_structured
AVERAGES = {
    "default": {},
    "all at once": {"multi_avg_fn": swa_utils.get_swa_multi_avg_fn()},
    "moving": {"avg_fn": swa_utils.get_ema_avg_fn(0.75)},
    "moving, all at once": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.75)},
    "with buffers": {"use_buffers": True},
}


def both_ways(device):
    """Matrices that can be packed along either axis, all with the same places."""
    keep = s24.mask(torch.arange(16.0 * 32).reshape(16, 32), transposable=True).to(device)
    return torch.randn(16, 32, device=device).masked_fill(~keep, 0)


@pytest.mark.parametrize("other", WAYS)
@pytest.mark.parametrize("way", WAYS)
def test_a_sum_is_packed_as_its_first_one(device, way, other):
    a, b = both_ways(device), both_ways(device)
    first, second = WAYS[way](a), WAYS[other](b)
    x = torch.randn(3, 32, device=device)
    for got, want in (
        (first + second, a + b),
        (first - second, a - b),
        (torch.add(first, second, alpha=0.5), a + 0.5 * b),
    ):
        assert len(got.parts) == len(first.parts)
        assert got.turned == first.turned
        torch.testing.assert_close(got.to_dense(), want, **CLOSE)
        torch.testing.assert_close(x @ got.t(), x @ want.t(), **CLOSE)
        torch.testing.assert_close(got @ x.t(), want @ x.t(), **CLOSE)


def test_a_sum_has_the_type_of_the_dense_one_and_no_negative_zero(device):
    a, b = both_ways(device).half(), both_ways(device)
    total = pack(a) - pack(b)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total.to_dense(), a - b)
    gone = pack(a) - pack(a)
    assert not torch.signbit(gone.to_dense()).any()


def test_a_sum_that_is_24_may_have_places_of_both(device):
    a, b = torch.zeros(2, 4, 8, device=device)
    a[:, 0], b[:, 3] = 1, 2
    assert torch.equal((pack(a) + pack(b)).to_dense(), a + b)


def test_a_sum_passes_gradients_on():
    a, b = (both_ways("cpu").requires_grad_() for _ in range(2))
    (
        st.sparsify24(a, gradient="ste") - st.sparsify24(b, gradient="ste")
    ).to_dense().sum().backward()
    assert torch.equal(a.grad, torch.ones(16, 32))
    assert torch.equal(b.grad, -torch.ones(16, 32))


def test_a_sum_of_other_places_or_kinds_is_refused(device):
    a = both_ways(device)
    moved = a.roll(1, 1)
    for sum_of in (lambda: pack(a) + pack(moved.flip(1)), lambda: pack(a) - pack(moved.flip(1))):
        with pytest.raises(PatternError, match=r"must obey 2:4 .*different places.*SparseLinear"):
            sum_of()
    with pytest.raises(ShapeError, match=r"of one shape .*\(16, 32\) and \(8, 32\); cut"):
        pack(a) + pack(a)[:8]
    for other in (1, a):
        with pytest.raises(UnsupportedError, match=r"aten\.add.* not defined .*to_dense\(\) first"):
            pack(a) + other
    with pytest.raises(UnsupportedError, match=r"no arithmetic of torch\.float8_e5m2"):
        pack(a).to(torch.float8_e5m2) + pack(a)


def test_compiled_code_leaves_its_graph_for_a_sum_which_it_cannot_look_at():
    a, x = pack(both_ways("cpu")), torch.randn(3, 32)
    run = torch.compile(lambda a: (a + a) @ x.t(), backend="aot_eager")
    torch.testing.assert_close(run(a), 2 * (a @ x.t()), **CLOSE)
    whole = torch.compile(lambda a: a + a, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"aten\.add.* is not defined for a Sparse24Tensor"):
        whole(a)


def models(count, device, way=pack):
    """Some with a packed weight of the same places, and what they are made of."""
    weights = [both_ways(device) for _ in range(count)]
    nets = []
    for weight in weights:
        net = torch.nn.Sequential(torch.nn.Linear(32, 16, device=device))
        net[0].weight = torch.nn.Parameter(way(weight), requires_grad=False)
        nets.append(net)
    return nets, weights


def dense_of(net, weight):
    dense = copy.deepcopy(net)
    dense[0].weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    return dense


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("average", AVERAGES)
def test_a_model_is_averaged_as_the_dense_one(device, average, way):
    nets, weights = models(4, device, WAYS[way])
    got = swa_utils.AveragedModel(nets[0], **AVERAGES[average])
    want = swa_utils.AveragedModel(dense_of(nets[0], weights[0]), **AVERAGES[average])
    packed, x = got.module[0].weight, torch.randn(3, 32, device=device)
    for net, weight in zip(nets, weights, strict=True):
        got(x)  # which keeps what it has prepared of the weight
        got.update_parameters(net)
        want.update_parameters(dense_of(net, weight))
    assert got.module[0].weight is packed
    torch.testing.assert_close(packed.to_dense(), want.module[0].weight.data, **CLOSE)
    torch.testing.assert_close(got.module[0].bias, want.module[0].bias, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(got(x), want(x), **CLOSE)


@pytest.mark.parametrize("average", AVERAGES)
def test_an_average_of_other_places_is_refused_and_changes_nothing(device, average):
    nets, weights = models(2, device)
    nets[1][0].weight = torch.nn.Parameter(pack(weights[1].flip(1)), requires_grad=False)
    got = swa_utils.AveragedModel(nets[0], **AVERAGES[average])
    got.update_parameters(nets[0])
    bias = got.module[0].bias.clone()
    with pytest.raises(PatternError, match=r"averaged stay dense, as those of .*SparseLinear"):
        got.update_parameters(nets[1])
    assert torch.equal(got.module[0].weight.to_dense(), weights[0])
    assert torch.equal(got.module[0].bias, bias)


def test_averages_of_which_one_cannot_be_written_change_nothing(device):
    whole, others = pack(both_ways(device)), [pack(both_ways(device)) for _ in range(2)]
    dense, before = torch.zeros(3, device=device), whole.to_dense()
    to, ends = [whole, dense, pack(both_ways(device))[:16]], [*others, torch.ones(3, device=device)]
    with pytest.raises(UnsupportedError, match="nothing is copied into a part"):
        torch._foreach_lerp_(to, [ends[0], ends[2], ends[1]], 0.5)
    assert torch.equal(whole.to_dense(), before)
    assert not dense.any()
