"""What products of packed stacks do not take, and what they say then."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from test_torch_stack_experts import GROUPED, E, K, M, ends_of, operands  # noqa: E402
from torch_quantised_cases import packed  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    ArgumentError,
    DTypeError,
    ShapeError,
    Sparse24Error,
    UnsupportedError,
)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": torch.ones(E, M, K, dtype=torch.bool)}, ArgumentError, "mask, gradient, .* drop"),
        ({"gradient": "24dense"}, ArgumentError, "weight is packed already; drop them"),
        ({"transposable": True}, ArgumentError, "weight is packed already; drop them"),
        ({"decay": 0.1}, ArgumentError, "weight is packed already; drop them"),
        ({"gated": 2}, Sparse24Error, "gated"),
        ({"offsets": [0, 1]}, ShapeError, "offsets must have shape"),
        ({"bias": torch.ones(E, M + 1)}, ShapeError, "bias must have shape"),
    ],
)
@pytest.mark.parametrize("bits", [0, 4])
def test_options_that_do_not_fit_are_refused(bits, options, error, message):
    x, weight, _, _, offsets = operands(bits)
    with pytest.raises(error, match=message):
        st.grouped_linear(x, weight, **{"offsets": offsets, **options})


@pytest.mark.parametrize("make", [lambda w: packed(shape=(M, K))[0], st.sparsify24])
def test_weights_that_are_no_stack_are_refused(make):
    x, weight, dense, _, offsets = operands()
    given = make(dense[0]).expand(E, -1, -1)
    for call in (
        lambda: st.grouped_linear(x, given, offsets=offsets),
        lambda: GROUPED[0](x, given.mT, offs=ends_of(offsets)),
    ):
        with pytest.raises(UnsupportedError, match=r"is not defined .*call \.to_dense\(\)"):
            call()
    with pytest.raises(ShapeError, match=r"weight \(e, m, k\), got .* \(128, 256\)"):
        st.grouped_linear(x, weight[0], offsets=offsets)


@pytest.mark.parametrize("bits", [0, 4])
def test_operands_of_torchs_product_that_do_not_fit_are_refused(bits):
    x, weight, _, bias, offsets = operands(bits)
    ends, product = ends_of(offsets), GROUPED[0]
    for call, error, message in (
        (lambda: product(x, weight.mT, offs=ends, bias=bias), UnsupportedError, "grouped_linear"),
        (lambda: product(x, weight.mT, offs=ends, out_dtype=torch.bfloat16), DTypeError, "convert"),
        (lambda: product(x[:, 1:], weight.mT, offs=ends), ShapeError, "x must have shape"),
        (lambda: product(x, weight.mT), ShapeError, "bmm: shapes .* do not fit"),
        (lambda: product(x, weight.mT, offs=ends[1:]), ShapeError, r"shape \(e \+ 1,\) = \(6,\)"),
        (lambda: product(x, weight.mT, offs=ends - 1), ArgumentError, "number of tokens"),
        (lambda: product(x.int(), weight.mT, offs=ends), DTypeError, "x must be of one of"),
        (lambda: weight @ weight.mT, UnsupportedError, "two Sparse24Tensors cannot"),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("bits", [0, 4])
def test_derivatives_that_it_does_not_have_are_refused(bits):
    x, weight, _, _, offsets = operands(bits)
    product = lambda x: st.grouped_linear(x, weight, offsets=offsets).sum()  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"torch\.func's transforms"):
        torch.func.grad(product)(x)
    with pytest.raises(UnsupportedError, match=r"torch\.func's transforms"):
        torch.func.jvp(product, (x,), (x,))
