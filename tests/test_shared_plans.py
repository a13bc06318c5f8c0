"""Plans that arrays share which lie in memory alike: who may take one, and with what addresses."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import replace
from types import SimpleNamespace

import fake_device
import numpy as np
import pytest
from fake_device import array

import sparse24 as s24
from sparse24 import _arrays, _dispatch, _replay, _shared_plans, _tuning_cache
from sparse24 import _ready as ready
from sparse24._dispatch import Launched
from sparse24._options import NO_OPTIONS, Epilogue
from sparse24._records import PLAIN, Compressed24, Fused, Operand24
from sparse24.kernels import epilogue as _epilogue
from sparse24.kernels import launch, reference
from sparse24.kernels.launch import Launch, Launcher

# --- without a GPU ------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """Four addresses and the epilogue of each launch; NumPy's memory passes for that of CuPy."""
    found, put = [], monkeypatch.setattr
    put(_shared_plans, "_known", {})
    put(_arrays, "is_cupy", lambda x: isinstance(x, fake_device.Array))
    put("sparse24._devices.is_elsewhere", lambda x: False)
    put(_arrays, "captures_work_on", lambda x: False)
    put(ready, "current_stream", lambda: 7)
    put("sparse24._foreign_streams.make_current", lambda: None)
    put("sparse24._streams.hold", lambda stream: None)
    put(_arrays, "cupy_module", lambda: SimpleNamespace(empty=lambda s, t: array(np.zeros(s, t))))
    put(launch, "_driver_launch", lambda: driver)

    def driver(configuration, function, arguments, extra):
        *addresses, last = arguments
        words = [ctypes.c_uint64.from_address(at).value for at in addresses]
        found.append((words, ctypes.string_at(last, _epilogue.PARAMS.itemsize)))
        return 0

    return found


class Kernel(Launcher):
    """Its arguments are the addresses, and a plain epilogue."""

    def bind(self, a, b, out, stream):
        words = (a.values.data.ptr, a.packed.data.ptr, b.data.ptr, out.data.ptr)
        kernel = SimpleNamespace(kernel=SimpleNamespace(ptr=77))
        addresses = (np.array([x], np.uint64) for x in words)
        return Launch(kernel, 4, 128, 0, [*addresses, _epilogue.params(PLAIN)])


def operand(dtype="float32", m=8, k=16, dense=None):
    A = s24.random((m, k), dtype=dtype, rng=1)
    packed = array(reference.pack_metadata(A.metadata, k, A.dtype.itemsize))
    record = Compressed24(array(A.values), None, packed, (m, k), A._dtype)
    return Operand24(record, None, dense, (m, k), A._dtype)


def key_of(a, x, call, *, from_left):
    key = _replay.signature(x, None, call, from_left=from_left)
    return _shared_plans.key_of(a, x, None, call, key, from_left=from_left)


def planned(a, x, call=NO_OPTIONS, make_epilogue=None, *, from_left=False):
    """What a call would have launched, shared as `_product` does."""
    key = key_of(a, x, call, from_left=from_left)
    a = a.transposed() if from_left else a
    result = array(np.zeros((a.shape[0], x.shape[1]), x.dtype))
    epilogue = PLAIN if make_epilogue is None else make_epilogue(call, None)
    epilogue = epilogue.transposed() if from_left else epilogue
    launched = Launched(Kernel(), a.rows, x, result, epilogue)
    plan = _replay.remember({}, key, launched, x, result, call, make_epilogue, from_left=from_left)
    _shared_plans.share(key, plan, launched, make_epilogue)
    return key


def tokens(n=4, dtype=np.float32):
    return array(np.ones((16, n), dtype))


def test_another_array_takes_the_plan_with_its_own_addresses(seen):
    a, other, x = operand(), operand(), tokens()
    assert planned(a, x) is not None
    for b in (a, other):
        for y in (tokens(), tokens()):
            key = key_of(b, y, NO_OPTIONS, from_left=False)
            plan = _shared_plans.find(key, b, y, None, NO_OPTIONS, from_left=False)
            out = array(np.zeros((8, 4), np.float32))
            assert plan(y, out) is out
            addresses = [part.ctypes.data for part in (b.rows.values, b.rows.packed, y, out)]
            assert seen[-1][0] == addresses
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("b", "x", "call"),
    [
        (lambda: operand(m=24), tokens, NO_OPTIONS),
        (lambda: operand("float16"), tokens, NO_OPTIONS),
        (lambda: operand(dense=array(np.zeros((8, 16)))), tokens, NO_OPTIONS),
        (operand, lambda: tokens(5), NO_OPTIONS),
        (operand, lambda: tokens(dtype=np.float16), NO_OPTIONS),
        (operand, lambda: array(np.ones((4, 16), np.float32)).T, NO_OPTIONS),
        (operand, lambda: tokens(8)[:, ::2], NO_OPTIONS),
        (operand, lambda: tokens(5).reshape(-1)[1:65].reshape(16, 4), NO_OPTIONS),
        (operand, tokens, NO_OPTIONS._replace(alpha=2.0)),
        (operand, tokens, NO_OPTIONS._replace(epilogue=Epilogue(activation="relu"))),
        (operand, tokens, NO_OPTIONS._replace(algorithm="sparse_mma")),
    ],
)
def test_others_are_planned(seen, b, x, call):
    planned(operand(), tokens())
    b, x = b(), x()
    key = key_of(b, x, call, from_left=False)
    assert _shared_plans.find(key, b, x, None, call, from_left=False) is None


def test_a_plan_is_forgotten_when_something_is_tuned(seen, monkeypatch):
    a, x = operand(), tokens()
    planned(a, x)
    monkeypatch.setattr(_tuning_cache, "generation", lambda: -1)
    key = key_of(a, x, NO_OPTIONS, from_left=False)
    assert _shared_plans.find(key, a, x, None, NO_OPTIONS, from_left=False) is None


@pytest.mark.parametrize("from_left", [False, True])
@pytest.mark.parametrize("copies", [False, True])
def test_vectors_are_those_of_the_call(seen, copies, from_left):
    read = []

    def call():
        return NO_OPTIONS._replace(epilogue=Epilogue(bias=array(np.ones(8, np.float32))))

    def make(call, out):
        bias = call.epilogue.bias
        bias = array(bias) if copies else bias
        read.append(bias)
        return Fused(column_bias=bias) if from_left else Fused(row_bias=bias)

    a, x, first, second = operand(), tokens(), call(), call()
    a = a.transposed() if from_left else a
    key = planned(a, x, first, make, from_left=from_left)
    assert key == key_of(a, x, second, from_left=from_left)
    plan = _shared_plans.find(key, a, x, None, second, from_left=from_left)
    assert plan.reads_options == copies
    assert plan.captured != copies
    for value in (1, 2):
        second.epilogue.bias.fill(value)
        _replay.repeat(plan, x, array(np.zeros((8, 4), np.float32)), second)
        bias = read[-1] if copies else second.epilogue.bias
        assert (bias == value).all()
        assert seen[-1][1] == _epilogue.params(Fused(row_bias=bias)).tobytes()


def test_a_replay_refuses_arrays_that_share_memory(seen):
    a, x, out = operand(), tokens(), array(np.zeros((8, 4), np.float32))
    values, beside_c, b_and_aux = (array(np.zeros(n, np.float32)) for n in (64, 36, 80))
    c, aux = beside_c[:32].reshape(8, 4), b_and_aux[48:].reshape(8, 4)
    record = replace(a.rows, values=values.reshape(8, 8))
    launched = Launched(Kernel(), record, x, out, Fused(beta=1.0, c=c, aux=aux))
    plan = ready.ReadyProduct(launched, lambda: array(out))
    for b, to, message in (
        (x, x.reshape(-1)[32:].reshape(8, 4), "out shares memory with an operand"),
        (x, values[32:].reshape(8, 4), "out shares memory with an operand"),
        (x, aux, "aux shares memory with out"),
        (x, beside_c[4:].reshape(8, 4), "c overlaps out"),
        (b_and_aux[:64].reshape(16, 4), None, "aux shares memory with an operand"),
    ):
        with pytest.raises(s24.ArgumentError, match=message):
            plan(b, to)
    assert not seen
    for to in (out, c, None):
        plan(x, to)
    assert len(seen) == 3


def test_nothing_is_kept_alive(seen):
    a, x = operand(), tokens()
    refs = [weakref.ref(part) for part in (a.rows.values, a.rows.packed, x)]
    planned(a, x)
    assert _shared_plans._known
    del a, x
    assert all(ref() is None for ref in refs)


def test_arrays_on_the_cpu_share_nothing():
    A = s24.random((8, 16), rng=0)
    x = np.ones((16, 4), np.float32)
    assert key_of(A._operand, x, NO_OPTIONS, from_left=False) is None


# --- on one -------------------------------------------------------------------------------


def narrowed(bias, x):
    return bias.to(x.dtype) if hasattr(bias, "to") else bias.astype(x.dtype)


CALLS = {
    "A @ b": lambda A, x, bias: A @ x.T,
    "x @ A.T": lambda A, x, bias: x @ A.T,
    "a vector": lambda A, x, bias: A @ x[0],
    "bias": lambda A, x, bias: s24.linear(x, A, bias),
    "bias and gelu": lambda A, x, bias: s24.linear(x, A, bias, activation="gelu"),
    "bias of 16 bits": lambda A, x, bias: s24.linear(x, A, narrowed(bias, x), activation="relu"),
    "a number": lambda A, x, bias: s24.linear(x, A, 0.5),
    "scales": lambda A, x, bias: s24.matmul(A, x.T, scales=(bias, None)),
    "wide": lambda A, x, bias: s24.matmul(A, x.T, dtype="float32"),
    "a stack": lambda A, x, bias: s24.linear(x[None], A, bias),
    "c": lambda A, x, bias: s24.matmul(A, x.T, c=1 + x[:, :256].T, beta=0.5),
    "out": lambda A, x, bias: s24.matmul(A, x.T, out=0 * x[:, :256].T),
}


@pytest.mark.gpu
@pytest.mark.stem("sparse_wgmma", "sparse_skinny")
@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("n", [1, 24, 512])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_second_array_is_not_planned(monkeypatch, library, call, n, dtype):
    cupy, torch = pytest.importorskip("cupy"), pytest.importorskip("torch")
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *of: planned.append(of) or fill(*of))
    monkeypatch.setattr(_shared_plans, "_known", {})

    def draw(*shape):
        x = torch.randn(*shape, device="cuda")
        return x if library == "torch" else cupy.from_dlpack(x)

    def narrow(x):
        return x.to(getattr(torch, dtype)) if library == "torch" else x.astype(A.dtype)

    for i in range(3):
        A = s24.compress(draw(256, 512), on_excess="prune", dtype=dtype)
        for j in range(2):
            x, bias = narrow(draw(n, 512)), draw(256)
            got = call(A, x, bias)
            # Each call brings another bias, which the plan of an array holds.  A product is planned
            # once more for arrays that are settled, as the first one may be by its second call.
            assert planned or j or i
            assert i == 0 or not planned or call is CALLS["c"]
            planned.clear()
            with monkeypatch.context() as alone:
                alone.setattr(_shared_plans, "_known", {})
                want = call(A.copy(), x, bias)
            assert planned
            assert (got == want).all()
            planned.clear()
