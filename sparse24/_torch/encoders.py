"""torch's encoders, whose fused inference passes the linear layers by and reads their weights."""

from __future__ import annotations

import functools

import torch
from torch.nn.modules.module import register_module_module_registration_hook

from sparse24._torch.pruned import PrunedLayer


@functools.cache
def watch_encoders() -> None:
    """From the first sparse layer on: encoder layers that get one by hand multiply by it, too."""
    register_module_module_registration_hook(_registered)


def _registered(module: torch.nn.Module, name: str, new: torch.nn.Module | None) -> None:
    if isinstance(new, PrunedLayer) and isinstance(module, torch.nn.TransformerEncoderLayer):
        _avoid_fusion(module)


def avoid_fused_inference(model: torch.nn.Module) -> None:
    """Have all encoders in a model call their sparse layers.

    For the fused layers, encoders put sequences with padding into nested tensors, which layers
    that are not passed by do not take.
    """
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and _is_sparse(layer):
            _avoid_fusion(layer)
        if isinstance(layer, torch.nn.TransformerEncoder) and _is_sparse(layer):
            layer.use_nested_tensor = False


def _avoid_fusion(layer: torch.nn.TransformerEncoderLayer) -> None:
    layer.activation_relu_or_gelu = 0  # what torch asks before it passes layers by


def _is_sparse(module: torch.nn.Module) -> bool:
    return any(isinstance(layer, PrunedLayer) for layer in module.modules())
