"""The figures that the README shows: one row for each kind of work, from the recorded cases."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import recorded

Case = dict[str, Any]

RIVALS = {
    "cublas": "cuBLAS, dense",
    "cusparselt": "cuSPARSELt, all algorithms searched",
    "cusparse": "cuSPARSE",
    "torch_compiled": "dense, `torch.compile`",
    "torch_int8_weights": "dense int8 weights, `torch.compile`",
    "torch_int4_weights": "dense 4-bit weights, torch's kernel",
    "torch_grouped": "torch's grouped product, dense",
    "cublas_loop": "cuBLAS, dense, expert by expert",
    "copy": "a copy of the same bytes",
    "torch_tile": "torch's tile kernel",
    "scipy_csr": "SciPy CSR",
    "numpy_float32": "NumPy, dense",
    "best": "the best rival",
}
STALE = " †"  # beside figures of kernels that have changed since
SIXTEEN = ("float16", "bfloat16")
EIGHT = ("float8_e4m3fn", "int8")
WEIGHT_ONLY = ("float8_e4m3fn by bfloat16", "int8 by bfloat16")
FOUR_BITS = "int4 by bfloat16"
GRAPHS = ("graph_lognormal", "graph_power_law", "stencil")  # families of nearly empty matrices


@dataclass(frozen=True)
class Headline:
    """One row: the cases of a suite that `picks` takes, against one rival or the best of them."""

    title: str
    suite: str
    rival: str
    picks: Callable[[Case], bool]

    def cases(self, gpu: str = "") -> list[Case]:
        """The recorded cases that have the rival, of the first GPU or one of `recorded.others`."""
        suite = recorded.suites(gpu).get(self.suite, {"cases": []})
        cases = [case for case in suite["cases"] if case.get("rivals") and self.picks(case)]
        return [case for case in cases if self.rival in ("best", *case["rivals"])]

    def ratios(self, gpu: str = "") -> list[float]:
        """How many times faster than the rival each case is."""
        cases = self.cases(gpu)
        if self.rival != "best":
            return recorded.ratios(cases, self.rival)
        return [min(case["rivals"].values()) / case["ours_us"] for case in cases]

    def mean(self, gpu: str = "") -> str:
        """The geometric mean of the ratios, marked where a case is stale."""
        mark = STALE if any(map(recorded.is_stale, self.cases(gpu))) else ""
        return recorded.number(statistics.geometric_mean(self.ratios(gpu))) + "x" + mark

    def is_whole(self, gpu: str) -> bool:
        """Whether a GPU's record has every case of the first one's, so that the means compare."""
        here, there = ({case["name"] for case in self.cases(of)} for of in ("", gpu))
        return bool(there) and here <= there

    def span(self, gpu: str = "") -> str:
        """The least and the greatest of the ratios."""
        ratios = self.ratios(gpu)
        return f"{recorded.number(min(ratios))} – {recorded.number(max(ratios))}"

    def of_another(self, gpu: str) -> str:
        """What the column of another GPU says; more where this GPU alone has a record."""
        if not self.is_whole(gpu):
            return "–"
        if self.cases():
            return self.mean(gpu)
        return f"{_bold(self.mean(gpu))} ({self.span(gpu)}, {len(self.cases(gpu))} cases)"


def _bold(mean: str) -> str:
    """A mean with its mark outside of the emphasis."""
    number, _, mark = mean.partition("x")
    return f"**{number}x**{mark}"


def _few(low: int, high: int, *dtypes: str) -> Callable[[Case], bool]:
    """Plain products with that many columns; the name of another tells what else it does."""
    special = ("block", "small", "bias", " by ", "TF32", "unstructured", "gate and up")
    return lambda c: (
        low <= c["n"] <= high
        and c["dtype"] in dtypes
        and not any(word in c["name"] for word in special)
    )


def _named(*starts: str) -> Callable[[Case], bool]:
    return lambda c: c["name"].startswith(starts)


def _gated(case: Case) -> bool:
    return case.get("gated", False) and case["dtype"] == "bfloat16"


def _experts(low: int, high: int, *dtypes: str) -> Callable[[Case], bool]:
    return lambda c: c["dtype"] in dtypes and low <= c["n"] <= high


def _split(case: Case) -> bool:
    return case["ours_kernel"].startswith("sparse_split")


def _unstructured(zeros: tuple[float, ...], low: int, high: int) -> Callable[[Case], bool]:
    return lambda c: c.get("zeros") in zeros and low <= c["n"] <= high


def _hybrid(family: str, zeros: float, low: int, high: int) -> Callable[[Case], bool]:
    return lambda c: (
        c["family"] == family and c["zeros"] == zeros and low <= c["n"] <= high
        and c["dtype"] == "float16"
    )  # fmt: skip


def _of_type(dtype: str, least: float, most: float = 0.99) -> Callable[[Case], bool]:
    """Unstructured matrices that are neither small nor of graphs, by their share of zeros."""
    others = ("small", *GRAPHS)
    return lambda c: (
        c["dtype"] == dtype and c["family"] not in others and least <= c["zeros"] <= most
    )


def _graphs(dtype: str) -> Callable[[Case], bool]:
    return lambda c: c["dtype"] == dtype and c["family"] in GRAPHS


def _small(dtype: str, zeros: tuple[float, ...], low: int, high: int) -> Callable[[Case], bool]:
    return lambda c: (
        c["family"] == "small" and c["dtype"] == dtype and c["zeros"] in zeros
        and low <= c["n"] <= high
    )  # fmt: skip


HEADLINES = (
    Headline("1 to 32 tokens, bfloat16", "few_tokens", "cublas", _few(1, 32, "bfloat16")),
    Headline("64 to 256 tokens, bfloat16", "few_tokens", "cublas", _few(64, 256, "bfloat16")),
    Headline("fp8 and int8, at most 32 tokens", "few_tokens", "cublas", _few(1, 32, *EIGHT)),
    Headline(
        "linear layers of a Llama-3-8B-shaped block, 1 to 64 tokens", "few_tokens", "cublas",
        _named("block"),
    ),
    Headline("layers of 4 to 17 million elements, 1 to 64 tokens, bfloat16, untuned", "few_tokens",
             "cublas", lambda c: c["name"].startswith("small") and c["n"] <= 64),
    Headline("512 to 2048 tokens, bfloat16", "gemm", "cublas", _few(512, 2048, "bfloat16")),
    Headline("512 to 2048 tokens, bfloat16", "gemm", "cusparselt", _few(512, 2048, "bfloat16")),
    Headline("4096 tokens and more, 16 bits", "gemm", "cublas", _few(4096, 1 << 30, *SIXTEEN)),
    Headline("4096 tokens and more, bfloat16", "gemm", "cusparselt",
             _few(4096, 1 << 30, "bfloat16")),
    Headline("large products, fp8 and int8", "gemm", "cusparselt", _few(1, 1 << 30, *EIGHT)),
    Headline("mixture of experts, 8 and 64 tokens, bfloat16", "grouped", "best",
             _few(8, 64, "bfloat16")),
    Headline("mixture of experts, 512 tokens and more, bfloat16", "grouped", "best",
             _few(512, 1 << 30, "bfloat16")),
    Headline("mixture of experts, fp8 and int8", "grouped", "best", _few(1, 1 << 30, *EIGHT)),
    Headline("mixture of experts, gate and up with SwiGLU, bfloat16", "grouped", "best", _gated),
    Headline("mixture of 4-bit experts, 8 and 64 tokens, rivals in bfloat16", "grouped", "best",
             _experts(8, 64, "int4")),
    Headline("mixture of 4-bit experts, 512 tokens and more, rivals in bfloat16", "grouped", "best",
             _experts(512, 1 << 30, "int4")),
    Headline("mixture of 8-bit experts, 8 and 64 tokens, rivals in bfloat16", "grouped", "best",
             _experts(8, 64, *WEIGHT_ONLY)),
    Headline("mixture of 8-bit experts, 512 tokens and more, rivals in bfloat16", "grouped", "best",
             _experts(512, 1 << 30, *WEIGHT_ONLY)),
    Headline("8-bit weights and bfloat16, 1 to 16 tokens", "few_tokens", "cublas",
             _few(1, 16, *WEIGHT_ONLY)),
    Headline("8-bit weights and bfloat16, 32 and 64 tokens", "few_tokens", "cublas",
             _few(32, 64, *WEIGHT_ONLY)),
    Headline("8-bit weights and bfloat16, 128 to 2048 tokens", "few_tokens", "cublas",
             _few(128, 2048, *WEIGHT_ONLY)),
    Headline("int8 weights and bfloat16, one token", "few_tokens", "torch_int8_weights",
             _few(1, 1, *WEIGHT_ONLY)),
    Headline("4-bit weights and bfloat16, 1 to 16 tokens", "few_tokens", "cublas",
             _few(1, 16, FOUR_BITS)),
    Headline("4-bit weights and bfloat16, 32 and 64 tokens", "few_tokens", "cublas",
             _few(32, 64, FOUR_BITS)),
    Headline("4-bit weights and bfloat16, 128 and 512 tokens", "few_tokens", "cublas",
             _few(128, 512, FOUR_BITS)),
    Headline("4-bit weights and bfloat16, 2048 tokens", "few_tokens", "cublas",
             _few(2048, 2048, FOUR_BITS)),
    Headline("4-bit weights and bfloat16, one token", "few_tokens", "torch_int4_weights",
             _few(1, 1, FOUR_BITS)),
    Headline("float32, 1 to 8 tokens", "few_tokens", "cublas", _few(1, 8, "float32")),
    Headline("float32, 16 and 32 tokens", "few_tokens", "cublas", _few(16, 32, "float32")),
    Headline("float32, 64 columns and more", "gemm", "cublas", _split),
    Headline("float32 at 1:2 in TF32", "gemm", "cublas", _named("TF32")),
    Headline("unstructured, 60 % zeros, 1 to 16 columns", "hybrid", "best",
             _hybrid("iid", 0.6, 1, 16)),
    Headline("unstructured, 90 % zeros, 1 to 16 columns", "hybrid", "best",
             _hybrid("iid", 0.9, 1, 16)),
    Headline("unstructured, 90 % zeros, 32 to 64 columns", "hybrid", "best",
             _hybrid("iid", 0.9, 32, 64)),
    Headline("unstructured, 90 % zeros, 96 to 256 columns", "hybrid", "best",
             _hybrid("iid", 0.9, 96, 256)),
    Headline("unstructured, 90 % zeros, 512 columns and more", "hybrid", "best",
             _hybrid("iid", 0.9, 512, 1 << 30)),
    Headline("unstructured, uneven (Beta 5) tiles, 95 % zeros, 512 columns and more", "hybrid",
             "best", _hybrid("beta5", 0.95, 512, 1 << 30)),
    Headline("unstructured, log-normal rows, 90 % zeros, 1 to 8 columns", "hybrid", "best",
             _hybrid("row_skewed", 0.9, 1, 8)),
    Headline("unstructured, layers of 0.6 to 4.2 million elements, 80 % zeros, 8 to 64 columns",
             "hybrid", "best", _small("float16", (0.8,), 8, 64)),
    Headline("unstructured float32, 50 to 80 % zeros, 8 to 4096 columns", "hybrid", "best",
             _of_type("float32", 0.5, 0.8)),
    Headline("unstructured float32, 90 to 99 % zeros, 8 to 4096 columns", "hybrid", "best",
             _of_type("float32", 0.9)),
    Headline("unstructured float32, 16384 x 16384, 99.7 to 99.99 % zeros, 1 to 256 columns",
             "hybrid", "best", _of_type("float32", 0.997, 1)),
    Headline("graphs and a mesh of 40000 and 50000 nodes, float32, 1 to 256 columns", "hybrid",
             "cusparse", _graphs("float32")),
    Headline("graphs and a mesh of 40000 and 50000 nodes, float16, 1 to 256 columns", "hybrid",
             "cusparse", _graphs("float16")),
    Headline("unstructured float32, layers of 0.6 to 4.2 million elements, 90 to 99 % zeros, 1 to "
             "128 columns", "hybrid", "best", _small("float32", (0.9, 0.97, 0.99), 1, 128)),
    Headline("unstructured float64, 95 and 99 % zeros, 64 and 512 columns", "hybrid", "best",
             _of_type("float64", 0.95)),
    Headline("linear layer, forward and backward, pruned at each step", "training",
             "torch_compiled", _named("linear")),
    Headline("feed-forward, forward and backward, pruned at each step", "training",
             "torch_compiled", _named("FFN")),
    Headline("training step of 4 transformer layers, width 4096", "training", "torch_compiled",
             _named("4-layer")),
    Headline("prune, compress and pack", "pack", "copy", _named("prune+pack ")),
    Headline("check and pack", "pack", "cusparselt", _named("check+pack")),
    Headline("transposable mask, both orientations packed", "pack", "torch_tile",
             _named("transposable")),
    Headline("CPU, 1 to 64 columns, float32", "cpu", "numpy_float32", _few(1, 64, "float32")),
    Headline("CPU, 4-bit weights and float32, 1 and 4 columns", "cpu", "numpy_float32",
             lambda c: c["dtype"] == "int4 by float32"),
    Headline("CPU, int8 weights and float32, 1 to 64 columns", "cpu", "numpy_float32",
             lambda c: c["dtype"] == "int8 by float32"),
    Headline("CPU, 512 columns and more, float32", "cpu", "numpy_float32",
             _few(512, 4096, "float32")),
    Headline("CPU, 512 columns and more, float32", "cpu", "scipy_csr", _few(512, 4096, "float32")),
    Headline("CPU, unstructured, 50 and 70 % zeros, 1 to 16 columns", "cpu", "best",
             _unstructured((0.5, 0.7), 1, 16)),
    Headline("CPU, unstructured, 90 % zeros, 1 to 16 columns", "cpu", "best",
             _unstructured((0.9,), 1, 16)),
    Headline("CPU, unstructured, 90 % zeros, 64 columns and more", "cpu", "best",
             _unstructured((0.9,), 64, 512)),
)  # fmt: skip


# The README's first lines: which rows they take, and what they call the work and its rival.
IN_SHORT = (
    ("1 to 32 tokens, bfloat16", "cuBLAS's dense product for 1 to 32 tokens in bfloat16"),
    (
        "8-bit weights and bfloat16, 1 to 16 tokens",
        "cuBLAS's dense product for 1 to 16 tokens in bfloat16 where our weights have 8 bits",
    ),
    (
        "4-bit weights and bfloat16, 1 to 16 tokens",
        "cuBLAS's dense product for 1 to 16 tokens in bfloat16 where our weights have 4 bits",
    ),
    ("4096 tokens and more, 16 bits", "cuBLAS's dense product for 4096 tokens and more in 16 bits"),
    (
        "float32, 64 columns and more",
        "cuBLAS's dense product for 64 columns and more in float32, with smaller errors",
    ),
    (
        "mixture of experts, 8 and 64 tokens, bfloat16",
        "the best of torch and cuBLAS for a mixture of experts with 8 or 64 tokens",
    ),
    (
        "mixture of 4-bit experts, 8 and 64 tokens, rivals in bfloat16",
        "the best of torch and cuBLAS in bfloat16 where our experts have 4 bits",
    ),
    ("CPU, 1 to 64 columns, float32", "NumPy's dense product for up to 64 columns on the CPU"),
)


def in_short() -> str:
    """The figures of a few rows in one item of a list; nothing where none is recorded."""
    by_title = {headline.title: headline for headline in HEADLINES}
    parts = []
    for title, words in IN_SHORT:
        headline = by_title[title]
        gpu = next((gpu for gpu in ("", *recorded.others()) if headline.cases(gpu)), None)
        if gpu is not None:
            mean, _, mark = headline.mean(gpu).partition("x")
            where = f", on an {gpu.upper()}" if gpu else ""
            parts.append(f"  {mean} times as fast as {words}{where}{mark}")
    if not parts:
        return ""
    begin = (
        "- **Fast**, as recorded on an H200 unless another machine is named ([figures](#figures), "
        "geometric means;\n  *tokens* are the rows of `x` in `x @ A.T`):\n"
    )
    return begin + ",\n".join(parts) + "."


def compared() -> list[str]:
    """Those of `recorded.others` that have all cases of some row."""
    whole = lambda gpu: any(headline.is_whole(gpu) for headline in HEADLINES)  # noqa: E731
    return [gpu for gpu in recorded.others() if whole(gpu)]


def header() -> list[str]:
    """The first two lines of the README's table: a column for each GPU that can be compared."""
    columns = ["work", "against", "faster, geometric mean", "range", "cases"]
    columns += [gpu.upper() for gpu in compared()]
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def rows() -> list[str]:
    """Lines of the README's table; kinds of work without a recorded case have none."""
    lines, gpus = [], compared()
    for headline in HEADLINES:
        here, there = headline.cases(), [headline.of_another(gpu) for gpu in gpus]
        if not here and set(there) <= {"–"}:
            continue
        own = ["–"] * 3
        if here:
            own = [_bold(headline.mean()), headline.span(), str(len(here))]
        cells = [headline.title, RIVALS[headline.rival], *own, *there]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def machines() -> list[str]:
    """Where the suites of the table ran, each machine once, with the first and the last day."""
    shown = dict.fromkeys(headline.suite for headline in HEADLINES)
    records = [recorded.suites(gpu) for gpu in ("", *compared())]
    found = [suites[name]["header"] for suites in records for name in shown if name in suites]
    return recorded.machines(found)
