"""Whose gradients `reduce_packed` packs, and whether all ranks agree about that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from sparse24 import _check, _spec
from sparse24._distributed.communicator import NOTHING, fact_of
from sparse24._errors import ArgumentError
from sparse24._torch.model import sparse_layers
from sparse24._torch.pruned import PrunedLayer


def agreed(
    ddp: torch.nn.parallel.DistributedDataParallel, names: Iterable[str] | None, check: bool
) -> dict[str, PrunedLayer]:
    """The layers whose gradients are packed, by name, the same on all ranks; waits for these.

    Otherwise they would send different numbers of elements, for which torch waits.
    """
    refused, chosen = None, {}
    try:
        _check_unhooked(ddp)
        chosen = _chosen(ddp.module, names)
        devices = {layer.weight.device.type for layer in chosen.values()}
        _check_backend(_backends(ddp), devices)
    except ArgumentError as error:
        refused = error
    found = _told(ddp, NOTHING if refused else fact_of((*chosen, check)))
    if refused is not None:
        raise refused
    if NOTHING in found:
        ranks = [rank for rank, fact in enumerate(found) if fact == NOTHING]
        raise ArgumentError(
            f"ddp must have layers to pack on all ranks, and ranks {ranks} refuse theirs, with "
            "errors that say why; sparsify the model alike on all ranks"
        )
    apart = [rank for rank, fact in enumerate(found) if fact != found[0]]
    if apart:
        raise ArgumentError(
            f"layers and check must be the same on all ranks, and those of ranks {apart} are not "
            f"those of rank 0, here {list(chosen)} with check={check}; sparsify the model alike on "
            "all ranks, and pass the same arguments"
        )
    return chosen


def _check_unhooked(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Refuse a model whose hook torch tells of; of its own in C++ it tells at registration only."""
    hooks = [hook for hook, _ in getattr(ddp, "_comm_hooks", ())]
    if hooks:
        raise ArgumentError(
            "ddp must have no communication hook yet, for torch takes one only, and has "
            f"{getattr(hooks[0], '__name__', hooks[0])}; wrap the model anew without the other"
        )


def _told(ddp: torch.nn.parallel.DistributedDataParallel, fact: int) -> list[int]:
    """One number of each rank."""
    group = ddp.process_group
    told = torch.zeros(group.size(), dtype=torch.int64, device=next(ddp.parameters()).device)
    told[group.rank()] = fact
    torch.distributed.all_reduce(told, group=group)  # each place has one addend that is not zero
    return told.tolist()


def backend_for(ddp: torch.nn.parallel.DistributedDataParallel, device: torch.device) -> str | None:
    """The name of what communicates between tensors on a device, such as ``"nccl"``."""
    return _backends(ddp).get(device.type)


def _backends(ddp: torch.nn.parallel.DistributedDataParallel) -> dict[str, str]:
    """By type of device."""
    config = torch.distributed.get_backend_config(ddp.process_group)
    return dict(part.split(":", 1) for part in config.split(",") if ":" in part)


def _check_backend(backends: dict[str, str], devices: set[str]) -> None:
    """Refuse gloo on GPUs: its futures are ready before its copies back from the host are."""
    if "cuda" in devices and backends.get("cuda") == "gloo":
        raise ArgumentError(
            "ddp must average gradients on GPUs by NCCL, and its process group has gloo for them; "
            "call torch.distributed.init_process_group('nccl')"
        )


def _chosen(model: torch.nn.Module, names: Iterable[str] | None) -> dict[str, PrunedLayer]:
    """The layers whose gradients are packed, by name."""
    found = sparse_layers(model)
    owners = Counter(p for module in model.modules() for p in module._parameters.values())
    reasons = {name: _reason(layer, owners) for name, layer in found.items()}
    if names is None:
        names = [name for name, reason in reasons.items() if reason is None]
        if not names:
            raise ArgumentError(
                "ddp has no layer whose gradient is zero at pruned places"
                + "".join(f"; {name!r}: {reason}" for name, reason in list(reasons.items())[:3])
                + "; sparsify with {'gradient': '24dense'}, or leave the averages to DDP"
            )
    if isinstance(names, str):
        raise ArgumentError(f"layers must be several names, got {names!r}; pass [{names!r}]")
    names = list(names) if isinstance(names, Iterable) else [names]
    if not names:
        raise ArgumentError("layers must be one name or more, got none; leave the averages to DDP")
    for name in names:
        _check.one_of(name, tuple(found), argument="a name in layers")
        if reasons[name] is not None:
            raise ArgumentError(
                f"layers[{name!r}] cannot be packed: {reasons[name]}; leave it out, and it is sent "
                "whole"
            )
    return {name: found[name] for name in names}


def _reason(layer: PrunedLayer, owners: Counter) -> str | None:
    """Why the gradient of a layer cannot be packed; None if it can."""
    rule = layer.rule
    weight = layer._parameters.get("weight")
    if layer.sparse != "weight":
        return f"sparse={layer.sparse!r} prunes no weight to 2:4"
    if rule.straight:
        return f"gradient={rule.gradient!r} reaches pruned weights"
    if rule.decay:
        return f"decay={rule.decay} reaches pruned weights"
    if weight is None:
        return "its weight is made before each call"
    if not weight.requires_grad:
        return "its weight does not learn"
    if owners[weight] > 1:
        return "other modules share its weight"
    if not weight.numel() or _spec.values_per_row(weight.shape[-1]) >= weight.shape[-1]:
        return f"rows of {weight.shape[-1]} elements do not become shorter"
    return None
