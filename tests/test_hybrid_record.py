"""What the page on unstructured matrices makes of recorded cases."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs" / "_extensions"))
import benchmark_pages
import hybrid_figures
import hybrid_pictures as pictures


def case(zeros, ours, *, family="iid", n=8, kernel="stream", **extra):
    return {
        "family": family, "zeros": zeros, "n": n, "m": 64, "k": 64, "dtype": "float16",
        "ours_us": ours, "ours_kernel": kernel, "rivals": {"cublas": 10.0}, **extra,
    }  # fmt: skip


def test_break_even_is_the_start_of_the_last_run_of_wins():
    cases = [case(0.6, 8.0), case(0.7, 11.0), case(0.8, 9.0), case(0.9, 4.0)]
    cases += [case(0.9, 10.0, n=64, kernel="cublas"), case(0.8, 20.0, family="block")]
    table = hybrid_figures.break_even(cases)
    assert table == {"iid": {8: 0.8, 64: None}, "block": {8: None}}


def test_curves_are_sorted_by_zeros():
    found = hybrid_figures.curves([case(0.9, 4.0), case(0.6, 8.0), case(0.7, 5.0, family="block")])
    assert found == {((64, 64), 8): {0.6: 1.25, 0.9: 2.5}}


def test_the_page_has_a_picture_a_table_and_a_sentence_on_balance(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    cases = [case(0.6, 8.0, unbalanced_us=16.0), case(0.8, 8.0, unbalanced_us=4.0), case(0.9, 4.0)]
    monkeypatch.setattr(hybrid_figures.recorded, "suites", lambda: {"hybrid": {"cases": cases}})
    hybrid_figures.write(tmp_path)
    text = (tmp_path / "hybrid_figures.txt").read_text()
    assert (tmp_path / "hybrid_curves.png").stat().st_size > 1000
    assert text.count("list-table") == 1
    assert "60%" in text
    assert "the 2 recorded products" in text
    assert "0.50 to 2.00 times as long, 1.00 in the geometric mean" in text


def test_the_tiles_of_a_layer_are_drawn_with_and_without_the_model(tmp_path, monkeypatch, rng):
    pytest.importorskip("matplotlib")
    missing, present = tmp_path / "none.safetensors", tmp_path / "model.safetensors"
    names = {f"{pictures.LAYER}.attention.{name}.weight": (64, 64) for name in pictures.ATTENTION}
    names |= {f"{pictures.LAYER}.intermediate.dense.weight": (256, 64), "embeddings.weight": (9, 9)}
    names |= {f"{pictures.LAYER}.output.dense.weight": (64, 256)}
    layers = {name: rng.standard_normal(shape, np.float32) for name, shape in names.items()}
    save_file(layers, present)
    for path, words in ((missing, "``beta5``"), (present, "whose 6 matrices were pruned")):
        monkeypatch.setattr(pictures._demo, "checkpoint_path", lambda path=path: path)
        pictures.write(tmp_path)
        assert words in (tmp_path / "hybrid_tiles.txt").read_text()
        for name in ("hybrid_bands.png", "hybrid_tiles.png"):
            assert (tmp_path / name).stat().st_size > 1000


def test_bars_of_many_cases_are_means_by_family_and_columns():
    few = [case(0.6, 5.0) | {"name": "a"}, case(0.9, 5.0) | {"rivals": {}}]
    assert benchmark_pages._bars(few, "cublas") == few[:1]
    many = [case(0.6, 2.5 if i % 2 else 10.0, n=8 + i % 4) for i in range(200)]
    bars = benchmark_pages._bars(many, "cublas")
    assert [bar["name"] for bar in bars] == [f"float16 iid, n = {n}" for n in (8, 9, 10, 11)]
    assert [bar["rivals"]["cublas"] for bar in bars] == pytest.approx([1, 4, 1, 4])


def test_bands_of_tiles():
    density = np.array([[0.01, 0.5, 1.0]])
    assert pictures.band_of(density, 4096).tolist() == [[0, 2, 2]]
    assert pictures.band_of(density, 1).tolist() == [[0, 0, 1]]
