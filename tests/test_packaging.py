"""What is installed: the wheel, the sdist and the editable install."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"sparse24": "sparse24", "kernels": "sparse24/kernels", "formats": "sparse24/formats"}
IGNORED = (
    ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis",
    "_build", "gallery", "generated",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    int(setuptools.__version__.split(".")[0]) < 77, reason="building needs setuptools >= 77"
)


def python(script: str, cwd: Path, *flags: str) -> str:
    command = [sys.executable, *flags, "-c", script]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the sources, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("packaging") / "tree"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*IGNORED))
    return copy


@pytest.fixture(scope="module")
def built(tree):
    """Paths of the wheel, the sdist and the editable wheel."""
    script = "from setuptools import build_meta as b; print(b.build_{kind}({folder!r}))"
    paths = {}
    for kind in ("wheel", "sdist", "editable"):
        folder = tree.parent / kind
        folder.mkdir()
        paths[kind] = folder / python(script.format(kind=kind, folder=str(folder)), tree)
    return paths


def expected() -> set[str]:
    found = {
        f"{PACKAGES[top]}/{path.relative_to(ROOT / top).as_posix()}"
        for top in PACKAGES
        for path in (ROOT / top).rglob("*.py")
    }
    for pattern in ("cuda/*.cu", "cuda/include/*.cuh"):
        for path in (ROOT / "kernels").glob(pattern):
            found.add(f"sparse24/kernels/{path.relative_to(ROOT / 'kernels').as_posix()}")
    return found | {"sparse24/py.typed"}


def test_the_wheel_holds_every_module_and_every_kernel_and_no_more(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        top = [name for name in archive.namelist() if name.endswith("top_level.txt")]
        assert archive.read(top[0]).split() == [b"sparse24"]
        licences = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
    assert names == expected()
    assert len(licences) == 1


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("tests/conftest.py", "docs/conf.py", "Makefile", "CHANGELOG.md"):
        assert (source / name).exists(), name
    script = f"from setuptools import build_meta as b; print(b.build_wheel({str(tmp_path)!r}))"
    wheel = python(script, source)
    with zipfile.ZipFile(tmp_path / wheel) as ours, zipfile.ZipFile(built["wheel"]) as theirs:
        assert set(ours.namelist()) == set(theirs.namelist())


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_install_finds_its_parts_from_anywhere(kind, built, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(built[kind]) as archive:
        archive.extractall(site)
    script = (
        f"import site; site.addsitedir({str(site)!r}); "
        "import importlib.util as u; from importlib import resources as r; "
        "import sparse24, sparse24.kernels, sparse24.formats; "
        "cuda = r.files('sparse24.kernels').joinpath('cuda'); "
        "assert any(p.name.endswith('.cu') for p in cuda.iterdir()); "
        "print(sparse24.__file__, u.find_spec('kernels'), u.find_spec('formats'))"
    )
    # -I -S: nothing but the standard library and what addsitedir adds.
    place, *others = python(script, tmp_path, "-I", "-S").split()
    home = site if kind == "wheel" else built["wheel"].parents[1] / "tree"
    assert Path(place).is_relative_to(home)
    assert others == ["None", "None"]


def test_no_folder_is_left_out():
    """A folder of modules that setup.cfg does not list would work here and miss in the wheel."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    folders = {
        "sparse24/" + path.parent.relative_to(ROOT).as_posix().removeprefix("sparse24/")
        for top in PACKAGES
        for path in (ROOT / top).rglob("*.py")
    }
    folders = {x.replace("sparse24/sparse24", "sparse24") for x in folders}
    assert {x.replace("/", ".") for x in folders} == set(listed)


def test_the_releases_that_were_tested_begin_with_the_oldest_allowed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    needed = "".join([setup["options"]["install_requires"], *map(extras.get, extras)])
    allowed = dict(re.findall(r"([\w-]+)>=([\d.]+)", needed))
    page = (ROOT / "docs" / "install.rst").read_text("utf-8")
    tested = dict(re.findall(r"``([\w-]+)`` ([\d.]+) to [\d.]+", page))
    assert {"numpy", "scipy", "numba", "torch", "jax", "matplotlib"} <= set(tested)
    assert tested == {name: allowed[name] for name in tested}
