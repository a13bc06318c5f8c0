"""Arguments that no function takes: the message names the argument, what it was and a way out."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import sparse24 as s24
from sparse24 import families, functional, schedule, testing


def test_what_is_no_operand_is_named():
    x, m = np.ones((4, 8)), scipy.sparse.eye_array(8, format="csr")
    for wrong, error, words in (
        (m, s24.DTypeError, "A must be a dense array, got a csr_array"),
        (np.ones(8), s24.ShapeError, "A must have at least two axes"),
        (np.float32(1), s24.ShapeError, "A must have at least two axes"),
    ):
        with pytest.raises(error, match=words):
            s24.linear(x, wrong)
    for call, wrong in ((s24.convert.to_torch, x.tolist()), (s24.convert.to_cupyx, x)):
        words = rf"a must be .* HybridArray, got {type(wrong).__name__}; make"
        with pytest.raises(s24.ArgumentError, match=words):
            call(wrong)
    with pytest.raises(s24.DTypeError, match="weight must be an array, got list"):
        functional.linear(x, [[1.0] * 8])
    words = r"weight must be a dense array of NumPy or CuPy, got Sp.* sparse24\.linear"
    with pytest.raises(s24.DTypeError, match=words):
        functional.linear(x, s24.random((4, 8), rng=0))
    with pytest.raises(s24.ArgumentError, match="method must be one of"):
        s24.prune(x, method=np.ones(3))


def test_a_type_is_no_array():
    w, a = np.ones((4, 8), np.float32), s24.random((4, 8), rng=0)
    for call, error, words in (
        (lambda: s24.linear(np.float32, a), s24.DTypeError, "x must be an array, got type"),
        (lambda: s24.linear(w, np.float32), s24.DTypeError, "A must be an array, got type"),
        (lambda: a @ np.ndarray, s24.DTypeError, "b must be an array, got type"),
        (lambda: s24.matmul(np.ndarray, w), s24.DTypeError, "a must be an array, got type"),
        (lambda: a * np.ndarray, s24.DTypeError, "the factor must be an array, got type"),
        (lambda: s24.prune(w, out=np.float32), s24.DTypeError, "out must be an array, got type"),
        (lambda: functional.pack(w, mask=bool), s24.DTypeError, "mask must be an array, got type"),
        (lambda: functional.pack(w, mask="24"), s24.DTypeError, "mask must be an array, got str"),
        (lambda: s24.compress_stream(np.float32), s24.ArgumentError, "x must have shape, dtype"),
        (
            lambda: schedule.sr_ste_gradient(np.float32, w, w > 0, decay=0.1),
            s24.DTypeError, "weight must be an array, got type",
        ),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


def test_a_table_of_columns_of_many_types_is_led_to_numbers():
    """As a DataFrame is read whose columns are numbers and booleans, or may miss values."""

    class Table:
        def __array__(self, dtype=None, copy=None):
            return np.ones((8, 2), dtype or object)

        def to_numpy(self, dtype=None):
            return np.asarray(self, dtype)

    a = s24.random((4, 8), rng=0)
    with pytest.raises(s24.DTypeError, match=r"b must .* got a Table .*\.to_numpy\(dtype='float32"):
        a @ Table()
    assert (a @ Table().to_numpy(dtype="float32")).shape == (4, 2)


def test_an_out_that_is_no_array_is_not_written_to_in_vain():
    w = np.ones((2, 4))
    with pytest.raises(s24.DTypeError, match="out must be an array, got list"):
        s24.prune(w, out=w.tolist())
    a = s24.random((2, 4), dtype="float64", rng=0)
    with pytest.raises(s24.DTypeError, match="aux must be an array, got list"):
        s24.matmul(a, w.T, epilogue=s24.Epilogue(aux=[[0.0] * 2] * 2))


def test_a_mask_of_a_layer_is_24():
    weight = np.ones((4, 8))
    for mask in (np.ones((4, 8), bool), np.eye(4, 8, dtype=bool) | [True, True, True, False] * 2):
        with pytest.raises(s24.PatternError, match="keeps more than 2 elements"):
            functional.linear(np.ones((3, 8)), weight, mask=mask)
    along_rows = s24.mask(weight)
    with pytest.raises(s24.PatternError, match=r"mask\[0:4, 0\] keeps more than 2 elements"):
        functional.linear(np.ones((3, 8)), weight, mask=along_rows, transposable=True)


def test_an_unknown_type_says_what_to_do():
    w = np.ones((4, 4), np.uint8)
    for call, words in (
        (lambda: s24.compress(w), r"x\.dtype .*\.astype\('float32'\), or name the fp8 type"),
        (lambda: s24.NMArray.from_dense(w, dtype="float32"), r"x\.dtype .*\.astype\('float32'\)"),
        (lambda: s24.compress(w * 1j), r"take x\.real and x\.imag one by one"),
        (lambda: s24.compress(w.astype(int)), r"int64.*convert it first.*\.astype\('float32'\)"),
        (lambda: s24.compress(w.astype(">f8")), r"byte order.*use \.astype\('float64'\)"),
        (lambda: s24.hybrid(w.astype(int)), r"w\.dtype must be one of"),
        (lambda: s24.hybrid(w, dtype="fp8"), "^dtype must be one of .*'fp8'; name one of these"),
        (lambda: s24.random((4, 4), dtype="int32"), "'int32'; name one of these"),
    ):
        with pytest.raises(s24.DTypeError, match=words):
            call()


def test_a_scheduler_names_what_it_was_given():
    w = np.ones((4, 8), np.float32)
    make = lambda: schedule.MaskScheduler(schedule.Recipe(schedule.OneShot(0.5)))  # noqa: E731
    for given, error, words in (
        ({1: w}, s24.ArgumentError, "names that are strings, got 1"),
        ({"a": [[1.0] * 8]}, s24.DTypeError, "the array of layer 'a' must be an array, got list"),
        ([1], s24.DTypeError, "the array of layer '0' must be an array, got int"),
    ):
        with pytest.raises(error, match=words):
            make().step(weights=given)
    with pytest.raises(s24.ArgumentError, match=r"layer 'a'; pass step\(weights="):
        make().step({"a": w})


@pytest.mark.parametrize("shape", [4, (4, -4), (4, 4, 4), (2.5, 4)])
def test_a_family_has_matrices_only(shape):
    with pytest.raises(s24.ShapeError, match=r"shape must be \(m, k\)"):
        families.make("iid", shape, zeros=0.5)
    with pytest.raises(s24.ArgumentError, match="zeros must be a number"):
        families.make("iid", (4, 4), zeros="half")


class Shaped:
    """What has the names of an array, and no elements."""

    shape, dtype = (4, 8), np.dtype("float32")


def test_nonsense_is_named():
    w = np.ones((4, 8))
    windows = s24.compress(w, pattern=(6, 8), on_excess="prune").windows()
    for call, error, words in (
        (
            lambda: s24.find_permutation([w], scores=np.array(1.0)),
            s24.ArgumentError, r"scores must be a sequence of arrays, one for .*, got array\(1",
        ),
        (
            lambda: s24.random((4, 8), rng=0).transpose(([1], [1, 2])),
            s24.ArgumentError, r"axes must be \(1, 0\), got \(\[1\], \[1, 2\]\)",
        ),
        (
            lambda: s24.HybridArray.build(w, n_hint="x"),
            s24.ArgumentError, "n_hint must be a whole number from 1 on, got 'x'",
        ),
        (
            lambda: s24.HybridArray.from_tiles(s24.hybrid(w).tiles, n_hint=0),
            s24.ArgumentError, "n_hint must be a whole number from 1 on, got 0",
        ),
        (lambda: s24.convert.from_bitmask(w, w, windows), s24.DTypeError, "Windows24 is not conv"),
        (
            lambda: testing.assert_accurate(w, w, rival=w, factor="x"),
            s24.ArgumentError, "factor must be a number, got 'x'",
        ),
        (lambda: s24.linear(w, Shaped()), s24.DTypeError, "A must be an array, got Shaped"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()


def test_a_boolean_is_no_number():
    """Python takes True for 1, as a flag given in the wrong place would be."""
    a, w = s24.random((4, 8), rng=0), np.ones((4, 8))
    for call, words in (
        (lambda: s24.advise((64, 64), tokens=True), "tokens must be positive whole numbers, got T"),
        (lambda: s24.advise((64, 64), tokens=(1, True)), "tokens must be positive whole numbers"),
        (lambda: s24.prune(w, axis=True), "axis must be an integer, got True"),
        (lambda: a.transpose(True, 0), r"axes must be \(1, 0\), got \(True, 0\)"),
        (lambda: s24.hybrid(w).explain(True), "n must be a whole number from 1 on, got True"),
        (lambda: s24.find_permutation(w, rounds=True), "rounds must be a whole number from 0 on"),
        (lambda: s24.prune(w, pattern=(True, 4)), r"pattern must be a pair \(n, m\) such as"),
        (lambda: s24.random((True, 8)), r"shape must be \(..., m, k\), whole numbers from 0 on"),
        (lambda: s24.explain(a, ((8, True), "float32")), "a size in b must be a whole number"),
        (
            lambda: functional.linear_backward(w[:, :4], functional.linear(w, w)[1], seed=True),
            "seed must be a whole number from 0 on",
        ),
        (lambda: schedule.ConstantScheduler(0.5, every=True), "every must be a whole number"),
    ):
        with pytest.raises(s24.Sparse24Error, match=words):
            call()


def test_relative_error_does_not_broadcast():
    with pytest.raises(s24.ShapeError, match=r"actual must have the shape of exact, \(8, 4\)"):
        testing.relative_error(np.ones(4), np.ones((8, 4)))


def test_a_file_of_the_other_kind_is_named(tmp_path):
    a = s24.random((4, 8), rng=0)
    for kind, other in (("npz", "safetensors"), ("safetensors", "npz")):
        path = tmp_path / f"a.{other}"
        for task, args in (("save", (path, a)), ("load", (str(path),))):
            with pytest.raises(s24.ArgumentError, match=f"{task} it with sparse24.{task}_{other}"):
                getattr(s24, f"{task}_{kind}")(*args)
        assert not path.exists()
        getattr(s24, f"save_{kind}")(tmp_path / "plain", a)
        assert getattr(s24, f"load_{kind}")(tmp_path / "plain").shape == (4, 8)


LONG = np.arange(5000.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: s24.random((4, 8), rng=0)[LONG > 3],
        lambda: s24.random((4, 8), rng=0)[LONG.tolist()],
        lambda: s24.compress(np.ones((4, 8)), pattern=LONG),
        lambda: s24.compress(np.ones((4, 8)), axis=LONG),
        lambda: s24.compress(np.ones((4, 8)), on_excess=LONG),
        lambda: s24.matmul(s24.random((4, 8), rng=0), np.ones((8, 2), np.float32), alpha=LONG),
        lambda: s24.matmul(s24.random((4, 8), rng=0), np.ones((8, 2), np.float32), scales=[LONG]),
        lambda: s24.advise(LONG.reshape(50, 100)),
        lambda: s24.advise((8, 8), tokens=LONG),
        lambda: s24.hybrid(np.eye(4), n_hint=LONG),
        lambda: s24.Calibration(LONG.astype(str)),
    ],
)
def test_messages_show_no_whole_arrays(call):
    with pytest.raises(s24.Sparse24Error) as caught:
        call()
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("rng", ["seed", -1, 1.5, True])
def test_a_source_of_randomness_is_named(rng):
    for call in (
        lambda: s24.random((4, 8), rng=rng),
        lambda: s24.prune(np.ones((4, 8)), method="random", rng=rng),
        lambda: s24.find_permutation(np.ones((4, 8)), rng=rng),
        lambda: families.make("iid", (64, 64), zeros=0.5, rng=rng),
    ):
        with pytest.raises(s24.ArgumentError, match=r"rng must be a .* or a seed"):
            call()


def test_an_open_file_is_no_path(tmp_path):
    path = tmp_path / "a.npz"
    s24.save_npz(path, s24.random((4, 8), rng=0))
    with path.open("rb") as file:
        for read in (s24.load_npz, families.read_mtx, families.read_smtx):
            with pytest.raises(s24.ArgumentError, match="path must be a path, got BufferedReader"):
                read(file)


@pytest.mark.parametrize("dtype", ["2:4", "fp32", "float32,"])
def test_what_names_no_type_is_refused(dtype):
    with pytest.raises(s24.DTypeError, match=f"dtype must be one of float16, .* got '{dtype}'"):
        s24.compress(np.eye(4), dtype=dtype)


@pytest.mark.parametrize("make", [
    lambda w: s24.compress(w), lambda w: s24.compress(w, pattern=(3, 8)), lambda w: s24.hybrid(w)
])  # fmt: skip
def test_a_layer_names_its_own_argument(make):
    layer, x = make(np.eye(8, dtype=np.float32)), np.ones((2, 8))
    for wrong, words in (
        (x.astype(np.uint8), r"got dtype\('uint8'\); .* or x_dtype="),
        (x.astype(complex), r"take x\.real and x\.imag"),
        (x.astype(">f4"), "byte order"),
    ):
        with pytest.raises(s24.DTypeError, match=rf"^x\.dtype must be .*{words}"):
            s24.linear(wrong, layer)
    for wrong, words in (
        (
            [[1.0] * 7],
            r"x must have shape \(\.\.\., k\) and A \(m, k\), got \(1, 7\) and \(8, 8\)$",
        ),
        ([[1.0], [1.0, 2.0]], "x must be an array: "),
        (np.array(1.0), "x must have at least one axis, got a scalar"),
    ):
        with pytest.raises(s24.ShapeError, match=f"^{words}"):
            s24.linear(wrong, layer)
    with pytest.raises(s24.DTypeError, match=r"^dtype must be"):
        s24.linear(x, layer, dtype="float8")
    with pytest.raises(s24.DTypeError, match=r"^x must not hold integers wider than int8"):
        s24.linear(x.astype(int), layer.astype("int8"))


def test_a_gradient_has_its_name_and_shape():
    x, weight = np.ones((2, 8)), np.eye(4, 8)
    y, saved = functional.linear(x, weight, np.zeros(4))
    for wrong, words in (
        (y.astype(np.uint8), r"dy\.dtype must be one of .*, got dtype\('uint8'\)"),
        (y * 1j, r"dy\.dtype must be one of .*; take dy\.real and dy\.imag"),
        (np.ma.array(y), "dy must not be a MaskedArray"),
    ):
        with pytest.raises(s24.DTypeError, match=f"^{words}"):
            functional.linear_backward(wrong, saved)
    kept = s24.mask(weight).view(np.matrix)  # which keeps two axes
    _, saved = functional.linear(x, weight.view(np.matrix), np.zeros(4), mask=kept)
    of_matrix = functional.linear_backward(y.view(np.matrix), saved, gradient="24dense", decay=0.1)
    assert [part.shape for part in of_matrix] == [(2, 8), (4, 8), (4,)]


@pytest.mark.parametrize("layers", ["torch", "jax", "functional"])
def test_a_weight_that_fits_transposed_is_named(layers):
    make = {"torch": "torch", "jax": "jax.numpy", "functional": "numpy"}[layers]
    ones = pytest.importorskip(make).ones
    linear = getattr(s24, layers).linear
    with pytest.raises(s24.ShapeError, match=r"\(5, 12\) and \(12, 8\); pass weight\.T$"):
        linear(ones((5, 12)), ones((12, 8)))
    with pytest.raises(s24.ShapeError, match=r"\(5, 12\) and \(8, 4\)$"):
        linear(ones((5, 12)), ones((8, 4)))
