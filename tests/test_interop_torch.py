"""Tensors of torch beside sparse arrays, and torch's own functions of both."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sparse24 as s24  # noqa: E402


def test_torch_tensors_in_and_out(rng):
    a = s24.random((8, 12), rng=0)
    x = torch.from_numpy(rng.standard_normal((5, 12)).astype(np.float32))
    want = x.numpy() @ a.toarray().T
    for got in (x @ a.T, torch.matmul(x, a.T), torch.nn.functional.linear(x, a), s24.linear(x, a)):
        assert isinstance(got, torch.Tensor)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    packed = s24.compress(torch.from_numpy(a.toarray()))
    np.testing.assert_array_equal(packed.toarray(), a.toarray())
    out = torch.zeros(5, 8)
    assert s24.matmul(x, a.T, out) is out
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: s24.compress(w, on_excess="prune"),
        lambda w: s24.compress(w, pattern=(1, 4), on_excess="prune"),
        lambda w: s24.compress(w, pattern=(3, 8), on_excess="prune"),
        s24.hybrid,
    ],
)
def test_functions_of_torch_take_every_format_with_out_and_names(make, rng):
    a = make(rng.standard_normal((8, 12)).astype(np.float32))
    x, bias, out = torch.ones(5, 12), torch.ones(8), torch.zeros(5, 8)
    want = x @ torch.from_numpy(a.toarray().T)
    linear = torch.nn.functional.linear
    assert torch.matmul(x, a.T, out=out) is out
    for got in (out, torch.mm(x, mat2=a.T), torch.matmul(input=x, other=a.T), linear(x, weight=a)):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(linear(input=x, weight=a, bias=bias), want + 1)
    for got in (x.mm(a.T), x.matmul(a.T), x.mm(mat2=a.T)):
        torch.testing.assert_close(got, want)
    for got in (torch.mv(a, x[0]), torch.mv(a, vec=x[0])):
        torch.testing.assert_close(got, want[0])
    for refused in (lambda: torch.add(a, x), lambda: torch.einsum("ij,kj->ik", x, a)):
        with pytest.raises(s24.DTypeError, match=r"does not take arrays .*convert\.to_torch"):
            refused()
    with pytest.raises(s24.ShapeError, match="out must have the shape of the product"):
        torch.matmul(x, a.T, out=torch.zeros(8, 5))
    with pytest.raises(s24.DTypeError, match=r"out must have dtype torch\.float32"):
        torch.matmul(x, a.T, out=out.double())


def test_methods_of_tensors_take_stacks(rng):
    a = s24.random((3, 8, 12), dtype="float32", rng=rng)
    x = torch.ones(3, 5, 12)
    torch.testing.assert_close(x.bmm(a.mT), x @ torch.from_numpy(a.toarray()).mT)


def test_tensors_without_elements_in_rows_are_refused():
    a = s24.random((40, 24), dtype="float64", rng=0)
    for x in (torch.eye(24).to_sparse(), torch.empty(24, 2, device="meta")):
        for call in (s24.compress, s24.hybrid, lambda x: a @ x):
            with pytest.raises(s24.DTypeError, match="must be a dense tensor with memory"):
                call(x)


@pytest.mark.parametrize(
    ("name", "way"),
    [("float8_e4m3fnuz", r"\.to\(torch\.float32\)"), ("qint8", r"\.dequantize\(\)")],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch gives up quantised types
def test_tensors_of_types_that_numpy_lacks_say_how_to_convert_them(name, way):
    x, dtype = torch.ones(24, 2), getattr(torch, name)
    x = x.to(dtype) if name[0] == "f" else torch.quantize_per_tensor(x, 0.1, 0, dtype)
    wrong = rf"b must have a type that NumPy has as well, got torch\.{name}; .* {way}$"
    for make in (s24.compress, s24.hybrid):
        with pytest.raises(s24.DTypeError, match=wrong):
            make(np.eye(8, 24)) @ x


def test_the_error_of_a_key_that_torch_cannot_hand_over_has_its_words():
    a = s24.random((40, 24), rng=0)
    with pytest.raises(s24.ArgumentError, match="got Tensor of shape") as raised:
        a[torch.empty(2, device="meta", dtype=torch.int64)]
    assert "Tensor.cpu()" in str(raised.value.__cause__)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_torch_half_precision(name):
    a = s24.random((8, 12), dtype=name, rng=0)
    x = torch.ones(12, 2, dtype=getattr(torch, name))
    got = a @ x
    assert got.dtype == x.dtype
    want = a.toarray().astype(np.float32).sum(1)
    np.testing.assert_allclose(got.float().numpy()[:, 0], want, rtol=2e-2, atol=2e-2)
    assert s24.hybrid(x).toarray().tolist() == x.tolist()


@pytest.mark.gpu
@pytest.mark.stem("sparse_fma", "sparse_mma", "compress", "decompress")
def test_cuda_tensors_in_and_out():
    w = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16)
    a = s24.compress(w, on_excess="prune")
    x = torch.randn(5, 128, device="cuda", dtype=torch.bfloat16)
    got = s24.linear(x, a)
    assert got.is_cuda
    assert got.dtype == torch.bfloat16
    dense = torch.from_dlpack(a.toarray().view(np.int16)).view(torch.bfloat16)
    torch.testing.assert_close(got, x @ dense.T, rtol=2e-2, atol=2e-2)


def test_models_name_the_way_to_their_weights():
    layer = torch.nn.Linear(4, 4)
    held = torch.nn.Module()
    held.layer = layer
    models = (
        torch.nn.Sequential(layer), torch.nn.ModuleList([layer]), torch.nn.ModuleDict({"a": layer}),
        held,
    )  # fmt: skip
    for model in models:
        for call in (s24.compress, s24.prune, s24.is_24, s24.hybrid, s24.report):
            with pytest.raises(
                s24.DTypeError, match=r"an array, got \w+; pass the \.weight of each layer, or the"
            ):
                call(model)
    with pytest.raises(s24.DTypeError, match="got OrderedDict; pass its arrays one by one"):
        s24.prune(held.state_dict())
