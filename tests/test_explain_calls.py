"""`explain` and `advise` against the calls that they tell of: the same kernel and problem."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import fake_device
import numpy as np
import pytest

import sparse24 as s24
from sparse24 import (
    _arrays,
    _cuda_graphs,
    _dispatch,
    _dtypes,
    _explain,
    _foreign,
    _planner,
    _product,
    _storage,
    _widening,
)
from sparse24._options import NO_OPTIONS
from sparse24.formats import n_m_on_cpu, n_m_products
from sparse24.formats.two_four import Sparse24Array
from sparse24.kernels import cast, cpu

M, K, N = 40, 72, 24


class Stop(Exception):
    """A product that was about to run."""


class Array(fake_device.Array):
    """An array of a GPU, whose memory begins on a line wherever NumPy put it."""

    @property
    def data(self):
        whole = self
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start = whole.ctypes.data
        return SimpleNamespace(ptr=self.ctypes.data - start, device_id=0)


def on_gpu(x):
    return np.array(x).view(Array) if x is not None else None


@pytest.fixture
def gpu(monkeypatch):
    """The problems that are made on a GPU; a call stops before anything runs."""
    problems = []
    put, problem_of = monkeypatch.setattr, _dispatch.problem_of
    cuda = SimpleNamespace(empty=lambda shape, dtype: np.empty(shape, dtype).view(Array))
    cuda.cuda = SimpleNamespace(runtime=fake_device.RUNTIME, Device=fake_device.Place)
    for name in ("full", "ascontiguousarray", "asarray", "broadcast_to"):
        call = getattr(np, name)
        setattr(cuda, name, lambda *of, call=call, **how: call(*of, **how).view(Array))

    def made(*of, **how):
        problems.append(problem_of(*of, **how))
        return problems[-1]

    def stop(a, *of):
        raise Stop(a.dense is not None)

    put(_arrays, "is_cupy", lambda x: isinstance(x, Array))
    put(_arrays, "namespace", lambda x: cuda if isinstance(x, Array) else np)
    put(_arrays, "cupy_module", lambda: cuda)
    put(_arrays, "is_capturing", lambda: False)
    put(_arrays, "cuda_available", lambda: False)  # advice is for an H200 then
    put(_cuda_graphs, "keeping", lambda *of: contextlib.nullcontext())
    put(_foreign, "take", lambda x, **how: (x, _foreign.identity))
    put(_storage, "cast", lambda record, row: record)
    put(cast, "launch", lambda x, source, target: _arrays.empty_rows(cuda, x.shape, target.storage))
    put(_dispatch, "problem_of", made)
    put(_widening, "as_multiplied", lambda problem, *of: problem)
    put(_dispatch, "prepare", stop)
    put(_explain, "on_gpu", lambda *of: SimpleNamespace(keeps_dense=of[4]))
    return problems


def sparse(dtype="float16", *, batch=(), keep_dense=False) -> Sparse24Array:
    """A 2:4 array whose parts pretend to lie on a GPU."""
    dense = s24.random((*batch, M, K), dtype=dtype, rng=0).toarray()
    operand = s24.compress(dense, keep_dense=keep_dense)._operand
    rows, row = operand.rows, operand.dtype
    rows = rows.viewed(carried(rows.values, row), on_gpu(rows.metadata), None, batch)
    kept = carried(operand.dense, row) if keep_dense else None
    return Sparse24Array(type(operand)(rows, None, kept, operand.shape, row))


def carried(x, row):
    """As a GPU holds it: fp8 as bits."""
    return on_gpu(x.view(row.storage) if row.is_float8 else x)


def dense(shape, dtype, layout="C"):
    """An array of ones: rows or columns contiguous, apart by more, or beginning off 16 bytes."""
    row = _dtypes.lookup(dtype)
    *batch, rows, columns = shape if len(shape) > 1 else (1, *shape)
    turned = layout == "F"
    lines, size = (columns, rows) if turned else (rows, columns)
    whole = carried(np.ones((*batch, lines, size + 3), row.logical), row)
    whole = {"padded": whole[..., :size], "off": whole[..., 1 : size + 1]}.get(
        layout, on_gpu(whole[..., :size].copy())
    )
    whole = whole.swapaxes(-1, -2) if turned else whole
    return whole if len(shape) > 1 else whole[0]


def told_and_run(gpu, a, b, out=None, **options):
    """The problems that `explain` and `matmul` make, and whether the dense matrix is kept."""
    gpu.clear()
    told = s24.explain(a, b, out, **options)
    with pytest.raises(Stop) as stopped:
        s24.matmul(a, b, out, **options)
    told_of, run = gpu
    return (told_of, told.keeps_dense), (run, stopped.value.args[0])


def on_both_sides(a, shape, dtype, layout):
    """``a @ b`` and ``x @ a.mT`` with the same kind of dense operand."""
    yield a, dense(shape, dtype, layout)
    *batch, k, n = shape if len(shape) > 1 else (*shape, 1)
    turned = (*batch, n, k) if len(shape) > 1 else shape
    yield dense(turned, dtype, layout), a.mT


@pytest.mark.parametrize("layout", ["C", "F", "padded", "off"])
@pytest.mark.parametrize("shape", [(K, N), (K, 1), (K,), (2, K, N), (3, 1, K, 8), (1, K, N)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_explain_sees_the_problem_that_runs(gpu, layout, shape, batch):
    a = sparse(batch=batch)
    for pair in on_both_sides(a, shape, "float16", layout):
        told, run = told_and_run(gpu, *pair)
        assert told == run


@pytest.mark.parametrize("other", ["float16", "bfloat16", "float32", "int8", "float8_e5m2"])
@pytest.mark.parametrize("own", ["float16", "float32", "float64", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_explain_sees_operands_as_they_are_converted(gpu, own, other, layout):
    fp8 = other if other.startswith("float8") else None
    for keep_dense in (False, True):
        a = sparse(own, keep_dense=keep_dense)
        for left, right in on_both_sides(a, (K, N + 1), other, layout):
            named = {"b_dtype": fp8} if left is a else {"a_dtype": fp8}
            told, run = told_and_run(gpu, left, right, **named)
            assert told == run


ROWS, COLUMNS = np.ones((N, 1), np.float32), np.ones(M, np.float32)


@pytest.mark.parametrize(
    "options",
    [
        {"epilogue": s24.Epilogue(bias=on_gpu(COLUMNS), activation="relu")},
        {"epilogue": s24.Epilogue(bias=on_gpu(ROWS))},
        {"epilogue": s24.Epilogue(aux="like the result")},
        {"alpha": 2.0},
        {"beta": 1.0, "c": "like the result"},
        {"scales": (on_gpu(ROWS), 2.0)},
        {"dtype": "float32"},
        {"algorithm": "dense"},
        {"fast_accumulation": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_explain_sees_the_options_of_a_call(gpu, options, batch):
    result = dense((*batch, N, M), "float16")
    if options.get("c"):
        options = {**options, "c": result}
    if getattr(options.get("epilogue"), "aux", None) is not None:
        options = {**options, "epilogue": s24.Epilogue(aux=result)}
    told, run = told_and_run(gpu, dense((*batch, N, K), "float16"), sparse().T, **options)
    assert told == run


@pytest.mark.parametrize("layout", ["C", "F", "padded", "off"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_explain_sees_where_the_result_goes(gpu, layout, batch):
    a = sparse()
    for (left, right), shape in zip(
        on_both_sides(a, (*batch, K, N), "float16", "C"), [(M, N), (N, M)], strict=True
    ):
        out = dense((*batch, *shape), "float16", layout)
        told, run = told_and_run(gpu, left, right, out)
        assert told == run


@pytest.mark.parametrize("shape", [(M, K), (K, M + 1), (33, 40), (2, 7)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("n", [1, 3, 16])
def test_advice_is_of_the_product_of_a_layer(gpu, monkeypatch, shape, dtype, n):
    a = _dispatch.Operand24(None, None, dense(shape, dtype), shape, _dtypes.lookup(dtype))
    call = NO_OPTIONS._replace(other_dtype=dtype)
    with pytest.raises(Stop):
        _product.multiply(a.transposed(), dense((n, shape[1]), dtype), None, call, from_left=True)
    planned, fastest = [], _planner.fastest_able

    def recorded(problem, *of, **how):
        planned.append(problem)
        return fastest(problem, *of, **how)

    monkeypatch.setattr(_planner, "fastest_able", recorded)
    s24.advise(shape, n, dtype)
    assert planned == gpu


@pytest.fixture
def on_cpu(monkeypatch):
    """The names of the products that ran on the CPU, as `explain` calls them."""
    ran = []
    homes = {
        "cpu_sparse": (cpu, "matmul"), "cpu_dense": (cpu, "dense_matmul"),
        "cpu_dense, decompressed": (cpu, "decompress_matmul"), "cpu_n_m": (n_m_on_cpu, "along"),
        "dense": (n_m_products.n_m_parts, "narrowed"), "dense, by blocks": (cpu, "matmul_across"),
        "dense, by blocks of n:m": (n_m_on_cpu, "across"),
        "cpu_n_m, row by row": (n_m_on_cpu, "rows_by_rows"),
        "cpu_sparse, row by row": (cpu, "add_rows"),
    }  # fmt: skip

    def counted(name, product):
        return lambda *of, **how: (ran.append(name.partition(",")[0]), product(*of, **how))[1]

    for name, (module, attribute) in homes.items():
        monkeypatch.setattr(module, attribute, counted(name, getattr(module, attribute)))
    return ran


def check_on_cpu(ran, a, b, **options):
    """The product that is told of runs, and again at a second call, which is a replay."""
    ran.clear()
    for sparse in (a, b):
        getattr(sparse, "_plans", {}).clear()  # of stacks, too, which may run as one matrix
    told = s24.explain(a, b, **options)
    assert not ran
    for _ in range(2):
        s24.matmul(a, b, **options)
    told_of = {"dense": ("dense", "cpu_dense"), "none": ()}.get(told.chosen, (told.chosen,))
    assert set(ran) <= set(told_of)
    assert bool(ran) == (told.chosen != "none")


SIZES = [
    (4, 64, 20), (64, 64, 8), (64, 64, 300), (200, 96, 1), (5, 7, 3), (0, 8, 3), (8, 0, 3),
    (8, 8, 0),
]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("keep_dense", [False, True])
def test_explain_names_the_product_of_the_cpu(on_cpu, size, dtype, keep_dense):
    m, k, n = size
    a = s24.compress(np.eye(m, k).astype(_dtypes.numpy_dtype(dtype)), keep_dense=keep_dense)
    for other in (dtype, "float64"):
        b = np.ones((k, n), _dtypes.numpy_dtype(other))
        for left, right in ((a, b), (b.T, a.T), (a.T, np.ones((m, n), b.dtype)), (a, b[None])):
            check_on_cpu(on_cpu, left, right)
        tokens = np.ones((5, n, k), b.dtype)
        check_on_cpu(on_cpu, tokens, a.T)
        bias = s24.Epilogue(bias=np.ones((n, 1)))
        check_on_cpu(on_cpu, tokens, a.T, epilogue=bias)
        check_on_cpu(on_cpu, a, b, algorithm="dense", dtype="float32")
    stack = s24.compress(np.zeros((3, m, k), _dtypes.numpy_dtype(dtype)), keep_dense=keep_dense)
    check_on_cpu(on_cpu, stack, np.ones((k, n), stack.dtype))


@pytest.mark.parametrize("pattern", [(1, 4), (4, 8), (6, 8), (7, 8)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n", [1, 64, 300])
def test_explain_names_the_product_of_other_patterns(on_cpu, pattern, dtype, n):
    row = _dtypes.numpy_dtype(dtype)
    a = s24.compress(np.ones((32, 64), row), pattern=pattern, on_excess="prune")
    for b in (np.ones((64, n), row), np.ones((64, n), np.float64), np.ones((2, 64, n), row)):
        check_on_cpu(on_cpu, a, b)
        check_on_cpu(on_cpu, b.mT, a.T)
        check_on_cpu(on_cpu, a.copy(), b, dtype="float32")  # which remembers no product
    check_on_cpu(on_cpu, a.T, np.ones((32, n), row))
    two_four = s24.random((64, 64), dtype=dtype, rng=0)
    check_on_cpu(on_cpu, a, two_four)
    check_on_cpu(on_cpu, two_four, a.T)


@pytest.mark.parametrize("name", ["sparse_wgma", "sparse wgmma/128x256x64", ""])
def test_a_misspelt_algorithm_is_told_as_such_whichever_way_an_array_is_stored(gpu, name):
    a, b = sparse(), dense((M, N), "float16")
    for call in (s24.matmul, s24.explain):
        with pytest.raises(s24.ArgumentError, match="algorithm must be 'auto' or one of sparse_wg"):
            call(a.mT, b, algorithm=name)
        with pytest.raises(s24.UnsupportedError, match=r"sparse_mma cannot.*stored 2:4"):
            call(a.mT, b, algorithm="sparse_mma")
