"""What sparse24.torch says to arguments of another kind; it changes nothing then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from data_parallel import model  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import _arrays  # noqa: E402
from sparse24 import schedule as S  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import (  # noqa: E402
    ArgumentError,
    DeviceError,
    DTypeError,
    UnsupportedError,
)
from sparse24._torch import samples as torch_samples  # noqa: E402


def test_what_is_no_tensor_is_named():
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    with pytest.raises(DTypeError, match=r"weight must be a torch\.Tensor, got ndarray"):
        st.linear(x, weight.numpy())
    with pytest.raises(DTypeError, match=r"mask must be a torch\.Tensor, got ndarray"):
        st.linear(x, weight, mask=s24.mask(weight.numpy()))
    with pytest.raises(DTypeError, match=r"got Sparse24Array; sparse24\.linear and sparse24\.gr"):
        st.linear(x, s24.compress(weight, on_excess="prune"))
    with pytest.raises(DTypeError, match=r"mask must be a .*, got ndarray; use torch\.as_tensor"):
        st.SparseLinear(8, 4).set_mask(s24.mask(weight.numpy()))
    with pytest.raises(ArgumentError, match="decay must be at least 0 and finite, got nan"):
        st.SparseLinear(8, 4, decay=float("nan"))
    with pytest.raises(ArgumentError, match="seed must be a whole number from 0 on, got None"):
        st.SparseLinear(8, 4, seed=None)
    with pytest.raises(ArgumentError, match=r"decay must be a number, got '0\.1'"):
        st.linear(x, weight, decay="0.1")
    with pytest.raises(ArgumentError, match=r"decay must be a number, got tensor\("):
        st.linear(x, weight, decay=torch.tensor(0.1 + 1j))
    with pytest.raises(ArgumentError, match=r"seed must be a whole number from 0 on, got 1\.5"):
        st.linear(x, weight, gradient="24sparse", seed=1.5)
    up = torch.randn(16, 8)
    with pytest.raises(DTypeError, match=r"down must be a torch\.Tensor, got ndarray"):
        st.feed_forward(x, up, up.numpy())
    with pytest.raises(DTypeError, match=r"up_bias must be a torch\.Tensor, got list"):
        st.feed_forward(x, up, up.T, [0.0] * 16)
    for make, name in (
        (st.sparsify24, "x"),
        (st.to_sparse_semi_structured, "original_tensor"),
    ):
        with pytest.raises(DTypeError, match=rf"^{name} must be a torch\.Tensor, got ndarray"):
            make(weight.numpy())


def test_what_is_no_model_or_scheduler_is_named():
    model = st.sparsify(torch.nn.Sequential(torch.nn.Linear(8, 8)), {"*": {}})
    weights = model.state_dict()
    for call in (lambda: st.sparsify(weights, {"*": {}}), lambda: st.desparsify(weights)):
        with pytest.raises(
            ArgumentError, match=r"model must be a torch\.nn\.Module, got OrderedDict"
        ):
            call()
    recipe = S.Recipe(S.OneShot(0.5))
    with pytest.raises(ArgumentError, match=r"scheduler must be a scheduler .* got Recipe\("):
        st.update_masks(model, recipe)
    with pytest.raises(ArgumentError, match=r"optimizer must be one of torch\.optim, got 0\.1"):
        st.update_masks(model, S.MaskScheduler(recipe), 0.1)


@pytest.mark.parametrize("layer", [None, 5, torch.ones(4, 8), torch.nn.Conv1d(4, 4, 1)])
def test_what_is_no_linear_layer_is_named(layer):
    with pytest.raises(ArgumentError, match=r"layer must be a torch\.nn\.Linear, got"):
        st.SparseLinear.from_dense(layer)


def test_a_lazy_layer_is_called_once_before():
    layer = torch.nn.LazyLinear(4)
    with pytest.raises(ArgumentError, match="a LazyLinear has none yet; call it once before"):
        st.SparseLinear.from_dense(layer)
    x = torch.randn(2, 8)
    layer(x)
    assert st.SparseLinear.from_dense(layer)(x).shape == (2, 4)


@pytest.mark.parametrize("options", [{}, {"soft": True}, {"sparse": "activation"}])
def test_a_layer_with_a_packed_weight_stays_as_it_is(options):
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).requires_grad_(False)
    packed = st.to_sparse_semi_structured(s24.prune(net[0].weight))
    net[0].weight = torch.nn.Parameter(packed, requires_grad=False)
    words = r"have a dense weight, .* by None in the rules .* weight\.to_dense\(\) first"
    with pytest.raises(ArgumentError, match=words):
        st.sparsify(net, {"*": options})
    with pytest.raises(ArgumentError, match=words):
        st.SparseExperts.from_dense([net[0]])
    assert not st.sparse_layers(net)
    st.sparsify(net, {"0": None, "*": options})
    assert list(st.sparse_layers(net)) == ["1"]


@pytest.mark.parametrize("wrong", ["no", 2, torch.ones(2, 2)])
@pytest.mark.parametrize("option", ["transposable", "soft"])
def test_flags_are_true_or_false(option, wrong):
    net = model()
    with pytest.raises(ArgumentError, match=f"{option} must be one of True, False, got"):
        st.sparsify(net, {"*": {option: wrong}})
    assert not st.sparse_layers(net)
    if option == "transposable":
        with pytest.raises(ArgumentError, match="transposable must be one of True, False, got"):
            st.linear(torch.randn(2, 8), torch.randn(4, 8), transposable=wrong)


def test_rules_have_names():
    with pytest.raises(ArgumentError, match=r"rules must map names to options.*got \{1: \{\}\}"):
        st.sparsify(model(), {1: {}})
    with pytest.raises(ArgumentError, match=r"rules\['\*'\] must be a mapping of options.*\{1: 2"):
        st.sparsify(model(), {"*": {1: 2}})


def test_what_else_has_a_state_is_no_scheduler_or_optimizer():
    net = st.sparsify(model(), {"*": {}})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scheduler = S.MaskScheduler(S.sr_ste())
    with pytest.raises(ArgumentError, match=r"scheduler must be a scheduler .* got SGD"):
        st.update_masks(net, optimizer, scheduler)
    with pytest.raises(ArgumentError, match=r"optimizer must be one of torch\.optim, got <Mask"):
        st.update_masks(net, scheduler, scheduler)
    assert scheduler.state is None
    assert all(layer.mask is None for layer in st.sparse_layers(net).values())


@pytest.mark.parametrize("clock", [5, 0.5, "x", torch.ones(()), torch.ones(2, dtype=torch.int64)])
def test_a_clock_is_a_tensor_of_one_number(clock):
    with pytest.raises(ArgumentError, match=r"clock must be a tensor of int64 with shape \(\)"):
        st.linear(torch.randn(4, 8), torch.randn(4, 8), gradient="24sparse", clock=clock)


def test_samples_are_not_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(_arrays, "is_torch", lambda x: True)
    with pytest.raises(UnsupportedError, match="the same samples at every replay; capture a step"):
        torch_samples._refuse_capture(SimpleNamespace(is_cuda=True))
    monkeypatch.undo()
    assert len(torch_samples.pack_sample(torch.ones(4, 8), 0, torch.tensor(1))) == 2  # on the CPU


@pytest.mark.gpu
def test_a_graph_of_sampled_gradients_is_refused():
    layer = st.SparseLinear(64, 32, device="cuda", dtype=torch.float16, gradient="ste_sampled")
    x = torch.randn(16, 64, device="cuda", dtype=torch.float16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        layer(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.graph(torch.cuda.CUDAGraph())
    with pytest.raises(UnsupportedError, match="sampled gradients cannot be captured"), graph:
        layer(x).sum().backward()
    torch.cuda.synchronize()
    layer(x).sum().backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_a_seed_and_a_decay_have_bounds():
    x, weight = torch.randn(4, 8), torch.randn(4, 8)
    with pytest.raises(ArgumentError, match="seed must be a whole number from 0 on, got -1"):
        st.linear(x, weight, seed=-1)
    for refused in (
        lambda **options: st.linear(x, weight, **options),
        lambda **options: st.SparseLinear(8, 4, **options),
    ):
        with pytest.raises(ArgumentError, match=r"seed must be less than 2\*\*63, got 9223372036"):
            refused(seed=2**63, gradient="24sparse")
    with pytest.raises(ArgumentError, match="decay must be at least 0 and finite, got inf"):
        st.linear(x, weight, decay=float("inf"))


def test_tensors_are_dense_and_on_one_device():
    x, weight, up = torch.randn(4, 8), torch.randn(4, 8), torch.randn(16, 8)
    for call, name in (
        (lambda: st.linear(x.to_sparse(), weight), "x"),
        (lambda: st.feed_forward(x, up.to_sparse(), up.T), "up"),
        (lambda: st.sparsify24(x.to_sparse()), "x"),
    ):
        with pytest.raises(DTypeError, match=rf"^{name} must be a dense .*sparse_coo; .*to_dense"):
            call()
    for call, name in (
        (lambda: st.linear(x, weight.to("meta")), "weight"),
        (lambda: st.linear(x, weight, mask=(weight > 0).to("meta")), "mask"),
        (lambda: st.feed_forward(x, up, up.T.to("meta")), "down"),
        (lambda: torch.no_grad()(st.SparseLinear(8, 4, device="meta"))(x), "weight"),
    ):
        with pytest.raises(DeviceError, match=f"^{name} must be on the device of x, cpu, got meta"):
            call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
def test_a_feed_forward_is_of_one_type(dtype):
    x, up, down = torch.ones(4, 8), torch.ones(16, 8), torch.ones(4, 16)
    with pytest.raises(DTypeError, match=rf"one floating-point type, got {dtype}, torch\.f"):
        st.feed_forward(x.to(dtype), up, down)
    with pytest.raises(DTypeError, match=rf"x, up and up_bias must be of .*float32, {dtype}; conv"):
        st.feed_forward(x, up, down, torch.ones(16).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.complex64])
def test_a_feed_forward_is_of_a_type_in_which_torch_computes(dtype):
    x, up, down = torch.ones(4, 8), torch.ones(16, 8), torch.ones(4, 16)
    floats = rf"^x must be of one of the types float16, .*, float64, got {dtype}; use .*x\.to\("
    with pytest.raises(DTypeError, match=floats):
        st.feed_forward(x.to(dtype), up.to(dtype), down)


@pytest.mark.filterwarnings("error")
def test_the_second_layer_of_a_feed_forward_is_of_real_numbers_that_kernels_multiply():
    x, up, down = torch.ones(4, 8), torch.ones(16, 8), torch.ones(4, 16)
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(DTypeError, match=rf"^down must be of one of .*, got {dtype}; use .*to"):
            st.feed_forward(x, up, down.to(dtype))
    with pytest.raises(DTypeError, match=r"^down_bias must hold real numbers, .* down_bias\.real"):
        st.feed_forward(x, up, down, None, torch.ones(4, dtype=torch.complex64))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("sparse", ["weight", "activation", "masked"])
@pytest.mark.parametrize("learns", [True, False])
def test_what_kernels_do_not_multiply_is_refused_in_training_and_inference(dtype, sparse, learns):
    layer, x = st.SparseLinear(8, 4, sparse=sparse), torch.ones(3, 8).to(dtype)
    error = rf"x must be of one of the types float16, .*, got {dtype}; use .*x\.to\(torch\.float32"
    with torch.set_grad_enabled(learns):
        with pytest.raises(DTypeError, match=error):
            layer(x)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(DTypeError, match=error):
            layer(x)  # which casts floats alone


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("learns", [False, True])
def test_nested_tensors_are_refused(layout, learns):
    x = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=layout)
    message = r"x must be a dense tensor, got a nested one; use torch\.nested\.to_padded_tensor"
    with torch.set_grad_enabled(learns), pytest.raises(DTypeError, match=message):
        st.SparseLinear(8, 4)(x)
    assert st.SparseLinear(8, 4)(torch.nested.to_padded_tensor(x, 0.0)).shape == (2, 3, 4)


@pytest.mark.parametrize("layer", [st.SparseLinear(8, 8), st.SparseExperts(2, 8, 8)])
def test_a_mask_is_boolean(layer):
    keep = layer.current_mask()
    for mask in (keep, None):
        layer.set_mask(mask)
        for wrong in (torch.rand(layer.weight.shape), keep.to(torch.uint8), layer.weight):
            with pytest.raises(DTypeError, match=f"mask must be boolean, got {wrong.dtype}; use"):
                layer.set_mask(wrong)
        assert (layer.current_mask() == keep).all()


@pytest.mark.parametrize("wrong", [[True], torch.ones(2), torch.ones(1), "no", None])
def test_what_is_on_or_off_is_no_array(wrong):
    x, weight, pruned = torch.ones(3, 8), torch.ones(2, 4, 8), s24.prune(torch.ones(4, 8))
    of_experts = lambda **given: st.grouped_linear(x, weight, offsets=[0, 1, 3], **given)  # noqa: E731
    for name, call in (
        ("bias", lambda **given: st.SparseLinear(8, 4, **given)),
        ("soft", lambda **given: st.SparseLinear(8, 4, **given)),
        ("transposable", lambda **given: st.SparseLinear(8, 4, **given)),
        ("bias", lambda **given: st.SparseExperts(2, 8, 4, **given)),
        ("gated", lambda **given: st.SparseExperts(2, 8, 4, **given)),
        ("gated", of_experts),
        ("transposable", lambda **given: st.linear(x, pruned, **given)),
        ("transposed", lambda **given: st.to_sparse_semi_structured(pruned, **given)),
    ):
        with pytest.raises(ArgumentError, match=f"^{name} must be one of True, False, got"):
            call(**{name: wrong})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_compiles_by_other_means_is_refused():
    net = torch.nn.Sequential(st.SparseLinear(8, 4))
    with pytest.raises(UnsupportedError, match=r"jit\.script .*use torch\.jit\.trace with") as told:
        torch.jit.script(net)
    assert "torch.jit.trace within torch.no_grad(), torch.export" in str(told.value)
    with torch.no_grad():
        traced = torch.jit.trace(net, torch.ones(3, 8))
        torch.testing.assert_close(traced(torch.ones(2, 8)), net(torch.ones(2, 8)))
    with pytest.raises(UnsupportedError, match=r"symbolic_trace .*use torch\.export"):
        torch.fx.symbolic_trace(net)
