"""Sphinx configuration.  Nothing here reaches the network."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "_extensions"))

import sparse24  # noqa: E402

project = "sparse24"
author = "the sparse24 authors"
copyright = "2026, the sparse24 authors"
version = release = sparse24.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "spec_tables",
    "training_table",
    "benchmark_pages",
]
exclude_patterns = ["_build", "tutorials", "benchmarks/data", "README.md"]
templates_path = ["_templates"]
default_role = "autolink"
nitpicky = False

autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"
# The bridges' pages build without their frameworks; the torch tutorial then stays away.
autodoc_mock_imports = [n for n in ("torch", "jax") if importlib.util.find_spec(n) is None]
torch_tutorial = ":doc:`/gallery/06_torch_model`"
if "torch" in autodoc_mock_imports:
    torch_tutorial = "the tutorial on torch models, which is built where torch is installed"
rst_epilog = f".. |torch_tutorial| replace:: {torch_tutorial}\n"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": ["tutorials"],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"[\\/]\d\d_",  # every numbered tutorial runs
    "ignore_pattern": r"_torch_" if "torch" in autodoc_mock_imports else r"__init__\.py",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "show_signature": False,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
}

html_theme = "pydata_sphinx_theme"
html_title = "sparse24"
html_static_path = ["_static"]
html_css_files = ["sparse24.css"]
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version", "theme-version"],
}


def skip_foreign(app, what, name, obj, skip, options):
    """Leave out what a class inherits from a framework; its docs have their own place."""
    owner = getattr(obj, "__objclass__", obj)
    module = getattr(owner, "__module__", None) or ""
    return True if module.split(".")[0] in ("torch", "jax", "builtins") else None


def setup(app):
    app.connect("autodoc-skip-member", skip_foreign)
