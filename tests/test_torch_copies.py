"""What is copied into a `Sparse24Tensor`: another one that is packed alike, and nothing else."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE, WAYS  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402

pack = st.to_sparse_semi_structured


def both_ways(device="cpu"):
    """Matrices that can be packed along either axis, or both."""
    x = torch.randn(16, 32, device=device)
    return x * s24.mask(x, transposable=True)


def packed_layer(weight):
    layer = torch.nn.Linear(*weight.shape[::-1])
    layer.weight = torch.nn.Parameter(pack(weight), requires_grad=False)
    return layer


@pytest.mark.parametrize("given", WAYS)
@pytest.mark.parametrize("way", WAYS)
def test_a_matrix_is_copied_where_it_is_packed_alike(device, way, given):
    old, new = both_ways(device), both_ways(device)
    to, source = WAYS[way](old), WAYS[given](new)
    turned, version = to.t(), to._version
    if given.startswith("both") or way == given:
        assert to.copy_(source) is to
        assert to._version == version + 1
    else:
        with pytest.raises(s24.UnsupportedError, match=r"goes one like it.*axis .*assign=True"):
            to.copy_(source)
        new = old
    x = torch.randn(3, 32, device=device)
    assert torch.equal(to.to_dense(), new)
    torch.testing.assert_close(x @ to.t(), x @ new.t(), **CLOSE)
    torch.testing.assert_close(turned @ x[:, :16].t(), new.t() @ x[:, :16].t(), **CLOSE)


@pytest.mark.parametrize("factor", [1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("way", WAYS)
def test_another_type_keeps_all_elements(device, way, dtype, factor):
    x = both_ways(device)
    factors = torch.where(torch.rand(x.shape, device=device) < 0.3, factor, 1e-3)
    want = (x * factors).masked_fill(x == 0, 0)
    packed = (WAYS[way](x) * factors).to(dtype)
    rows, columns = slice(4, 8), (slice(None), slice(4, 8))  # of either orientation
    for place in (slice(None), rows, columns):
        got, part = packed[place].to_dense(), want[place].to(dtype)
        torch.testing.assert_close(got, part, rtol=0, atol=0, equal_nan=True)


def test_a_matrix_takes_its_own_transpose():
    packed = st.sparsify24(torch.randn(16, 16))
    want = packed.to_dense().t().clone()
    packed.copy_(packed.t())
    assert torch.equal(packed.to_dense(), want)
    assert torch.equal(packed.t().to_dense(), want.t())


def test_types_and_devices_are_those_of_the_tensor_that_is_written(device):
    old, new = s24.prune(torch.randn(16, 32, device=device)), s24.prune(torch.randn(16, 32))
    to = pack(old)
    to.copy_(pack(new.double()))
    assert (to.dtype, to.device.type) == (torch.float32, device)
    assert torch.equal(to.to_dense().cpu(), new)


def test_a_compiled_copy_is_seen_outside():
    new, x = s24.prune(torch.randn(16, 32)), torch.randn(3, 32)
    to, source = pack(torch.zeros(16, 32)), pack(new)

    def run(to, source, x):
        to.copy_(source)
        return x @ to.t()

    y = torch.compile(run, fullgraph=True, backend="aot_eager")(to, source, x)
    torch.testing.assert_close(y, x @ new.t(), **CLOSE)
    assert torch.equal(to.to_dense(), new)


def test_what_was_saved_for_backward_is_not_exchanged():
    a, x = pack(torch.eye(8)), torch.ones(2, 8, requires_grad=True)
    y = x @ a.t()
    a.copy_(pack(torch.zeros(8, 8)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dense_elements_and_parts_are_refused():
    dense = s24.prune(torch.randn(16, 32))
    packed = pack(dense)
    for to, source in ((dense, packed), (packed, dense)):
        with pytest.raises(s24.UnsupportedError, match=r"dense one; pass assign=True .*to_sparse"):
            to.copy_(source)
    for part in (packed[:8], packed[:, :8], packed[:8].t().detach(), packed.expand(2, -1, -1)):
        with pytest.raises(s24.UnsupportedError, match=r"a part or an expansion .*whole matrix"):
            part.copy_(part.clone())
    with pytest.raises(s24.UnsupportedError, match=r"shape \(16, 32\) .* got one of shape \(8, 32"):
        packed.copy_(packed[:8])
    assert torch.equal(packed.to_dense(), dense)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[4:12]])
def test_nothing_is_copied_into_the_memory_of_an_array(view):
    array = view(s24.random((16, 32), rng=0))
    weight = torch.nn.Parameter(st.to_sparse_semi_structured(array), requires_grad=False)
    other, before = weight.clone() * 2, array.toarray()
    for shared in (weight, weight.detach(), weight.T.T):
        with pytest.raises(s24.UnsupportedError, match=r"made of an array, .* into a \.clone\(\)"):
            shared.copy_(other)
    for own in (weight.clone(), copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        own.copy_(other)
        assert torch.equal(own.to_dense(), other.to_dense())
    np.testing.assert_array_equal(array.toarray(), before)


def test_parts_that_compiled_code_gives_are_refused_too():
    packed = st.sparsify24(torch.randn(16, 32))
    part = torch.compile(lambda a: a[:8], fullgraph=True, backend="aot_eager")(packed)
    with pytest.raises(s24.UnsupportedError, match="a part or an expansion"):
        part.copy_(part.clone())


def test_a_state_of_packed_weights_is_loaded_in_place():
    old, new = (packed_layer(s24.prune(torch.randn(16, 32))) for _ in range(2))
    weight, x = old.weight, torch.randn(3, 32)
    compiled = torch.compile(old, backend="aot_eager")
    assert not torch.equal(compiled(x), new(x))
    old.load_state_dict(new.state_dict())
    assert old.weight is weight
    for net in (old, compiled, copy.deepcopy(old)):
        torch.testing.assert_close(net(x), new(x), **CLOSE)
    dense = torch.nn.Linear(32, 16)
    for to, source in ((dense, new), (new, dense)):
        with pytest.raises(RuntimeError, match=r"pass assign=True to load_state_dict"):
            to.load_state_dict(source.state_dict())


def test_an_average_begins_with_a_copy_of_packed_weights():
    net, later = (packed_layer(s24.prune(torch.randn(16, 32))) for _ in range(2))
    averaged = torch.optim.swa_utils.AveragedModel(net)
    averaged.update_parameters(later)
    assert torch.equal(averaged.module.weight, later.weight)


def test_data_are_exchanged_with_their_elements():
    a, b = (s24.prune(torch.randn(16, 32)) for _ in range(2))
    first, second = (torch.nn.Parameter(pack(x), requires_grad=False) for x in (a, b))
    first.data, second.data = second.data, first.data
    assert torch.equal(first.to_dense(), b)
    assert torch.equal(second.to_dense(), a)
    first.data = pack(a.double())
    assert first.dtype == torch.float64
    assert torch.equal(first.to_dense(), a.double())
    with pytest.raises(s24.UnsupportedError, match=r"data of a Sparse24Tensor must be another one"):
        first.data = b


@pytest.mark.parametrize("cut", [lambda a: a[:, 8:16], lambda a: a.t()[8:16].t()[:8].detach()])
def test_a_copied_part_does_not_outlive_what_was_written_into_the_whole(cut):
    packed, other = pack(torch.eye(16)), pack(s24.prune(torch.randn(16, 16)))
    x = torch.ones(2, cut(packed).shape[1])
    part, kept = cut(packed), cut(packed).clone()
    x @ part.t()
    packed.copy_(other)
    for use in (lambda: x @ part.t(), part.to_dense, part.to_array, lambda: part[:4]):
        with pytest.raises(s24.UnsupportedError, match=r"after the whole .* take the part anew"):
            use()
    assert torch.equal(kept.to_dense(), cut(torch.eye(16)))
    assert torch.equal(cut(packed).to_dense(), cut(other.to_dense()))


def test_rows_that_are_views_follow_the_whole():
    packed, other = pack(torch.eye(16)), pack(s24.prune(torch.randn(16, 16)))
    rows = packed[4:12]
    packed.copy_(other)
    assert torch.equal(rows.to_dense(), other.to_dense()[4:12])


def test_rows_with_codes_in_the_order_of_a_gpu_do_not_outlive_it_either():
    values, codes = torch.zeros(128, 256), torch.zeros(4, 2, 1024, dtype=torch.uint8)
    rows = st.Sparse24Tensor([values, codes], (128, 512))[:64]
    assert rows.parts[0].data_ptr() == values.data_ptr()
    values.add_(1)
    with pytest.raises(s24.UnsupportedError, match="take the part anew"):
        rows.parts  # noqa: B018


@pytest.mark.gpu
@pytest.mark.parametrize("cut", [lambda a: a[:64], lambda a: a[8:72], lambda a: a[:, :64]])
def test_rows_on_a_gpu_are_not_mixed_with_what_is_written_later(cut):
    packed, other = (pack(s24.prune(torch.randn(128, 512, device="cuda").half())) for _ in range(2))
    part = cut(packed)
    packed.copy_(other)
    with pytest.raises(s24.UnsupportedError, match="take the part anew"):
        part.to_dense()
    assert torch.equal(cut(packed).to_dense(), cut(other.to_dense()))
