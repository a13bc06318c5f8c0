"""Checkpoints: which matrices can be compressed, and how one is; `_convert_checkpoint` does all."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import sparse24 as s24
from sparse24 import _arrays, _check, _dtypes, _quantise_checkpoint, _raw_files, _scales
from sparse24._errors import ArgumentError, PatternError, Sparse24Error
from sparse24.formats import array_parts
from sparse24.formats.parts import Parts
from sparse24.formats.quantised import Quantised24Array
from sparse24.formats.quantised_parts import QuantisedParts
from sparse24.formats.two_four import Sparse24Array

# Tables that are looked up, the small heads behind an encoder, and the routers of experts are no
# products that sparsity speeds up; biases of experts, scales and zero points of quantised weights,
# and what decays the states of RWKV and Mamba are no operands of products at all.  From the second
# line on: T5 and BART, RWKV, timm and torchvision, ChatGLM, Llama's own checkpoints and InternLM,
# BERT, T5 again, DistilBERT, fairseq, the heads of transformers for questions and for classes, XLM,
# XLNet, and the position tables of SAM.  Routers named gate: Mixtral and Qwen, DeepSeek's own
# checkpoints, LFM2, Nemotron, and with wg Hunyuan.  Before a name that counts as a whole may stand
# what torch's wrappers put there: DistributedDataParallel, torch.compile, FullyShardedDataParallel.
DEFAULT_EXCLUDE = (
    r"embed|position|token_type|\bwte\b|\bwpe\b|lm_head|pooler|classifier"
    r"|(^|\.)(shared|emb|head|heads\.head|head\.fc|output_layer)\.weight$"
    r"|^((module|_orig_mod|_fsdp_wrapped_module)\.)*(output|fc)\.weight$"
    r"|predictions\.decoder|relative_attention_bias|vocab_projector|output_projection|qa_outputs"
    r"|(^|\.)score\.weight$|pred_layer\.proj|lm_loss|rel_pos_[hw]$"
    r"|router|(mlp|moe|ffn|feed_forward|mixer)\.gate(\.wg)?\.weight$|bias$"
    r"|[._]scales?(_inv|_packed)?$|zero_points?$|time_(decay|first|faaaa)$|A_log$"
)
# The end of a weight's name, and what stands in its place for its mask and for a sure sign of one:
# sparse layers of sparse24.torch, and torch.nn.utils.prune.
_MASKS = ((r"(?<![^.])weight$", "mask", "masked"), (r"_orig$", "_mask", "_mask"))
DEFAULT_MIN_SIZE = 32
_BLOCK = 1 << 16  # elements: their copies in other types stay in cache
NEED_INPUTS = ("wanda", "sparsegpt")


@dataclass(frozen=True)
class Selection:
    """Which arrays of a file are pruned.

    A matrix is eligible if it has two axes, an element type of sparse24, both sides of at
    least `min_size`, and a name that `include` matches and `exclude` does not, unless it is a
    mask of torch.nn.utils.prune.  With `stacks` so is an array of three axes, the matrices
    (e, m, k) of e experts; kernels of convolutions have three axes, too.  An npy file holds one
    array, which is meant: only axes and type count there.
    """

    include: str = ""
    exclude: str = DEFAULT_EXCLUDE
    min_size: int = DEFAULT_MIN_SIZE
    stacks: bool = False

    def refuses(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype, *, beside: Container[str] = ()
    ) -> str | None:
        """Why an array stays as it is, or None if it is eligible.

        `beside` holds the names of all arrays of its file.
        """
        if len(shape) != 2 and not (self.stacks and len(shape) == 3):
            wanted = "two or three" if self.stacks else "two"
            return f"{len(shape)} {'axis' if len(shape) == 1 else 'axes'}, not {wanted}"
        if dtype not in _dtypes.LOGICAL:
            return f"type {dtype}"
        if min(shape[-2:]) < self.min_size:
            return f"smaller than {self.min_size}"
        if not _search("include", self.include, name):
            return "not included"
        if self.exclude and _search("exclude", self.exclude, name):
            return "excluded by name"
        if name.endswith("_mask") and name.removesuffix("_mask") + "_orig" in beside:
            return "the mask of another array"  # of torch.nn.utils.prune, in the weight's type
        return None

    def eligible(self, file: _raw_files.ArrayFile) -> list[str]:
        """Names of the eligible arrays of a file, in its order.

        Raises
        ------
        ArgumentError
            If the file holds compressed arrays: their parts must not be pruned again.
        """
        for one in file.files:
            if one.header.get("arrays"):
                raise ArgumentError(
                    f"{one.path} is compressed already; name the dense file that it was made "
                    "from, or make one of it: python -m sparse24 convert IN OUT --dense"
                )
        rule = self
        if isinstance(file, _raw_files.NpyFile):
            rule = Selection(include="", exclude="", min_size=0, stacks=self.stacks)
        return [
            name for name, spec in file.specs.items()
            if rule.refuses(name, *spec, beside=file.specs) is None
        ]  # fmt: skip


def check_unmasked(names: Iterable[str], arrays: Container[str]) -> None:
    """Refuse weights with a mask beside them: they hold the pruned elements as well."""
    for name in names:
        for pattern, mask, mark in _MASKS:
            stem, found = re.subn(pattern, "", name)
            if found and stem + mask in arrays and stem + mark in arrays:
                raise ArgumentError(
                    f"{name} has a mask beside it, {stem + mask!r}, which convert would not "
                    "follow; save the model after sparse24.torch.desparsify(model), or "
                    "torch.nn.utils.prune.remove(layer, 'weight'), or leave the matrix out with "
                    "--exclude"
                )


def _search(argument: str, pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except (re.error, OverflowError, RecursionError) as error:  # of long counts, of deep nesting
        raise ArgumentError(
            f"{argument} must be a regular expression, got {_check.shown(pattern)} ({error}); "
            "correct or simplify it"
        ) from error


@dataclass(frozen=True)
class Recipe:
    """How a matrix is pruned: the arguments of `sparse24.prune`.

    With `fitting` none is: matrices that do not obey the pattern stay as they are.  With `bits`
    the others are quantised, for the inputs of their layers if there is a `calibration`.
    """

    pattern: tuple[int, int] = (2, 4)
    method: str = "magnitude"
    calibration: Mapping[str, np.ndarray] | None = None
    axis: int = -1
    fitting: bool = False
    bits: int | None = None

    @property
    def pieces(self) -> tuple[str, ...]:
        """Last names of what a file holds of a matrix."""
        return Parts.PIECES if self.bits is None else QuantisedParts.PIECES

    def check(self, names: Iterable[str]) -> None:
        """Refuse matrices without the inputs that the method, or rounding, needs.

        With `fitting` these are looked for once a matrix obeys the pattern.
        """
        if not self.fitting and (self.calibration is not None or self.method in NEED_INPUTS):
            for name in names:
                self._check_inputs(name)

    def _check_inputs(self, name: str) -> None:
        known = self.calibration or {}
        if name not in known:
            raise ArgumentError(
                f"{name}: the calibration has no inputs of this name, but "
                f"{', '.join(sorted(known)[:3]) or 'none'}; name inputs after "
                "their weights, or leave this one out with --include or --exclude"
            )

    def inputs_of(self, name: str) -> np.ndarray | None:
        """The inputs of a matrix's layer; None without a calibration."""
        if self.calibration is None:
            return None
        self._check_inputs(name)
        return self.calibration[name]

    def apply(self, name: str, matrix: Any):
        """The compressed array of a matrix; None where it does not obey the pattern and must."""
        groups: dict[str, Any] = {"pattern": self.pattern, "axis": self.axis}
        if self.fitting:
            try:
                return s24.compress(matrix, **groups)
            except PatternError:
                return None
        if self.method == "magnitude":
            return s24.compress(matrix, **groups, on_excess="prune")
        inputs = self.inputs_of(name) if self.method in NEED_INPUTS else None
        try:
            pruned = s24.prune(matrix, **groups, method=self.method, calibration=inputs)
        except Sparse24Error as error:
            raise type(error)(f"{name}: {error}") from error
        return s24.compress(pruned, **groups)


@dataclass(frozen=True)
class Layer:
    """One matrix of a checkpoint after its compression."""

    name: str
    dense: np.ndarray
    array: Any
    kept_energy: float
    quantised: Quantised24Array | None = None
    rounding_error: float | None = None

    @property
    def written(self) -> Any:
        """The array that a conversion writes."""
        return self.array if self.quantised is None else self.quantised

    def histogram(self) -> list[int]:
        """How many groups hold 0, 1, … m non-zeros, as `sparse24.report` counts them."""
        n, m = (2, 4) if isinstance(self.array, Sparse24Array) else self.array.pattern
        groups = self.array.values.reshape(-1, n)
        counts = np.zeros(m + 1, np.int64)
        for part in _blocks(groups, _BLOCK // n):
            filled = sum(_nonzero(part).view(np.uint8).T)
            counts += np.bincount(filled, minlength=m + 1)
        return counts.tolist()

    def row(self) -> dict[str, Any]:
        """The layer's line of a report."""
        row = {
            "name": self.name,
            "shape": list(self.array.shape),
            "dtype": self.array.dtype.name,
            "kept_energy": None if math.isnan(self.kept_energy) else round(self.kept_energy, 6),
            "histogram": self.histogram(),
            "bytes_before": self.dense.nbytes,
            "bytes_after": array_parts.file_bytes(array_parts.parts_of(self.written)),
        }
        if self.rounding_error is not None:
            row["rounding_error"] = round(self.rounding_error, 6)
        return row


def compress_layer(name: str, dense: np.ndarray, recipe: Recipe) -> Layer | None:
    """Prune, compress and quantise a matrix; None where the recipe leaves it as it is."""
    array = recipe.apply(name, dense)
    if array is None:
        return None
    # Where the method changed values, what the dense matrix had in their places counts.
    kept = dense[array.mask()] if recipe.method == "sparsegpt" else array.values
    layer = Layer(name, dense, array, kept_energy(kept, dense))
    if recipe.bits is None:
        return layer
    inputs = recipe.inputs_of(name)
    quantised = _quantise_checkpoint.quantised(name, array, recipe.bits, inputs)
    lost = _quantise_checkpoint.rounding_error(quantised, array)
    return replace(layer, quantised=quantised, rounding_error=lost)


def kept_layer(name: str, quantised: Quantised24Array) -> Layer:
    """A matrix that a checkpoint holds quantised, of which nothing is pruned or rounded."""
    array = quantised.dequantise()
    return Layer(name, array.toarray(), array, 1.0, quantised, 0.0)


def kept_energy(kept: np.ndarray, dense: np.ndarray) -> float:
    """Share of the sum of squares that the kept elements carry; 1 for a matrix of zeros.

    NaN where the matrix holds inf or NaN.
    """
    scale = 1.0
    if dense.dtype == np.float64:  # squares of narrower types are within its range
        scale = _scales.of_largest(max((float(abs(x).max()) for x in _wide(dense)), default=0.0))
    whole = _energy(dense, scale)
    if not math.isfinite(whole):
        return math.nan
    return _energy(kept, scale) / whole if whole else 1.0


def _energy(x: np.ndarray, scale: float = 1.0) -> float:
    # Not ``@``: to wake BLAS's threads would take longer than a block does.
    return sum((float(np.einsum("i,i", part, part)) for part in (x * scale for x in _wide(x))), 0.0)


def _wide(x: np.ndarray) -> Iterator[np.ndarray]:
    """The elements in float64, block by block: a stack of experts is large without that, too."""
    from sparse24.kernels.cpu_decode import decoded

    dtype = _arrays.logical_dtype(x)
    for part in _blocks(x.reshape(-1), _BLOCK):
        yield decoded(part, dtype, np.float64)


def _blocks(x: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (x[start : start + size] for start in range(0, len(x), size))


def _nonzero(x: np.ndarray) -> np.ndarray:
    """``x != 0`` of stored elements, by their bits: NumPy compares 16-bit floats one by one."""
    if x.dtype.kind == "i":
        return x != 0
    return x.view(f"u{x.itemsize}") << 1 != 0  # without the sign
