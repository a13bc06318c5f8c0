"""Operands of layers, refused where torch or a kernel would not say what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sparse24 import _check, _dtypes
from sparse24._errors import DeviceError, DTypeError, ShapeError, UnsupportedError
from sparse24._grouped.offsets import check_shape
from sparse24.formats.base import SparseArray

_MULTIPLIED = frozenset(getattr(torch, name) for name in _dtypes.NAMES)
_FLOATS = ("float16", "bfloat16", "float32", "float64")  # types in which torch multiplies


def check_tensor(given, argument: str) -> None:
    """Refuse what is no dense tensor, by its name."""
    if not isinstance(given, Tensor):
        if isinstance(given, torch.fx.Proxy):
            raise UnsupportedError(
                "torch.fx.symbolic_trace cannot look into sparse layers; use torch.export, or a "
                "torch.fx.Tracer whose is_leaf_module is true of them"
            )
        kind, way_out = type(given).__name__, "use torch.as_tensor"
        if isinstance(given, SparseArray):
            way_out = "sparse24.linear and sparse24.grouped_linear multiply it as it is"
        elif isinstance(given, torch.nn.Module):
            way_out = "pass a tensor of it, such as its .weight"
        raise DTypeError(f"{argument} must be a torch.Tensor, got {kind}; {way_out}")
    if given.is_nested:
        raise DTypeError(
            f"{argument} must be a dense tensor, got a nested one; use "
            f"torch.nested.to_padded_tensor({argument}, 0.0), or in a torch.nn.TransformerEncoder "
            "set its use_nested_tensor = False"
        )
    if given.layout is not torch.strided:
        raise DTypeError(
            f"{argument} must be a dense tensor, got layout {given.layout}; use .to_dense()"
        )


def refuse_onnx(*, traced: bool | None = None) -> None:
    """Of operators that ONNX lacks torch says only that it does not know them.

    By default it asks only where code is traced, as the question takes long.
    """
    if traced is None:
        traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if traced and _is_onnx_export():
        raise UnsupportedError(
            "torch.onnx.export cannot export 2:4 products, which ONNX does not have; export a "
            "dense model, whose pruned weights are zeros: call sparse24.torch.desparsify(model) "
            "first, replace packed weights by torch.nn.Parameter(weight.to_dense()), and "
            "SparseExperts by linear layers"
        )


def _is_onnx_export() -> bool:
    return torch.onnx.is_in_onnx_export()


# So that a compiler asks while it traces; as torch.compiler.assume_constant_result, which imports
# the compiler, would mark it.
_is_onnx_export._dynamo_marked_constant = True  # type: ignore[attr-defined]


def check_whole(weight: Tensor) -> None:
    """Refuse a weight of which each process holds a part, outside of the calls that gather it."""
    if hasattr(weight, "full_tensor"):
        raise UnsupportedError(
            f"weight must be whole, got a {type(weight).__name__}, of which each process holds a "
            "part, as with fully_shard; choose masks of layer.weight.full_tensor() in all "
            "processes and call layer.set_mask, or do this before the model is sharded"
        )


def whole(weight: Tensor) -> Tensor:
    """A weight of which each process holds a part, gathered; any other one as it is."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def check_device(x: Tensor, **others: Tensor | None) -> None:
    """Refuse tensors that are apart; where one has no elements, torch would make some up."""
    device = x.device
    for name, given in others.items():
        if given is not None and given.device != device:
            raise DeviceError(
                f"{name} must be on the device of x, {device}, got {given.device}; move it with "
                ".to()"
            )


def check_mask(mask: Tensor, weight: Tensor) -> None:
    """Refuse a mask that is not of booleans in the shape of the weight."""
    _check.same_shape(mask.shape, weight.shape, argument="mask", other="weight")
    if mask.dtype != torch.bool:
        raise DTypeError(f"mask must be boolean, got {mask.dtype}; use mask != 0")


def check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None
) -> Tensor | None:
    """The bias as a vector (m,), after the messages that a plain product would not give."""
    check_tensor(x, "x")
    check_tensor(weight, "weight")
    for name, given in (("bias", bias), ("mask", mask)):
        if given is not None:
            check_tensor(given, name)
    _check.layer_shapes(x.shape, weight.shape)
    check_device(x, weight=weight, bias=bias, mask=mask)
    check_type(x, "x")
    check_type(weight, "weight")
    check_real(bias)
    return _check.bias(bias, weight.shape[0])


def check_factor(x: Tensor, packed: Tensor, bias: Tensor | None) -> None:
    """Refuse what is multiplied with a packed matrix, and what is added, if no kernel takes it."""
    check_tensor(x, "x")
    check_device(x, **{"the Sparse24Tensor": packed, "bias": bias})
    check_type(x, "x")
    if bias is not None:
        check_tensor(bias, "bias")
        check_real(bias)


def check_type(x: Tensor, argument: str) -> None:
    """Refuse an operand of a type that no kernel multiplies."""
    if x.dtype not in _MULTIPLIED:
        raise _of_another_type(x, argument, _dtypes.NAMES)


def check_float(x: Tensor, argument: str) -> None:
    """Refuse an operand of a type in which torch does not compute."""
    if str(x.dtype).removeprefix("torch.") not in _FLOATS:
        raise _of_another_type(x, argument, _FLOATS)


def _of_another_type(x: Tensor, argument: str, types: Iterable[str]) -> DTypeError:
    return DTypeError(
        f"{argument} must be of one of the types {', '.join(types)}, got {x.dtype}; use for "
        f"example {argument}.to(torch.float32)"
    )


def check_real(bias: Tensor | None, argument: str = "bias") -> None:
    """Torch would drop the imaginary parts, with a warning."""
    if bias is not None and bias.is_complex():
        raise DTypeError(
            f"{argument} must hold real numbers, got {bias.dtype}; pass for example {argument}.real"
        )


def check_experts(
    x: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, offsets: Any
) -> Tensor:
    """The offsets as a tensor, after the messages for all operands of experts."""
    check_tensor(x, "x")
    check_tensor(weight, "weight")
    if weight.ndim != 3 or x.ndim != 2 or x.shape[1] != weight.shape[2]:
        raise ShapeError(
            f"x must have shape (t, k) and weight (e, m, k), got {tuple(x.shape)} and "
            f"{tuple(weight.shape)}; fold other axes of tokens by x.flatten(0, -2)"
        )
    for name, given in (("x", x), ("weight", weight)):
        check_float(given, name)
    if bias is not None:
        check_tensor(bias, "bias")
        if bias.shape != weight.shape[:2]:
            raise ShapeError(
                f"bias must have shape (e, m) = {tuple(weight.shape[:2])}, a row for each expert, "
                f"got {tuple(bias.shape)}"
            )
    if mask is not None:
        check_tensor(mask, "mask")
        check_mask(mask, weight)
    check_device(x, weight=weight, bias=bias, mask=mask)
    return _offsets(offsets, weight.shape[0], x)


def _offsets(offsets: Any, experts: int, x: Tensor) -> Tensor:
    """Offsets as a contiguous tensor (e + 1,); its values are looked at later, if at all."""
    if not isinstance(offsets, Tensor):
        try:
            offsets = torch.tensor(offsets)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DTypeError(
                "offsets must be a torch.Tensor or a list of integers, got "
                f"{_check.shown(offsets)}: {error}"
            ) from None
    check_shape(offsets.shape, experts)
    if offsets.dtype == torch.bool or offsets.is_floating_point() or offsets.is_complex():
        raise DTypeError(
            f"offsets must hold integers, got {offsets.dtype}; convert with .to(torch.int64)"
        )
    if offsets.device != x.device and offsets.device.type != "cpu":
        raise DeviceError(
            f"offsets must be on the device of x, {x.device}, or on the cpu, got {offsets.device}; "
            "move them with .to()"
        )
    if offsets.is_cuda and offsets.dtype not in (torch.int32, torch.int64):
        raise DTypeError(
            f"offsets on a GPU must be int32 or int64, got {offsets.dtype}; convert with "
            ".to(torch.int32)"
        )
    return offsets.contiguous()
