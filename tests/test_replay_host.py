"""Repeated calls without a GPU: operands of NumPy, and the signatures of tensors."""

import numpy as np
import pytest

import sparse24 as s24
from sparse24 import _arrays, _replay
from sparse24._errors import ArgumentError
from sparse24._options import NO_OPTIONS


def on_cpu(rng, m=24, k=32, **how):
    weight = s24.prune(rng.standard_normal((m, k)).astype(np.float32))
    return weight, s24.compress(weight, **how)


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize("how", [{}, {"keep_dense": True}])
def test_products_of_numpy_operands_are_remembered(rng, n, how):
    weight, a = on_cpu(rng, **how)
    for _ in range(3):
        for order in "CF":
            b = np.asarray(rng.standard_normal((a.shape[1], n)), np.float32, order=order)
            x = np.asarray(rng.standard_normal((n, a.shape[1])), np.float32, order=order)
            np.testing.assert_allclose(a @ b, weight @ b, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(s24.linear(x, a), x @ weight.T, rtol=1e-4, atol=1e-5)
    assert a._plans
    assert a.mT._plans


def test_remembered_results_are_new_and_given_ones_are_checked(rng):
    weight, a = on_cpu(rng, 32, 32)
    b = rng.standard_normal((32, 32)).astype(np.float32)
    first, second = a @ b, a @ b
    assert not np.shares_memory(first, second)
    out = np.full((32, 32), np.nan, np.float32)
    for _ in range(2):
        assert s24.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, first)
    with pytest.raises(ArgumentError, match="shares memory"):
        s24.matmul(a, b, out=b)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="out"):
        s24.matmul(a, b, out=out)
    np.testing.assert_allclose(first, weight @ b, rtol=1e-4, atol=1e-5)


def test_other_numpy_operands_are_not_remembered(rng):
    _, a = on_cpu(rng)
    b = rng.standard_normal((32, 3))
    for operand in (b, b[:, 0], b[None], b.tolist()):  # of which NumPy's are converted
        np.testing.assert_array_equal(a @ operand, a @ operand)
    assert not a._plans


@pytest.fixture
def kinds_of_tensors(monkeypatch):
    """Tensors of one layout on a GPU: one with memory, one that wraps another, and a stand-in."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(_arrays, "torch_stream", lambda x: 0)

    class Wrapper(torch.Tensor):
        __torch_dispatch__ = __tensor_flatten__ = None

    class StandIn(torch.Tensor):
        is_cuda = True

        def data_ptr(self):
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    plain = torch.ones(4, 4).as_subclass(type("OnGpu", (torch.Tensor,), {"is_cuda": True}))
    wrapper = torch.Tensor._make_wrapper_subclass(Wrapper, (4, 4), device="cuda")
    return plain, wrapper, torch.ones(4, 4).as_subclass(StandIn)


def test_a_tensor_without_memory_finds_no_launch_of_one_that_has_some(kinds_of_tensors):
    """The launch would read from address 0; without it the tensor is refused, in words."""
    plain, *others = kinds_of_tensors
    assert _replay.layout_of(plain) is not None
    bias = NO_OPTIONS._replace(epilogue=s24.Epilogue(bias=plain))
    for placed in (True, False):
        assert _replay.signature(plain, None, bias, from_left=True, placed=placed) is not None
    for other in others:
        assert _replay.layout_of(other) is None
        assert _replay.signature(other, None, NO_OPTIONS, from_left=False) is None
        bias = NO_OPTIONS._replace(epilogue=s24.Epilogue(bias=other))
        for placed in (True, False):
            assert _replay.signature(plain, None, bias, from_left=True, placed=placed) is None


@pytest.mark.parametrize("where", ["bias", "scales"])
def test_a_vector_in_the_result_is_found_whatever_class_it_has(where):
    """Else the launch of a call whose result lies elsewhere would read it while it is written."""
    torch = pytest.importorskip("torch")
    memory = torch.zeros(16)
    out, other = memory[:12].view(3, 4), torch.zeros(3, 4)
    for part in (memory[8:12], torch.nn.Parameter(memory[8:12], requires_grad=False)):
        given = {"scales": (2.0, part)}
        if where == "bias":
            given = {"epilogue": s24.Epilogue(bias=part, aux=out)}  # which is refused in other ways
        call = NO_OPTIONS._replace(**given)
        assert _replay._holds_vector(out, call)
        assert not _replay._holds_vector(other, call)
