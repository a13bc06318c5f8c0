"""Figures that are written by hand in the changelog and in the docs are those of the records."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import pytest
from test_evidence import ROOT, recorded

# Cases, each by its suite and its name, and what `CHANGELOG.md` says of them: times in
# microseconds, in milliseconds after `ms`, in seconds after `s`; a rival's by its name.
CHANGELOG = [
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
        ["h100/reduction: 4096 tokens on each of 2 GPUs, by sockets, packed"],
        "On two H100 a step of 4096 tokens takes {0.s.ours:.2f} s instead of {0.s.ddp:.2f} s",
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


def page(path: str) -> str:
    """A page with single spaces."""
    return " ".join((ROOT / path).read_text().split())


def cases(suite: str) -> dict[str, dict]:
    """The recorded cases of a suite by name; ``gpu/suite`` for another GPU than the first."""
    gpu, _, name = suite.rpartition("/")
    return {case["name"]: case for case in recorded.suites(gpu)[name]["cases"]}


def times(named: str) -> SimpleNamespace:
    """Microseconds of a case and of its rivals, by name; milliseconds and seconds within."""
    suite, _, name = named.partition(": ")
    case = cases(suite)[name]
    all_of = {"ours": case["ours_us"]} | case["rivals"]
    scaled = lambda by: SimpleNamespace(**{key: us / by for key, us in all_of.items() if us})  # noqa: E731
    return SimpleNamespace(**vars(scaled(1)), ms=scaled(1e3), s=scaled(1e6))


@pytest.mark.parametrize(("named", "words"), CHANGELOG, ids=[named[0] for named, _ in CHANGELOG])
def test_times_in_the_changelog_are_as_recorded(named, words):
    assert words.format(*map(times, named)) in page("CHANGELOG.md")


def test_the_losses_in_the_changelog_are_as_recorded():
    runs = json.loads((recorded.DATA / "language_model.json").read_text())["runs"]
    loss = {run["name"]: f"{run['final_loss']:.3f}" for run in runs}
    words = (
        "dense {dense}, 2:4 activations {activations}, 2:4 weights chosen at each step {weights}, "
        "transposable masks {masks}"
    )
    assert words.format_map(loss) in page("CHANGELOG.md")


def test_the_time_of_a_step_on_the_host_is_as_recorded():
    steps = [case for name, case in cases("overhead").items() if name.startswith("step of")]
    ours, theirs = (
        f"{min(found) / 1e3:.2f} to {max(found) / 1e3:.2f} ms"
        for found in zip(
            *((case["ours_us"], case["rivals"]["torch"]) for case in steps), strict=True
        )
    )
    assert f"a forward and a backward pass {ours} ({theirs})" in page("CHANGELOG.md")


@functools.cache
def gains(family: str) -> dict[tuple[str, int, float], float]:
    """How many times as fast as cuBLAS a product of 16 bits is, by shape, columns and zeros."""
    return {
        (f"{case['m']} x {case['k']}", case["n"], case["zeros"]): (
            case["rivals"]["cublas"] / case["ours_us"]
            if case["ours_kernel"] != "cublas"
            else 1.0
        )
        for case in cases("hybrid").values()
        if case["family"] == family and case["dtype"] == "float16" and "cublas" in case["rivals"]
    }  # fmt: skip


def share_won(
    family: str, least: int, most: int, zeros: tuple[float, ...], by: float = 1.0
) -> float:
    """Of the recorded products of so many columns, those that are faster than cuBLAS's."""
    found = [gain for (_, n, z), gain in gains(family).items() if least <= n <= most and z in zeros]
    assert found
    return sum(gain > by for gain in found) / len(found)


def test_from_which_share_of_zeros_an_unstructured_product_wins():
    """As README.md, CHANGELOG.md and docs/explanation/hybrid.rst say, of zeros at random places."""
    assert share_won("iid", 1, 64, (0.6, 0.7, 0.8, 0.9, 0.95)) == 1
    assert share_won("iid", 4096, 4096, (0.6,)) > 0.5
    assert share_won("iid", 4096, 4096, (0.7, 0.8, 0.9, 0.95, 0.99)) == 1
    assert share_won("iid", 512, 512, (0.6,)) < 0.5 < share_won("iid", 512, 512, (0.7,))
    assert share_won("iid", 96, 512, (0.6, 0.7)) < 0.5 < share_won("iid", 96, 512, (0.8, 0.9))
    rows_of_4096 = [gain for (m, n, z), gain in gains("iid").items()
                    if m == "4096 x 4096" and n in (192, 256) and z <= 0.95]  # fmt: skip
    assert max(rows_of_4096) == 1


def paths(dtype: str, family: str, columns: tuple[int, ...], zeros: tuple[float, ...]) -> list[str]:
    """The paths that the recorded products of an unstructured matrix took."""
    found = [
        case["ours_kernel"]
        for case in cases("hybrid").values()
        if case["dtype"] == dtype and case["family"] == family
        and case["n"] in columns and case["zeros"] in zeros
    ]  # fmt: skip
    assert found
    return found


def test_which_products_of_float32_take_the_path_csr_or_panel():
    """As the table of paths in docs/explanation/hybrid.rst says, of the recorded ones."""
    assert set(paths("float32", "iid", (1, 8, 64, 256), (0.999, 0.9999))) == {"csr"}
    assert set(paths("float32", "iid", (8, 64), (0.99,))) == {"csr"}
    assert set(paths("float32", "small", (1, 16, 128), (0.99,))) == {"csr"}
    assert set(paths("float32", "small", (16,), (0.9, 0.97))) == {"csr"}
    at_97 = paths("float32", "small", (1, 128), (0.97,))
    assert at_97.count("csr") > len(at_97) / 2
    assert set(paths("float32", "iid", (8,), (0.5, 0.6, 0.7, 0.8, 0.9))) == {"panel"}
    assert set(paths("float32", "iid", (512, 4096), (0.97, 0.99))) == {"panel"}
    assert set(paths("float64", "iid", (512,), (0.95, 0.99))) == {"panel"}


def test_how_long_skinny_takes_by_few_columns_of_fp8():
    """As docs/explanation/few_tokens_kernels.rst says: untuned it runs, tuned `sparse_wgmma`."""
    ratios = [
        case["untuned_us"] / case["ours_us"]
        for case in cases("few_tokens").values()
        if case["dtype"].startswith("float8") and case["n"] <= 8
        and case["untuned_kernel"].startswith("sparse_skinny")
        and case["ours_kernel"].startswith("sparse_wgmma")
    ]  # fmt: skip
    words = f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long as ``sparse_wgmma``"
    assert words in page("docs/explanation/few_tokens_kernels.rst")


def test_small_layers_of_many_columns_are_mostly_dense():
    zeros = (0.7, 0.8, 0.9, 0.95)
    assert share_won("small", 1, 64, zeros) == 1
    assert share_won("small", 128, 512, zeros, by=1.05) < 0.1
    assert share_won("small", 512, 512, zeros) == 0
