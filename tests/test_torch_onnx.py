"""Models with sparse layers are not exported to ONNX, and the error says how to go on."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402
from sparse24._torch import check as torch_check  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, that this way of export is old

WAY_OUT = (
    r"torch\.onnx\.export cannot export 2:4 products.*call sparse24\.torch\.desparsify\(model\)"
)


def packed():
    layer = torch.nn.Linear(16, 8)
    weight = torch.eye(16)[:8]
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(weight), requires_grad=False)
    return layer


class Experts(st.SparseExperts):
    def forward(self, x):
        return super().forward(x, offsets=torch.tensor([0, 1, 2]))


MODELS = {
    "layer": lambda: st.SparseLinear(16, 8),
    "layer in tiles": lambda: st.SparseLinear(16, 8, transposable=True),
    "activations": lambda: st.SparseLinear(16, 8, sparse="activation"),
    "experts": lambda: Experts(2, 16, 8),
    "packed weight": packed,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("trains", [True, False])
def test_the_exporter_that_traces_says_what_to_do(name, trains):
    model = MODELS[name]().train(trains)
    with torch.set_grad_enabled(trains), pytest.raises(UnsupportedError, match=WAY_OUT):
        torch.onnx.export(model, (torch.ones(2, 16),), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strict", [True, False])
def test_so_does_the_one_that_uses_torch_export(monkeypatch, name, strict, compiles_anew):
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)  # it needs onnxscript
    model, x = MODELS[name](), torch.ones(2, 16)
    with pytest.raises(Exception, match=WAY_OUT):
        torch.export.export(model, (x,), strict=strict).run_decompositions()


def test_what_is_not_exported_to_onnx_is_traced():
    x = torch.ones(2, 16)
    layer = st.SparseLinear(16, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(layer, x)(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


def test_eager_calls_do_not_ask(monkeypatch):
    asked = []
    monkeypatch.setattr(torch_check, "_is_onnx_export", lambda *_: asked.append(True))
    st.SparseLinear(16, 8)(torch.ones(2, 16)).sum().backward()
    assert asked == []
