"""Fixtures, GPU gating and the recording of GPU runs."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import cli_cases
import numpy as np
import pytest
from file_cases import FORMATS
from hypothesis import HealthCheck, settings
from planner_cases import H200, KEY

from sparse24 import _arrays, _chip_facts, _evidence, _tuning_cache
from sparse24._errors import CompileError, FormatError

# The same examples in every run, however slow the machine is at the moment: what fails on one
# commit fails on all copies of it.  `pytest --hypothesis-profile=explore` tries others.
_ANY_SPEED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("explore", **_ANY_SPEED)
settings.register_profile("same", derandomize=True, **_ANY_SPEED)
settings.load_profile("same")

REQUIRE_GPU = os.environ.get("SPARSE24_REQUIRE_GPU") == "1"


def pytest_addoption(parser):
    parser.addoption(
        "--record-gpu",
        metavar="FILE",
        help="merge the outcome of the gpu tests, by kernel stem, into FILE",
    )


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not _arrays.cuda_available():
        if REQUIRE_GPU:
            pytest.fail("SPARSE24_REQUIRE_GPU=1, but no CUDA device is available")
        pytest.skip("no CUDA device")


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request):
    """NumPy, and CuPy where a GPU is there."""
    if request.param == "numpy":
        return np
    return pytest.importorskip("cupy")


@pytest.fixture(params=FORMATS)
def suffix(request):
    """Each kind of file that holds compressed arrays."""
    return request.param


@pytest.fixture
def arrays(rng):
    """Those of a small checkpoint, by name."""
    return cli_cases.small_checkpoint(rng)


@pytest.fixture
def checkpoint(arrays, tmp_path):
    """The file of a small checkpoint."""
    return cli_cases.saved(arrays, tmp_path)


@pytest.fixture(scope="session")
def nvrtc():
    """Skips where kernels cannot be compiled: without CuPy, NVRTC or the CUDA headers."""
    cupy = pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")
    from sparse24.kernels import loader

    try:  # no compilation, whose failure would be a defect
        cupy.cuda.nvrtc.getVersion()
        loader._include_directories()
    except (CompileError, ImportError, OSError, RuntimeError) as error:
        pytest.skip(f"cannot compile here: {str(error).splitlines()[0]}")


@pytest.fixture(scope="session")
def disassembler(nvrtc):
    """Skips where compiled kernels cannot be read."""
    from sparse24.kernels import targets

    try:
        targets._tool("nvdisasm")
        targets._tool("cuobjdump")
    except CompileError as error:
        pytest.skip(str(error))


@pytest.fixture
def jax_on_cpu():
    """`jax.numpy`, whose arrays lie on the CPU, also where there is a GPU."""
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        yield jax.numpy


@pytest.fixture
def untuned(monkeypatch, tmp_path):
    """Nothing is known of the device, and what is learnt is forgotten, choices included."""
    monkeypatch.setenv("SPARSE24_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_tuning_cache, "_state", {})
    _tuning_cache.forget(0)
    yield tmp_path
    _tuning_cache.forget(0)


@pytest.fixture
def h200(monkeypatch, untuned):
    """The planner as on an H200, without one."""
    monkeypatch.setattr(_chip_facts, "attributes", lambda device: H200)
    monkeypatch.setattr(_tuning_cache, "key", lambda device: KEY)
    monkeypatch.setattr(_tuning_cache, "gpu_name", lambda device: "test gpu")
    return untuned


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)


@pytest.fixture(autouse=True)
def torch_begins_anew():
    """A test draws the same numbers of torch alone, in its file and in the whole suite."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collection_modifyitems(items):
    """A gpu test tells its report which stems it verifies; so also from a worker process."""
    for item in items:
        if item.get_closest_marker("gpu"):
            stems = sorted({name for mark in item.iter_markers("stem") for name in mark.args})
            item.user_properties.append(("stems", stems))


class _Recorder:
    """Counts outcomes of gpu tests by the stems that their ``stem`` markers name."""

    def __init__(self, path: Path):
        self.path = path
        self.counts: dict[str, Counter] = defaultdict(Counter)
        self.files: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report):
        decided = report.when == "call" or (report.when == "setup" and report.outcome != "passed")
        if decided:
            for stem in dict(report.user_properties).get("stems", ()):
                self.counts[stem][report.outcome] += 1
                self.files[stem].add(Path(report.nodeid.partition("::")[0]).name)

    def pytest_sessionfinish(self):
        if self.counts and _arrays.cuda_available():
            _evidence.merge_gpu_tests(self.path, self.counts, self.files)


def pytest_configure(config):
    path = config.getoption("--record-gpu", default=None)
    if path and not hasattr(config, "workerinput"):  # one process records
        if _arrays.cuda_available():  # before the tests have run
            try:
                _evidence.refuse_other_gpu(Path(path), _evidence.header().get("gpu"))
            except FormatError as error:
                raise pytest.UsageError(f"--record-gpu: {error}") from None
        config.pluginmanager.register(_Recorder(Path(path)), "sparse24-gpu-recorder")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where torch's tensors are; its random numbers begin anew."""
    pytest.importorskip("torch").manual_seed(0)
    return request.param


@pytest.fixture
def compiles_anew():
    """Nothing that torch has compiled is known, be it of other tests or of other runs."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()
