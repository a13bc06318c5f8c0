"""Operands of several types: what a layer gives is of the type that holds x and the weight."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparse24 as s24  # noqa: E402
from sparse24 import _foreign  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import ArgumentError, DTypeError  # noqa: E402


@pytest.mark.parametrize(
    "name", ["float16", "bfloat16", "float32", "float64", "int8", "float8_e4m3fn", "float8_e5m2"]
)
def test_types_of_torch_name_element_types(name):
    kind, weight = getattr(torch, name), torch.randn(8, 16)
    A = s24.compress(weight, on_excess="prune", dtype=kind)
    assert A.dtype.name == name
    assert s24.convert.to_torch(A.astype("float32").astype(kind)).dtype == kind
    assert s24.random((4, 8), dtype=kind).dtype.name == name
    for _ in range(2):  # the second product is the first one's, prepared
        assert s24.matmul(A, torch.ones(16, 2), dtype=kind).dtype == kind
    if not name.startswith("float8"):
        assert s24.hybrid(weight, dtype=kind).dtype.name == name


def test_other_types_of_torch():
    A, x = s24.random((8, 16), dtype=torch.int8), torch.ones(16, 2, dtype=torch.int8)
    assert s24.matmul(A, x, dtype=torch.int32).dtype == torch.int32
    assert A.tocsr(torch.float64).dtype == "float64"
    with pytest.raises(DTypeError, match=r"dtype must be one of .*, got torch\.complex64"):
        A.astype(torch.complex64)


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("gradient", ["ste", "24dense", "ste_sampled", "24sparse"])
@pytest.mark.parametrize("sparse", ["weight", "activation"])
@pytest.mark.parametrize("types", [
    ("bfloat16", "float32"), ("float32", "bfloat16"), ("float64", "float32"), ("float32", "float64")
])  # fmt: skip
def test_operands_of_two_types_have_gradients(sparse, gradient, decay, types, device):
    if sparse == "activation" and (decay or gradient not in ("ste", "24dense")):
        pytest.skip("of sparse weights")
    x, weight = torch.randn(8, 16, device=device), torch.randn(12, 16, device=device)
    x, weight = x.to(getattr(torch, types[0])), weight.to(getattr(torch, types[1]))

    def of(x, weight):
        given = [t.clone().requires_grad_() for t in (x, weight)]
        y = st.linear(*given, sparse=sparse, gradient=gradient, decay=decay)
        return y, *torch.autograd.grad(y.square().sum(), given)

    for _ in range(2):  # on a GPU the second time by what was prepared
        for got, want in zip(of(x, weight), of(x.double(), weight.double()), strict=True):
            torch.testing.assert_close(got.double(), want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("bias", [None, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("types", [(torch.float16, torch.float32), (torch.float32, torch.bfloat16)])
@pytest.mark.parametrize("way", ["weight", "activation", "masked", "dense"])
def test_every_way_to_multiply_gives_the_type_of_both_operands(way, types, bias):
    x, layer = torch.randn(4, 8, dtype=types[0]), st.SparseLinear(8, 4, bias=bias is not None)
    if way in ("masked", "dense"):
        full = torch.full(layer.weight.shape, way == "dense")
        layer.set_mask(s24.mask(layer.weight.detach()) | full, way=way)
    elif way == "activation":
        layer = st.SparseLinear(8, 4, bias=bias is not None, sparse=way)
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(types[1]))
    if bias is not None:
        layer.bias = torch.nn.Parameter(layer.bias.detach().to(bias))
    y = layer(x)
    y.sum().backward()
    assert [p.grad.dtype for p in layer.parameters()] == [p.dtype for p in layer.parameters()]
    with torch.no_grad():
        assert layer(x).dtype == y.dtype == torch.float32


def test_a_wide_bias_of_a_feed_forward_widens_nothing():
    x, up, down = (torch.ones(s, dtype=torch.bfloat16) for s in ((2, 8), (16, 8), (4, 16)))
    assert st.feed_forward(x, up, down, None, torch.ones(4)).dtype == torch.bfloat16


@pytest.mark.parametrize("sparse", ["weight", "activation", "masked", "feed forward"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_bias_may_be_of_fp8(sparse, dtype):
    x, w = torch.ones(2, 8), torch.ones(4, 8)
    found = []
    for bias in (torch.arange(4.0).to(dtype), torch.arange(4.0)):
        bias.requires_grad_()
        if sparse == "feed forward":
            y = st.feed_forward(x, torch.ones(8, 8), w, None, bias)
        else:
            y = st.linear(x, w, bias, sparse=sparse)
        y.sum().backward()
        assert bias.grad.dtype == bias.dtype
        found += [y, bias.grad.float()]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_an_unpruned_layer_refuses_what_a_sparse_one_does():
    layer = st.SparseLinear(8, 4)
    layer.set_mask(torch.ones(4, 8, dtype=torch.bool))
    with pytest.raises(DTypeError, match=r"x must be of one of the types .* got torch\.int64"):
        layer(torch.ones(2, 8, dtype=torch.int64))


@pytest.fixture
def fp8_as_bits(monkeypatch):
    """Tensors of fp8 on the CPU travel as those on a GPU: as bits, to a product and from it."""

    def take(x, **how):
        if not isinstance(x, torch.Tensor) or how.get("argument") == "out":
            return taken(x, **how)
        return taken(x.view(torch.uint8) if is_float8(x) else x, **how)[0], back

    def back(x):
        return to_torch(x.view(np.uint8) if x.dtype.name.startswith("float8") else x)

    taken, to_torch, is_float8 = _foreign.take, _foreign.to_torch, _foreign._is_float8
    name_of = lambda x: str(x.dtype)[6:] if hasattr(x, "is_cuda") and is_float8(x) else None  # noqa: E731
    monkeypatch.setattr(_foreign, "take", take)
    monkeypatch.setattr(_foreign, "float8_of", name_of)
    return monkeypatch


def test_a_boolean_of_torch_is_no_number():
    """Torch takes it for 0 or 1 where a whole number is asked for."""
    yes, w = torch.tensor(True), np.ones((4, 8))
    h = s24.hybrid(np.eye(128, dtype=np.float32))
    for call, words in (
        (lambda: s24.prune(w, axis=yes), r"axis must be an integer, got tensor\(True\)"),
        (lambda: s24.prune(w, pattern=(yes, 4)), r"pattern must be a pair \(n, m\) such as"),
        (lambda: h[yes:64], "a slice has whole numbers"),
        (lambda: s24.find_permutation(w, rounds=yes), "rounds must be a whole number from 0 on"),
    ):
        with pytest.raises(s24.Sparse24Error, match=words):
            call()
    assert h[torch.tensor(64) :].shape == (64, 128)


def two_four_and_tokens(kind, *stack):
    w = torch.randint(-2, 3, (*stack, 8, 16)).float()
    return s24.compress(w, on_excess="prune", dtype=kind), torch.randint(-1, 2, (16, 4)).to(kind)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("by_view", [True, False])
def test_a_product_that_travels_as_bits_is_of_torchs_type(fp8_as_bits, name, by_view):
    kind = getattr(torch, name)
    A, x = two_four_and_tokens(kind)
    want = (torch.from_numpy(A.toarray().astype("float32")) @ x.float()).to(kind)
    fp8_as_bits.setattr(_foreign, "goes_by_view", lambda x: by_view and isinstance(x, torch.Tensor))
    ways = {
        "matmul": lambda: s24.matmul(A, x, dtype=kind),
        "a left operand": lambda: s24.matmul(x.T, A.T, dtype=name).T,
        "a vector": lambda: s24.matmul(A, x[:, 0], dtype=name)[:, None].expand(8, 4),
        "linear": lambda: s24.linear(x.T.contiguous(), A, dtype=name).T,
        "a column plan": lambda: s24.plan(A, x, dtype=name, out_order="column").execute(x),
        "a plan": lambda: s24.plan(A, x, dtype=name).execute(x),
        "plain": lambda: s24.matmul(x.T, x, dtype=name),
    }
    for way, call in ways.items():
        for _ in range(2):
            got = call()
            assert got.dtype == kind, way
        expected = {
            "plain": (x.T.float() @ x.float()).to(kind),
            "a vector": want[:, :1].expand(8, 4),
        }
        assert torch.equal(got.float(), expected.get(way, want).float()), way
    assert s24.matmul(A, x).dtype == torch.bfloat16


def test_bits_are_not_read_as_another_type_than_the_tensors(fp8_as_bits):
    """Those of e4m3 as e5m2, say: on a GPU that went unnoticed."""
    (A, x), name = two_four_and_tokens(torch.float8_e4m3fn), "float8_e5m2"
    As, _ = two_four_and_tokens(torch.float8_e4m3fn, 2)
    for call in (
        lambda: s24.matmul(A, x, b_dtype=name),
        lambda: s24.matmul(x.T, A.T, a_dtype=name),
        lambda: s24.matmul(x.T, x, a_dtype=name),
        lambda: s24.linear(x.T.contiguous(), A, x_dtype=name),
        lambda: s24.grouped_matmul(As, x, offsets=[0, 1, 4], b_dtype=name),
        lambda: s24.plan(A, x, b_dtype=name),
        lambda: s24.plan(A, x.to(torch.float8_e5m2)).execute(x),
        lambda: s24.explain(A, x, b_dtype=name),
        lambda: s24.prune(x, dtype=name),
        lambda: s24.mask(x, dtype=name),
    ):
        with pytest.raises(DTypeError, match=r"float8_e4m3fn.* cannot carry .*float8_e5m2"):
            call()
    want = s24.matmul(A, x)
    assert torch.equal(s24.matmul(A, x, b_dtype=torch.float8_e4m3fn), want)


def test_a_grouped_product_that_travels_as_bits_is_of_torchs_type(fp8_as_bits):
    kind = torch.float8_e4m3fn
    As, x = two_four_and_tokens(kind, 2)
    for _ in range(2):
        y = s24.grouped_matmul(As, x, offsets=[0, 1, 4], dtype=kind)
        assert y.dtype == s24.grouped_linear(x.T, As, offsets=[0, 1, 4], dtype=kind).dtype == kind


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_on_the_gpu_is_known_by_its_tensor(name):
    kind = getattr(torch, name)
    draw = lambda *shape: torch.randn(*shape, device="cuda").to(kind)  # noqa: E731
    w, x = draw(64, 128), draw(40, 128)
    A = s24.compress(w, on_excess="prune")
    assert A.dtype.name == name
    bits = s24.compress(w.view(torch.uint8), on_excess="prune", dtype=name)
    assert (A.toarray() == bits.toarray()).all()
    wide = s24.compress(w, on_excess="prune", dtype="float32")
    torch.testing.assert_close(torch.from_dlpack(wide.toarray()), s24.prune(w.float()))
    kept = s24.mask(w, method="magnitude")
    assert torch.equal(kept, s24.mask(w.view(torch.uint8), dtype=name))
    pruned = s24.prune(w)
    assert pruned.dtype == kind
    assert torch.equal(pruned.view(torch.uint8), s24.prune(w.view(torch.uint8), dtype=name))
    named = {"b_dtype": name}
    want = s24.matmul(A, x.view(torch.uint8).T, **named)
    for got in (s24.matmul(A, x.T), A @ x.T, s24.linear(x, A).T, (x @ A.T).T):
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, want)
    for _ in range(3):  # the later ones are the first one's, prepared
        narrow = (
            s24.matmul(A, x.T, dtype=kind), s24.linear(x, A, dtype=kind).T,
            s24.plan(A, x.T, dtype=kind, out_order="column").execute(x.T),
        )  # fmt: skip
        for got in narrow:
            assert got.dtype == kind
    assert s24.explain(A, x.T).chosen == s24.explain(A, x.view(torch.uint8).T, **named).chosen
    dense = s24.matmul(x, x.T)
    torch.testing.assert_close(dense.float(), x.float() @ x.float().T, rtol=2e-2, atol=1e-1)
    experts = s24.compress(torch.stack([w, w]), on_excess="prune")
    for _ in range(2):
        y = s24.grouped_linear(x, experts, offsets=torch.tensor([0, 10, 40]))
        assert torch.equal(y, want.T)


def test_tensors_that_stand_for_other_signs_say_so():
    """Their memory has not the elements: read as it is, it would give another product."""
    A, z = s24.random((4, 8), rng=0), torch.randn(8, 3, dtype=torch.complex64).conj()
    message = r"must have its elements in memory, .* negates them, .*pass (b|out)\.resolve_neg\(\)"
    for call in (lambda: A @ z.imag, lambda: s24.matmul(A, z.real, z[:4].imag)):
        with pytest.raises(DTypeError, match=message):
            call()
    with pytest.raises(DTypeError, match=r"x must hold real numbers, got torch.complex64"):
        s24.prune(z)
    torch.testing.assert_close(A @ z.imag.resolve_neg(), A @ -z.resolve_conj().imag.neg())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_sign_bit_is_seen_where_a_product_is_known_already(dtype):
    A = s24.random((64, 64), dtype=str(dtype).removeprefix("torch."), rng=0).to_device("cuda")
    x = torch.randn(64, 64, device="cuda", dtype=dtype)
    out = torch.empty_like(x)
    for _ in range(3):
        A @ x, s24.matmul(A, x, out)
        s24.matmul(A, x, c=x, beta=1.0)
    turned = torch._neg_view(x)
    for call in (
        lambda: A @ turned,
        lambda: s24.matmul(A, x, torch._neg_view(out)),
        lambda: s24.matmul(A, x, c=turned, beta=1.0),
    ):
        with pytest.raises(DTypeError, match="must have its elements in memory"):
            call()
    torch.testing.assert_close(A @ turned.resolve_neg(), -(A @ x))


def test_no_function_writes_to_a_tensor_that_requires_a_gradient():
    x, weight = torch.randn(4, 8), torch.nn.Parameter(torch.randn(4, 8))
    A, before = s24.compress(x, on_excess="prune"), weight.detach().clone()
    for call in (
        lambda: s24.prune(x, out=weight),
        lambda: s24.prune(weight, out=weight),
        lambda: A.toarray(out=weight),
        lambda: s24.hybrid(x).toarray(out=weight),
        lambda: s24.compress(x, pattern=(3, 4), on_excess="prune").toarray(out=weight),
    ):
        with pytest.raises(ArgumentError, match=r"out must not require a gradient, .*no_grad\(\)"):
            call()
    assert torch.equal(weight, before)
    with torch.no_grad():
        assert s24.prune(x, out=weight) is weight
    torch.testing.assert_close(weight.detach(), A.toarray(out=torch.empty(4, 8)))
    assert s24.prune(x, out=weight.detach()) is not weight


@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_a_bias_of_int32_keeps_its_digits_on_the_cpu(tokens):
    x = torch.randint(-127, 128, (tokens, 32), dtype=torch.int8)
    weight = s24.prune(torch.randint(-127, 128, (24, 32), dtype=torch.int8))
    bias = 2**24 + 1 + 2 * torch.arange(24, dtype=torch.int32)  # all odd, which float32 has not
    want = x.int() @ weight.int().T + bias
    packed = st.to_sparse_semi_structured(weight)
    assert torch.equal(torch.nn.functional.linear(x, packed, bias), want)
    assert torch.equal(st.linear(x, weight, bias), want)
    layer = st.SparseLinear(32, 24)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    with torch.no_grad():
        for _ in range(2):  # the second time by what was prepared
            assert torch.equal(layer(x), want)
