"""Dense operands of n:m arrays: stacks, batch axes and other types."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from n_m_cases import sample

import sparse24 as s24
from sparse24 import _arrays, _dtypes, _storage
from sparse24.formats import n_m_parts, n_m_products
from sparse24.formats.n_m import NMArray

pytestmark = pytest.mark.stem("n_m", "compress", "decompress")


def test_batch_axes_that_do_not_fit_are_named():
    a = s24.compress(np.zeros((2, 3, 8), np.float32), pattern=(4, 8))
    with pytest.raises(s24.ShapeError, match=r"batch axes \(2,\) and \(3,\) do not broadcast"):
        _ = a @ np.ones((3, 8, 1), np.float32)


@pytest.mark.parametrize("pattern", [(3, 8), (6, 8)])
def test_stacks_of_tokens_are_one_matrix(rng, pattern):
    a = s24.compress(rng.standard_normal((24, 40)).astype(np.float32), pattern=pattern,
                     on_excess="prune")  # fmt: skip
    x = rng.standard_normal((2, 3, 40)).astype(np.float32)
    want = (x.reshape(6, 40) @ a.T).reshape(2, 3, 24)
    for stack in (x, x.copy(order="F")):
        np.testing.assert_array_equal(stack @ a.T, want)
    assert (x[:0] @ a.T).shape == (0, 3, 24)


@pytest.mark.parametrize(
    ("names", "result"),
    [(("float16", "bfloat16"), np.float32), (("float8_e4m3fn", "float16"), np.float16)],
)
@pytest.mark.parametrize("left", [True, False])
def test_operands_of_two_types_with_sums_of_one_are_not_converted(
    monkeypatch, rng, names, result, left
):
    for module, name in ((_storage, "converted"), (n_m_products, "_dense")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("converted"))
    dense = sample(rng, (40, 40), names[0], (5, 8))
    a = NMArray.from_dense(dense, pattern=(5, 8))
    x = rng.integers(-3, 4, (40, 40)).astype(_dtypes.numpy_dtype(names[1]))
    matrix, y = a.toarray().astype(float), x.astype(float)
    for turned in (a, a.T):
        wide = matrix if turned is a else matrix.T
        for part in (slice(0, 1), slice(None)):  # few and many
            got = turned @ x[:, part] if left else x[part] @ turned
            assert got.dtype == result
            np.testing.assert_array_equal(got, wide @ y[:, part] if left else y[part] @ wide)
    assert a._plans


@pytest.mark.parametrize("left", [True, False])
def test_operands_that_meet_in_the_dense_matrix_are_converted_from_their_own_types(
    monkeypatch, rng, left
):
    seen, converted = [], _storage.converted
    monkeypatch.setattr(
        _storage, "converted",
        lambda x, own, wanted: seen.append((x.dtype, own.logical)) or converted(x, own, wanted),
    )  # fmt: skip
    a = NMArray.from_dense(sample(rng, (24, 24), "float8_e4m3fn", (3, 4)), pattern=(3, 4))
    a = a if left else a.T
    x = rng.integers(-3, 4, (2, 24, 24)).astype(_dtypes.numpy_dtype("bfloat16"))
    got = a @ x if left else x @ a
    pair = a.toarray().astype(float), x.astype(float)
    np.testing.assert_array_equal(got, pair[0] @ pair[1] if left else pair[1] @ pair[0])
    if left:  # of a stack, which no kernel takes on this side
        assert {x.dtype for x in (a.toarray(), x)} <= {carried for carried, _ in seen}
    assert all(carried == own for carried, own in seen)


@pytest.mark.parametrize(("own", "given"), [("float32", "float16"), ("bfloat16", "int8")])
def test_an_operand_that_the_type_of_the_matrix_holds_is_converted_alone(
    monkeypatch, rng, own, given
):
    ran, dense = [], n_m_products._dense
    monkeypatch.setattr(n_m_products, "_dense", lambda *of: ran.append(of) or dense(*of))
    a = NMArray.from_dense(sample(rng, (40, 40), own, (5, 8)), pattern=(5, 8))
    narrow = rng.integers(-3, 4, (2, 40, 40)).astype(given)
    wide = narrow.astype(a.dtype)
    for pair in (
        lambda x: (x[0], a), lambda x: (x[0, :3], a.T), lambda x: (x, a.T), lambda x: (a, x[0, 0]),
        lambda x: (a, x[0]), lambda x: (a.T, x[0]),
    ):  # fmt: skip
        ran.clear()
        want, as_dense = s24.matmul(*pair(wide)), len(ran)
        got = s24.matmul(*pair(narrow))
        assert len(ran) == 2 * as_dense
        assert s24.explain(*pair(narrow)) == s24.explain(*pair(wide))
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_kernels_get_one_batch_axis(monkeypatch, rng):
    shapes, kernel = [], importlib.import_module("sparse24.kernels.n_m")

    def prune(x, row, n, m):
        shapes.append(x.shape)
        return x

    def compress(x, row, n, m):
        shapes.append(x.shape)
        parts = np.zeros((*x.shape[:-1], n * -(-x.shape[-1] // m)), x.dtype)
        return parts, parts.astype(np.uint8), np.zeros(2, np.int64)

    def decompress(values, places, row, n, m, k):
        shapes.extend((values.shape, places.shape))
        return np.zeros((*values.shape[:-1], k), values.dtype)

    for stub in (prune, compress, decompress):
        monkeypatch.setattr(kernel, f"{stub.__name__}_n_m", stub)
    monkeypatch.setattr(_arrays, "is_cupy", lambda x: True)
    x = np.zeros((5, 2, 3, 9), np.float32).transpose(1, 0, 2, 3)[::-1]  # no stride tells of both
    row = _dtypes.lookup(np.float32)
    values, places, _ = n_m_parts.compress(x, row, 3, 4, "prune")
    assert values.shape == places.shape == (2, 5, 3, 9)
    back = n_m_parts.decompress(values[:, ::2], places[:, ::2], row, (3, 4), 9)
    assert back.shape == (2, 3, 3, 9)
    assert shapes == [(10, 3, 9)] * 2 + [(6, 3, 9)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", [(3, 4), (2, 5)])
def test_any_batch_axes_and_types_meet_on_the_gpu(rng, pattern):
    cupy = pytest.importorskip("cupy")
    host = sample(rng, (5, 2, 6, 60), "float16", pattern).transpose(1, 0, 2, 3)[::-1]
    device = cupy.asarray(host.transpose(1, 0, 2, 3)).transpose(1, 0, 2, 3)
    pair = [NMArray.from_dense(x, pattern=pattern) for x in (host, device)]
    for name in ("values", "indices"):
        on_host, on_device = (getattr(a, name) for a in pair)
        np.testing.assert_array_equal(_arrays.to_numpy(on_device), on_host)
    np.testing.assert_array_equal(pair[1].toarray().get(), host)
    b = rng.integers(-3, 4, (60, 7)).astype(np.int8)
    np.testing.assert_allclose((pair[1] @ cupy.asarray(b)).get(), pair[0] @ b, rtol=2e-3)
    assert (pair[1] @ cupy.zeros((2, 5, 60, 0), np.float32)).shape == (2, 5, 6, 0)
