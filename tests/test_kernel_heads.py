"""The heads of the CUDA sources: the comments with which they begin."""

from __future__ import annotations

import importlib
import itertools
import re

import pytest
from house_cases import ROOT

from sparse24.kernels import loader, targets

CUDA = ROOT / "kernels" / "cuda"


def sources(name: str, seen: dict[str, str]) -> dict[str, str]:
    """The text of a source, and those of the headers that it includes."""
    if name not in seen:
        seen[name] = (CUDA / name).read_text()
        for header in re.findall(r'^#include "(.+)"$', seen[name], re.MULTILINE):
            sources(f"include/{header}", seen)
    return seen


def head(text: str) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
    return "\n".join(lines)


@pytest.mark.parametrize("stem", targets.stems())
def test_every_macro_is_named(stem):
    launcher = importlib.import_module(f"sparse24.kernels.{loader.LAUNCHER_OF.get(stem, stem)}")
    macros = {name for defines, *_ in launcher.COMPILE_CHECKS for name, _ in defines}
    heads = " ".join(map(head, sources(f"{stem}.cu", {}).values())).replace("-D", "")
    assert macros <= set(re.findall(r"\w+", heads))


@pytest.mark.parametrize("path", sorted(CUDA.rglob("*.cu*")), ids=lambda path: path.name)
def test_a_source_begins_with_its_name(path):
    assert head(path.read_text()).startswith(f"// {path.stem}: ")
