"""Compression in blocks of rows: the same array, read block by block, errors in place."""

from __future__ import annotations

import gc
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from fake_device import Place

import sparse24 as s24
from sparse24 import _arrays, _compress_stream, _dtypes

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.stem("compress")])]


def test_blocks_are_as_large_as_the_named_device_has_room_for(monkeypatch):
    """Not the current one, which may have more or less."""
    free = {0: 1 << 40, 1: 1 << 24}
    monkeypatch.setattr(Place, "current", 0)
    cuda = SimpleNamespace(cuda=SimpleNamespace(Device=Place))
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cuda)
    monkeypatch.setattr(_compress_stream, "_free_memory", lambda: free[Place.current])
    x = np.zeros((4, 1024), np.float32)
    rows = {name: _compress_stream._block_rows(x, name) for name in ("cuda", "cuda:0", "cuda:1")}
    assert rows == {"cuda": 1 << 25, "cuda:0": 1 << 25, "cuda:1": 1 << 9}
    assert Place.current == 0


def test_the_cpu_as_torch_names_it_needs_no_gpu(monkeypatch):
    torch = pytest.importorskip("torch")

    def no_gpu():
        raise AssertionError("asked a GPU for its memory")

    monkeypatch.setattr(_compress_stream, "_free_memory", no_gpu)
    got = s24.compress_stream(np.eye(4, 8, dtype=np.float32), device=torch.device("cpu"))
    assert got.device == "cpu"


class Reader:
    """A matrix that can only be read in slices, and says how much at most at once."""

    def __init__(self, x):
        self.x, self.shape, self.dtype, self.most = x, x.shape, x.dtype, 0

    def __getitem__(self, key):
        part = self.x[key]
        self.most = max(self.most, len(part))
        return part


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", _dtypes.NAMES)
def test_equals_compress(rng, device, name):
    x = rng.integers(-9, 10, (150, 52)).astype(np.float32).astype(_dtypes.TABLE[name].logical)
    source = Reader(x)
    got = s24.compress_stream(source, rows=64, device=device, on_excess="prune")
    want = s24.compress(x, on_excess="prune")
    assert got.device == "cpu"
    assert source.most == 64
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got.metadata, want.metadata)


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda part: part[:-1], s24.ShapeError, r"x\[0:3\] must have shape \(3, 8\), .*\(2, 8\)"),
        (lambda part: part[:, :7], s24.ShapeError, r"must have shape \(3, 8\), .*got \(3, 7\)"),
        (lambda part: part.astype(np.float64), s24.DTypeError, "dtype of x, float32, got float64"),
        (np.ma.array, s24.DTypeError, r"x\[0:3\] must not be a MaskedArray"),
    ],
)
def test_rows_that_are_not_what_the_source_says_are_refused(read, error, message):
    class Source(Reader):
        def __getitem__(self, key):
            return read(super().__getitem__(key))

    source = Source(np.eye(7, 8, dtype=np.float32))
    with pytest.raises(error, match=message):
        s24.compress_stream(source, rows=3, device="cpu")


@pytest.mark.parametrize("make", [s24.compress, s24.hybrid])
def test_sparse_arrays_are_refused_before_a_block_is_read(make):
    for call in (s24.compress_stream, s24.compress_blocks):
        with pytest.raises(s24.DTypeError, match=r"x must be a dense array, got .*toarray"):
            call(make(np.eye(8)))


@pytest.mark.gpu
@pytest.mark.stem("compress")
def test_a_matrix_larger_than_the_memory_that_cupy_may_use(rng):
    import cupy as cp

    x = rng.standard_normal((4096, 2048)).astype(np.float16)
    source, pool = Reader(x), cp.get_default_memory_pool()
    gc.collect()  # arrays of other tests, which the pool would find when it runs short
    pool.free_all_blocks()
    before = pool.get_limit()
    pool.set_limit(pool.used_bytes() + x.nbytes // 4)
    try:
        with pytest.raises(cp.cuda.memory.OutOfMemoryError):
            cp.asarray(x)
        got = s24.compress_stream(source, device="cuda", on_excess="prune")
    finally:
        pool.set_limit(before)
    assert source.most < len(x) // 8
    want = s24.compress(x, on_excess="prune")
    np.testing.assert_array_equal(got.values, want.values)
    np.testing.assert_array_equal(got.metadata, want.metadata)


@pytest.mark.parametrize("device", DEVICES)
def test_error_names_the_place_in_the_whole(device):
    x = np.eye(200, 16, dtype=np.float16)
    x[150, 4:8] = x[170, 8:12] = x[193, 0:4] = 1
    message = r"x\[150, 4:8\] has more than 2 .* the first of 2 such groups in rows 128:192; prune"
    with pytest.raises(s24.PatternError, match=message):
        s24.compress_stream(x, rows=64, device=device)


def test_memmap_and_dtype(tmp_path, rng):
    x = np.memmap(tmp_path / "x.bin", np.float64, "w+", shape=(70, 16))
    x[:] = s24.prune(rng.standard_normal((70, 16)))
    got = s24.compress_stream(x, rows=32, device="cpu", dtype="float32")
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got.toarray(), np.asarray(x, np.float32))


def test_tensors_and_whole_numbers_are_taken_as_compress_takes_them(rng):
    torch = pytest.importorskip("torch")
    x = s24.prune(rng.standard_normal((9, 8)).astype(np.float32))
    for tensor in (torch.from_numpy(x), torch.from_numpy(x).bfloat16()):
        got = s24.compress_stream(tensor, rows=4, device="cpu")
        np.testing.assert_array_equal(got.toarray(), s24.compress(tensor).toarray())
    whole = np.eye(9, 8, dtype=np.int64)
    got = s24.compress_stream(whole, rows=4, device="cpu", dtype="int8")
    np.testing.assert_array_equal(got.toarray(), whole)
    with pytest.raises(s24.DTypeError, match=r"x must be a dense array, got a csr_array"):
        s24.compress_stream(scipy.sparse.csr_array(x))


def test_edges():
    assert s24.compress_stream(np.zeros((0, 8), np.float32), device="cpu").shape == (0, 8)
    assert len(list(s24.compress_blocks(np.zeros((5, 8), np.float32), device="cpu"))) == 1
    with pytest.raises(s24.ArgumentError, match=r"and row slices.* got list; numpy\.asarray makes"):
        s24.compress_stream([[1.0, 2.0]])
    for path in ("w.npy", pathlib.Path("w.npy")):
        with pytest.raises(s24.ArgumentError, match=r"got \w+; numpy\.load\(path, mmap_mode='r'\)"):
            s24.compress_stream(path)
    with pytest.raises(s24.ShapeError, match="must be a matrix"):
        s24.compress_blocks(np.zeros(8, np.float32))
    with pytest.raises(s24.ArgumentError, match="rows must be a whole number from 1 on, got 0"):
        s24.compress_blocks(np.zeros((5, 8), np.float32), rows=0)
    with pytest.raises(s24.ArgumentError, match=r"rows must be a whole number from 1 on, got 2\.5"):
        s24.compress_blocks(np.zeros((5, 8), np.float32), rows=2.5)
    with pytest.raises(s24.ArgumentError, match="device must be"):
        s24.compress_blocks(np.zeros((5, 8), np.float32), device="tpu")


def test_bits_of_fp8_tensors_and_masked_arrays(rng):
    want = s24.compress(rng.integers(-9, 10, (40, 16)).astype(np.float32), on_excess="prune")
    eighth = want.toarray().astype(_dtypes.TABLE["float8_e5m2"].logical)
    got = s24.compress_stream(eighth.view(np.uint8), rows=16, dtype="float8_e5m2")
    assert got.dtype == eighth.dtype
    np.testing.assert_array_equal(got.toarray(), eighth)
    with pytest.raises(s24.DTypeError, match="x must not be a MaskedArray"):
        s24.compress_stream(np.ma.masked_greater(want.toarray(), 1))
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(want.toarray(), dtype=torch.bfloat16, requires_grad=True)
    read = s24.compress_stream(tensor, rows=16)
    np.testing.assert_array_equal(read.toarray().astype(np.float32), want.toarray())
