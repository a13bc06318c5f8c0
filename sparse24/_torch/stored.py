"""`Sparse24Tensor` to and from arrays of sparse24, and the form in which it is saved.

What is saved is canonical, as in files of sparse24, because the codes of a packed matrix are in
another order on a GPU: so it can be loaded on any device.  Bricks are the same on all devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparse24 import _check, _foreign, _foreign_streams, _quantised, _storage, convert
from sparse24._errors import FormatError, ShapeError
from sparse24._records import Compressed24
from sparse24._torch import parts as parts_
from sparse24._torch import quantised_ops
from sparse24._torch.quantised import Quantised24Tensor
from sparse24._torch.tensor import Sparse24Tensor
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import bricks as layout

STORED_AXES = (2, 3)  # of a matrix and of a stack
Orientations = tuple[tuple[Tensor, Tensor], ...]  # (values, codes) of the matrix, of its transpose


def tensor_of(array: Sparse24Array | Quantised24Array) -> Sparse24Tensor:
    """The matrix, or stack, with the orientation that it stores; shares its memory."""
    if array.ndim not in STORED_AXES:
        raise ShapeError(
            f"a Sparse24Tensor must be a matrix or a stack (e, m, k), got shape {array.shape}; "
            "give A[i] for each i"
        )
    if array.axis != -1:
        return tensor_of(array.mT).mT
    record = array._operand.stored
    with _foreign_streams.stream_of(record.values):
        if isinstance(array, Quantised24Array):
            tensor = _quantised_tensor(record)
        else:
            array.check()
            tensor = Sparse24Tensor(parts_.tensors_of(record), array.shape)
    tensor.lent = True
    return tensor


def _quantised_tensor(record: Compressed24) -> Sparse24Tensor:
    bricks, dtype = _foreign.to_torch(record.values), getattr(torch, record.dtype.name)
    return Quantised24Tensor([bricks], record.shape, dtype=dtype)


def saved(a: Sparse24Tensor) -> tuple[Orientations, tuple[int, int]]:
    """The canonical values and codes of each orientation, and the shape of the first."""
    parts, (m, k) = a.parts, a.stored_shape
    pairs = [(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
    if a.device.type == "cuda":
        shapes = ((m, k), (k, m))
        pairs = [_canonical(*pair, *shape) for pair, shape in zip(pairs, shapes, strict=False)]
    return tuple(pairs), (m, k)


def _canonical(values: Tensor, codes: Tensor, m: int, k: int) -> tuple[Tensor, Tensor]:
    with _foreign_streams.stream_of(values):
        record = parts_.record_of(values, codes, m, k, parts_.dtype_of(values))
        columns = record.values.shape[-1]
        return values[..., :columns].contiguous(), _foreign.to_torch(_storage.canonical(record))


def restored(
    pairs: Orientations,
    shape: tuple[int, int],
    turned: bool,
    learns: bool,
    parameter: bool,
    lead: tuple[int, ...] = (),
) -> Sparse24Tensor:
    """What `saved` was given; checked, as it may come from a file that nobody vouches for.

    `lead` are the axes of ``expand`` or of a stack; the files of single matrices name none.
    """
    m, k = shape
    shapes = ((m, k), (k, m))
    stack = _stack_of(pairs, tuple(lead))
    lists = [_packed(*pair, (*stack, *size)) for pair, size in zip(pairs, shapes, strict=False)]
    seen = _check.sizes((*lead, *(shapes[1] if turned else shapes[0])), argument="shape")
    a = Sparse24Tensor([part for parts in lists for part in parts], seen, turned=bool(turned))
    return torch.nn.Parameter(a, learns) if parameter else a.requires_grad_(learns)


def _stack_of(pairs: Orientations, lead: tuple[int, ...]) -> tuple[int, ...]:
    """(e,) of a stack, () of a single matrix, which may be expanded."""
    stack = tuple(pairs[0][0].shape[:-2])
    if stack and (stack != lead or len(lead) + 2 not in STORED_AXES):
        raise FormatError(
            f"a stack of matrices {lead} has one axis, and is stored with these axes, got {stack}; "
            "the data are damaged"
        )
    return stack


def _packed(values: Tensor, codes: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    if values.is_meta:  # loaded for its shape and type alone
        return [values, codes]
    array = convert.from_parts(values.cpu(), codes.cpu(), shape)
    if values.device.type == "cpu":
        return [values, codes]
    return parts_.tensors_of(array.to_device(str(values.device))._operand.stored)


def restored_quantised(
    bricks: Tensor,
    shape: tuple[int, int],
    dtype: torch.dtype,
    lead: tuple[int, ...],
    turned: bool,
    learns: bool,
    parameter: bool,
) -> Sparse24Tensor:
    """As `restored`, of what a `Quantised24Tensor` has saved; `lead` may be that of a stack."""
    bricks = bricks if bricks.is_meta else _checked_bricks(bricks, shape, dtype, lead)
    seen = _check.sizes((*lead, *(shape[::-1] if turned else shape)), argument="shape")
    a = Quantised24Tensor([bricks], seen, turned=bool(turned), dtype=dtype)
    return torch.nn.Parameter(a, learns) if parameter else a.requires_grad_(learns)


def _checked_bricks(
    bricks: Tensor, shape: tuple[int, int], dtype: torch.dtype, lead: tuple[int, ...]
) -> Tensor:
    m, k = shape
    wanted = [(*layout.counts(m, k), layout.size(bits)) for bits in layout.BITS]
    stack = bricks.shape[: -quantised_ops.AXES]
    whole = not stack or (len(stack) == 1 and stack == tuple(lead))
    if bricks.dtype != torch.uint8 or bricks.shape[len(stack) :] not in wanted or not whole:
        raise FormatError(
            f"a quantised matrix {tuple(shape)} is stored as uint8 of shape {wanted[0]} or "
            f"{wanted[1]}, a stack of them {tuple(lead)} with as many more, got {bricks.dtype} "
            f"{tuple(bricks.shape)}; the data are damaged"
        )
    record = quantised_ops.record_of(bricks.cpu().contiguous(), m, k, dtype)
    parts = _quantised.parts_of(record)
    convert.from_parts(parts.integers, parts.metadata, record.shape)
    if m % layout.ROWS == 0 == k % layout.COLUMNS:
        return bricks.contiguous()
    packed = _quantised.record_of(parts, record.shape, record.quantised, record.dtype)
    return _foreign.to_torch(packed.values).to(bricks.device)  # with zeros around each matrix


restored.__module__ = "sparse24.torch"  # by which files name it
restored_quantised.__module__ = "sparse24.torch"
# So that torch.load needs no unpickling of code.
torch.serialization.add_safe_globals([restored, restored_quantised])
