"""Weights that torch's `fully_shard` splits among processes, and memory that torch frees."""

from __future__ import annotations

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import DTypeError, UnsupportedError
from sparse24 import schedule as S

torch = pytest.importorskip("torch")

import processes  # noqa: E402
import sharded  # noqa: E402
from torch.distributed.tensor import distribute_tensor  # noqa: E402

from sparse24 import torch as st  # noqa: E402

DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("kind", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("world", [1, 2])
def test_sharded_models_have_the_gradients_of_the_dense_masked_one(world, kind, tmp_path):
    if kind == "cuda" and torch.cuda.device_count() < world:
        pytest.skip("needs two GPUs")
    processes.run(sharded.run, (world, tmp_path, kind), world)
    for rank in range(world):
        assert (tmp_path / f"{rank}.txt").read_text() == "24 24"


@pytest.fixture
def alone(tmp_path):
    meeting = (tmp_path / "meeting").as_uri()
    torch.distributed.init_process_group("gloo", meeting, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_masks_of_sharded_weights_are_set_by_the_whole_weight(alone):
    net = st.sparsify(torch.nn.Sequential(torch.nn.Linear(16, 8)), {"*": {"gradient": "24dense"}})
    sharded.fully_shard(net, mesh=alone)
    scheduler = S.MaskScheduler(S.Recipe(S.OneShot(0.5), pattern=S.NM(2, 4)))
    for refused in (lambda: st.update_masks(net, scheduler), net[0].current_mask, net[0].to_dense):
        with pytest.raises(UnsupportedError, match=r"weight must be whole.*full_tensor.*set_mask"):
            refused()
    experts = sharded.fully_shard(st.SparseExperts(2, 8, 4), mesh=alone)
    for refused in (experts.current_mask, experts.to_dense):
        with pytest.raises(UnsupportedError, match="weight must be whole"):
            refused()

    weights = {n: layer.weight.full_tensor() for n, layer in st.sparse_layers(net).items()}
    masks = scheduler.step(weights=weights)
    for name, mask in masks.items():
        st.sparse_layers(net)[name].set_mask(mask)
    net(torch.ones(2, 16)).sum().backward()
    gradient = net[0].weight.grad.full_tensor()
    assert gradient[masks["0"]].all()
    assert not gradient[~masks["0"]].any()


def test_saved_masks_are_loaded_into_sharded_layers_without_one(alone):
    whole = st.SparseLinear(16, 8, gradient="24dense")
    whole.set_mask(whole.current_mask())
    layer = sharded.fully_shard(st.SparseLinear(16, 8, gradient="24dense"), mesh=alone)
    parts = {n: distribute_tensor(p.detach(), alone) for n, p in whole.named_parameters()}
    layer.load_state_dict({**whole.state_dict(), **parts})
    assert type(layer.mask) is torch.Tensor
    assert torch.equal(layer.mask, whole.mask)
    x = torch.randn(4, 16)
    torch.testing.assert_close(layer(x), whole(x))


@pytest.mark.parametrize(
    "made", [lambda: st.SparseExperts(3, 16, 8), lambda: st.SparseLinear(16, 8, soft=True)]
)
@pytest.mark.filterwarnings("ignore")  # torch's, that no generator is shared on the CPU
def test_sharded_layers_are_initialised(alone, made):
    with torch.device("meta"):
        layer = made()
    sharded.fully_shard(layer, mesh=alone).to_empty(device="cpu")
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(7.0)
    layer.reset_parameters()
    for p in layer.parameters():
        values = p.full_tensor()
        assert values.abs().max() <= 0.25
        assert values.std() > 0.1
    if layer.scale is not None:
        wanted = S.soft_threshold_scale(layer.weight.full_tensor())
        torch.testing.assert_close(layer.scale, wanted)


@pytest.mark.parametrize("learns", [True, False])
def test_tensors_on_several_processes_are_refused(alone, learns):
    net = torch.nn.Sequential(torch.nn.Linear(16, 8))
    net = st.sparsify(sharded.fully_shard(net, mesh=alone), {"*": {}})
    with torch.set_grad_enabled(learns):
        with pytest.raises(UnsupportedError, match=r"whole tensors, got a DTensor.*call sparsify"):
            net(torch.ones(2, 16))
        with pytest.raises(UnsupportedError, match="for tensor parallelism give each process"):
            st.SparseLinear(8, 4)(distribute_tensor(torch.ones(2, 8), alone))
    split = distribute_tensor(torch.ones(8, 16, dtype=torch.bool), alone)
    with pytest.raises(UnsupportedError, match=r"mask must be whole.*pass mask\.full_tensor\(\)"):
        st.SparseLinear(16, 8).set_mask(split)
    with pytest.raises(DTypeError, match=r"got a DTensor.*as with \.full_tensor\(\)"):
        s24.mask(distribute_tensor(torch.ones(8, 16), alone))


def test_a_weight_that_is_exchanged_is_packed_anew():
    """As by `fully_shard`, which writes new values into one whose writes torch does not count."""
    layer = st.SparseLinear(8, 4, bias=False)
    weight, x = layer.weight, torch.ones(2, 8)
    with torch.no_grad():
        before = layer(x)
        layer.weight = torch.nn.Parameter(torch.zeros(4, 8))
        weight.data.mul_(2)
        layer.weight = weight
        torch.testing.assert_close(layer(x), 2 * before)


@pytest.mark.parametrize("name", DTYPES)
def test_torch_may_free_what_was_multiplied(name):
    dtype = getattr(torch, name)
    x, w = torch.ones(8, 16).to(dtype), torch.ones(4, 16).to(dtype)
    A = s24.compress(w, on_excess="prune")
    y = x @ A.T
    for tensor in (x, w):
        tensor.untyped_storage().resize_(0)  # raises where memory is held
        assert not tensor.untyped_storage().nbytes()
    np.testing.assert_array_equal(y.to(torch.float32), np.full((8, 4), 8))


def test_torch_may_free_what_layers_take():
    layer = st.SparseLinear(16, 8)
    x = torch.ones(2, 16, requires_grad=True)
    layer(x).sum().backward()
    with torch.no_grad():
        layer(x)
    for tensor in (x.data, layer.weight.data, layer.bias.data):
        tensor.untyped_storage().resize_(0)  # raises where memory is held
        assert not tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("name", [*DTYPES, "bool", "uint8", "int64", "complex64"])
def test_views_of_tensors_share_memory_and_keep_it(name):
    from sparse24 import _foreign

    x = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
    for part in (x, x.T, x[1:, ::2], x[0, 0], x[:0]):
        seen = _foreign.view_of(part)
        assert seen.dtype.name == name
        assert seen.shape == tuple(part.shape)
        wide = np.complex64 if name == "complex64" else np.float32
        expected = np.reshape(part.tolist(), seen.shape).astype(wide)
        np.testing.assert_array_equal(seen.astype(wide), expected)
    seen = _foreign.view_of(x)
    seen[...] = 1
    assert all(x.flatten().tolist())
    del x, part
    assert (seen.astype(np.float32 if name != "complex64" else np.complex64) == 1).all()
