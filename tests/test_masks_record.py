"""The recorded accuracy of masks says what the docs say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

RECORD = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "data" / "masks.json"


@pytest.fixture(scope="module")
def record():
    return json.loads(RECORD.read_text())


def test_every_way_reaches_its_mark(record):
    short = [c["name"] for c in record["cases"] if c["must"] and c["cosine"] < c["must"]]
    assert not short


def test_transposable_masks_cost_little(record):
    cosine = {case["name"]: case["cosine"] for case in record["cases"]}
    turned = [name for name in cosine if "sequential" in name and name.endswith(", transposable")]
    assert turned
    for name in turned:
        assert cosine[name.removesuffix(", transposable")] - cosine[name] <= 0.03


def test_permutation_keeps_more_of_every_matrix(record):
    assert len(record["permutation"]) == 36
    assert all(row["kept_permuted"] > row["kept"] for row in record["permutation"])
