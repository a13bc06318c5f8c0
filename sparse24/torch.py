"""2:4 training and inference in torch: layers, experts, model surgery, masks from a scheduler.

>>> import torch, sparse24 as s24
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
>>> model = s24.torch.sparsify(model, {"0": {"transposable": True}, "2": {}})
>>> model(torch.ones(4, 64)).shape
torch.Size([4, 8])
>>> type(s24.torch.desparsify(model)[0]).__name__
'Linear'
"""

from sparse24._torch.experts import SparseExperts
from sparse24._torch.experts_linear import grouped_linear
from sparse24._torch.ffn import feed_forward
from sparse24._torch.layers import SparseLinear
from sparse24._torch.linear import linear
from sparse24._torch.masks import set_masks, update_masks
from sparse24._torch.model import desparsify, sparse_layers, sparsify
from sparse24._torch.products import matmul
from sparse24._torch.quantised import Quantised24Tensor
from sparse24._torch.reduction import PackedReduction, reduce_packed
from sparse24._torch.sparsify import sparsify24, to_sparse_semi_structured
from sparse24._torch.stored import restored as restored  # files of torch.save name these here
from sparse24._torch.stored import restored_quantised as restored_quantised
from sparse24._torch.tensor import Sparse24Tensor

__all__ = [
    "PackedReduction",
    "Quantised24Tensor",
    "Sparse24Tensor",
    "SparseExperts",
    "SparseLinear",
    "desparsify",
    "feed_forward",
    "grouped_linear",
    "linear",
    "matmul",
    "reduce_packed",
    "set_masks",
    "sparse_layers",
    "sparsify",
    "sparsify24",
    "to_sparse_semi_structured",
    "update_masks",
]
