"""Communicators of torch.distributed and of CuPy's NCCL: two processes, one, and a fake."""

from __future__ import annotations

from types import SimpleNamespace

import distributed_cases as cases
import numpy as np
import pytest
from distributed_cases import device_of, on_host

import sparse24 as s24
from sparse24 import _dtypes
from sparse24 import distributed as D
from sparse24._distributed import nccl as distributed_nccl
from sparse24._errors import ArgumentError, DeviceError

# --- torch ------------------------------------------------------------------------------


def test_two_processes_of_torch(tmp_path):
    assert told_by_two(tmp_path, "cpu", cases.of_torch) == [cases.TOLD] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("connect", [cases.of_torch, cases.of_nccl])
def test_two_processes_with_a_gpu_each(tmp_path, connect):
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.runtime.getDeviceCount() < cases.WORLD:
        pytest.skip("needs two GPUs")
    assert told_by_two(tmp_path, "cuda", connect) == [cases.TOLD] * 2


def told_by_two(folder, kind, connect):
    """What two processes have compared; raises what they do."""
    pytest.importorskip("torch")
    import processes

    processes.run(cases.run, (folder, kind, connect), cases.WORLD)
    return [(folder / f"{rank}.txt").read_text() for rank in range(cases.WORLD)]


@pytest.fixture
def alone(xp, tmp_path):
    """A communicator of torch for this process alone, where arrays of `xp` are."""
    torch = pytest.importorskip("torch")
    if xp is not np and not torch.distributed.is_nccl_available():
        pytest.skip("torch without NCCL")
    backend, meeting = "gloo" if xp is np else "nccl", (tmp_path / "meeting").as_uri()
    torch.distributed.init_process_group(backend, meeting, rank=0, world_size=1)
    yield D.from_torch()
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("dtype", cases.DTYPES[:4])
def test_one_process_of_torch_gets_its_own(xp, alone, dtype):
    A = cases.apart(0, dtype, device=device_of(xp))
    expected = on_host(A.toarray())
    np.testing.assert_array_equal(on_host(D.all_reduce(A, alone).toarray()), expected)
    part = on_host(D.reduce_scatter(A, alone))
    np.testing.assert_array_equal(part, expected.astype(part.dtype))


def test_a_process_without_a_group_is_told():
    pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=r"there is none yet; call torch\.distributed\.init"):
        D.from_torch()


def test_a_process_outside_of_the_group_is_told(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: -1)
    with pytest.raises(ArgumentError, match="group must be one that this process is in"):
        D.from_torch("group")


@pytest.mark.parametrize("xp", [np])
def test_what_is_no_group_is_told(alone):
    with pytest.raises(ArgumentError, match=r"a .*ProcessGroup that was not destroyed, got 'gloo'"):
        D.from_torch("gloo")
    torch = pytest.importorskip("torch")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    with pytest.raises(ArgumentError, match=r"got DeviceMesh.*of a DeviceMesh pass mesh\.get_gr"):
        D.from_torch(mesh)
    assert D.from_torch(mesh.get_group()).size == 1


# --- NCCL -------------------------------------------------------------------------------


class FakeNccl(SimpleNamespace):
    """The names of CuPy's module, and a communicator that writes down its calls."""

    def __init__(self):
        self.calls = calls = []

        class NcclCommunicator:
            rank_id = staticmethod(lambda: 1)
            size = staticmethod(lambda: 3)

            def __getattr__(self, name):
                return lambda *given: calls.append((name, *given))

        self.NcclCommunicator = NcclCommunicator
        self.groupStart = lambda: calls.append(("groupStart",))
        self.groupEnd = lambda: calls.append(("groupEnd",))

    def __getattr__(self, name):
        return name.removeprefix("NCCL_").lower()


def test_nccl_gets_addresses_counts_and_types(monkeypatch):
    fake = FakeNccl()
    monkeypatch.setattr(distributed_nccl, "_nccl", lambda: fake)
    monkeypatch.setattr(distributed_nccl, "_stream", lambda x: 77)
    comm = D.from_nccl(fake.NcclCommunicator())
    assert (comm.rank, comm.size) == (1, 3)
    x = SimpleNamespace(dtype=_dtypes.lookup("bfloat16").carried, size=10, data=at(1000))
    comm.all_reduce(x)
    assert fake.calls == [("allReduce", 1000, 1000, 10, "bfloat16", "sum", 77)]
    fake.calls.clear()
    sent, received = SimpleNamespace(data=at(1000)), SimpleNamespace(data=at(5000))
    comm.all_to_all(sent, [4, 0, 6], received, [2, 2, 2])
    assert fake.calls == [
        ("groupStart",),
        ("send", 1000, 4, "uint8", 0, 77),
        ("send", 1004, 6, "uint8", 2, 77),
        ("recv", 5000, 2, "uint8", 0, 77),
        ("recv", 5002, 2, "uint8", 1, 77),
        ("recv", 5004, 2, "uint8", 2, 77),
        ("groupEnd",),
    ]


def at(address):
    return SimpleNamespace(ptr=address)


def test_nccl_moves_nothing_else(monkeypatch):
    fake = FakeNccl()
    monkeypatch.setattr(distributed_nccl, "_nccl", lambda: fake)
    with pytest.raises(ArgumentError, match=r"NcclCommunicator, got 3; make one with"):
        D.from_nccl(3)
    comm = D.from_nccl(fake.NcclCommunicator())
    with pytest.raises(DeviceError, match=r"A must be on a GPU, for NCCL moves nothing else; use"):
        D.all_reduce(s24.random((8, 16), rng=0), comm)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", cases.DTYPES[:4])
def test_one_rank_of_nccl_gets_its_own(dtype):
    nccl = pytest.importorskip("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("CuPy without NCCL")
    comm = D.from_nccl(nccl.NcclCommunicator(1, nccl.get_unique_id(), 0))
    A = cases.apart(0, dtype, device="cuda")
    expected = A.toarray().get()
    np.testing.assert_array_equal(D.all_reduce(A, comm).toarray().get(), expected)
    part = D.reduce_scatter(A, comm).get()
    np.testing.assert_array_equal(part, expected.astype(part.dtype))
