"""The house: floors, light imports, names in all their places."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
from house_cases import ROOT

import sparse24

FOLDERS = {"sparse24": "sparse24", "kernels": "sparse24.kernels", "formats": "sparse24.formats"}
STEMS = sorted(path.stem for path in (ROOT / "kernels" / "cuda").glob("*.cu"))


# Lowest first; what no row names stands on the top floor.  An import goes only down, or
# sideways.
FLOORS = (
    ("_errors", "_spec", "_version"),
    ("_arrays", "_bounded", "_check", "_devices", "_dtypes", "_excess", "_file_checks",
     "_foreign_streams", "_gradients", "_host_tensors", "_locks", "_memory_order", "_options",
     "_overlap", "_pyplot", "_raw_files", "_raw_writers", "_records", "_row_blocks", "_scales",
     "_settled", "_shards", "_streams", "_table", "_user_folder", "_views", "_whole_files"),
    ("kernels", "kernels.*"),
    ("_autotune", "_backend", "_batch_axes", "_calibration", "_chip_facts", "_compress_records",
     "_cuda_graphs", "_dispatch", "_elementwise", "_evidence", "_finish", "_foreign", "_fuse",
     "_grouped", "_grouped.*", "_hybrid", "_hybrid.*", "_jax", "_jax.arrays", "_kernel_*",
     "_made_anew", "_moved_layout", "_planner", "_product", "_promotion", "_prune_methods",
     "_prune_rule", "_quantised", "_ready", "_ready_arrays", "_ready_converted", "_ready_cpu",
     "_ready_pieces", "_ready_scratch", "_ready_stacks", "_record_parts", "_refit", "_replay",
     "_select", "_shared_plans", "_sparsegpt", "_staging", "_storage", "_target", "_torch",
     "_torch.functions", "_tuning_cache", "_widening"),
    ("formats", "formats.*"),
    ("_activate", "_advise", "_compress", "_explain", "_explain_gpu", "_explanation",
     "_grouped_matmul", "_is_24", "_make", "_matmul", "_named_operands", "_other_formats",
     "_plain_operands", "_plan", "_planner_fit", "_prune", "_schedule", "_schedule.*",
     "_to_hybrid", "schedule", "tuning"),
)  # fmt: skip
TOP = len(FLOORS)


def floor(module: str) -> int:
    name = module.removeprefix("sparse24.")
    for number, patterns in enumerate(FLOORS):
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
            return number
    return TOP


def modules() -> dict[str, Path]:
    found = {}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = [package, *path.relative_to(ROOT / folder).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of sparse24 that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} line {node.lineno}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in MODULES else node.module)
    return {name for name in found if name in MODULES}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"sparse24"}))
def test_imports_go_only_down(module):
    own = floor(module)
    for imported in imports(MODULES[module]):
        other = TOP if imported == "sparse24" else floor(imported)
        assert other <= own, f"{module} (floor {own}) imports {imported} (floor {other})"


def test_the_door_opens_without_heavy_packages():
    script = "import sys, sparse24; print(*sys.modules)"
    # -P: beside a clone named sparse24 that folder is no package, and would load nothing.
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "sparse24._errors" in loaded
    assert not loaded & {"cupy", "torch", "jax", "scipy", "numba", "matplotlib", "numpy"}


def test_the_bare_folder_of_a_clone_can_be_imported():
    """As in its root, where Python finds that before an installed package."""
    script = (
        "import sys; sys.meta_path = [x for x in sys.meta_path if 'editable' not in str(x)]\n"
        "import sparse24.formats.two_four as one, sparse24.kernels.loader as other\n"
        "print(one.__file__, other.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == [f"{ROOT}/formats/two_four.py", f"{ROOT}/kernels/loader.py"]


@pytest.mark.parametrize("name", [*sparse24.__all__, *sparse24._BRIDGES])
def test_every_public_name_is_there(name):
    if name in ("torch", "jax"):
        pytest.importorskip(f"sparse24.{name}")
    assert getattr(sparse24, name) is not None


def test_all_names_can_be_had_without_frameworks():
    """As `help(sparse24)` and a star import fetch them; the bridges say what they need."""
    script = (
        "import sys; sys.modules.update(torch=None, jax=None)\n"
        "import pydoc, sparse24\n"
        "pydoc.render_doc(sparse24)\n"
        "from sparse24 import *\n"
        "try:\n    sparse24.torch\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install 'sparse24[torch]'" in done.stdout


def test_the_documentation_of_layers_is_built_without_frameworks():
    pytest.importorskip("sphinx")
    script = """
from sphinx.ext.autodoc.mock import mock
with mock(["torch", "jax"]):
    import sparse24.jax, sparse24.torch
    print(sparse24.torch.SparseLinear.__doc__.split()[0])
"""
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert done.stdout.strip(), done.stderr


def test_a_star_import_leaves_the_frameworks_their_names():
    assert not {"torch", "jax"} & set(sparse24.__all__)


def test_editors_see_the_names_that_are_imported_at_first_use():
    """The imports for type checkers at the head of the package are those of `_HOMES`."""
    seen = {}
    for node in ast.walk(ast.parse(MODULES["sparse24"].read_text())):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if alias.asname is not None:
                seen[alias.asname] = node.module
    modules = dict.fromkeys(sparse24._MODULES, "sparse24")
    assert seen == sparse24._HOMES | modules


@pytest.mark.parametrize("stem", STEMS)
def test_a_kernel_has_one_name_in_all_its_places(stem):
    launchers = [path.read_text() for path in (ROOT / "kernels").glob("*.py")]
    assert any(f'"{stem}"' in text for text in launchers), "a launcher"
    tests = [path.read_text() for path in (ROOT / "tests").glob("test_*.py")]
    assert any(f'"{stem}"' in text for text in tests), "a test that is marked with its stem"
    pages = [path.read_text() for path in (ROOT / "docs" / "explanation").glob("*.rst")]
    assert any(f"``{stem}``" in text for text in pages), "a page in docs/explanation"
    table = (ROOT / "docs" / "explanation" / "kernels.rst").read_text()
    assert f"* - ``{stem}``" in table, "the table of all kernels"


def test_the_map_has_every_private_module_and_format_once():
    text = (ROOT / "docs" / "explanation" / "modules.rst").read_text()
    named = re.findall(r"``([\w.]+)``", "".join(re.findall(r"^``.*?(?=  )", text, re.MULTILINE)))
    there = [
        module.removeprefix("sparse24.").removeprefix("formats.")
        for module, path in MODULES.items()
        if path.stem != "__init__" and re.match(r"sparse24\.(_|formats\.)", module)
    ]
    assert sorted(named) == sorted(there)


# Parts of the CUDA toolkit, and what of CuPy needs each; CuPy's wheels hold none of them.
TOOLKIT = {
    "nvrtc": "kernels", "cudart": "kernels", "cublas": "dense products", "curand": "cupy.random",
    "cusolver": "cupy.linalg", "cusparse": "cupyx.scipy.sparse",
}  # fmt: skip


@pytest.mark.parametrize("extra", ["cuda12", "cuda13"])
def test_a_driver_and_an_extra_are_all_that_a_gpu_needs(extra):
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    parts = re.search(r"cuda-toolkit\[(.*)\]", config["options.extras_require"][extra]).group(1)
    assert set(parts.split(",")) == set(TOOLKIT)


def test_nothing_but_sources_is_kept():
    """Files that a trial has left beside them, of weights say, would be in every clone."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    kept = [Path(name) for name in listed.stdout.split("\0") if name]
    folders = {".ci", "docs", "formats", "kernels", "sparse24", "tests"}
    others = {str(path) for path in kept if path.parts[0] not in folders}
    assert others == {
        ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile",
        "README.md", "pyproject.toml", "setup.cfg",
    }  # fmt: skip
    weights = (".npy", ".npz", ".safetensors", ".bin", ".pt")
    assert [path for path in kept if path.suffix in weights] == []


def test_no_word_of_unfinished_work():
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    for folder in ("sparse24", "kernels", "formats", "tests", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cu", ".cuh", ".rst") and "_build" not in path.parts:
                text = path.read_text()
                assert not any(word in text for word in words), path


def test_files_that_the_text_names_are_there():
    """The headers, docstrings and pages; ``<stem>`` and the kernel that CONTRIBUTING adds apart."""
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "kernels/cuda").rglob("*.cu*")]
    texts += [x for x in (ROOT / "docs").glob("*/*.rst") if x.parent.name != "gallery"]
    texts += [x for folder in ("docs/tutorials", *FOLDERS) for x in (ROOT / folder).rglob("*.py")]
    folders = ("docs", "tests", *FOLDERS)
    there = {f"/{x.relative_to(ROOT)}" for folder in folders for x in (ROOT / folder).rglob("*.*")}
    name = re.compile(r"(?<![\w*/.<>{}-])[\w/]+\.(?:py|cuh?|rst)\b")
    missing = [
        (text.name, found)
        for text in texts
        for found in name.findall(text.read_text())
        if "frobnicate" not in found and not any(x.endswith(f"/{found}") for x in there)
    ]
    assert missing == []
