"""Every example in a docstring, and on a page of the docs, runs.

By module name: the folders `kernels` and `formats` are installed under `sparse24`, so
collecting by path would import them under the wrong name.
"""

from __future__ import annotations

import doctest
import importlib
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"sparse24": "sparse24", "kernels": "sparse24.kernels", "formats": "sparse24.formats"}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
FRAMEWORKS = ("torch", "jax", "sklearn", "matplotlib")
COMPILED = ("sparse24._jax.functions", "sparse24._jax.products")


PAGES = sorted(
    path.relative_to(ROOT / "docs").as_posix()
    for folder in ("how_to", "explanation", "reference")
    for path in (ROOT / "docs" / folder).glob("*.rst")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("page", PAGES)
def test_pages(page, monkeypatch, tmp_path):
    if ">>> import torch" in (ROOT / "docs" / page).read_text():
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(
        str(ROOT / "docs" / page), module_relative=False, optionflags=FLAGS, encoding="utf-8"
    )
    assert result.attempted > 0
    assert result.failed == 0


FIRST_LINES = {
    "README.md": r"```python\n(.*?)```",
    "docs/index.rst": r"code-block:: python\n\n((?: +[^\n]*\n|\n)+)",
}


@pytest.mark.parametrize("page", FIRST_LINES)
def test_the_lines_that_a_reader_tries_first(page, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(FIRST_LINES[page], (ROOT / page).read_text(), re.DOTALL)
    exec(compile(textwrap.dedent(block), page, "exec"), {})
    assert "cpu_" in capsys.readouterr().out  # the kernel that ran, by the last print


def modules_with_examples() -> list[str]:
    found = []
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in path.read_text():
                parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
                found.append(".".join(parts).removesuffix(".__init__"))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name, monkeypatch, tmp_path):
    if name == "sparse24.plot":
        pytest.importorskip("matplotlib").use("Agg")
    framework = name.removeprefix("sparse24.").removeprefix("_").partition(".")[0]
    if framework in FRAMEWORKS:  # sparse24.torch, and sparse24._torch.model behind it
        pytest.importorskip(framework)
    if name in COMPILED:  # whose examples are compiled: for JAX 0.6.1 and later
        pytest.importorskip("jax.experimental.buffer_callback")
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, globs={}, optionflags=FLAGS)  # as a reader copies them
    assert result.attempted > 0
    assert result.failed == 0
    if name == "sparse24.plot":
        import matplotlib.pyplot as plt

        plt.close("all")
