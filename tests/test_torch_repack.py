"""Operators of the torch bridge that repeat a launch: the same bits as the first time."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sparse24 import torch as st  # noqa: E402
from sparse24._torch import factors, on_cpu, ops  # noqa: E402
from sparse24._torch import repack as torch_repack  # noqa: E402
from sparse24._torch import replay as torch_replay  # noqa: E402
from sparse24._torch import samples as torch_samples  # noqa: E402

HALF = torch.float16
HOW = {
    "magnitude": lambda x: (x, None, False),
    "by tiles": lambda x: (x, None, True),
    "a mask": lambda x: (x, ops.keep(x, False), False),
    "a mask for both axes": lambda x: (x, ops.keep(x, True), True),
}
LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "part of wider rows": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "off by an element": lambda x: torch.cat([x[:1, :1].expand(len(x), 1), x], 1)[:, 1:],
}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch):
    monkeypatch.setattr(torch_replay, "_known", {})


def bits(parts):
    """What was written of parts: rows may be padded, and nobody writes there."""
    return [part.contiguous().view(torch.uint8).cpu() for part in parts]


def trimmed(parts, m, k):
    widths = [2 * -(-columns // 4) for columns in (k, m)]
    return [p if p.ndim == 3 or p.dtype == torch.uint8 else p[:, : widths[i // 2]]
            for i, p in enumerate(parts)]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(64, 128), (12, 20), (37, 53), (1, 4)])
def test_packing_again_gives_the_same_bits(device, how, layout, dtype, shape):
    x, y = (LAYOUTS[layout](torch.randn(shape, device=device).to(dtype)) for _ in range(2))
    first, other = (bits(trimmed(ops.pack(*HOW[how](z)), *shape)) for z in (x, y))
    torch_replay._known.clear()
    for z, want in ((y, other), (x, first), (y, other), (LAYOUTS[layout](y.clone()), other)):
        assert all(map(torch.equal, bits(trimmed(ops.pack(*HOW[how](z)), *shape)), want))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(64, 128), (12, 20), (37, 53), (1, 4)])
def test_stacks_are_packed_as_their_matrices(device, how, dtype, shape):
    for _ in range(3):
        x = torch.randn(3, *shape, device=device).to(dtype)
        parts, sides = ops.pack(*HOW[how](x)), (shape, shape[::-1])
        for i, matrix in enumerate(x):
            alone = ops.pack(*HOW[how](matrix))
            for side, start in zip(sides, range(0, len(parts), 2)):
                got = ops.dense(parts[start : start + 2], *side)[i]
                assert torch.equal(got, ops.dense(alone[start : start + 2], *side))


@pytest.mark.gpu
@pytest.mark.parametrize("how", HOW)
def test_packing_is_prepared(how):
    given = HOW[how](torch.randn(64, 128, device="cuda", dtype=HALF))
    assert torch_replay.find(torch_repack.packing_key(*given)) is None
    parts = ops.pack(*given)
    assert torch_replay.find(torch_repack.packing_key(*given)) is not None
    ops.dense(parts, 64, 128)
    assert torch_replay.find(torch_repack.unpacking_key(parts, 64, 128)) is not None


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("shape", [(64, 128), (12, 20), (37, 53), (0, 8)])
def test_unpacking_again_gives_the_same_bits(device, dtype, shape):
    for _ in range(3):
        x = torch.randint(-9, 10, shape, device=device).to(dtype)
        want = torch.where(ops.keep(x, False), x, torch.zeros_like(x))
        assert torch.equal(ops.dense(ops.pack(x, None, False), *shape), want)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_keeps_its_type_the_first_time_too(device, dtype):
    x = torch.randint(-9, 10, (64, 128), device=device).to(dtype)
    for _ in range(2):
        parts = ops.pack(x, None, False)
        values = ops.like(parts, 64, 128, x)
        dense, masked = ops.dense(parts, 64, 128), ops.masked_gradient(parts, 64, 128, x, None, 0.0)
        assert [y.dtype for y in (parts[0], *values, dense, masked)] == [dtype] * 4
        want = torch.where(ops.keep(x, False), x.float(), 0.0)
        assert torch.equal(dense.float(), want)
        assert torch.equal(masked.float(), want)


@pytest.mark.parametrize("types", [(HALF, HALF), (HALF, torch.bfloat16), (torch.int8, torch.int8)])
@pytest.mark.parametrize("shape", [(64, 128), (37, 53)])
@pytest.mark.parametrize("form", ["x@A", "At@b"])
def test_products_across_the_groups(device, types, shape, form):
    for _ in range(2):
        x = torch.randint(-3, 4, shape, device=device).to(types[0])
        parts = ops.pack(x, None, False)
        whole = ops.dense(parts, *shape).double()
        b = torch.randint(-3, 4, (shape[0], 16), device=device).to(types[1])
        given = b.t().contiguous() if form == "x@A" else b
        got = ops.product(parts, *shape, given, None, form)
        want = given.double() @ whole if form == "x@A" else whole.t() @ given.double()
        assert torch.equal(got.double(), want)
        assert got.is_contiguous()


@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64])
def test_a_bias_of_any_stride_and_type(device, dtype):
    a = st.to_sparse_semi_structured(torch.eye(64, 128, device=device, dtype=dtype))
    for step in (1, 2, 1, 2):
        x = torch.randint(-3, 4, (16, 128), device=device).to(dtype)
        bias = torch.arange(64 * step, device=device).to(dtype)[::step]
        assert torch.equal(torch.addmm(bias, x, a.t()), x[:, :64] + bias)


@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64])
@pytest.mark.parametrize("added", [HALF, torch.float32, torch.float64])
def test_a_bias_of_another_type_than_the_operands(device, dtype, added):
    parts = ops.pack(torch.eye(64, 128, device=device, dtype=dtype), None, False)
    bias = torch.arange(64, device=device).to(added)
    for _ in range(2):
        x = torch.randint(-3, 4, (16, 128), device=device).to(dtype)
        y = ops.product(parts, 64, 128, x, bias, "x@At")
        assert y.dtype is dtype
        assert torch.equal(y.double(), x[:, :64].double() + bias.double())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(64, 128), (256, 512), (37, 53)])
@pytest.mark.parametrize("n", [1, 16, 40, 512])
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_launches_move_to_other_addresses(shape, n, dtype):
    m, k = shape
    bias = torch.arange(m, device="cuda", dtype=torch.float32)
    held = []
    for how in HOW:
        for _ in range(4):
            weight = torch.randint(-3, 4, shape, device="cuda").to(dtype)
            x = torch.randint(-3, 4, (n, k), device="cuda").to(dtype)
            given = HOW[how](weight)
            parts = ops.pack(*given)
            whole = ops.dense(parts, m, k)
            y = ops.product(parts, m, k, x, bias, "x@At")
            if given[1] is not None:
                assert torch.equal(whole, weight * given[1])
            assert torch.equal(y.double(), x.double() @ whole.double().t() + bias.double())
            held.append((weight, x, parts, whole, y))  # so that others get new addresses
    prepared = [one._launches for one in torch_replay._known.values() if hasattr(one, "_launches")]
    assert len(prepared) >= len(HOW)
    for one in prepared:
        assert None not in one._layout._known.values()  # none is laid out at each address


@pytest.mark.gpu
def test_streams_and_addresses_have_launches_of_their_own():
    weight = torch.randint(-3, 4, (64, 128), device="cuda").to(HALF)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    held = []
    for stream in streams * 2:
        with torch.cuda.stream(stream):
            x = torch.randint(-3, 4, (8, 128), device="cuda").to(HALF)
            parts = ops.pack(weight, None, True)
            y = ops.product(parts, 64, 128, x, None, "x@At")
            held.append((x, parts, y, ops.dense(parts, 64, 128)))
    torch.cuda.synchronize()
    for x, _, y, whole in held:
        assert torch.equal(y, x @ whole.t())


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("decay", [None, 0.0, 0.25])
@pytest.mark.parametrize("shape", [(64, 128), (37, 53)])
def test_masked_gradients_again(device, dtype, decay, shape):
    for _ in range(3):
        weight, gradient = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        parts, keep = ops.pack(weight, None, False), ops.keep(weight, False)
        given = (None, 0.0) if decay is None else (weight, decay)
        got = ops.masked_gradient(parts, *shape, gradient, *given)
        added = torch.zeros_like(weight) if decay is None else gradient + decay * weight
        want = torch.where(keep, gradient, added)
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("turned", [False, True])
def test_sampling_again_draws_by_the_clock(device, dtype, turned):
    x, y = (torch.randn(96, 64, device=device).to(dtype) for _ in range(2))
    x, y = (x.t(), y.t()) if turned else (x, y)
    first = [bits(trimmed(torch_samples.pack_sample(z, 5, torch.tensor(t)), *x.shape))
             for z, t in ((x, 0), (y, 0), (x, 1))]  # fmt: skip
    assert not all(map(torch.equal, first[0], first[2]))
    for z, t, want in ((y, 0, first[1]), (x, 1, first[2]), (x, 0, first[0]), (y.clone(), 0, None)):
        again = bits(trimmed(torch_samples.pack_sample(z, 5, torch.tensor(t)), *x.shape))
        assert all(map(torch.equal, again, first[1] if want is None else want))
    torch_replay._known.clear()
    again = bits(trimmed(torch_samples.pack_sample(x, 5, torch.tensor(1)), *x.shape))
    assert all(map(torch.equal, again, first[2]))


def test_autocast_does_not_narrow_products_across_the_groups(device, monkeypatch):
    monkeypatch.setattr(factors, "_multiplies_densely", lambda a, dense: True)
    monkeypatch.setattr(on_cpu, "multiplied", lambda *packed: None)  # no array, as on a GPU
    x = torch.randn(64, 128, device=device)
    parts = ops.pack(x, None, False)
    b = torch.randn(64, 16, device=device)
    want = ops.product(parts, 64, 128, b, None, "At@b")
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(ops.product(parts, 64, 128, b, None, "At@b"), want)


class OnGpu:
    """A tensor's layout on a GPU of a number, at an address."""

    is_cuda, shape, dtype, stride = True, (64, 64), HALF, lambda _: (64, 1)

    def __init__(self, index: int = 0, address: int = 1 << 20):
        self.device, self.data_ptr = torch.device("cuda", index), lambda: address


def test_a_known_product_is_of_both_operands_devices():
    key = lambda *operands: torch_replay.product_key(*operands, None, 64, 64, "x@At")  # noqa: E731
    assert key(OnGpu(), OnGpu()) == key(OnGpu(), OnGpu())
    others = [(0, 1), (1, 0), (1, 1)]
    assert len({key(OnGpu(), OnGpu()), *(key(OnGpu(i), OnGpu(j)) for i, j in others)}) == 4
    assert key(OnGpu(address=8), OnGpu()) != key(OnGpu(), OnGpu())
