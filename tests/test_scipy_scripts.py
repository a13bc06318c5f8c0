"""Scripts written for SciPy's matrices: what they find in sparse arrays, and what names a way."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse

import sparse24 as s24
from sparse24.formats.scipy_names import OF_OTHERS, ONLY_OF_NUMPY, ONLY_OF_SCIPY

MAKERS = {
    "two_four": lambda w: s24.compress(w, on_excess="prune"),
    "two_four along columns": lambda w: s24.compress(w, on_excess="prune", axis=-2),
    "n_m": lambda w: s24.compress(w, pattern=(4, 8), on_excess="prune"),
    "hybrid": s24.hybrid,
}


@pytest.fixture
def weight(rng):
    return rng.integers(-3, 4, (16, 16)).astype(np.float64)


@pytest.fixture(params=MAKERS)
def a(request, weight):
    return MAKERS[request.param](weight)


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, np.asmatrix])
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_star_behind_a_matrix_is_its_product(a, rng, make):
    m = rng.integers(-3, 4, (16, 16)).astype(np.float64)
    dense = a.toarray()
    product = make(m) * a
    assert type(product) is np.ndarray
    np.testing.assert_array_equal(product, m @ dense)
    np.testing.assert_array_equal((a * make(m)).toarray(), dense * m)  # an array decides otherwise
    with pytest.raises(s24.ShapeError):
        make(m[:, :8]) * a


def test_an_element_is_a_number(a):
    dense = a.toarray()
    for key in ((3, 5), (-1, 0), (np.int64(2), 7)):
        assert type(a[key]) is np.float64
        assert a[key] == dense[key]
    assert {round(a[1, 2], 1)}
    assert a[1].shape == a[:, 1].shape == (16,)


def test_an_element_of_a_stack_is_a_number(rng):
    stack = s24.random((2, 8, 16), rng=0)
    assert type(stack[1, 2, 3]) is np.float32
    assert stack[:, 2, 3].shape == (2,)


@pytest.mark.parametrize(
    "key", ["x", 1.0, (slice(None), "x"), [0.5], (0, [2.5]), scipy.sparse.eye_array(16) > 0]
)
def test_keys_of_other_kinds_are_named_and_not_out_of_range(a, key):
    words = "a part is taken by a slice, whole numbers or booleans, got .*; otherwise use"
    with pytest.raises(s24.ArgumentError, match=words) as told:
        a[key]
    assert not isinstance(told.value, IndexError)


def test_attributes_of_scipys_arrays_are_found_there(a):
    csr = a.tocsr()
    for name in ONLY_OF_SCIPY:
        assert hasattr(csr, name), name
        if name == "indices" and hasattr(a, name):
            continue  # of an n:m array its own
        with pytest.raises(
            AttributeError, match=rf"no attribute '{name}'; use \.tocsr\(\)\.{name}"
        ):
            getattr(a, name)
    assert not hasattr(a, "format")
    with pytest.raises(AttributeError, match=r"'__dlpack__'; use \.toarray\(\)$"):
        np.from_dlpack(a)
    with pytest.raises(AttributeError, match=r"has no attribute 'diagnoal'$"):
        a.diagnoal()


def test_attributes_of_scipys_arrays_are_found_in_each_matrix_of_a_stack(rng):
    stack = s24.random((2, 4, 8), rng=rng)
    with pytest.raises(AttributeError, match=r"use \.toarray\(\)\.reshape$"):
        stack.reshape(8, 8)
    with pytest.raises(AttributeError, match=r"use \.tocsr\(\)\.tolil of each matrix, such as"):
        stack.tolil()


def test_methods_of_numpys_arrays_are_found_there(a):
    for name in ONLY_OF_NUMPY:
        assert callable(getattr(a.toarray(), name))
        with pytest.raises(
            AttributeError, match=rf"no attribute '{name}'; use \.toarray\(\)\.{name}$"
        ):
            getattr(a, name)


def test_names_of_cupy_and_torch_lead_to_those_here(a):
    for name, way in OF_OTHERS.items():
        if hasattr(s24.HybridArray, name) and isinstance(a, s24.HybridArray):
            continue  # its own
        assert not hasattr(a, name)
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; use {re.escape(way)}$"):
            getattr(a, name)
        for called in re.findall(r"^\.(\w+)", way):
            assert hasattr(a, called)


def test_a_sparse_operand_that_memory_cannot_hold_leads_to_a_sparse_product():
    huge = scipy.sparse.coo_array(([1.0], ([3], [5])), shape=(1 << 24, 1 << 24)).tocsr()
    for a in (s24.hybrid(scipy.sparse.eye_array(64)), s24.random((64, 64), rng=0)):
        with pytest.raises(MemoryError) as told:
            a @ huge
        assert "A.tocsr() @ m.tocsr(), is sparse" in told.value.__notes__[0]


def test_types_are_converted_as_for_numpy(a):
    for copy in (True, False):
        assert a.astype(np.float64, copy=copy) is a  # immutable
        narrow = a.astype(np.float32, copy=copy)
        assert (type(narrow), narrow.dtype) == (type(a), np.float32)
        np.testing.assert_array_equal(narrow.toarray(), a.toarray())


def test_the_exponential_of_an_operator_needs_its_trace(weight):
    from scipy.linalg import expm
    from scipy.sparse.linalg import aslinearoperator, expm_multiply

    a, b = s24.hybrid(weight / 64), np.ones(16)
    trace = a.tocsr().trace()
    y = expm_multiply(aslinearoperator(a), b, traceA=trace)
    np.testing.assert_allclose(y, expm(a.toarray()) @ b, rtol=1e-10)
