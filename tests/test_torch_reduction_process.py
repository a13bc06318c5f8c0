"""`reduce_packed` in one process: its steps, its options and what it does not pack."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, PatternError  # noqa: E402
from sparse24._torch import ops  # noqa: E402
from sparse24._torch.packable import _check_backend  # noqa: E402
from sparse24._torch.reduction import _divides  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


@pytest.fixture
def group(tmp_path, device):
    """A process group of this process alone."""
    backend = "nccl" if device == "cuda" else "gloo"
    if device == "cuda" and not torch.distributed.is_nccl_available():
        pytest.skip("torch without NCCL")
    meeting = (tmp_path / "meeting").as_uri()
    torch.distributed.init_process_group(backend, meeting, rank=0, world_size=1)
    yield device
    torch.distributed.destroy_process_group()


def steps(ddp, device, dtype=None):
    found = []
    for x in torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(5)).to(device):
        ddp.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            ddp(x).float().square().mean().backward()
        with torch.no_grad():
            for p in ddp.parameters():
                p -= 0.1 * p.grad
        found.append([p.grad.clone() for p in ddp.parameters()])
    return found


def net(device, **options):
    torch.manual_seed(0)
    rules = {"0": {"gradient": "24dense", **options}, "2": {}}
    layers = torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
    return st.sparsify(torch.nn.Sequential(*layers), rules).to(device)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("views", [True, False])
@pytest.mark.stem("compress", "decompress", "like")
def test_one_process_keeps_its_gradients(group, dtype, views):
    wrapped = [DistributedDataParallel(net(group), gradient_as_bucket_view=views) for _ in range(2)]
    reduction = st.reduce_packed(wrapped[1])
    plain, packed = (steps(ddp, group, dtype) for ddp in wrapped)
    for one, other in zip(plain, packed, strict=True):
        torch.testing.assert_close(one, other)
    reduction.check()
    assert (reduction.sent, reduction.whole) == (4 * (1024 + 64 + 2048 + 32 + 66), 4 * 4192)


@pytest.mark.parametrize("device", ["cpu"])
def test_compiled_layers_tell_the_type_of_their_pass(group, compiles_anew):
    model = net(group)
    ddp = DistributedDataParallel(model)
    reduction = st.reduce_packed(ddp)
    compiled = torch.compile(ddp, backend="aot_eager")
    with torch.autocast(group, torch.bfloat16):
        compiled(torch.randn(8, 32)).float().sum().backward()
    assert reduction._types.of(model[0]) == torch.bfloat16
    reduction.check()
    assert not model[0].weight.grad.isnan().any()


@pytest.mark.parametrize("device", ["cpu"])
def test_passes_without_gradients_tell_no_type(group):
    model = net(group)
    ddp = DistributedDataParallel(model)
    reduction = st.reduce_packed(ddp)
    with torch.no_grad():
        model[0].weight[0, :4] = torch.tensor([1.0, 1.001, 1.002, 1.003])  # equal in bfloat16
    with torch.autocast(group, torch.bfloat16):
        loss = ddp(torch.ones(8, 32)).float().sum()
    with torch.no_grad():
        model(torch.ones(8, 32))
    loss.backward()
    reduction.check()
    assert not model[0].weight.grad.isnan().any()


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize("alone", [True, False])
def test_layers_that_others_have_replaced_are_sent_whole(group, alone):
    model = st.SparseLinear(32, 64, gradient="24dense") if alone else net(group)
    ddp = DistributedDataParallel(model)
    reduction = st.reduce_packed(ddp)
    ddp(torch.ones(8, 32)).sum().backward()
    assert reduction.sent < reduction.whole
    st.desparsify(ddp)
    ddp.zero_grad()
    ddp(torch.ones(8, 32)).sum().backward()
    reduction.check()
    assert reduction.sent == reduction.whole
    assert all(p.grad.all() for p in list(ddp.parameters())[-1:])
    assert not any(p.grad.isnan().any() for p in ddp.parameters())


@pytest.mark.parametrize("device", ["cpu"])
def test_a_mask_set_between_forward_and_backward_is_seen(group):
    layer = st.SparseLinear(32, 32, gradient="24dense")
    ddp = DistributedDataParallel(layer)
    reduction = st.reduce_packed(ddp)
    y = ddp(torch.randn(4, 32))
    layer.set_mask(ops.keep(-layer.weight.roll(1, 1), False))
    y.sum().backward()
    assert layer.weight.grad.isnan().any()
    with pytest.raises(PatternError, match="set the same masks on all ranks, between steps only"):
        reduction.check()


@pytest.mark.parametrize("device", ["cpu"])
def test_wrong_arguments_are_named(group):
    with pytest.raises(ArgumentError, match=r"ddp must be a torch.*got Sequential; wrap the model"):
        st.reduce_packed(net(group))
    ddp = DistributedDataParallel(net(group))
    with pytest.raises(ArgumentError, match=r"check must be one of True, False, got 'deferred'"):
        st.reduce_packed(ddp, check="deferred")
    with pytest.raises(ArgumentError, match=r"layers must be several names, got '0'; pass \['0'\]"):
        st.reduce_packed(ddp, layers="0")
    with pytest.raises(ArgumentError, match=r"a name in layers must be one of '0', '2', got '1'"):
        st.reduce_packed(ddp, layers=["0", "1"])
    with pytest.raises(ArgumentError, match=r"layers must be one name or more, got none; leave"):
        st.reduce_packed(ddp, layers=[])
    with pytest.raises(ArgumentError, match=r"a name in layers must be one of '0', '2', got 2"):
        st.reduce_packed(ddp, layers=2)
    with pytest.raises(ArgumentError, match=r"'2'\] cannot be packed: gradient='ste' reaches"):
        st.reduce_packed(ddp, layers=["2"])
    st.reduce_packed(ddp, layers=["0"])
    with pytest.raises(ArgumentError, match="ddp must have no communication hook yet"):
        st.reduce_packed(ddp)


def test_gloo_is_for_the_cpu_only():
    both = {"cpu": "gloo", "cuda": "gloo"}
    for backends, devices in ((both, {"cpu"}), ({**both, "cuda": "nccl"}, {"cuda"})):
        _check_backend(backends, devices)
    with pytest.raises(ArgumentError, match=r"on GPUs by NCCL.*call .*process_group\('nccl'\)"):
        _check_backend(both, {"cuda"})


def test_nccl_averages_where_a_share_is_exact():
    for dtype in (torch.bfloat16, torch.float16):
        for ranks in range(1, 65):
            exact = float(torch.tensor(1 / ranks, dtype=dtype)) == 1 / ranks
            assert _divides("nccl", ranks, dtype) == exact
    assert _divides("nccl", 3, torch.float32)  # as DDP itself, by a factor in float32
    assert not _divides("gloo", 2, torch.float32)
    assert not _divides(None, 2, torch.float32)


@pytest.mark.parametrize("device", ["cpu"])
def test_shares_of_ranks_are_rounded_as_by_ddp(group, monkeypatch):
    reduction = st.reduce_packed(DistributedDataParallel(net(group)))
    reduction._group = SimpleNamespace(size=lambda: 3)
    sent = lambda x, *_, **__: SimpleNamespace(get_future=lambda: x)  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_reduce", sent)
    x = torch.randn(1000)
    assert not torch.equal(x * (1 / 3), x / 3)
    assert torch.equal(reduction._average(x.clone()), x * (1 / 3))


def tied():
    model = net("cpu")
    model.append(torch.nn.Linear(32, 64))
    model[3].weight = model[0].weight
    return model


def parametrized():
    model = net("cpu")
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


def frozen():
    model = net("cpu")
    model[0].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: net("cpu", decay=1e-4), "'0': decay=0.0001 reaches pruned weights"),
        (lambda: net("cpu", sparse="masked"), "'0': sparse='masked' prunes no weight to 2:4"),
        (tied, "'0': other modules share its weight"),
        (frozen, "'0': its weight does not learn"),
        (parametrized, "'0': its weight is made before each call"),
        (lambda: st.SparseLinear(2, 4, gradient="24dense"), "rows of 2 elements do not become"),
        (lambda: torch.nn.Linear(8, 8), "pruned places; sparsify with {'gradient': '24dense'}"),
    ],
)
def test_what_cannot_be_packed_is_told(group, model, reason):
    with pytest.raises(ArgumentError, match=r"ddp has no layer whose gradient.*") as error:
        st.reduce_packed(DistributedDataParallel(model()))
    assert reason in str(error.value)
