"""``torch.cat`` and ``torch.stack`` of packed matrices and stacks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch_quantised_cases import KINDS, K, M, packed  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError, ShapeError  # noqa: E402


def both(join, pairs):
    """A joined tensor, and what it is to stand for."""
    return tuple(join(list(tensors)) for tensors in zip(*pairs, strict=True))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a.mT], ids=["rows", "turned"])
@pytest.mark.parametrize("bits", KINDS)
def test_matrices_are_joined_along_an_axis(device, bits, turn, axis):
    pairs = [tuple(turn(a) for a in packed(bits, device=device)) for _ in range(3)]
    joined, want = both(lambda parts: torch.cat(parts, axis), pairs)
    assert (joined.shape, joined.bits, joined.dtype) == (want.shape, bits, want.dtype)
    assert torch.equal(joined.to_dense(), want)


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("shape", [(50, 256), (5, 300)])
@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a.mT], ids=["rows", "turned"])
def test_matrices_become_a_stack(device, turn, shape, bits):
    pairs = [tuple(turn(a) for a in packed(bits, shape, torch.bfloat16, device)) for _ in range(3)]
    joined, want = both(torch.stack, pairs)
    assert (joined.stacked, joined.shape, joined.dtype) == (True, want.shape, want.dtype)
    assert torch.equal(joined.to_dense(), want)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_stacks_are_joined(device, axis, bits):
    pairs = [packed(bits, (2, M, K), device=device) for _ in range(2)]
    joined, want = both(lambda parts: torch.cat(parts, axis), pairs)
    assert (joined.stacked, joined.shape) == (True, want.shape)
    assert torch.equal(joined.to_dense(), want)


@pytest.mark.parametrize("bits", [0, 8])
def test_experts_that_are_stored_one_by_one_become_one_layer(bits):
    """As transformers joins them when it loads a checkpoint."""
    gates, ups = ([packed(bits) for _ in range(3)] for _ in range(2))
    (gate, dense_gate), (up, dense_up) = (both(torch.stack, pairs) for pairs in (gates, ups))
    weight, dense = torch.cat([gate, up], dim=1), torch.cat([dense_gate, dense_up], dim=1)
    x = torch.randn(6, K)
    y = st.grouped_linear(x, weight, offsets=[0, 1, 1, 6])
    torch.testing.assert_close(y, torch.cat([x[:1] @ dense[0].T, x[1:] @ dense[2].T]))


@pytest.mark.parametrize("bits", [0, 4])
def test_what_is_joined_has_memory_of_its_own(bits):
    (a, dense), (b, _) = packed(bits), packed(bits)
    for parts in ([a], [a, b]):
        joined = torch.cat(parts)
        joined.copy_(joined.clone().copy_(torch.cat([b] * len(parts))))
        assert torch.equal(a.to_dense(), dense)


def test_what_does_not_fit_is_refused():
    (a, dense), (b, _), (c, _) = packed(4), packed(8), packed(0)
    for parts, axis, error, message in (
        ([a, dense], 0, DTypeError, "compress dense ones first"),
        ([a, c], 0, DTypeError, "Quantised24Array 2:4 and Sparse24Array 2:4"),
        ([a, b], 0, ArgumentError, "integers of 4 and of 8 bits cannot be joined"),
        ([a, packed(4, (M, K + 128))[0]], 0, ShapeError, "differ in axis"),
        ([packed(4, (M, 100))[0], a], 1, ShapeError, "columns are multiples of 128"),
    ):
        with pytest.raises(error, match=message):
            torch.cat(parts, axis)
    of_stacks = packed(0, (2, M, K))[0]
    with pytest.raises(ShapeError, match=r"a matrix or a stack \(e, m, k\), got .*A\[i\]"):
        torch.stack([of_stacks, of_stacks])


def test_compiled_code_joins_none():
    torch._dynamo.reset()
    joined = torch.compile(lambda a: torch.cat([a, a]), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="join them before the compiled code"):
        joined(packed()[0])
