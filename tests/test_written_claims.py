"""What the pages of the docs say of recorded runs in words still holds of them."""

from __future__ import annotations

import json
import statistics

from test_evidence import ROOT, load, recorded
from test_written_figures import cases, page

load(ROOT / "docs" / "update_readme.py")  # whose folder of extensions has the others
advice_figures, crossover = (
    load(ROOT / "docs" / "_extensions" / f"{name}.py") for name in ("advice_figures", "crossover")
)


def ratio(case: dict, rival: str) -> float:
    """How many times as fast as the rival."""
    return case["rivals"][rival] / case["ours_us"]


def starting(suite: str, *words: str) -> list[dict]:
    """The cases of a suite whose names begin with one of these words."""
    found = [case for name, case in cases(suite).items() if name.startswith(words)]
    assert found
    return found


def says(path: str, words: str) -> None:
    """The page says these words, which the caller compares with the records."""
    assert words in page(path), f"{path} no longer says this; compare what it says instead"


def test_what_an_epilogue_and_another_order_of_b_add():
    says(
        "docs/explanation/hopper_kernel.rst",
        "bias and gelu from 17 % of the product to less than 4 %",
    )
    for case in starting("gemm", "bfloat16 8192x8192x8192, bias and gelu"):
        assert case["ours_us"] < 1.04 * case["plain_us"]
    says("docs/explanation/hopper_kernel.rst", "adds 9 % to an 8-bit product of 8192 x 8192 x 8192")
    by_row, by_column = (
        [case["ours_us"] for dtype in ("float8_e4m3fn", "int8")
         for case in starting("gemm", f"{dtype} 8192x8192x8192, b by {order}")]
        for order in ("row", "column")
    )  # fmt: skip
    assert round(100 * (sum(by_row) / sum(by_column) - 1)) == 9


def test_how_fast_and_how_exact_float32_is():
    path, products = "docs/explanation/float32_split.rst", starting("gemm", "float32 ")
    says(path, "are about four times as fast as cuBLAS in FP32")
    assert all(3.5 < ratio(case, "cublas") < 5 for case in products if case["n"] >= 512)
    says(path, "the error is a fifth to a half of cuBLAS's")
    assert all(0.18 < case["error"] / case["cublas_error"] < 0.5 for case in products)


def test_how_near_packing_comes_to_a_copy():
    path = "docs/explanation/packing_kernels.rst"
    says(path, "it takes a little more than twice the time of its bytes")
    assert all(2 < 1 / ratio(case, "copy") < 2.3 for case in starting("pack", "sample"))
    says(path, "takes as long as a copy of the same bytes")
    (mask,) = starting("pack", "mask update")
    assert ratio(mask, "copy") > 0.97


def test_one_size_of_6_of_8_beats_the_dense_product_and_one_does_not():
    says(
        "docs/explanation/masks.rst",
        "a size at which it beats the dense product and one at which it does not",
    )
    slower, faster = sorted(ratio(case, "cublas") for case in starting("pack", "product 6:8"))
    assert slower < 1 < faster


def test_what_the_language_model_shows():
    path = "docs/how_to/training_recipes.rst"
    says(path, "every kind of sparse step takes longer than a dense one")
    says(path, "halfway through the training it is ahead of dense")
    says(path, "a loss a few percent higher is acceptable, transposable masks")
    says(path, "costs almost nothing")
    record = json.loads((recorded.DATA / "language_model.json").read_text())
    runs = {run["name"]: run for run in record["runs"]}
    dense = runs["dense"]
    assert all(run["ms_a_step"] >= dense["ms_a_step"] for run in runs.values())
    half = len(dense["loss_curve"]) // 2
    assert runs["weights"]["loss_curve"][half] < dense["loss_curve"][half]
    assert 0.02 < runs["masks"]["against_dense"] < 0.05
    assert runs["activations"]["against_dense"] < 0.001


def test_where_packed_averages_of_gradients_gain():
    says("CHANGELOG.md", "over NVLink about as long as without packing, and longer with few tokens")
    found = cases("reduction").values()
    by_sockets = [ratio(case, "ddp") for case in found if "by sockets" in case["name"]]
    by_links = {(case["tokens"], ratio(case, "ddp")) for case in found if "links" in case["name"]}
    assert min(by_sockets) > 1.5
    assert all(0.98 < gain < 1.1 for tokens, gain in by_links if tokens > 1024)
    assert all(gain < 1 for tokens, gain in by_links if tokens == 1024)


def test_how_much_faster_than_scipy_a_product_with_one_vector_is():
    says(
        "docs/explanation/cpu_kernels.rst",
        "it is 1.5 to 2 times as fast as SciPy's with one thread",
    )
    gains = [
        ratio(case, "scipy_csr")
        for case in starting("cpu", "unstructured")
        if case["n"] == 1 and case["threads"] == 1 and case["ours_kernel"] == "cpu_hybrid_cpu"
    ]
    assert (round(2 * min(gains)) / 2, round(2 * max(gains)) / 2) == (1.5, 2)


def test_where_2_4_gains_least():
    says(
        "docs/how_to/when_24_pays.rst", "**In between**, both matter, and the speed-up is smallest"
    )
    by_tokens: dict[int, list[float]] = {}
    for points in crossover.curves(recorded.suites()).values():
        for n, gain in points.items():
            by_tokens.setdefault(n, []).append(gain)
    means = {n: statistics.geometric_mean(found) for n, found in by_tokens.items()}
    assert 64 < min(means, key=means.__getitem__) < 1000


def test_the_model_mostly_predicts_less_than_was_measured():
    path = "docs/how_to/when_24_pays.rst"
    says(
        path, "The model mostly predicts less speed-up than was measured, in 16 bits a little less."
    )
    says(path, "In int8, and with the smaller weights, the dense products")
    mean = lambda rows, part: statistics.geometric_mean(getattr(row, part) for row in rows)  # noqa: E731
    everything = advice_figures.compared()
    of = {
        dtype: [row for row in everything if row.dtype == dtype and not row.small]
        for dtype in ("bfloat16", "float16", "int8")
    }
    small = [row for row in everything if row.small]
    assert all(0.9 < mean(of[dtype], "speedup") < 1 for dtype in ("bfloat16", "float16"))
    for rows in (of["int8"], small):
        assert max(mean(rows, "speedup"), mean(rows, "dense")) < 0.92
