"""Every public name is in the reference, with what it takes and raises, and an example."""

from __future__ import annotations

import inspect
import operator
import re

import pytest
from house_cases import ROOT, parts

import sparse24
from sparse24.formats.base import SparseArray

REFERENCE = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.rst"))


def test_every_public_name_is_in_the_reference():
    words = set(re.findall(r"\w+", REFERENCE))
    assert {*sparse24.__all__, *sparse24._BRIDGES} - words - {"__version__"} == set()
    for module, part in parts():
        if not re.search(rf"^   {module}$", REFERENCE, re.MULTILINE):  # its page lists all of it
            assert set(part.__all__) - words == set(), module


def public(kind):
    homes = {name: getattr(sparse24, name) for name in sparse24._HOMES}
    for module, part in parts():
        homes |= {f"{module}.{name}": getattr(part, name) for name in part.__all__}
    return {name: home for name, home in homes.items() if kind(home)}


def documented(text: str, *titles: str) -> set[str]:
    """The names that sections of a docstring explain: lines ``a, b : type`` or ``a``."""
    found = set()
    for title in titles:
        body = re.search(rf"^{title}\n-+\n(.*?)(?=^\w[^\n]*\n---|\Z)", text, re.M | re.S)
        for line in re.findall(r"^\w.*", body.group(1) if body else "", re.M):
            found |= set(re.findall(r"\w+", line.partition(" : ")[0]))
    return found


def test_every_public_function_says_what_it_takes_and_raises_and_shows_it():
    """The sections of numpydoc; that examples run is tested with the doctests."""
    for name, function in public(inspect.isfunction).items():
        text = inspect.getdoc(function) or ""
        missing = inspect.signature(function).parameters.keys() - documented(text, "Parameters")
        assert not missing, f"{name} does not explain {missing}"
        assert "Raises\n------" in text, f"{name} does not say what it raises"
        assert "Examples\n--------" in text, f"{name} shows no example"


def test_type_checkers_know_the_arrays_that_functions_return():
    """Where a docstring names arrays of sparse24 alone, ``A or B``, so does the hint: ``A | B``."""
    arrays = {
        name for name, kind in public(inspect.isclass).items() if issubclass(kind, SparseArray)
    }
    seen = set()
    for name, function in public(inspect.isfunction).items():
        text = re.search(r"^Returns\n-+\n(.*)", inspect.getdoc(function) or "", re.M)
        said = re.split(", | or ", text.group(1).partition(", shape")[0]) if text else []
        if said and arrays.issuperset(said):
            hint = inspect.signature(function).return_annotation
            assert hint == " | ".join(said), f"{name} returns {said}, its hint says {hint}"
            seen.add(name)
    assert {"compress", "hybrid", "asarray"} <= seen


def test_every_public_class_says_what_it_takes_or_who_makes_it():
    for name, kind in public(inspect.isclass).items():
        text = inspect.getdoc(kind) or ""
        if "Made by " not in text and not issubclass(kind, Exception):
            taken = {p for p in inspect.signature(kind).parameters if not p.startswith("_")}
            missing = taken - documented(text, "Parameters", "Attributes") - {"args", "kwargs"}
            assert not missing, f"{name} does not explain {missing}"


def test_every_public_class_shows_an_example():
    for name, kind in public(inspect.isclass).items():
        if not issubclass(kind, Exception):
            assert ">>> " in (inspect.getdoc(kind) or ""), f"{name} shows no example"


# How torch passes packed tensors on; their page lists the methods that are for users.
OF_THE_BRIDGE = {"torch.Sparse24Tensor", "torch.Quantised24Tensor"}


def methods_of(kind):
    """The public methods of a class and its bases here, with what is said of each."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("sparse24.")]
    for name in {name for base in ours for name in vars(base) if not name.startswith("_")}:
        method = getattr(kind, name)
        text = inspect.getdoc(method) if inspect.isroutine(method) else None
        if text is not None:
            others = re.findall(r"see `(\w+)`", text)
            yield name, method, " ".join([text, *(getattr(kind, x).__doc__ for x in others)])


def test_every_public_method_names_what_it_takes():
    """In its own words, in those of its class, or of the method that it refers to."""
    seen = 0
    for name, kind in public(inspect.isclass).items():
        if issubclass(kind, Exception) or name in OF_THE_BRIDGE:
            continue
        bases = [base for base in kind.__mro__ if base.__module__.startswith("sparse24.")]
        whole = " ".join(base.__doc__ or "" for base in bases)
        for method, function, text in methods_of(kind):
            taken = inspect.signature(function).parameters.keys() - {"self"}
            missing = taken - set(re.findall(r"\w+", f"{whole} {text}"))
            assert not missing, f"{name}.{method} does not name {missing}"
            seen += 1
    assert seen > 100


def test_every_public_property_says_what_it_is():
    """Sphinx leaves out one that has no words; the attributes of its class may have them."""
    for name, kind in public(inspect.isclass).items():
        told = documented(inspect.getdoc(kind) or "", "Parameters", "Attributes")
        for attribute, home in inspect.getmembers(kind, lambda x: isinstance(x, property)):
            known = attribute.startswith("_") or name in OF_THE_BRIDGE or attribute in told
            assert known or inspect.getdoc(home), f"{name}.{attribute} says nothing"


@pytest.mark.parametrize("name", ["Sparse24Array", "Quantised24Array", "NMArray", "HybridArray"])
def test_every_array_class_says_what_waits_for_the_gpu(name):
    kind = getattr(sparse24, name)
    words = " ".join((inspect.getdoc(kind) or "").split())
    assert "Work goes to CuPy's current stream." in words
    assert "wait for the device" in words
    for method in (kind.toarray, kind.to_device):
        missing = {"Parameters", "Returns", "Raises"} - set((method.__doc__ or "").split())
        assert not missing, f"{name}.{method.__name__} lacks {missing}"


ROLE = re.compile(r"(?<!`):(?:func|class|meth|mod):`(?:[^`<]*<)?[~!]?([\w.]+)>?`")
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.rst"), *DOCS.glob("[ehr]*/*.rst"), *DOCS.glob("tutorials/*.py")])


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_refer_to_names_that_exist(path):
    """Sphinx only warns of others if it is asked to be nitpicky, then also of other libraries'."""
    module = ""
    for line in path.read_text().splitlines():
        module = line.partition(".. currentmodule:: ")[2] or module
        for name in ROLE.findall(line):
            full = name if name.startswith("sparse24") else f"{module}.{name}"
            home, _, rest = full.partition(".")
            assert home == "sparse24", f"{path.name}: {name} needs its module"
            framework = rest.partition(".")[0]
            if framework in ("torch", "jax"):
                pytest.importorskip(framework)
            if rest:
                operator.attrgetter(rest)(sparse24)


@pytest.mark.parametrize(
    "path", [*(DOCS / "explanation").glob("*.rst")], ids=lambda path: path.stem
)
def test_explanations_name_files_that_exist(path):
    known = [
        str(file) for folder in ("sparse24", "kernels", "formats", "docs", "tests")
        for file in (ROOT / folder).rglob("*.*")
    ]  # fmt: skip
    named = set(re.findall(r"``([\w/]+\.(?:py|cuh?))``", path.read_text()))
    missing = {name for name in named if not any(file.endswith(f"/{name}") for file in known)}
    assert not missing
