"""Readers of matrices in files, and families without elements."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc

import numpy as np
import pytest

from sparse24 import _matrix_market, families
from sparse24._errors import DTypeError, FormatError


def test_places_are_in_the_type_of_scipys_reader(tmp_path):
    """int32, which scikit-learn's linear models require, unless a size needs more."""
    for k, index in ((9, np.int32), (3_000_000_000, np.int64)):
        path = tmp_path / "a.smtx"
        path.write_text(f"2, {k}, 3\n0 1 3\n{k - 1} 0 {k - 1}\n")
        w = families.read_smtx(path, rng=0)
        assert (w.indices.dtype, w.indptr.dtype) == (index, index)
        np.testing.assert_array_equal(w.indices, [k - 1, 0, k - 1])


def test_smtx(tmp_path):
    path = tmp_path / "a.smtx"
    path.write_text("3, 4, 4\n0 2 2 4\n0 3 1 2\n")
    w = families.read_smtx(path, rng=0)
    assert (w.toarray() != 0).tolist() == [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]]
    for text, words in (
        ("3, 4, 4", "header"),
        ("-1, 4, 0\n\n", "must not be negative, got -1 and 4"),
        ("1, -4, 0\n0 0\n", "must not be negative, got 1 and -4"),
        ("3, 4, 4\n0 2 2 5\n0 3 1 2", "row offsets must be 4 numbers that rise from 0 to nnz = 4"),
        ("3, 4, 4\n0 2 2 4\n0 3 1", "has 3 column indices, not nnz = 4; get it anew"),
        ("3, 4, 4\n0 2 2 4\n0 3 1 4", "column indices"),
        ("\udcff\udcfe\n1\n1", "whole numbers"),
        ("3, 4, x\n0 2 2 4\n0 3 1 4", "whole numbers"),
        ("3, 4\n0 2 2 4\n0 3 1 4", "header must be rows, columns, nnz, got '3, 4'"),
        ("3, 4, 4, 4\n0 2 2 4\n0 3 1 2", "header must be rows, columns, nnz, got '3, 4, 4, 4'"),
        (f"3, {10**20}, 4\n0 2 2 4\n0 3 1 2", "whole numbers"),
        (f"3, 4, 4\n0 2 2 4\n0 {10**20} 1 2", "whole numbers"),
    ):
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(FormatError, match=words):
            families.read_smtx(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_readers_name_the_way_to_types_that_scipy_has_not(dtype, tmp_path):
    path = tmp_path / "a.smtx"
    path.write_text("1, 2, 1\n0 1\n1\n")
    for read in (families.read_smtx, families.read_mtx):
        with pytest.raises(DTypeError, match=rf"no sparse matrices of {dtype}; .*sparse24\.hybrid"):
            read(path, dtype=dtype)


def test_matrix_market(tmp_path):
    import scipy.io

    w = scipy.sparse.random_array((10, 12), density=0.4, rng=1)
    scipy.io.mmwrite(tmp_path / "a.mtx", w)
    got = families.read_mtx(tmp_path / "a.mtx", dtype="float32")
    np.testing.assert_allclose(got.toarray(), w.toarray(), rtol=1e-6)
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.coo_array([[300.0, 0], [0, 1.6]]))
    got = families.read_mtx(tmp_path / "a.mtx", dtype="int8")
    assert got.toarray().tolist() == [[127, 0], [0, 2]]
    scipy.io.mmwrite(tmp_path / "c.mtx", w * 1j)
    assert families.read_mtx(tmp_path / "c.mtx").dtype == complex
    with pytest.raises(DTypeError, match="must hold real numbers, got complex128"):
        families.read_mtx(tmp_path / "c.mtx", dtype="float32")
    for text in ("hello", "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 1.0\n"):
        (tmp_path / "b.mtx").write_text(text)
        with pytest.raises(FormatError, match=r"b\.mtx is not a readable Matrix Market file"):
            families.read_mtx(tmp_path / "b.mtx")
    packed = gzip.compress((tmp_path / "a.mtx").read_bytes())
    for damaged in (b"hello", packed[:60], packed[:30] + b"?" + packed[31:]):
        (tmp_path / "b.mtx.gz").write_bytes(damaged)
        with pytest.raises(FormatError, match=r"b\.mtx\.gz is not a readable Matrix Market file"):
            families.read_mtx(tmp_path / "b.mtx.gz")
    with pytest.raises(FileNotFoundError):
        families.read_mtx(tmp_path / "none.mtx")


@pytest.mark.parametrize(
    ("field", "word", "kind"),
    [("integer", "1e3", "an integer; write digits"), ("unsigned-integer", "1.5", "an integer"),
     ("real", "1d3", "a number"), ("real", "0,5", "a number"), ("real", "0x10", "a number"),
     ("real", "1.5-105", "a number"), ("integer", "1-2", "an integer; write digits")],
)  # fmt: skip
@pytest.mark.parametrize("form", ["coordinate", "array"])
def test_words_that_only_begin_with_a_number_are_refused(form, field, word, kind, tmp_path):
    entries = {"coordinate": f"2 1 2\n1 1 4\n2 1 {word}\n", "array": f"2 1\n\n4\n{word}"}[form]
    text = f"%%MatrixMarket matrix {form} {field} general\n%é 1e3, or 1d3\n{entries}"
    (tmp_path / "a.mtx").write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=rf"Market file: line [56]: '{word}' is not {kind}"):
        families.read_mtx(tmp_path / "a.mtx")


def test_words_are_checked_across_the_parts_of_a_text(tmp_path, monkeypatch):
    monkeypatch.setattr(_matrix_market, "AT_A_TIME", 3)
    path, head = tmp_path / "a.mtx", "%%MatrixMarket matrix array real general"
    for gap in ("", " ", "  "):  # so that each letter begins a part once
        path.write_text(f"{head}\n{gap}2 1\n1.5e-10\n-2.5\n")
        assert families.read_mtx(path).toarray().tolist() == [[1.5e-10], [-2.5]]
        path.write_text(f"{head}\n{gap}2 1\n1.5\n2.5-10\n")
        with pytest.raises(FormatError, match=r"line 4: '2\.5-10' is not a number"):
            families.read_mtx(path)


def test_checks_of_words_take_no_arrays_as_long_as_the_text():
    text = b"%%MatrixMarket matrix array real general\n20000 50\n" + 1_000_000 * b"-1.5\n"
    tracemalloc.start()
    _matrix_market._check_words(text, "real")
    _matrix_market._check_count(text, 1_000_000, "array", "real")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.1 * len(text)  # a copy, and what is left of it without letters of numbers


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("array real general\n2 2\n1 2\n3\n4\n5\n", "5 numbers where 4 entries take 4"),
        ("array complex hermitian\n2 2\n1 0\n3 4 5 6\n2 0", "8 numbers where 3 entries take 6"),
        ("coordinate real general\n2 2 2\n1 1.5\n2 2 3", "5 numbers where 2 entries take 6"),
        ("coordinate complex general\n2 2 1\n1 1.5 7", "3 numbers where 1 entries take 4"),
    ],
)
def test_numbers_are_neither_passed_over_nor_made_of_halves_of_words(body, found, tmp_path):
    (tmp_path / "a.mtx").write_text(f"%%MatrixMarket matrix {body}")
    with pytest.raises(FormatError, match=f"it has {found}; write each on a line"):
        families.read_mtx(tmp_path / "a.mtx")


def test_all_words_for_real_numbers_are_read(tmp_path):
    words = ["-1e-3", "2.5E+3", ".5", "7.", "nan", "-inf", "INFINITY", "NaN", "1e400"]
    lines = "\n".join(f"{i + 1} 1 {word}" for i, word in enumerate(words))
    head = f"%%MatrixMarket matrix coordinate real general\n9 1 {len(words)}\n"
    (tmp_path / "a.mtx").write_text(f"{head}{lines}\n")
    got = families.read_mtx(tmp_path / "a.mtx").toarray()[:, 0]
    np.testing.assert_array_equal(got, [float(word) for word in words])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0)])
@pytest.mark.parametrize("form", ["array", "coordinate"])
def test_matrix_market_without_elements(shape, form, tmp_path):
    path = tmp_path / "a.mtx"
    size = f"{shape[0]} {shape[1]}"
    end = "" if form == "array" else " 0"
    path.write_text(f"%%MatrixMarket matrix {form} integer general\n{size}{end}\n")
    got = families.read_mtx(path)
    assert (got.shape, got.dtype, got.nnz) == (shape, np.int64, 0)
    path.write_text(f"%%MatrixMarket matrix coordinate real general\n{size} 1\n1 1 1")
    with pytest.raises(FormatError, match="has no place for 1 entries"):
        families.read_mtx(path)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("array integer general\n2 1\n1 2", "Truncated file"),  # harms SciPy
        ("coordinate integer general\n2 2 2\n1 1 5\n1 2 3 \0 4", r"line 4: '\?' is not an integer"),
        ("coordinate integer general\n2 2 2\n1 1 5\n1 2 3 4", None),
        ("array real general\n2 1\n1\n2", None),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_matrix_market_lines_with_words_too_many(body, words, pack, tmp_path):
    path = tmp_path / f"a.mtx{ {bytes: '', gzip.compress: '.gz'}.get(pack, '.bz2') }"
    path.write_bytes(pack(f"%%MatrixMarket matrix {body}".encode()))
    if words is None:
        assert families.read_mtx(path).nnz == 2
    else:
        with pytest.raises(FormatError, match=words):
            families.read_mtx(path)


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
def test_matrix_market_arrays_of_which_half_is_stored(symmetry, tmp_path):
    n, path = 60, tmp_path / "a.mtx"
    stored = n * (n + 1) // 2 if symmetry == "symmetric" else n * (n - 1) // 2
    head = f"%%MatrixMarket matrix array integer {symmetry}\n{n} {n}\n"
    path.write_text(head + "1\n" * stored)
    below = np.tril(np.ones((n, n), int), -(symmetry != "symmetric"))
    want = below + (below - np.diag(np.diag(below))).T * (1 if symmetry == "symmetric" else -1)
    np.testing.assert_array_equal(families.read_mtx(path).toarray(), want)
    path.write_text(head + "1\n" * (stored // 3))
    with pytest.raises(FormatError, match=f"too few for {stored} entries"):
        families.read_mtx(path)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_families_of_zeros_alone(name):
    assert not families.make(name, (64, 128), zeros=1, rng=0).any()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("coordinate real general\n9 9 1000000000000", "too few for 1000000000000 entries"),
        ("array real general\n1000000 1000000", "too few for 1000000000000 entries"),
        (
            "coordinate real symmetric\n2 3 1\n1 2 1",
            r"symmetric matrix must be square, got the shape \(2, 3\)",
        ),
        (
            "array real symmetric\n2 3\n1\n2\n3\n4",
            r"symmetric matrix must be square, got the shape \(2, 3\)",
        ),
    ],
)
def test_matrix_market_headers_that_do_not_fit_the_file(header, words, tmp_path):
    (tmp_path / "a.mtx").write_text(f"%%MatrixMarket matrix {header}")
    with pytest.raises(FormatError, match=rf"not a readable Matrix Market file: .*{words}"):
        families.read_mtx(tmp_path / "a.mtx")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_families_of_no_elements(shape):
    for name in families.FAMILIES:
        assert families.make(name, shape, zeros=0.5, rng=0).shape == shape


@pytest.mark.parametrize("between", ["\n% a comment\n", " % a comment\n", "% one\n\n\t%two\n"])
def test_comments_may_be_indented_and_lines_empty(between, tmp_path):
    head = "%%MatrixMarket matrix coordinate real general\n"
    (tmp_path / "a.mtx").write_text(f"{head}{between}2 3 2\n1 1 1.5\n2 3 -2e-1\n")
    got = families.read_mtx(tmp_path / "a.mtx").toarray()
    np.testing.assert_array_equal(got, [[1.5, 0, 0], [0, 0, -0.2]])
