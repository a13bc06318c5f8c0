"""Tuning files: written, read, merged, and refused."""

from __future__ import annotations

import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from planner_cases import KEY, problem

from sparse24 import _planner, _tuning_cache

TIMES = {"sparse_fma/64x64x32": 1e-6}


def learn(case=problem()):  # noqa: B008
    _tuning_cache.record_winner(0, case, dense=False, seconds=TIMES)


def test_tuning_files_round_trip_and_merge(h200):
    file = h200 / "tuning.json"
    _tuning_cache.record_winner(0, problem(), dense=False, seconds={"sparse_fma/64x64x32": 1.0})
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    _tuning_cache.record_winner(0, problem(n=1), dense=False, seconds={"sparse_fma/64x64x32": 2.0})
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert _tuning_cache.merge(file, 0)
    assert len(_tuning_cache.state(0)["winners"]) == 2
    assert not list(h200.glob("*.tmp"))


def test_a_new_process_knows_what_the_file_of_its_gpu_holds(h200, monkeypatch):
    learn()
    assert _tuning_cache.write(_tuning_cache.path(0), 0, replace=False)
    assert _tuning_cache.path(0) == h200 / "tuning-test-gpu.json"
    monkeypatch.setattr(_tuning_cache, "_state", {})
    assert _tuning_cache.measured(0, problem(), dense=False) == TIMES
    _tuning_cache.path(0).write_text("damaged")
    monkeypatch.setattr(_tuning_cache, "_state", {})
    assert _tuning_cache.measured(0, problem(), dense=False) == {}


def test_whatever_is_learnt_counts_for_problems_whose_kernel_was_chosen_before(h200):
    name, case, file = "sparse_fma/64x64x32", problem(), h200 / "new" / "folder" / "tuning.json"
    choose = lambda: _planner.choose(case, 0, dense=False)  # noqa: E731
    first = choose()
    assert first.name != name
    learn(case)
    assert choose().name == name
    _tuning_cache.forget(0)
    assert choose() == first
    _tuning_cache.record_model(0, bandwidth=1e12, scales={first.kernel: 1e3})
    assert choose().kernel != first.kernel
    learn(case)
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert choose() == first
    assert _tuning_cache.merge(file, 0)
    assert choose().name == name
    assert _tuning_cache.scale(0, first.kernel) == 1e3


def test_a_file_without_a_bandwidth_leaves_the_measured_one(h200):
    file = h200 / "tuning.json"
    learn()
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.record_model(0, bandwidth=1e12, scales={})
    assert _tuning_cache.merge(file, 0)
    assert _tuning_cache.bandwidth(0) == 1e12
    assert _tuning_cache.write(file, 0, replace=False)
    _tuning_cache.forget(0)
    assert _tuning_cache.write(file, 0, replace=False)  # as by a process that measured none
    assert _tuning_cache.read(file, 0)["bandwidth"] == 1e12


def test_processes_that_tune_at_once_leave_a_whole_file(h200):
    _tuning_cache.record_winner(0, problem(), dense=False, seconds={"sparse_fma/64x64x32": 1.0})
    files = [h200 / f"tuning-{i}.json" for i in range(20)]
    with ThreadPoolExecutor(8) as pool:
        for file in files:  # each is new, so that who looks for it meets who makes it
            write = functools.partial(_tuning_cache.write, file, 0, replace=False)
            assert all(pool.map(lambda _, write=write: write(), range(16)))
            assert _tuning_cache.read(file, 0) is not None
    assert sorted(h200.iterdir()) == sorted(files)


def tuned(key=KEY, **content):
    whole = {"winners": {}, "scales": {}, "bandwidth": None, **content}
    return json.dumps({"key": key, "content": whole})


DAMAGED = {
    "empty": "",
    "cut": "{",
    "a list": "[]",
    "deep": "[" * 100000,
    "another GPU": tuned(KEY | {"gpu": "other"}),
    "no content": json.dumps({"key": KEY}),
    "content without its parts": json.dumps({"key": KEY, "content": {}}),
    "winners that are a list": tuned(winners=[]),
    "scales that are a list": tuned(scales=[]),
    "a winner that is none": tuned(winners={"p": 1}),
    "a winner that was not timed": tuned(winners={"p": {"name": "a", "seconds": {"b": 1.0}}}),
    "a name that is none": tuned(winners={"p": {"name": ["a"], "seconds": {"a": 1.0}}}),
    "a time that is none": tuned(winners={"p": {"name": "a", "seconds": {"a": "1"}}}),
    "a scale of 0": tuned(scales={"dense": 0}),
    "an infinite scale": tuned(scales={"dense": math.inf}),
    "a bandwidth of NaN": tuned(bandwidth=float("nan")),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_foreign_or_damaged_files_are_ignored_and_left_alone(h200, content):
    file = h200 / "tuning.json"
    file.write_text(content)
    assert _tuning_cache.read(file, 0) is None
    assert not _tuning_cache.merge(file, 0)
    assert not _tuning_cache.write(file, 0, replace=False)
    assert file.read_text() == content
    assert _tuning_cache.write(file, 0, replace=True)
    assert _tuning_cache.read(file, 0) is not None
