"""Sentences of ``CHANGELOG.md`` that give recorded times, and how to bring them up to date."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import recorded

# Cases, each by its suite and its name, and what is said of them: times in microseconds, in
# milliseconds after `ms`, in seconds after `s`; a rival's by its name.  `least` and `most` are
# those of all cases named.
SENTENCES = [
    (
        ["pack: prune+pack 16384x16384 bfloat16"],
        "16384 x 16384 bfloat16 is pruned and packed in {0.ours:.0f} µs; a copy of the same "
        "bytes takes {0.copy:.0f} µs",
    ),
    (
        ["pack: transposable 16384x16384 bfloat16"],
        "in {0.ours:.0f} µs at that size (torch's tile kernel {0.torch_tile:.0f} µs)",
    ),
    (
        [f"gemm: {dtype} 8192x8192x8192" for dtype in ("bfloat16", "float8_e4m3fn", "int8")],
        "8192 x 8192 x 8192: bfloat16 {0.ms.ours:.2f} ms (cuBLAS dense {0.ms.cublas:.2f} ms, "
        "cuSPARSELt {0.ms.cusparselt:.2f} ms), fp8 {1.ms.ours:.2f} ms ({1.ms.cublas:.2f} ms, "
        "{1.ms.cusparselt:.2f} ms), int8 {2.ms.ours:.2f} ms ({2.ms.cublas:.2f} ms, "
        "{2.ms.cusparselt:.2f} ms)",
    ),
    (
        [
            "few_tokens: small bfloat16 4096x4096x1", "few_tokens: small bfloat16 4096x4096x32",
            "few_tokens: bfloat16 14336x4096x1", "few_tokens: bfloat16 14336x4096x64",
            "few_tokens: block bfloat16 n=1", "few_tokens: block bfloat16 n=64",
        ],
        "4096 x 4096 by 1 takes {0.ours:.1f} µs (cuBLAS {0.cublas:.1f} µs) and by 32 "
        "{1.ours:.1f} µs ({1.cublas:.1f} µs), 14336 x 4096 by 1 {2.ours:.1f} µs ({2.cublas:.1f} "
        "µs), by 64 {3.ours:.1f} µs ({3.cublas:.1f} µs), and the linear layers of a "
        "Llama-3-8B-shaped block for one token {4.ours:.0f} µs ({4.cublas:.0f} µs), for 64 "
        "{5.ours:.0f} µs ({5.cublas:.0f} µs)",
    ),
    (
        [
            "gemm: float32 4096x4096x4096", "few_tokens: float32 14336x4096x32",
            "gemm: TF32 at 1:2 8192x8192x8192",
        ],
        "4096 x 4096 x 4096 in {0.ms.ours:.2f} ms (cuBLAS {0.ms.cublas:.2f} ms), 14336 x 4096 "
        "by 32 in {1.ours:.0f} µs ({1.cublas:.0f} µs). In TF32 at 1:2, on request, on Hopper: "
        "8192 x 8192 x 8192 in {2.ms.ours:.2f} ms (cuBLAS in TF32 {2.ms.cublas:.2f} ms)",
    ),
    (
        ["grouped: bfloat16 Mixtral-8x7B gate 64 tokens"],
        "8 experts of 14336 x 4096 with 64 tokens in bfloat16 take {0.ours:.0f} µs (torch's "
        "grouped product {0.torch_grouped:.0f} µs, cuBLAS {0.cublas_loop:.0f} µs)",
    ),
    (
        [f"grouped: int4 {name} gate 64 tokens" for name in ("Mixtral-8x7B", "Qwen3-30B-A3B")],
        "8 experts of 14336 x 4096 with 64 tokens, of 4 bits beside bfloat16, take {0.ours:.0f} µs "
        "(torch's grouped product {0.torch_grouped:.0f} µs, cuBLAS {0.cublas_loop:.0f} µs), 128 "
        "experts of 768 x 2048 {1.ours:.0f} µs ({1.torch_grouped:.0f} µs, {1.cublas_loop:.0f} µs)",
    ),
    (
        ["overhead: A @ b, n = 1"],
        "384 x 384 with 1 column takes {0.ours:.0f} µs of Python on the GPU (CuPy's dense "
        "product {0.cupy:.0f} µs)",
    ),
    (
        ["overhead: SparseLinear, n = 1"],
        "a layer takes {0.ours:.0f} µs of Python without gradients (torch's own layer "
        "{0.torch:.0f} µs)",
    ),
    (
        [f"overhead: hybrid, 90 % zeros, {how}, n = 64" for how in ("x @ H.T", "torch tensor")],
        "64 tokens of 4096 features take {0.ours:.0f} µs of Python as CuPy arrays and "
        "{1.ours:.0f} µs as torch tensors",
    ),
    (
        [f"overhead: step of SparseLinear{how}" for how in (
            "", ", transposable", ", masked gradient", ", sampled gradient",
        )],
        "a forward and a backward pass {least.ms.ours:.2f} to {most.ms.ours:.2f} ms "
        "({least.ms.torch:.2f} to {most.ms.torch:.2f} ms)",
    ),
    (
        ["hybrid: beta5-8192x8192x4096-0.9", "hybrid: iid-8192x8192x4096-0.9"],
        "takes {0.ms.ours:.2f} ms (cuBLAS {0.ms.cublas:.2f} ms); with zeros at random places "
        "{1.ms.ours:.2f} ms",
    ),
    (
        [
            *(f"hybrid: iid-8192x8192x{n}-0.95" for n in (1, 2, 8)),
            "hybrid: iid-14336x4096x16-0.95",
        ],
        "8192 x 8192 at 95 % zeros takes {0.ours:.1f} µs by one column (cuSPARSE "
        "{0.cusparse:.1f} µs, cuBLAS {0.cublas:.1f} µs), {1.ours:.1f} µs by 2 ({1.cusparse:.1f} "
        "µs, {1.cublas:.1f} µs) and {2.ours:.1f} µs by 8 ({2.cusparse:.1f} µs, {2.cublas:.1f} "
        "µs); 14336 x 4096 by 16 columns {3.ours:.1f} µs ({3.cusparse:.1f} µs, {3.cublas:.1f} "
        "µs)",
    ),
    (
        [f"hybrid: iid-{size}x{size}x{n}-0.8" for size in (8192, 4096) for n in (32, 64)],
        "8192 x 8192 at 80 % zeros takes {0.ours:.1f} µs and {1.ours:.1f} µs (cuBLAS "
        "{0.cublas:.1f} µs and {1.cublas:.1f} µs), 4096 x 4096 {2.ours:.1f} µs and {3.ours:.1f} "
        "µs ({2.cublas:.1f} µs and {3.cublas:.1f} µs)",
    ),
    (
        ["hybrid: float32 small-3072x768x1-0.9", "hybrid: float32 iid-16384x16384x1-0.997"],
        "3072 x 768 at 90 % zeros takes {0.ours:.1f} µs (cuSPARSE {0.cusparse:.1f} µs, cuBLAS "
        "{0.cublas:.1f} µs), 16384 x 16384 at 99.7 % {1.ours:.1f} µs ({1.cusparse:.1f} µs, "
        "{1.cublas:.0f} µs)",
    ),
    (
        [f"hybrid: float32 iid-4096x4096x4096-{zeros}" for zeros in (0.5, 0.8, 0.9)],
        "4096 x 4096 x 4096 takes {0.ms.ours:.2f} ms at 50 % zeros, {1.ms.ours:.2f} ms at 80 % "
        "and {2.ms.ours:.2f} ms at 90 % (cuBLAS {1.ms.cublas:.1f} ms, the fastest algorithm of "
        "cuSPARSE {0.ms.cusparse:.1f}, {1.ms.cusparse:.1f} and {2.ms.cusparse:.1f} ms)",
    ),
    (
        ["hybrid: float64 iid-4096x4096x512-0.95"],
        "4096 x 4096 x 512 in float64 at 95 % zeros takes {0.ours:.0f} µs (cuBLAS "
        "{0.cublas:.0f} µs, the fastest algorithm of cuSPARSE {0.cusparse:.0f} µs)",
    ),
    (
        [
            *(f"hybrid: float32 graph_lognormal-50000x50000x{n}-0.9996" for n in (1, 64)),
            "hybrid: graph_lognormal-50000x50000x64-0.9996",
        ],
        "takes {0.ours:.1f} µs by a vector (the fastest algorithm of cuSPARSE {0.cusparse:.1f} "
        "µs) and {1.ours:.0f} µs by 64 columns ({1.cusparse:.0f} µs), in float16 {2.ours:.0f} "
        "µs ({2.cusparse:.0f} µs)",
    ),
    (
        ["pack: mask update, 1 Gi weights, bfloat16"],
        "A 2:4 mask of 2^30 bfloat16 weights takes {0.ms.ours:.2f} ms",
    ),
    (
        [
            "training: linear, transposable", "training: FFN", "training: FFN, 2:4 activations",
            "training: 4-layer transformer step",
        ],
        "a linear layer {0.ms.ours:.2f} ms (dense through `torch.compile` "
        "{0.ms.torch_compiled:.2f} ms), a feed-forward {1.ms.ours:.1f} ms "
        "({1.ms.torch_compiled:.1f} ms), or with 2:4 activations, which are squared while they "
        "are packed, {2.ms.ours:.1f} ms, a step of 4 transformer layers {3.ms.ours:.0f} ms "
        "({3.ms.torch_compiled:.0f} ms)",
    ),
    (
        ["reduction: 4096 tokens on each of 2 GPUs, by sockets, packed"],
        "On two H200 a step of 4096 tokens takes {0.s.ours:.2f} s instead of {0.s.ddp:.2f} s",
    ),
    (
        [
            *(f"cpu: product 4096x4096x{n} float32, 1 thread" for n in (1, 64)),
            "cpu: product 2048x2048x2048 float32, 1 thread",
        ],
        "4096 x 4096 in float32 with 1 column takes {0.ms.ours:.1f} ms (NumPy dense "
        "{0.ms.numpy_float32:.1f} ms, SciPy CSR {0.ms.scipy_csr:.1f} ms), with 64 columns "
        "{1.ms.ours:.1f} ms ({1.ms.numpy_float32:.1f} ms, {1.ms.scipy_csr:.1f} ms); 2048 x 2048 "
        "x 2048 {2.ms.ours:.0f} ms ({2.ms.numpy_float32:.0f} ms, {2.ms.scipy_csr:.0f} ms)",
    ),
    (
        ["cpu: unstructured 4096x4096x64 at 90% zeros, 1 thread"],
        "{0.ms.ours:.1f} ms (NumPy {0.ms.numpy_float32:.1f} ms, SciPy CSR {0.ms.scipy_csr:.1f} "
        "ms)",
    ),
]  # fmt: skip

NUMBER = r"([0-9.]+)"


def cases(suite: str) -> dict[str, dict]:
    """The recorded cases of a suite by name; ``gpu/suite`` for another GPU than the first."""
    gpu, _, name = suite.rpartition("/")
    return {case["name"]: case for case in recorded.suites(gpu)[name]["cases"]}


def updated(text: str) -> str:
    """The text with the numbers of all sentences as they are recorded."""
    for named, words in SENTENCES:
        text = with_numbers(text, words, named)
    return text


def with_numbers(text: str, words: str, named: list[str]) -> str:
    """The text with those of one sentence, which may go over several lines.

    Raises
    ------
    ValueError
        If the text does not have the sentence, with any numbers, once.
    """
    pieces, numbers = zip(*_parsed(words, named), strict=True)
    spaced = (r"\s+".join(map(re.escape, piece.split(" "))) for piece in pieces)
    pattern = "".join(piece + NUMBER * (n is not None) for piece, n in zip(spaced, numbers))
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise ValueError(f"expected this sentence once, found it {len(found)} times: {words}")
    fresh = [number for number in numbers if number is not None]
    for place in range(len(fresh), 0, -1):  # from the last one on, so that places stay right
        start, end = found[0].span(place)
        text = text[:start] + fresh[place - 1] + text[end:]
    return text


def _parsed(words: str, named: list[str]) -> Iterator[tuple[str, str | None]]:
    """Text, and the number behind it, if there is one."""
    each = [_times(name) for name in named]
    extremes = {"least": _over(each, min), "most": _over(each, max)}
    formatter = string.Formatter()
    for piece, field, digits, _ in formatter.parse(words):
        if field is None:
            yield piece, None
        else:
            yield piece, format(formatter.get_field(field, each, extremes)[0], digits or "")


def _times(named: str) -> SimpleNamespace:
    """Microseconds of a case and of its rivals, by name; milliseconds and seconds within."""
    suite, _, name = named.partition(": ")
    case = cases(suite)[name]
    return _scaled({"ours": case["ours_us"]} | case["rivals"])


def _over(each: list[SimpleNamespace], extreme: Callable) -> SimpleNamespace:
    """The least or the most of several cases, of what all of them have."""
    names = set.intersection(*(set(vars(times)) for times in each)) - {"ms", "s"}
    return _scaled({name: extreme(getattr(times, name) for times in each) for name in names})


def _scaled(us: dict[str, float]) -> SimpleNamespace:
    in_unit = lambda by: {name: time / by for name, time in us.items() if time}  # noqa: E731
    ms, s = (SimpleNamespace(**in_unit(by)) for by in (1e3, 1e6))
    return SimpleNamespace(**in_unit(1), ms=ms, s=s)
