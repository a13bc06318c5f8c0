"""Data-parallel training that sends kept elements only: gradients, bytes, what goes wrong."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import processes  # noqa: E402
import reduction_cases as cases  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, PatternError  # noqa: E402
from sparse24._torch import ops  # noqa: E402
from sparse24._torch.buckets import PackedBucket  # noqa: E402
from sparse24._torch.packable import _check_backend  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


# --- two processes ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def ranks(request, tmp_path_factory):
    """What each of two processes found, in which the gradients are compared."""
    if request.param == "cuda" and torch.cuda.device_count() < cases.WORLD:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("ranks")
    arguments = folder, request.param
    processes.run(cases.run, arguments, cases.WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(cases.WORLD)]


@pytest.mark.parametrize("case", cases.CASES)
def test_gradients_are_those_of_ddp(ranks, case):
    for found in ranks:
        sent, whole, layers = found[case]
        assert layers == ("first", "tiles", "sampled", "experts")
        assert sent < 0.9 * whole


def test_a_gradient_at_pruned_places_is_not_lost_unseen(ranks):
    for found in ranks:
        spoilt, message = found["penalty"]
        assert spoilt == 1
        assert "had non-zeros where their masks prune" in message


def test_ranks_that_stop_early_are_right_or_seen(ranks):
    for found in ranks:
        seen, message = found["join"]
        assert seen
        assert "ranks had other masks or weights" in message


def test_ranks_that_would_pack_other_layers_are_refused_on_all(ranks):
    for rank, found in enumerate(ranks):
        layers, check, refused = found["apart"]
        assert "layers and check must be the same on all ranks, and those of ranks [1] " in layers
        assert f"are not those of rank 0, here ['{rank}'] with check=True" in layers
        assert f"here ['0', '1'] with check={not rank}" in check
        wanted = "has no layer whose gradient is zero" if rank else "and ranks [1] refuse theirs"
        assert wanted in refused


# --- a bucket, with sums in one process ---------------------------------------------------


class Rank:
    """A rank's bucket: a vector, a packed gradient (2, 6, 22), two matrices, one of them packed."""

    shapes = ((5,), (2, 6, 22), (3, 7), (8, 13))

    def __init__(self, device, dtype, layers):
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        self.buffer = torch.randn(sum(sizes), device=device).to(dtype)
        parts = self.buffer.split(sizes)
        self.gradients = [x.view(shape) for x, shape in zip(parts, self.shapes, strict=True)]
        self.layers = [None, layers[0], None, layers[1]]
        for gradient, layer in zip(self.gradients, self.layers, strict=True):
            if layer is not None:
                gradient.mul_(layer.current_mask())

    def pack(self, check=True):
        flags = [torch.zeros((), dtype=torch.bool, device=self.buffer.device) for _ in range(2)]
        self.wrong = flags if check else None
        self.packed = PackedBucket(self.buffer, self.gradients, self.layers, self.wrong)
        return self.packed.flat


def two_layers(device, dtype, *, masked, transposable=False):
    options = {"gradient": "24dense", "transposable": transposable}
    layers = st.SparseExperts(2, 22, 6, **options), st.SparseLinear(13, 8, **options)
    for layer in layers:
        layer.to(device, dtype)
        if masked:
            layer.set_mask(layer.current_mask(), way="weight")
    return layers


def reduced(*ranks, check=True):
    total = sum(rank.pack(check) for rank in ranks)
    for rank in ranks:
        future = torch.futures.Future()
        future.set_result([total])
        rank.back = rank.packed.unpack(future)
    return total


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("transposable", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.stem("compress", "decompress", "like", "transposable")
def test_a_bucket_comes_back_as_the_sum(device, dtype, transposable, masked, check):
    layers = two_layers(device, dtype, masked=masked, transposable=transposable)
    ranks = [Rank(device, dtype, layers) for _ in range(2)]
    expected = ranks[0].buffer + ranks[1].buffer
    flat = reduced(*ranks, check=check)
    told = 2 * 66 if check else 0
    assert flat.numel() == 5 + 2 * 6 * 12 + 3 * 7 + 8 * 8 + told
    for rank in ranks:
        assert rank.back is rank.buffer
        torch.testing.assert_close(rank.buffer, expected, rtol=0, atol=0)
        if check:
            assert not any(rank.wrong)


@pytest.mark.stem("compress", "decompress")
def test_only_the_gradient_that_lost_an_element_gets_a_nan(device):
    layers = two_layers(device, torch.float16, masked=True)
    ranks = [Rank(device, torch.float16, layers) for _ in range(3)]
    ranks[1].gradients[3][~layers[1].mask] = 6e-8  # the least number that is not zero
    reduced(*ranks)
    for rank in ranks:
        assert [int(x.isnan().sum()) for x in rank.gradients] == [0, 0, 0, 1]
        assert [bool(flag) for flag in rank.wrong] == [False, True]


@pytest.mark.stem("compress", "decompress", "like")
def test_ranks_with_other_weights_get_a_nan(device):
    layers = two_layers(device, torch.bfloat16, masked=False)
    first = Rank(device, torch.bfloat16, layers)
    others = two_layers(device, torch.bfloat16, masked=False)
    with torch.no_grad():
        for layer, other in zip(layers, others, strict=True):
            other.weight.copy_(layer.weight)
        layers[0].weight[0, 0, :4] = torch.tensor([4.0, 2, 3, 1])
        others[0].weight[0, 0, :4] = torch.tensor([4.0, 3, 2, 1])
    second = Rank(device, torch.bfloat16, others)
    for rank, own in ((first, layers), (second, others)):
        rank.gradients[1].copy_(torch.ones_like(own[0].weight) * own[0].current_mask())
    reduced(first, second)
    for rank in (first, second):
        assert [int(x.isnan().sum()) for x in rank.gradients] == [0, 1, 0, 0]
        assert [bool(flag) for flag in rank.wrong] == [True, False]


@pytest.mark.stem("compress", "decompress", "like")
def test_infinite_gradients_stay_what_they_are(device):
    layers = two_layers(device, torch.float32, masked=False)
    rank = Rank(device, torch.float32, layers)
    places = layers[1].current_mask().nonzero()
    rank.gradients[3][tuple(places[3])] = float("inf")
    rank.gradients[3][tuple(places[4])] = float("nan")
    expected = rank.buffer.clone()
    reduced(rank)
    torch.testing.assert_close(rank.buffer, expected, rtol=0, atol=0, equal_nan=True)
    assert not any(rank.wrong)


@pytest.mark.stem("compress", "decompress")
def test_an_overflow_stays_a_nan_and_is_nobodys_fault(device):
    layers = two_layers(device, torch.float16, masked=True)
    ranks = [Rank(device, torch.float16, layers) for _ in range(2)]
    ranks[0].gradients[3].div_(0).mul_(layers[1].mask)  # a pruned infinity is NaN
    ranks[0].gradients[3].masked_fill_(layers[1].mask, 1.0)
    assert ranks[0].gradients[3].isnan().any()
    reduced(*ranks)
    for rank in ranks:
        assert [int(x.isnan().sum()) for x in rank.gradients] == [0, 0, 0, 1]
        assert not any(rank.wrong)


def test_a_bucket_without_packed_gradients_travels_as_it_is():
    rank = Rank("cpu", torch.float32, (None, None))
    assert rank.pack() is rank.buffer
    total = reduced(rank)
    assert rank.back is total


# --- one process --------------------------------------------------------------------------


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
    assert model[0]._cast_to == torch.bfloat16
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
    with pytest.raises(ArgumentError, match=r"'2'\] cannot be packed: gradient='ste' reaches"):
        st.reduce_packed(ddp, layers=["2"])
    st.reduce_packed(ddp, layers=["0"])
    with pytest.raises(ArgumentError, match="ddp must have no communication hook yet"):
        st.reduce_packed(ddp)


def test_gloo_is_for_the_cpu_only():
    for config, devices in (("cpu:gloo,cuda:gloo", {"cpu"}), ("cpu:gloo,cuda:nccl", {"cuda"})):
        _check_backend(config, devices)
    with pytest.raises(ArgumentError, match=r"on GPUs by NCCL.*call .*process_group\('nccl'\)"):
        _check_backend("cpu:gloo,cuda:gloo", {"cuda"})


def tied():
    model = net("cpu")
    model.append(torch.nn.Linear(32, 64))
    model[3].weight = model[0].weight
    return model


def parametrized():
    model = net("cpu")
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: net("cpu", decay=1e-4), "'0': decay=0.0001 reaches pruned weights"),
        (lambda: net("cpu", sparse="masked"), "'0': sparse='masked' prunes no weight to 2:4"),
        (tied, "'0': other modules share its weight"),
        (parametrized, "'0': its weight is made before each call"),
        (lambda: st.SparseLinear(2, 4, gradient="24dense"), "rows of 2 elements do not become"),
        (lambda: torch.nn.Linear(8, 8), "pruned places; sparsify with {'gradient': '24dense'}"),
    ],
)
def test_what_cannot_be_packed_is_told(group, model, reason):
    with pytest.raises(ArgumentError, match=r"ddp has no layer whose gradient.*") as error:
        st.reduce_packed(DistributedDataParallel(model()))
    assert reason in str(error.value)
