"""How operators of torch are made, which autograd, checkpointing and ``torch.compile`` know."""

from __future__ import annotations

import torch

_library = torch.library.Library("sparse24", "DEF")


def operator(
    function, mutates: tuple[str, ...] = (), keys: tuple[str, ...] = ("CPU", "CUDA"), like=None
):
    """torch's operator ``sparse24::<name>``, for the dispatch keys `keys`.

    It takes and gives what the function says, or what another operator does, `like`.  By hand,
    since `torch.library.custom_op` makes sure at every call that no result shares memory with an
    input, which takes longer than the launch of a kernel.
    """
    name = function.__name__
    if like is None:
        schema = torch.library.infer_schema(function, mutates_args=mutates)
    else:
        schema = "(" + str(like._schema).partition("(")[2]  # without the name
    _library.define(f"{name}{schema}", tags=(torch.Tag.pt2_compliant_tag,))
    for key in keys:
        _library.impl(name, function, key)
    return getattr(torch.ops.sparse24, name).default


def meaning_for_tracing(name: str):
    """Registers the shapes of an operator's results."""
    return torch.library.register_fake(f"sparse24::{name}", lib=_library)
