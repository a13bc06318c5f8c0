"""Sparse layers in torch's encoders, whose fused inference would pass them by."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

from sparse24 import torch as st  # noqa: E402
from sparse24._errors import DTypeError  # noqa: E402


def test_torchs_encoder_layers_use_their_sparse_layers_in_evaluation():
    layers = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layers, 2)
    st.sparsify(encoder, {"*.linear?": {}})
    x = torch.randn(2, 5, 32)
    want = encoder.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), want, **CLOSE)
    st.desparsify(encoder)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x), want, **CLOSE)


def test_encoders_do_not_nest_sequences_for_sparse_layers():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    net = st.sparsify(torch.nn.TransformerEncoder(layer, 2), {"*.linear*": {}})
    x, padding = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    want = net(x, src_key_padding_mask=padding)
    with torch.no_grad():
        got = net.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(got[~padding], want[~padding], **CLOSE)


@pytest.mark.parametrize("how", ["from_dense", "sparsify", "copy"])
def test_encoder_layers_use_sparse_layers_that_are_put_in_by_hand(how):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    if how == "sparsify":
        layer.linear1 = st.sparsify(layer.linear1, {"*": {}})
    else:
        new = st.SparseLinear.from_dense(layer.linear1)
        layer.linear1 = copy.deepcopy(new) if how == "copy" else new
    x = torch.randn(2, 5, 16)
    want = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), want, **CLOSE)
        torch.testing.assert_close(copy.deepcopy(layer)(x), want, **CLOSE)


def test_a_loaded_sparse_layer_is_seen_where_none_was_made():
    """In a process of its own, whose first sparse layer comes from a file."""
    code = """if True:
        import pickle, sys, torch
        sparse = pickle.load(sys.stdin.buffer)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        layer.linear1 = sparse
        print(layer.activation_relu_or_gelu)
        """
    given = pickle.dumps(st.SparseLinear(16, 32))
    command = [sys.executable, "-P", "-c", code]
    out = subprocess.run(command, input=given, capture_output=True, check=True)
    assert out.stdout.strip() == b"0"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_encoders_whose_layers_alone_were_given_say_what_to_set():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 1).eval()
    st.sparsify(net.layers, {"*.linear*": {}})
    x, padding = torch.randn(2, 5, 16), torch.arange(5) >= torch.tensor([[3], [5]])
    with torch.no_grad():
        with pytest.raises(DTypeError, match=r"set its use_nested_tensor = False"):
            net(x, src_key_padding_mask=padding)
        net.use_nested_tensor = False
        assert net(x, src_key_padding_mask=padding).shape == x.shape
