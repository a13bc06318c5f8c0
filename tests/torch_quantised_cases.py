"""Packed and quantised weights for the tests of the torch bridge, and what they stand for."""

from __future__ import annotations

import copy

import torch
from torch_cases import CLOSE

import sparse24 as s24
from sparse24 import _quantised
from sparse24 import torch as st

M, K = 48, 256
BITS = [4, 8]
KINDS = [0, *BITS]  # bits of packed weights, 0 of those that are not quantised
TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NARROW = {"rtol": 2e-2, "atol": 2e-2}
# A layer of torch has rounded elements, which products on a GPU do not round.
ROUNDED = {torch.float16: NARROW, torch.bfloat16: {"rtol": 2e-2, "atol": 0.1}}


def packed(bits=4, shape=(M, K), dtype=torch.float32, device="cpu"):
    """A weight of a kind, and the matrix, or stack, that it stands for."""
    dense = s24.prune(torch.randn(shape, device=device).to(dtype))
    array = s24.quantise(dense, bits=bits) if bits else s24.compress(dense)
    return st.to_sparse_semi_structured(array), s24.convert.to_torch(array)


def packed_as(bits, dense):
    """A weight of a kind for a matrix, or stack, that is 2:4; quantised it is rounded."""
    return st.to_sparse_semi_structured(s24.quantise(dense, bits=bits) if bits else dense)


def layers(bits=4, dtype=torch.float32, device="cpu"):
    """A layer with a quantised weight, and the same with what that stands for."""
    weight, dense = packed(bits, dtype=dtype, device=device)
    ours = torch.nn.Linear(K, M, dtype=dtype, device=device).requires_grad_(False)
    wanted = copy.deepcopy(ours)
    ours.weight = torch.nn.Parameter(weight, requires_grad=False)
    wanted.weight.copy_(dense)
    return ours, wanted


def counted_dequantisations(monkeypatch, fact):
    """A list that gets ``fact(record, dtype)`` of each record that is dequantised from here on."""
    found, whole = [], _quantised.dequantised
    count = lambda record, dtype: found.append(fact(record, dtype)) or whole(record, dtype)  # noqa: E731
    monkeypatch.setattr(_quantised, "dequantised", count)
    return found


def close(got, want):
    torch.testing.assert_close(got, want, **ROUNDED.get(want.dtype, CLOSE))
