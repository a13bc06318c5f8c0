"""Products of packed tensors that convert the matrix, repeated as they were planned."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import _dispatch, _foreign_streams, _streams  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._dispatch import Launched  # noqa: E402
from sparse24._dtypes import TABLE  # noqa: E402
from sparse24._made_anew import Converting, MadeDense, OfRecord  # noqa: E402
from sparse24._records import PLAIN  # noqa: E402
from sparse24._torch import replay  # noqa: E402
from sparse24.kernels import cpu  # noqa: E402

F = torch.nn.functional
M, K = 64, 256


@pytest.fixture
def remembered(monkeypatch):
    """What is remembered, of products of the CPU in the place of a GPU's."""
    found = []
    monkeypatch.setattr(replay, "keep", lambda key, product: found.append(product))
    monkeypatch.setattr(_foreign_streams, "stream_of", lambda x: contextlib.nullcontext())
    monkeypatch.setattr(_streams, "hold_current", lambda: None)
    return found


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_converted_matrix_is_read_at_each_call(rng, remembered, quantised, left):
    def made():
        """A matrix, and as tensors its elements and codes in the order of a GPU."""
        array = s24.random((M, K), rng=rng, dtype="float32" if quantised else "int8")
        if not quantised:
            return array, [torch.tensor(array.values), torch.tensor(array.packed)]
        array = s24.quantise(array, bits=8)
        return array, st.to_sparse_semi_structured(array).parts * 2

    array, _ = made()
    launcher = Converting(OfRecord(cpu.matmul), TABLE["float32"])
    launched = Launched(launcher, array._operand.rows, None, None, PLAIN)
    size = (5, M) if left else (M, 5)
    replay.remember((), launched, torch.empty(size), left=left)
    (product,) = remembered
    for bias in (None, torch.randn(M)):
        array, parts = made()
        x, dense = torch.randn(5, K), torch.from_numpy(array.toarray()).float()
        got = product(*parts, x if left else x.T, bias)
        want = F.linear(x, dense, bias)
        torch.testing.assert_close(got, want if left else want.T, **CLOSE)


def test_a_dense_product_is_not_remembered(rng, remembered):
    """No graph captures it, and one that captures the next product plans another."""
    launcher = Converting(MadeDense(cpu.dense_matmul, False), TABLE["float32"])
    rows = s24.random((M, K), rng=rng, dtype="int8")._operand.rows
    replay.remember((), Launched(launcher, rows, None, None, PLAIN), torch.empty(5, M), left=True)
    assert not remembered


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", 4, 8])
def test_many_tokens_are_planned_once(rng, monkeypatch, kind, dtype):
    planned, fill = [], _dispatch.fill
    monkeypatch.setattr(_dispatch, "fill", lambda *given: planned.append(given) or fill(*given))
    name = str(dtype).removeprefix("torch.")
    weight = s24.random((512, 1024), rng=rng, device="cuda", dtype=name)
    weight = s24.quantise(weight, bits=kind) if isinstance(kind, int) else weight.astype(kind)
    packed = st.to_sparse_semi_structured(weight)
    dense = packed.to_dense().to(torch.float64)
    for bias in (None, torch.randn(512, device="cuda", dtype=dtype)):
        for number in range(4):
            x = torch.randn(2048, 1024, device="cuda", dtype=dtype)
            got = F.linear(x, packed, bias).double()
            want = F.linear(x.double(), dense, None if bias is None else bias.double())
            assert (got - want).norm() <= 2e-2 * want.norm()
            assert number < 2 or not planned  # once, and once more if it may be read early
            planned.clear()
