"""Matrices of a packed stack chosen for each token, and operators that go by their names."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_torch_experts import looped  # noqa: E402
from test_torch_stack_experts import assert_gradients, ends_of, operands  # noqa: E402
from torch_quantised_cases import KINDS, K, M, close, packed  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402
from sparse24._torch import stacks  # noqa: E402

E = 3
SHAPE = (E, M, K)
CHOSEN = [[2, 0, 0, -1, 1], [1], []]


def both_ways():
    """A stack that is packed along both axes, and what it stands for."""
    weight = st.sparsify24(torch.randn(SHAPE))
    return weight, weight.to_dense()


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("chosen", CHOSEN, ids=str)
@pytest.mark.parametrize("turn", [lambda a: a, lambda a: a.mT], ids=["rows", "turned"])
def test_matrices_are_chosen_by_their_numbers(device, turn, chosen, bits):
    weight, dense = (turn(a) for a in packed(bits, SHAPE, device=device))
    numbers = torch.tensor(chosen, dtype=torch.int64, device=device)
    some = weight[numbers]
    assert (some.shape, some.bits, some.stacked) == (dense[numbers].shape, bits, True)
    assert torch.equal(some.to_dense(), dense[numbers])
    positive = numbers % E  # others index_select does not take
    assert torch.equal(weight.index_select(0, positive).to_dense(), dense[positive])
    kept = torch.tensor([True, False, True], device=device)
    assert torch.equal(weight[kept].to_dense(), dense[kept])


@pytest.mark.parametrize("bits", [0, 4])
def test_chosen_matrices_are_copies(bits):
    weight, dense = packed(bits, SHAPE)
    some = weight[torch.tensor([1, 2])]
    some.copy_(weight[torch.tensor([0, 0])])
    assert torch.equal(some.to_dense(), dense[[0, 0]])
    assert torch.equal(weight.to_dense(), dense)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(
    "choose",
    [
        lambda a, numbers: a[:, numbers],
        lambda a, numbers: a[numbers[None]],
        lambda a, numbers: a[numbers, numbers],
        lambda a, numbers: a.index_select(1, numbers),
        lambda a, numbers: a[0][numbers],
    ],
)
def test_elements_and_rows_are_not_chosen(choose, bits):
    with pytest.raises(UnsupportedError, match=r"is not defined .*; call \.to_dense\(\) first"):
        choose(packed(bits, SHAPE)[0], torch.tensor([0, 1]))


def test_a_number_beyond_the_stack_is_refused():
    with pytest.raises(IndexError, match="out of"):
        packed(shape=SHAPE)[0][torch.tensor([E])]


def expert_of_each_token(x, weight, numbers):
    """As experts that gather their weights multiply: a matrix and a token at a time."""
    return torch.bmm(weight[numbers], x.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", ["rows", "columns"])
@pytest.mark.parametrize("bits", [0, 4])
def test_each_token_has_its_own_expert(device, bits, dtype, stored):
    weight, dense = packed(bits, SHAPE, dtype, device)
    if stored == "columns":
        weight, dense = weight.mT, dense.mT
    numbers = torch.tensor([2, 0, 0, 1, 2], device=device)
    x = torch.randn(5, weight.shape[2], dtype=dtype, device=device, requires_grad=True)
    got, want = (expert_of_each_token(x, w, numbers) for w in (weight, dense))
    torch.testing.assert_close(
        got, want, **({} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 0.5})
    )
    if dtype == torch.float32:
        assert_gradients(got, want, x)


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_written_is_seen(mode, bits):
    weight, other = (packed(bits, SHAPE)[0].clone() for _ in range(2))
    numbers, x = torch.tensor([2, -3, 0, 1, 2]), torch.randn(5, K, 1)
    with mode():
        some, more = weight[numbers], weight[numbers]
        want = torch.bmm(some.to_dense(), x)
        close(torch.bmm(some, x), want)
        more.copy_(other[numbers])
        close(torch.bmm(more, x), torch.bmm(other.to_dense()[numbers], x))
        weight.copy_(other)
        close(torch.bmm(some, x), want)
        numbers[:] = 0
        close(torch.bmm(some, x), want)


@pytest.mark.parametrize("make", [lambda: packed(4, SHAPE), lambda: packed(0, SHAPE), both_ways])
def test_chosen_matrices_multiply_by_the_stack(monkeypatch, make):
    """Which keeps what it has prepared."""
    seen, linear = [], stacks.linear
    monkeypatch.setattr(stacks, "linear", lambda *a: seen.append(a[1]) or linear(*a))
    weight, dense = make()
    numbers, x = torch.tensor([2, 0, 0, 1, 2]), torch.randn(5, K)
    close(expert_of_each_token(x, weight, numbers), expert_of_each_token(x, dense, numbers))
    (stack,) = seen
    places = [[part.data_ptr() for part in a.parts] for a in (stack, weight)]
    assert places[0] == places[1]


@pytest.mark.parametrize("bits", [0, 4])
def test_many_matrices_take_several_products(monkeypatch, bits):
    monkeypatch.setattr(stacks, "MOST_GROUPS", 2)
    weight, dense = packed(bits, SHAPE)
    some, dense = (torch.cat([a, a]) for a in (weight, dense))
    x = torch.randn(2 * E, K, 3)
    close(torch.bmm(some, x), torch.bmm(dense, x))


@pytest.mark.parametrize("bits", [0, 4])
def test_it_is_compiled(bits):
    torch._dynamo.reset()
    weight, dense = packed(bits, SHAPE)
    numbers, x = torch.tensor([2, 0, 0, 1, 2]), torch.randn(5, K)
    with torch.no_grad():
        got = torch.compile(expert_of_each_token, backend="aot_eager", fullgraph=True)(
            x, weight, numbers
        )
    close(got, expert_of_each_token(x, dense, numbers))


# --- the experts of transformers, compiled ----------------------------------------------------


@pytest.fixture
def fallback():
    """An operator as transformers defines it, with its gradient."""
    library = torch.library.Library("transformers", "FRAGMENT")
    name = stacks.OF_TRANSFORMERS
    operands = "(Tensor input, Tensor weight, Tensor offs"
    library.define(f"{name.split('::')[1]}{operands}) -> Tensor")
    library.define(f"{name.split('::')[1]}_backward{operands}, Tensor dy) -> (Tensor, Tensor)")
    forward = torch.ops.transformers.grouped_mm_fallback
    backward = torch.ops.transformers.grouped_mm_fallback_backward

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    torch.library.register_autograd(
        name,
        lambda ctx, dy: (*backward(*ctx.saved_tensors, dy), None),
        setup_context=keep,
        lib=library,
    )
    yield forward
    library._destroy()


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("learns", [False, True])
def test_the_product_of_transformers(fallback, learns, bits):
    x, weight, dense, _, offsets = operands(bits)
    weight = torch.nn.Parameter(weight, requires_grad=learns)
    x.requires_grad_()
    y, want = fallback(x, weight.mT, ends_of(offsets)), looped(x, dense, None, offsets)
    close(y, want)
    assert_gradients(y, want, x)
    if learns:
        (gradient,) = torch.autograd.grad(fallback(x, weight.mT, ends_of(offsets)).sum(), weight)
        dense.requires_grad_()
        (wanted,) = torch.autograd.grad(looped(x, dense, None, offsets).sum(), dense)
        close(gradient, wanted)


def test_flat_views_name_what_saves_a_state():
    for a in (packed()[0], packed(shape=SHAPE)[0], st.sparsify24(torch.randn(M, K))):
        with pytest.raises(UnsupportedError, match=r"saved by sparse24\.save_safetensors"):
            a.view(-1)
