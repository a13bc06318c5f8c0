"""Dense arrays in files, beside compressed ones: what is checked, and what is not saved."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from file_cases import FORMATS, after_flips, bits

import sparse24 as s24
from sparse24 import _dtypes, _raw_writers
from sparse24.formats import stored


def test_dense_arrays_travel_along(suffix, tmp_path):
    save, load = FORMATS[suffix]
    bias = np.arange(4).astype(_dtypes.TABLE["bfloat16"].logical)
    save(tmp_path / f"a.{suffix}", {"w": s24.random((4, 8), rng=0), "b": bias, "n": np.int64(3)})
    loaded = load(tmp_path / f"a.{suffix}")
    assert loaded["b"].dtype == bias.dtype
    assert loaded["n"] == 3
    np.testing.assert_array_equal(bits(loaded["b"]), bits(bias))


def test_every_flipped_byte_of_a_dense_array_is_noticed(suffix, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    half = np.arange(6).reshape(2, 3).astype(_dtypes.TABLE["bfloat16"].logical)
    arrays = {"half": half, "turned": half.astype(np.float32).T, "none": np.zeros((3, 0)),
              "flag": np.array(True)}  # fmt: skip
    save(path, arrays)
    unnoticed = 0
    for loaded in after_flips(path, load):
        unnoticed += 1  # in padding, dates or the like
        assert loaded.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
            assert loaded[name].tobytes() == array.tobytes()
    assert unnoticed < path.stat().st_size / 2


@pytest.mark.parametrize(("change", "message"), [
    (lambda raw, header: raw.pop("d"), "array 'd': it is missing; the file is damaged"),
    (lambda raw, header: raw.update(other=np.ones(2)), "'other': the header does not list it"),
    (lambda raw, header: raw.update(d=np.ones(3, np.float32)), "'d': it does not match the shape"),
    (lambda raw, header: raw.update(d=np.ones(3, np.int32)), "'d': it does not match the shape, t"),
    (lambda raw, header: raw.update(d=np.ones((1, 3))), "'d': it does not match the shape"),
    (lambda raw, header: header.update(dense=[]), "its list of dense arrays must be a JSON object"),
    (lambda raw, header: header.update(dense=None), "its list of dense arrays must be a JSON obj"),
    (lambda raw, header: header["dense"].update(d=3), "'d': it does not match the shape"),
    (lambda raw, header: header.update(dens=header.pop("dense")), "a header with 'dens', not one"),
])  # fmt: skip
def test_dense_arrays_other_than_the_header_says_are_refused(suffix, change, message, tmp_path):
    raw, header = stored.pack({"w": s24.random((4, 8), rng=0), "d": np.zeros(3)})
    change(raw, header)
    path = tmp_path / f"a.{suffix}"
    _raw_writers.write(path, raw, stored.sealed(header))
    with pytest.raises(s24.FormatError, match=message):
        FORMATS[suffix][1](path)


def test_files_without_a_list_of_dense_arrays_are_read(suffix, tmp_path):
    raw, header = stored.pack({"w": s24.random((4, 8), rng=0), "d": np.ones(3)})
    del header["dense"], header["crc32"]
    path = tmp_path / f"a.{suffix}"
    _raw_writers.write(path, raw, header)
    loaded = FORMATS[suffix][1](path)
    assert set(loaded) == {"w", "d"}
    np.testing.assert_array_equal(loaded["d"], 1)


def test_what_would_lose_something_is_not_saved(suffix, tmp_path):
    torch = pytest.importorskip("torch")
    no_array = "bias must be a compressed array or an array of numbers"
    no_memory = "bias must be a dense tensor with memory"
    wrapper = type("Wrapper", (torch.Tensor,), {"__tensor_flatten__": lambda self: None})
    cases = [
        (np.ma.masked_array([1.0, 2.0], [0, 1]), s24.DTypeError, "bias must not be a MaskedArray"),
        (torch.eye(3).to_sparse(), s24.DTypeError, rf"{no_memory}.*to_dense\(\)"),
        (torch.ones(3).as_subclass(wrapper), s24.DTypeError, f"{no_memory}, got a Wrapper; make"),
        (torch.ones(3, device="meta"), s24.DTypeError, f"{no_memory}: it is on the device 'meta'"),
        (
            torch.ones(3).to(torch.float8_e4m3fnuz),
            s24.DTypeError,
            "bias must have a type that NumPy",
        ),
        ([[1.0], [2.0, 3.0]], s24.ArgumentError, no_array),
        (np.array([None]), s24.ArgumentError, f"{no_array}, got ndarray of objects"),
        (
            scipy.sparse.eye_array(8, format="csr"),
            s24.ArgumentError,
            f"{no_array}, got csr_array; make one with sparse24.from_scipy or sparse24.hybrid",
        ),
    ]
    for array, error, words in cases:
        with pytest.raises(error, match=words):
            FORMATS[suffix][0](tmp_path / f"a.{suffix}", {"bias": array})
    assert not list(tmp_path.iterdir())


def test_tensors_that_torch_conjugates_later_are_saved_conjugated(tmp_path):
    torch = pytest.importorskip("torch")
    z = torch.tensor([1 + 2j, 3 - 4j])
    s24.save_npz(tmp_path / "a.npz", {"z": z.conj(), "y": z.conj().imag})
    loaded = s24.load_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(loaded["z"], [1 - 2j, 3 + 4j])
    np.testing.assert_array_equal(loaded["y"], [-2, 4])


@pytest.mark.parametrize("turned", [False, True])
def test_windows_are_saved_as_the_array_of_which_they_were_made(suffix, turned, tmp_path):
    save, load = FORMATS[suffix]
    path = tmp_path / f"a.{suffix}"
    array = s24.compress(np.eye(8, 16, dtype=np.float32), pattern=(6, 8))
    array = array.T if turned else array
    windows = array.windows()
    for arrays, name in ((windows, "arrays"), ({"w": windows}, "w")):
        message = rf"^{name} is a Windows24, which no file holds; .*\(6, 8\), axis={array.axis}\)"
        with pytest.raises(s24.ArgumentError, match=message):
            save(path, arrays)
    again = s24.compress(windows.toarray(), pattern=windows.pattern, axis=windows.axis)
    save(path, again)
    np.testing.assert_array_equal(load(path).windows().toarray(), windows.toarray())
