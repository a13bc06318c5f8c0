"""Data-parallel training that sends kept elements only: ranks that differ, and what is lost."""

from __future__ import annotations

import itertools
import weakref

import pytest

torch = pytest.importorskip("torch")

import processes  # noqa: E402
import reduction_cases as cases  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import bucket_check as looks  # noqa: E402
from sparse24._torch.buckets import PackedBucket  # noqa: E402
from sparse24._torch.gathering import gather, spread  # noqa: E402
from sparse24._torch.kept_places import KeptPlaces  # noqa: E402

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch without torch.distributed"
)


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


def test_a_hook_of_one_rank_is_refused_on_all(ranks):
    first, second = (found["hooked"] for found in ranks)
    assert "ranks [1] refuse theirs" in first
    assert "must have no communication hook yet" in second
    assert "and has other_hook; wrap the model anew without the other" in second


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
        kept = KeptPlaces(check)
        self.packed = PackedBucket(self.buffer, self.gradients, self.layers, kept, self.wrong)
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


@pytest.mark.stem("compress", "decompress", "like")
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


@pytest.mark.stem("compress", "decompress", "like")
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


def test_hashes_of_places_that_differ_in_two_words_differ():
    codes = torch.arange(64, dtype=torch.uint8)
    found = {tuple(looks.hashed(codes).tolist())}
    places = range(7, 64, 8)  # the highest bytes of words
    for first, other in itertools.combinations(places, 2):
        changed = codes.clone()
        changed[first] ^= 0x80
        changed[other] ^= 0x80
        found.add(tuple(looks.hashed(changed).tolist()))
    assert len(found) == 1 + 8 * 7 // 2
    for told in found:
        bits, complement = told[2 : 2 + looks.BITS], told[2 + looks.BITS :]
        assert told[:2] == (0, 0)
        assert all(x + y == 1 for x, y in zip(bits, complement, strict=True))


@pytest.mark.stem("compress")
@pytest.mark.parametrize("check", [True, False])
def test_places_of_a_mask_are_found_once_for_each(device, check):
    kept = KeptPlaces(check)
    layer = two_layers(device, torch.float32, masked=True)[1]
    first = kept.of(layer)
    assert kept.of(layer) is first
    assert (first.hashed is None) != check
    layer.weight.data.zero_()  # which the mask does not depend on
    assert kept.of(layer) is first
    other = layer.mask.view(8, 13)[:, [1, 0, 3, 2, *range(4, 13)]].contiguous()
    layer.set_mask(other)
    second = kept.of(layer)
    assert not torch.equal(second.codes, first.codes)
    assert kept.of(layer) is second
    layer.mask.data.copy_(layer.mask.roll(4, 0))  # not counted
    layer.train()  # as loops call it in each step
    assert kept.of(layer) is second
    layer.eval()
    third = kept.of(layer)
    assert not torch.equal(third.codes, second.codes)
    assert kept.of(layer) is third
    before = weakref.ref(layer.mask)
    layer.set_mask(None)
    assert kept.of(layer) is not kept.of(layer)
    assert before() is None


@pytest.mark.stem("compress", "decompress", "like", "transposable")
@pytest.mark.parametrize("transposable", [True, False])
def test_gradients_at_kept_zeros_travel(device, transposable):
    layers = [*two_layers(device, torch.float32, masked=False, transposable=transposable)]
    layers.append(st.SparseLinear(8, 4, gradient="24dense", transposable=transposable).to(device))
    for layer in layers:
        with torch.no_grad():  # groups with one non-zero, in any of their places
            zeros = torch.rand(layer.weight.shape, device=device) < 0.8
            layer.weight.masked_fill_(zeros, 0.0)
        x = torch.randn(8, layer.in_features, device=device)
        y = layer(x, offsets=[0, 4, 8]) if isinstance(layer, st.SparseExperts) else layer(x)
        y.square().sum().backward()
        grad = layer.weight.grad
        codes = KeptPlaces(False).of(layer).codes
        values = grad.new_empty(*grad.shape[:-1], -(-grad.shape[-1] // 4) * 2)
        seen = torch.zeros(2, device=device)
        gather(grad, codes, values, seen)
        assert not seen.any()
        spread(values, codes, back := torch.empty_like(grad))
        torch.testing.assert_close(back, grad, rtol=0, atol=0)


@pytest.mark.stem("compress")
def test_places_of_masks_that_others_write_are_found_at_each_call(device):
    kept = KeptPlaces(True, uncounted=True)
    layer = two_layers(device, torch.float32, masked=True)[1]
    first = kept.of(layer)
    layer.mask.data.copy_(layer.mask.roll(4, 0))
    assert not torch.equal(kept.of(layer).codes, first.codes)


def test_masks_of_the_first_rank_alone_reach_the_others(ranks):
    for found in ranks:
        for same, names in found["sent masks"]:
            assert same
            assert names == ""


def test_a_bucket_without_packed_gradients_travels_as_it_is():
    rank = Rank("cpu", torch.float32, (None, None))
    assert rank.pack() is rank.buffer
    total = reduced(rank)
    assert rank.back is total
