"""`tuning` and `autotune`: their files, folders, blocks and measurements, without a GPU."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from planner_cases import KEY, problem

import sparse24 as s24
from sparse24 import (
    _arrays,
    _autotune,
    _planner,
    _quantised,
    _storage,
    _tuning_cache,
    _user_folder,
    tuning,
)
from sparse24._explain_gpu import on_gpu
from sparse24._hybrid import fit as hybrid_fit
from sparse24._hybrid import lines as hybrid_lines
from sparse24._hybrid import samples as hybrid_samples
from sparse24._records import PLAIN
from sparse24.kernels import _numba

TIMES = {"sparse_fma/64x64x32": 1.0}


@pytest.fixture
def gpu(monkeypatch, h200):
    """What the public functions ask of a GPU."""
    device = SimpleNamespace(id=0)
    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setattr(_arrays, "cuda_available", lambda: True)
    monkeypatch.setattr(_arrays, "cupy_module", lambda: cupy)
    monkeypatch.setattr(hybrid_fit, "_known", {})
    monkeypatch.setattr(hybrid_fit, "_key", dict)
    monkeypatch.setattr(hybrid_fit, "shipped", lambda device: hybrid_lines.H200_LINES)
    return h200


def learn(device=0, **sizes):
    _tuning_cache.record_winner(device, problem(**sizes), dense=False, seconds=TIMES)


def test_tuning_files_are_named_by_a_path_of_a_file(gpu):
    learn()
    for folder in (gpu, str(gpu), "."):
        for use in (tuning.save, tuning.load):
            with pytest.raises(s24.ArgumentError, match="is a folder; name a file"):
                use(folder)
    for wrong in (True, 3, ["tuning.json"]):
        with pytest.raises(s24.ArgumentError, match="must be named by a path, got"):
            tuning.save(wrong)
        block = s24.autotune(cache=wrong)
        with pytest.raises(s24.ArgumentError, match="must be named by a path, got"), block:
            pytest.fail("what is measured would be lost")
    with pytest.raises(s24.ArgumentError, match="is a folder"), s24.autotune(cache=gpu):
        pytest.fail("what is measured would be lost")
    assert not tuning.load(gpu / "new" / "tuning.json")
    with s24.autotune(cache=gpu / "new" / "tuning.json"):
        pass
    tuning.clear()
    assert tuning.load(gpu / "new" / "tuning.json")
    assert _tuning_cache.winner(0, problem(), dense=False) == "sparse_fma/64x64x32"


def test_files_that_are_none_are_told_from_those_of_another_machine(gpu):
    (gpu / "tuning.json").write_text("notes")
    with pytest.raises(s24.FormatError, match="is not a complete tuning file; pass replace=True"):
        tuning.save(gpu / "tuning.json")
    lost = pytest.warns(RuntimeWarning, match="not written: .*; name another one, or remove it")
    with lost, s24.autotune(cache=gpu / "tuning.json"):
        pass
    assert tuning.save(gpu / "tuning.json", replace=True) == gpu / "tuning.json"


def test_whoever_writes_at_once_loses_nothing(gpu):
    """As the ranks of a job do, each with winners of its own; here devices stand for them."""
    file, count = gpu / "tuning.json", 12
    for device in range(count):
        learn(device, n=device + 1)
    with ThreadPoolExecutor(count) as pool:
        write = lambda device: _tuning_cache.write(file, device, replace=False)  # noqa: E731
        assert all(pool.map(write, range(count)))
    assert len(_tuning_cache.read(file, 0)["winners"]) == count
    assert list(gpu.iterdir()) == [file]


def test_blocks_end_in_any_order_and_anywhere():
    first, second = (contextlib.ExitStack() for _ in range(2))
    first.enter_context(_autotune.measuring())
    second.enter_context(_autotune.measuring())
    copied = contextvars.copy_context()
    first.close()
    assert _autotune.is_on()
    assert copied.run(_autotune.is_on)
    thread = threading.Thread(target=second.close)
    thread.start()
    thread.join()
    assert not _autotune.is_on()
    assert not copied.run(_autotune.is_on)
    with _autotune.measuring():
        assert _autotune.is_on()
        assert len(_autotune.active.get()) == 2  # the one that a thread closed is still there
    assert _autotune.active.get() == ()


def test_a_block_that_another_thread_ends_writes_its_file(gpu):
    block = s24.autotune(cache=gpu / "tuning.json")
    block.__enter__()
    learn()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(block.__exit__, None, None, None).result()
    assert json.loads((gpu / "tuning.json").read_text())["key"] == KEY
    assert not _autotune.is_on()


@pytest.fixture
def ran(monkeypatch):
    """Kernels that multiply by NumPy, in the order in which they ran, and their results."""
    ran = []

    def prepare_all(candidates, epilogue):
        return [functools.partial(run, candidate) for candidate in candidates]

    def run(candidate, a, b, out, epilogue):
        ran.append((candidate, out))
        out[...] = np.eye(*out.shape)

    another = lambda out: np.empty_like(out)  # noqa: E731
    monkeypatch.setattr(_planner, "prepare_all", prepare_all)
    monkeypatch.setattr(_storage, "with_packed", lambda rows: rows)
    monkeypatch.setattr(_arrays, "is_capturing", lambda: False)
    monkeypatch.setattr(_autotune, "_another", another)
    monkeypatch.setattr(_autotune, "_copies", lambda operand, size, copy: [operand])
    monkeypatch.setattr(_autotune, "time_all", lambda runs: dict.fromkeys(runs, 1.0))
    return ran


def visit(case):
    operand = s24.random((64, 64), rng=0)._operand
    out = np.empty((64, 4), np.float32)
    _autotune.visit(operand, None, out, PLAIN, case, 0)
    return _tuning_cache.measured(0, case, dense=False)


def test_candidates_write_to_one_result(h200, ran):
    """Not each to its own, of which there may be forty."""
    with _autotune.measuring():
        times = visit(problem(m=64, n=4, k=64))
    assert len(times) > 1
    assert [candidate.name for candidate, _ in ran] == ["sparse_fma/64x64x32", *times]
    assert len({id(out) for _, out in ran[1:]}) == 1


def test_what_is_measured_is_what_would_run(h200, ran):
    """Of two forms of a problem, here one with a copy of b, a name stands for the faster one."""
    case = problem(m=4096, n=1000, k=4100, b_in_lines=False)
    with _autotune.measuring():
        times = visit(case)
    assert len(ran) == 1 + len(times)
    for candidate, _ in ran:
        assert _planner.choose(case, 0, dense=False, algorithm=candidate.name) == candidate


def test_tiles_of_quantised_matrices_agree_with_what_these_stand_for(h200, ran, monkeypatch):
    types, whole = [], _quantised.dequantised
    count = lambda record, dtype: types.append(dtype.name) or whole(record, dtype)  # noqa: E731
    monkeypatch.setattr(_quantised, "dequantised", count)
    operand = s24.quantise(s24.random((64, 256), rng=0), bits=4)._operand
    case = problem(m=64, n=4, k=256, quantised=4)
    with _autotune.measuring():
        _autotune.visit(operand, None, np.empty((64, 4), np.float32), PLAIN, case, 0)
    names = list(_tuning_cache.measured(0, case, dense=False))
    assert len(names) > 1
    kernels = {name.partition("/")[0] for name in names}
    assert kernels == set(_planner.QUANTISED_KERNELS)
    assert [candidate.name for candidate, _ in ran] == ["sparse_fma/64x64x32", *names]
    assert types == ["bfloat16"]


def test_nothing_is_measured_in_a_capture_or_without_a_reference(h200, monkeypatch, ran):
    with _autotune.measuring():
        assert visit(problem(m=64, n=5_000_000, k=64)) == {}  # more columns than sparse_fma takes
        monkeypatch.setattr(_arrays, "is_capturing", lambda: True)
        assert visit(problem(m=64, n=4, k=64)) == {}
    assert not ran


def test_more_columns_than_any_sparse_kernel_takes_go_to_the_dense_one(h200):
    case = problem(m=64, n=5_000_000, k=64, dtype="float64")
    assert _planner.choose(case, 0, dense=False).name == "dense/cublas"
    told = on_gpu(case, "float64", 0, "auto", False, "")
    assert told.chosen == "dense/cublas"
    assert "no sparse kernel takes this product, so a dense matrix is multiplied" in str(told)
    assert s24.advise((64, 64), 5_000_000, "float64").kernels == ("dense/cublas",)


@pytest.mark.parametrize("algorithm", [None, 3, ["sparse_fma"]])
def test_algorithms_that_are_no_names_are_refused(h200, algorithm):
    with pytest.raises(s24.ArgumentError, match="algorithm must be 'auto' or one of"):
        _planner.choose(problem(), 0, dense=False, algorithm=algorithm)


def test_what_explain_tells_is_the_callers(h200):
    learn()
    on_gpu(problem(), problem().dtype, 0, "auto", False, "").measured.clear()
    assert _tuning_cache.measured(0, problem(), dense=False) == TIMES


def test_clear_also_forgets_the_fit_of_hybrid_matrices(gpu, monkeypatch):
    other = dict.fromkeys(hybrid_lines.H200_LINES, hybrid_lines.Line(1.0, 1.0, 1.0))
    monkeypatch.setitem(hybrid_fit._known, 0, other)
    before = _tuning_cache.generation()
    tuning.clear()
    assert hybrid_fit.lines(0) == hybrid_lines.H200_LINES
    assert _tuning_cache.generation() > before


def test_a_fit_that_cannot_be_kept_serves_this_process(gpu, monkeypatch):
    def sample(cupy, shape, zeros, samples):
        samples["rows/1"] += [(1e6, 2e6, 1e-5), (2e6, 1e6, 2e-5), (3e6, 4e6, 3e-5)]

    monkeypatch.setattr(hybrid_samples, "sample", sample)
    monkeypatch.setitem(sys.modules, "cupy", MagicMock())
    (gpu / "taken").touch()
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(gpu / "taken"))
    with pytest.warns(RuntimeWarning, match="serves this process alone.*SPARSE24_CACHE_DIR"):
        found = hybrid_fit.fit(0)
    assert hybrid_fit.lines(0) == found != hybrid_lines.H200_LINES


@pytest.mark.parametrize("home", [RuntimeError("could not determine"), "~/.cache/sparse24"])
def test_without_a_home_nothing_is_kept(gpu, monkeypatch, home):
    """As in a container whose user has no name; the string is what older platformdirs say."""

    def told(*name, **how):
        if isinstance(home, str):
            return home
        raise home

    monkeypatch.delenv("SPARSE24_CACHE_DIR")
    monkeypatch.setattr("platformdirs.user_cache_dir", told)
    assert hybrid_fit.lines(0) == hybrid_lines.H200_LINES
    monkeypatch.setattr(_tuning_cache, "_state", {})
    assert _tuning_cache.winner(0, problem(), dense=False) is None
    assert _numba.njit(lambda x: x + 1)(1) == 2
    monkeypatch.setattr(_arrays, "cuda_available", lambda: False)
    assert "SPARSE24_CACHE_DIR" in s24.show_config(mode="dict")["sparse24"]["cache folder"]
    monkeypatch.setattr(_arrays, "cuda_available", lambda: True)
    with pytest.raises(FileNotFoundError, match="no home directory; name one by SPARSE24_CACHE"):
        tuning.save()


def test_the_folder_may_be_of_the_home_or_relative(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPARSE24_CACHE_DIR", os.path.join("~", "kept"))
    assert _user_folder.user_folder() == tmp_path / "kept"
    name = f"relative-{tmp_path.name}"
    monkeypatch.setenv("SPARSE24_CACHE_DIR", name)
    monkeypatch.chdir(tmp_path)
    assert _user_folder.user_folder() == tmp_path / name
    monkeypatch.chdir("/")
    assert _user_folder.user_folder() == tmp_path / name
