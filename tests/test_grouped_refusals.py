"""Operands, offsets, results and options that grouped products refuse, with a way out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from grouped_cases import refused

import sparse24 as s24


@pytest.mark.parametrize(
    ("offsets", "error", "words"),
    [
        ([0, 5], s24.ShapeError, r"offsets must have shape \(e \+ 1,\) = \(4,\) for 3 .*\(2,\)"),
        ([[0, 1, 2, 5]], s24.ShapeError, r"offsets must have shape .*, got \(1, 4\)"),
        (5, s24.ShapeError, r"offsets must have shape .*, got \(\); it begins with 0"),
        ([0, 1.5, 2, 5], s24.DTypeError, r"offsets must hold integers, got float64; .*\.astype"),
        ([False, True, True, True], s24.DTypeError, "offsets must hold integers, got bool"),
        ([1, 1, 2, 5], s24.ArgumentError, "offsets must begin with 0, the first token, got 1;"),
        ([-1, 1, 2, 5], s24.ArgumentError, "offsets must begin with 0, .* leave them out"),
        ([0, 1, 2, 4], s24.ArgumentError, "offsets must end with the number of tokens, 5, got 4"),
        ([0, 1, 2, 6], s24.ArgumentError, "offsets must end with the number of tokens, 5, got 6"),
        ([0, 3, 2, 5], s24.ArgumentError, "must not decrease, got 3 at 1 and 2 at 2; .*cumulative"),
        ([0, 2**63 - 1, -2, 5], s24.ArgumentError, "must not decrease, got 9223372036854775807"),
        ([0, 7, 2, 5], s24.ArgumentError, "must not decrease, got 7 at 1 and 2 at 2"),
        (scipy.sparse.eye_array(2), s24.DTypeError, "offsets must be a dense array, got a dia_"),
    ],
)
def test_offsets_that_do_not_split_the_tokens_are_refused(offsets, error, words):
    experts = s24.random((3, 4, 8), rng=0)
    with pytest.raises(error, match=words):
        s24.grouped_matmul(experts, np.ones((8, 5), np.float32), offsets=offsets)
    with pytest.raises(error, match=words):
        s24.grouped_linear(np.ones((5, 8), np.float32), experts, offsets=offsets)


def test_other_operands_are_refused():
    experts, b = s24.random((3, 4, 8), rng=0), np.ones((8, 5), np.float32)
    dense = experts.toarray()
    refused(s24.DTypeError, r"As must be a Sparse24Array.*ndarray of shape \(3, 4, 8\)", dense, b)
    refused(s24.DTypeError, r"As must be .*, got NMArray .*; multiply .* sparse24\.linear",
            s24.compress(dense, pattern=(4, 8)), b)  # fmt: skip
    refused(s24.DTypeError, r"As must be .*, got \[<Sparse24Array", [experts[0]], b)
    refused(s24.ShapeError, r"As must have shape \(e, m, k\).*\(4, 8\); .* matmul", experts[0], b)
    refused(s24.UnsupportedError, r"last axis, got axis=-2; pass As\.mT .*transp", experts.mT, b)
    refused(s24.ShapeError, r"b must have shape \(k, t\), with k = 8 .*\(5, 8\)", experts, b.T)
    refused(s24.ShapeError, "b must have shape", experts, b[0])
    refused(s24.ShapeError, "b must have shape", experts, b[None])
    refused(s24.ShapeError, "b must have at least one axis, got a scalar", experts, 3.0)
    refused(s24.DTypeError, "b must be a dense array, got a csr_array", experts,
            scipy.sparse.csr_array(b))  # fmt: skip
    refused(s24.DTypeError, r"b must be a dense array, got Sparse24Array; use its \.toarray",
            experts, s24.random((8, 5), rng=0))  # fmt: skip
    refused(s24.DTypeError, "b.dtype must be one of", experts, b.astype(complex))
    refused(s24.DTypeError, "offsets must hold numbers, got a list .*integers beyond 64 bits",
            experts, b, offsets=[0, 2, 2**70, 5])  # fmt: skip
    refused(s24.DTypeError, "b has dtype float32, which cannot carry float8_e5m2", experts, b,
            b_dtype="float8_e5m2")  # fmt: skip
    refused(s24.DTypeError, "dtype must be one of", experts, b, dtype="complex64")
    with pytest.raises(s24.ShapeError, match=r"x must have shape \(t, k\), with k = 8 .*reshape"):
        s24.grouped_linear(np.ones((1, 5, 8)), experts, offsets=[0, 2, 2, 5])
    with pytest.raises(s24.DTypeError, match=r"x\.dtype must be one of"):
        s24.grouped_linear(np.ones((5, 8), complex), experts, offsets=[0, 2, 2, 5])


def test_results_that_do_not_fit_are_refused_and_not_written():
    experts = s24.random((3, 4, 8), rng=0)
    room = np.ones(1000, np.float32)
    b = room[:40].reshape(8, 5)
    out = room[20:40].reshape(4, 5)
    refused(s24.ArgumentError, "out shares memory with an operand; pass another", experts, b, out)
    refused(s24.ShapeError, r"out must have shape \(4, 5\), got \(5, 4\)", experts, b, out.T)
    refused(s24.DTypeError, "out must have dtype float32, got float64", experts, b,
            np.ones((4, 5)))  # fmt: skip
    fixed, same = np.ones((4, 5), np.float32), np.lib.stride_tricks.as_strided(room, (4, 5), (0, 0))
    fixed.flags.writeable = False
    refused(s24.ArgumentError, "out is read-only", experts, b, fixed)
    refused(s24.ArgumentError, "must not be a view whose elements", experts, b.copy(), same)
    refused(s24.DTypeError, "out must be an array, got list", experts, b, [[0.0]])
    whole = np.array([0, 1, 2, 2])
    refused(s24.ArgumentError, "out shares memory", s24.random((3, 1, 8), dtype="float64", rng=0),
            np.ones((8, 2)), whole.view(np.float64)[:2].reshape(1, 2), offsets=whole)  # fmt: skip
    assert (room == 1).all()


def test_biases_that_do_not_fit_are_refused():
    experts, x = s24.random((3, 4, 8), rng=0), np.ones((5, 8), np.float32)
    for bias, error, words in (
        (np.ones(4), s24.ShapeError, r"bias must have shape \(e, m\) = \(3, 4\), .* got \(4,\)"),
        (np.ones((3, 4)) * 1j, s24.DTypeError, "bias must hold real numbers, got complex128"),
        (scipy.sparse.eye_array(3, 4), s24.DTypeError, "bias must be a dense array"),
    ):
        with pytest.raises(error, match=words):
            s24.grouped_linear(x, experts, bias, offsets=[0, 2, 2, 5])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"activation": "swish"}, s24.ArgumentError, "activation must be one of 'relu', .*swish"),
        ({"gated": "yes"}, s24.ArgumentError, "gated must be one of True, False, got 'yes'"),
        ({"scales": 2.0}, s24.ArgumentError, "must be a pair, that of x and that of As, got 2.0"),
        ({"scales": (1, 2, 3)}, s24.ArgumentError, r"scales must be a pair, .* got \(1, 2, 3\)"),
        ({"scales": (np.ones(4), None)}, s24.ShapeError,
         r"scales\[0\], the scale of x, must have shape \(t,\) = \(5,\), got \(4,\)"),
        ({"scales": (np.ones((1, 5)), None)}, s24.ShapeError, r"the scale of x, .* got \(1, 5\)"),
        ({"scales": (None, np.ones(5))}, s24.ShapeError,
         r"scales\[1\], the scale of As, .* \(e,\) = \(3,\) or \(e, m\) = \(3, 4\), got \(5,\)"),
        ({"scales": (None, np.ones((3, 2)))}, s24.ShapeError, r"scale of As, .*got \(3, 2\)"),
        ({"scales": (None, np.ones(3) * 1j)}, s24.DTypeError, r"scales\[1\] must hold real"),
        ({"dtype": "complex64"}, s24.DTypeError, "dtype must be one of"),
        ({"x_dtype": "float8_e5m2"}, s24.DTypeError, "which cannot carry float8_e5m2"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(options, error, words):
    experts, x = s24.random((3, 4, 8), rng=0), np.ones((5, 8), np.float32)
    with pytest.raises(error, match=words):
        s24.grouped_linear(x, experts, offsets=[0, 2, 2, 5], **options)


def test_refusals_of_rows_and_of_the_order_of_scales():
    odd, x = s24.random((3, 5, 8), rng=0), np.ones((5, 8), np.float32)
    with pytest.raises(s24.ShapeError, match=r"an even number of rows with gated=True.*\(3, 5, 8"):
        s24.grouped_linear(x, odd, offsets=[0, 2, 2, 5], gated=True)
    experts = s24.random((3, 4, 8), rng=0)
    with pytest.raises(s24.ArgumentError, match=r"a pair, that of As and that of b, got 3"):
        s24.grouped_matmul(experts, x.T, offsets=[0, 2, 2, 5], scales=3)
    with pytest.raises(s24.ShapeError, match=r"scales\[1\], the scale of b, must have shape"):
        s24.grouped_matmul(experts, x.T, offsets=[0, 2, 2, 5], scales=(None, np.ones((5, 1))))
