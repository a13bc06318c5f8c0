"""8-bit weights and 16-bit tokens in `sparse_decode`: products, all byte values, its tiles."""

import pytest
from mixed_cases import (
    PAIRS,
    assert_every_byte_is_exact,
    assert_same_bits,
    check_epilogues_and_batches,
    problem,
    weight,
)
from product_cases import check, problem_of, random_dense

from sparse24.kernels import sparse_decode
from sparse24.kernels.sparse_decode_plan import tiles

gpu = pytest.mark.gpu
pytestmark = pytest.mark.stem("sparse_decode")


@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("n", [1, 48, 49, 500])
@pytest.mark.parametrize("capability", [90, 100, 120])
def test_takes_any_number_of_columns(stored, dtype, n, capability):
    wanted = problem(dtype=stored, b_dtype=dtype, n=n, compute_capability=capability)
    assert sparse_decode.refuses(wanted) is None
    found = sparse_decode.configs(wanted)
    assert found
    assert any(config.wgmma for config in found) == (capability == 90 and n > 1)
    for config in found:
        assert config.shared_memory(wanted) <= {120: 99}.get(capability, 227) << 10
        assert tiles(wanted, config) * config.m * config.n >= 4096 * n


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"b_dtype": "float32"}, "cannot be mixed"),
        ({"dtype": "float16"}, "cannot be mixed"),
        ({"dtype": "float16", "b_dtype": "int8"}, "cannot be mixed"),
        ({"compute_capability": 89}, "9.0"),
        ({"b_order": "row", "n": 9}, "copy it"),
        ({"k": 0}, "empty"),
    ],
    ids=str,
)
def test_refuses(fields, words):
    assert words in sparse_decode.refuses(problem(**fields))


def test_reads_half_the_bytes():
    chip = {"sms": 132, "clock_hz": 1.98e9, "bandwidth": 4.2e12}
    narrow, wide = problem(m=28672, k=8192), problem(m=28672, k=8192, dtype="bfloat16")
    first, second = (
        min(sparse_decode.predict(p, c, chip) for c in sparse_decode.configs(p))
        for p in (narrow, wide)
    )
    assert 0.5 < first / second < 0.75


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 24, 31, 40, 48, 49, 130])
@pytest.mark.parametrize("shape", [(200, 1030), (1, 4096), (16, 8), (77, 4100)], ids=str)
def test_columns(rng, shape, stored, dtype, n):
    a, b = weight(rng, shape, stored), random_dense(rng, (shape[1], n), dtype)
    for out_order, out in (("column", dtype), ("row", "float32"), ("strided", dtype)):
        check(sparse_decode, a, b, out, b_order="column", out_order=out_order)


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize("n", [8, 16])
@pytest.mark.parametrize("shape", [(200, 1030), (17, 4096), (16, 8), (77, 4100)], ids=str)
def test_rows(rng, shape, stored, dtype, n):
    a, b = weight(rng, shape, stored), random_dense(rng, (shape[1], n), dtype)
    for out_order in ("column", "row"):
        check(sparse_decode, a, b, dtype, b_order="row", out_order=out_order)


@gpu
@pytest.mark.parametrize("n", [3, 12, 20, 32, 35, 100])
@pytest.mark.parametrize(
    ("m", "stored", "dtype"),
    [(9000, "int8", "bfloat16"), *((300, *pair) for pair in PAIRS)],
)  # fmt: skip
def test_every_configuration(rng, m, stored, dtype, n):
    """Rings that end in the middle, and of the first pair more tiles than blocks."""
    a, b = weight(rng, (m, 2100), stored), random_dense(rng, (2100, n), dtype)
    for config in sparse_decode.configs(problem_of(a, b, "float32", b_order="column")):
        check(sparse_decode, a, b, "float32", config=config, b_order="column", out_order="column")


@gpu
@pytest.mark.parametrize(("stored", "dtype"), PAIRS)
@pytest.mark.parametrize(
    ("order", "n", "wgmma"), [("column", 8, False), ("row", 8, False), ("column", 40, True)]
)
def test_every_byte_is_widened_exactly(stored, dtype, order, n, wgmma):
    choose = lambda configs: next(c for c in configs if c.wgmma == wgmma)  # noqa: E731
    assert_every_byte_is_exact(sparse_decode, stored, dtype, order, n, choose)


@gpu
@pytest.mark.parametrize("n", [1, 8, 12, 20, 48, 70])
def test_epilogues_and_batches(rng, n):
    check_epilogues_and_batches(sparse_decode, rng, n)


@gpu
@pytest.mark.parametrize("n", [8, 64])
def test_same_bits_each_time(rng, n):
    assert_same_bits(sparse_decode, rng, n)
