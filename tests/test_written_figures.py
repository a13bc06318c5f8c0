"""Figures that are written in the changelog and in the docs are those of the records."""

from __future__ import annotations

import functools
import json

import pytest
from test_evidence import ROOT, load, recorded

load(ROOT / "docs" / "update_readme.py")  # whose folder of extensions has the others
import written  # noqa: E402
from written import SENTENCES, cases  # noqa: E402


def page(path: str) -> str:
    """A page with single spaces."""
    return " ".join((ROOT / path).read_text().split())


@pytest.mark.parametrize(("named", "words"), SENTENCES, ids=[named[0] for named, _ in SENTENCES])
def test_times_in_the_changelog_are_as_recorded(named, words):
    text = (ROOT / "CHANGELOG.md").read_text()
    assert written.with_numbers(text, words, named) == text, "run python docs/update_changelog.py"


def test_a_sentence_gets_new_numbers_and_must_be_there():
    named = ["training: FFN"]
    words = "takes {0.ms.ours:.1f} ms (dense {0.ms.torch_compiled:.0f} ms)"
    ours, dense = (
        us / 1e3
        for case in [cases("training")["FFN"]]
        for us in (case["ours_us"], case["rivals"]["torch_compiled"])
    )
    text = "A layer takes\n  7 ms (dense 8.25\nms), and more."
    want = f"A layer takes\n  {ours:.1f} ms (dense {dense:.0f}\nms), and more."
    assert written.with_numbers(text, words, named) == want
    for other in ("A layer takes a while.", text + text):
        with pytest.raises(ValueError, match=r"expected this sentence once, found it [02] times"):
            written.with_numbers(other, words, named)


def test_the_losses_in_the_changelog_are_as_recorded():
    runs = json.loads((recorded.DATA / "language_model.json").read_text())["runs"]
    loss = {run["name"]: f"{run['final_loss']:.3f}" for run in runs}
    words = (
        "dense {dense}, 2:4 activations {activations}, 2:4 weights chosen at each step {weights}, "
        "transposable masks {masks}"
    )
    assert words.format_map(loss) in page("CHANGELOG.md")


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
    """Of the recorded products of that many columns, those that are faster than cuBLAS's."""
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
        and case.get("untuned_kernel", "").startswith("sparse_skinny")
        and case["ours_kernel"].startswith("sparse_wgmma")
    ]  # fmt: skip
    words = f"takes {min(ratios):.2f} to {max(ratios):.2f} times as long as ``sparse_wgmma``"
    assert words in page("docs/explanation/few_tokens_kernels.rst")


def test_small_layers_of_many_columns_are_mostly_dense():
    zeros = (0.7, 0.8, 0.9, 0.95)
    assert share_won("small", 1, 64, zeros) == 1
    assert share_won("small", 128, 512, zeros, by=1.05) < 0.1
    assert share_won("small", 512, 512, zeros) == 0
