"""torch's attention and transformers, fused in inference, with packed weights."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch_cases import CLOSE  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import UnsupportedError  # noqa: E402

nn = torch.nn
WIDTH, LENGTH = 16, 5
PADDING = torch.arange(LENGTH) >= torch.tensor([[3], [LENGTH]])
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
MODES = {"grad": torch.enable_grad, "none": torch.no_grad, "inference": torch.inference_mode}

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def pruned(net):
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim == 2:
                p.copy_(s24.prune(p))
    return net.eval()


def packed(net, *, layers_alone=False):
    """A copy whose matrices are packed; those of linear layers alone, or all."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        for name, p in list(layer.named_parameters(recurse=False)):
            if p.ndim == 2 and (isinstance(layer, nn.Linear) or not layers_alone):
                weight = nn.Parameter(st.to_sparse_semi_structured(p), requires_grad=False)
                setattr(layer, name, weight)
    return net


def encoder_layer(**options):
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, **options)


def assert_same(ours, dense, call, keep=slice(None)):
    got, want = call(ours), call(dense)
    torch.testing.assert_close(got[keep], want[keep], **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layers_alone", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers(mode, layers_alone, batch_first, norm_first, activation):
    options = {"batch_first": batch_first, "norm_first": norm_first, "activation": activation}
    dense = pruned(encoder_layer(**options))
    ours = packed(dense, layers_alone=layers_alone)
    x, keep = torch.randn(2, LENGTH, WIDTH), ~PADDING
    if not batch_first:
        x, keep = x.transpose(0, 1), keep.T
    with MODES[mode]():
        assert_same(ours, dense, lambda net: net(x))
        assert_same(ours, dense, lambda net: net(x, src_mask=CAUSAL))
        assert_same(ours, dense, lambda net: net(x, src_key_padding_mask=PADDING), keep)
        both = {"src_mask": CAUSAL, "src_key_padding_mask": PADDING}
        assert_same(ours, dense, lambda net: net(x, **both), keep)


def test_masks_of_numbers_are_added_to_scores():
    """As by torch's own steps; its fused layer leaves out all scores with a number beside them."""
    dense = pruned(encoder_layer(batch_first=True))
    ours, x, near = packed(dense), torch.randn(2, LENGTH, WIDTH), torch.randn(LENGTH, LENGTH)
    want = dense(x, src_mask=near)
    with torch.no_grad():
        torch.testing.assert_close(ours(x, src_mask=near), want, **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_encoders_that_nest_padded_sequences(mode, which):
    dense = pruned(nn.TransformerEncoder(encoder_layer(batch_first=True), 2, nn.LayerNorm(WIDTH)))
    ours = copy.deepcopy(dense)
    for i in which:
        ours.layers[i] = packed(dense.layers[i])
    x = torch.randn(2, LENGTH, WIDTH)
    with MODES[mode]():
        keep = ~PADDING
        assert_same(ours, dense, lambda net: net(x, src_key_padding_mask=PADDING), keep)
        assert_same(ours, dense, lambda net: net(x, mask=CAUSAL))


def test_encoders_compile():
    dense = pruned(nn.TransformerEncoder(encoder_layer(batch_first=True), 2))
    torch._dynamo.reset()
    compiled = torch.compile(packed(dense), fullgraph=True, backend="aot_eager")
    x, keep = torch.randn(2, LENGTH, WIDTH), ~PADDING
    with torch.no_grad():
        assert_same(compiled, dense, lambda net: net(x, src_key_padding_mask=PADDING), keep)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_attention_and_its_weights(need_weights, average, mode):
    dense = pruned(nn.MultiheadAttention(WIDTH, 2, batch_first=True))
    ours, x = packed(dense), torch.randn(2, LENGTH, WIDTH)
    options = {"need_weights": need_weights, "average_attn_weights": average}
    for masks in ({}, {"attn_mask": CAUSAL}, {"key_padding_mask": PADDING},
                  {"attn_mask": CAUSAL, "key_padding_mask": PADDING}):  # fmt: skip
        with MODES[mode]():
            (y, weights), (want, of_dense) = (
                net(x, x, x, **options, **masks) for net in (ours, dense)
            )
        torch.testing.assert_close(y[~PADDING], want[~PADDING], **CLOSE)
        assert (weights is None) == (of_dense is None)
        if weights is not None:
            torch.testing.assert_close(weights, of_dense, **CLOSE)


def test_nested_sequences():
    dense = pruned(encoder_layer(batch_first=True))
    ours, parts = packed(dense), [torch.randn(n, WIDTH) for n in (3, 5, 1)]
    x = torch.nested.as_nested_tensor(parts)
    with torch.no_grad():
        found = [
            ours(x), ours.self_attn(x, x, x, need_weights=False)[0], dense(x),
            dense.self_attn(x, x, x, need_weights=False)[0],
        ]  # fmt: skip
        got, want = found[:2], found[2:]
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(list(a.unbind()), list(b.unbind()), **CLOSE)
        with pytest.raises(UnsupportedError, match=r"nested tensor; use .*to_padded_tensor"):
            ours.linear1(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_decoder_layers_and_attention_to_other_sequences(mode, batch_first):
    """torch cuts the weight of the three projections into those of queries, and of the others."""
    dense = pruned(nn.TransformerDecoderLayer(WIDTH, 2, 32, batch_first=batch_first))
    ours, (x, memory) = packed(dense), torch.randn(2, 2, LENGTH, WIDTH)
    if not batch_first:
        x, memory = x.transpose(0, 1), memory.transpose(0, 1)
    with MODES[mode]():
        assert_same(ours, dense, lambda net: net(x, memory, tgt_mask=CAUSAL))
        assert_same(ours, dense, lambda net: net.multihead_attn(x, memory, 2 * memory)[0])
