"""Which unstructured matrices the benchmark multiplies, and how it searches cuSPARSE."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "tests" / "bench"
RECORDS = ROOT / "docs" / "benchmarks" / "data"
MODULES = ("harness", "rivals_cusparse", "graphs", "hybrid_matrices")


@pytest.fixture
def bench(monkeypatch):
    """The modules of the benchmark by name."""
    for library in ("cupy", "torch"):
        pytest.importorskip(library)
    monkeypatch.syspath_prepend(str(BENCH))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {name: __import__(name) for name in MODULES}
    yield SimpleNamespace(**found)
    for name in MODULES:
        del sys.modules[name]


def names(planned, dtype: str) -> list[str]:
    title = "" if dtype == "float16" else f"{dtype} "
    return [
        f"{title}{family}-{m}x{k}x{n}-{zeros}"
        for family, (m, k), zeros, columns in planned
        for n in columns
    ]


def test_every_recorded_case_is_planned_once(bench):
    matrices = bench.hybrid_matrices
    planned = [name for dtype in matrices.DTYPES for name in names(matrices.plan(dtype), dtype)]
    assert len(set(planned)) == len(planned)
    assert {x.family for dtype in matrices.DTYPES for x in matrices.plan(dtype)} == {
        *matrices.FAMILIES
    } - {"minilm"}
    for file in (RECORDS / "hybrid.json", RECORDS / "h100" / "hybrid.json"):
        recorded = {case["name"] for case in json.loads(file.read_text())["cases"]}
        assert {name for name in recorded if not name.startswith("minilm")} <= {*planned}


def test_the_parts_of_a_selection_are_all_of_it(bench):
    matrices = bench.hybrid_matrices
    planned = matrices.plan("float16")
    few = matrices.selected(planned, matrices.FAMILIES, (1, 64), (1, 1))
    assert {n for matrix in few for n in matrix.columns} == {1, 2, 4, 8, 16, 32, 64}
    assert len(few) < len(planned), "a matrix without columns is left out"
    parts = [
        x for i in (1, 2, 3) for x in matrices.selected(planned, matrices.FAMILIES, (1, 64), (i, 3))
    ]
    assert sorted(parts) == sorted(few)
    stencils = matrices.selected(planned, ("stencil",), (1, 8), (1, 1))
    assert [(matrix.family, matrix.columns) for matrix in stencils] == [("stencil", (1, 8))]


@pytest.mark.parametrize("family", ["graph_lognormal", "graph_power_law", "stencil"])
def test_matrices_of_graphs_have_rows_of_unequal_lengths(bench, family):
    size, zeros = 64**2, 0.998
    w = bench.graphs.make(family, (size, size), zeros)
    lengths = np.diff(w.indptr)
    assert w.has_canonical_format
    assert (w.dtype, w.indices.dtype) == (np.float32, np.int32)
    assert (w != bench.graphs.make(family, (size, size), zeros)).nnz == 0
    if family == "stencil":
        places = w.astype(bool)
        assert (places != places.T).nnz == 0
        assert lengths.tolist().count(5) == 62**2
        assert sorted({*lengths.tolist()}) == [3, 4, 5]
    else:
        assert lengths.mean() == pytest.approx((1 - zeros) * size, rel=0.15)
        assert lengths.max() > (1000 if family == "graph_power_law" else 60)


def test_a_matrix_is_listed_row_by_row(bench, rng):
    dense = rng.standard_normal((30, 50)).astype(np.float16)
    dense[rng.random(dense.shape) < 0.8] = 0
    dense[3], dense[7] = 0, 1
    csr, want = bench.rivals_cusparse.Csr.of(dense), scipy.sparse.csr_matrix(dense.astype("f4"))
    assert csr.dtype == np.float16
    for got, expected in zip(csr, (want.indptr, want.indices, want.data, want.shape), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert csr.copy().nbytes == csr.nbytes == 4 * 31 + 6 * want.nnz
    rows, longest = csr.longest(5)
    assert rows[0] == 7
    np.testing.assert_array_equal(longest, dense[rows])


class OnGpu(np.ndarray):
    """A NumPy array with CuPy's way to tell its address."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


class Library:
    """Notes the calls of cuSPARSE, and refuses algorithms with a status."""

    def __init__(self, refused=()):
        self.calls, self.refused = [], dict(refused)
        self.cusparseGetErrorName = lambda status: b"CUSPARSE_STATUS_%d" % status
        self.cusparseGetErrorString = lambda status: b"some words"

    def __getattr__(self, name):
        def function(*arguments):
            self.calls.append((name, *arguments))
            return self.refused.get(arguments[-2], 0) if name.endswith("_preprocess") else 0

        return function


@pytest.fixture
def cusparse(bench, monkeypatch):
    """The module without a GPU: its library notes calls."""
    module = bench.rivals_cusparse
    stream = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=7))
    arrays = SimpleNamespace(
        cuda=stream, nan=np.nan,
        empty=lambda *how: np.empty(*how).view(OnGpu),
        full=lambda *how, **order: np.full(*how, **order).view(OnGpu),
        array=lambda x, order: np.array(x, order=order).view(OnGpu),
    )  # fmt: skip
    monkeypatch.setattr(module, "cp", arrays)
    noted = Library()
    monkeypatch.setattr(module, "library", lambda: noted)
    module.noted = noted
    return module


def a_matrix(module):
    starts, columns = (np.array(x, np.int32).view(OnGpu) for x in ((0, 1, 3), (2, 0, 1)))
    return module.Csr(starts, columns, np.ones(3, np.float16).view(OnGpu), (2, 3))


def test_a_product_analyses_first_and_destroys_its_descriptors(cusparse):
    b, out = (np.ones(shape, np.float16, order="F").view(OnGpu) for shape in ((3, 4), (2, 4)))
    product = cusparse.Product(a_matrix(cusparse), b, out, cusparse.ways(4)["SpMM CSR_ALG3 F"])
    product()
    called = [name.removeprefix("cusparse") for name, *_ in cusparse.noted.calls]
    assert [name for name in called if name != "SetStream"] == [
        "Create", "CreateCsr", "CreateDnMat", "CreateDnMat", "SpMM_bufferSize", "SpMM_preprocess",
        "SpMM",
    ]  # fmt: skip
    created = [arguments for name, *arguments in cusparse.noted.calls if name.endswith("DnMat")]
    assert [x.value for x in created[0][1:4]] == [3, 4, 3]  # down its columns
    assert created[0][5:] == [cusparse.TYPES["float16"], cusparse.ORDERS["F"]]
    assert cusparse.noted.calls[-1][-3:-1] == (cusparse.TYPES["float32"], 12)
    del product
    gc.collect()
    ended = sorted(name for name, *_ in cusparse.noted.calls[-3:])
    assert ended == ["cusparseDestroyDnMat", "cusparseDestroyDnMat", "cusparseDestroySpMat"]


class Timed:
    """Stands for a contender: what `us` says of the algorithms of its products."""

    us_of: dict[int, float] = {}  # noqa: RUF012

    def __init__(self, calls):
        self.algorithm, self.calls = calls[0]._arguments[-1], len(calls)
        self.samples = []

    def run(self, repeats):
        self.samples.append(self.us_of[self.algorithm])

    us = property(lambda self: self.us_of[self.algorithm])


def search(cusparse, monkeypatch, refused, n=4):
    raced = []
    cusparse.noted.refused = refused
    monkeypatch.setattr(Timed, "us_of", {4: 5.0, 6: 9.0, 12: 15.1, 2: 4.0, 3: 4.5})
    monkeypatch.setattr(cusparse, "Contender", Timed)
    monkeypatch.setattr(cusparse, "race", lambda found, **how: raced.append(found))
    best = cusparse.best([a_matrix(cusparse)] * 3, np.ones((3, n), np.float16))
    assert best.out.shape == (2, n)
    assert best.contender.calls == 3
    assert best.contender.samples == []
    return best.way, [*raced[0]]


def test_only_algorithms_near_the_fastest_race(cusparse, monkeypatch, capsys):
    way, raced = search(cusparse, monkeypatch, {})
    assert way == "SpMM CSR_ALG1 C"
    assert raced == [f"SpMM CSR_ALG{i} {order}" for order in "CF" for i in (1, 2)]
    assert capsys.readouterr().out == ""
    way, raced = search(cusparse, monkeypatch, {}, n=1)
    assert way == "SpMV CSR_ALG1"
    assert raced[:2] == ["SpMV CSR_ALG1", "SpMV CSR_ALG2"]


def test_what_cusparse_does_not_support_is_said_and_left_out(cusparse, monkeypatch, capsys):
    way, raced = search(cusparse, monkeypatch, {4: 10})
    assert way == "SpMM CSR_ALG2 C"
    assert len(raced) == 4, "the third is near the second"
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2
    assert (
        "leaves out SpMM CSR_ALG1 C, float16 (2, 3): cusparseSpMM_preprocess: CUSPARSE" in told[0]
    )
    with pytest.raises(cusparse.CusparseError, match=r"_preprocess: CUSPARSE_STATUS_6 \(some"):
        search(cusparse, monkeypatch, {6: 6})
    with pytest.raises(RuntimeError, match="no product of float16 by 4 columns"):
        search(cusparse, monkeypatch, {4: 10, 6: 3, 12: 10})


def test_near_is_within_a_factor_of_the_fastest(bench):
    module = bench.rivals_cusparse
    assert module.near({"a": 2.0, "b": 2.0 * module.NEAR, "c": 6.1}) == ["a", "b"]
