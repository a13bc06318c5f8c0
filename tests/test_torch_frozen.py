"""Packed weights that stay as they are in models that learn on several processes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402


@pytest.fixture
def alone(tmp_path):
    torch.distributed.init_process_group("gloo", (tmp_path / "a").as_uri(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def model_and_packed():
    """A model whose first weight is packed, and stays; the bias and the second layer learn."""
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
    packed = st.to_sparse_semi_structured(s24.prune(net[0].weight.detach()))
    net[0].weight = torch.nn.Parameter(packed, requires_grad=False)
    return net, net[0].weight


def gradients(net, x):
    net(x).square().mean().backward()
    found = {name: p.grad for name, p in net.named_parameters() if p.requires_grad}
    net.zero_grad()
    return found


@pytest.mark.parametrize("how", ["DistributedDataParallel", "fully_shard"])
def test_frozen_packed_weights_stay_on_each_process(alone, how):
    net, packed = model_and_packed()
    x = torch.randn(5, 16)
    want = list(gradients(net, x).values())
    if how == "DistributedDataParallel":
        split = torch.nn.parallel.DistributedDataParallel(net, init_sync=False)
    else:
        split = fully_shard(net, mesh=alone, ignored_params={packed})
    got = [getattr(g, "full_tensor", lambda g=g: g)() for g in gradients(split, x).values()]
    torch.testing.assert_close(got, want, **CLOSE)
