"""`Sparse24Tensor` in files, in other processes, and as an array of sparse24."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from file_cases import FORMATS  # noqa: E402

import sparse24 as s24  # noqa: E402
from sparse24 import torch as st  # noqa: E402
from sparse24._errors import DTypeError  # noqa: E402

TYPES = ["float32", "float16", "bfloat16", "float64", "int8", "float8_e4m3fn"]


def matrix(dtype="float32", shape=(9, 22)):
    x = torch.randint(-8, 9, shape).float()
    return s24.prune(x).to(getattr(torch, dtype))


def same(a, b):
    return torch.equal(a.to_dense().double(), b.to_dense().double()) and a.dtype == b.dtype


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_a_state_with_packed_weights_is_loaded_as_weights_only(tmp_path, dtype, turned):
    a = st.to_sparse_semi_structured(matrix(dtype))
    a = a.t() if turned else a
    torch.save({"weight": a}, tmp_path / "a.pt")
    again = torch.load(tmp_path / "a.pt", weights_only=True)["weight"]
    assert same(again, a)
    assert again.shape == a.shape
    if not dtype.startswith("float8"):  # which torch itself does not unpickle
        assert same(pickle.loads(pickle.dumps(a)), a)
    assert same(copy.copy(a), a)


def test_a_matrix_without_memory_is_not_saved_as_an_array(tmp_path):
    nothing = st.to_sparse_semi_structured(matrix()).to("meta")
    for save in (s24.save_safetensors, s24.save_npz):
        with pytest.raises(DTypeError, match=r"one on the device 'meta'; load its elements first"):
            save(tmp_path / "a", {"weight": nothing})


@pytest.mark.parametrize("turned", [False, True])
def test_the_axes_of_expand_are_stored(tmp_path, turned):
    a = st.to_sparse_semi_structured(matrix())
    wide = (a.t() if turned else a).expand(3, 2, -1, -1)
    torch.save(wide, tmp_path / "a.pt")
    again = torch.load(tmp_path / "a.pt")
    for new in (again, pickle.loads(pickle.dumps(wide)), copy.copy(wide), again.half().float()):
        assert new.shape == wide.shape
        assert torch.equal(new.to_dense(), wide.to_dense())


def test_a_file_names_what_is_public(tmp_path):
    torch.save(st.to_sparse_semi_structured(matrix()), tmp_path / "a.pt")
    code = (
        "import sys, torch\n"
        f"file = {str(tmp_path / 'a.pt')!r}\n"
        "print(torch.serialization.get_unsafe_globals_in_checkpoint(file))\n"
        "print(torch.load(file, weights_only=False).shape)\n"
        "print(torch.load(file, weights_only=True).shape)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    shape = str(torch.Size((9, 22)))
    assert ran.stdout.splitlines() == ["['sparse24.torch.restored']", shape, shape]


def test_a_file_holds_no_zeros(tmp_path):
    w = matrix("float16", (256, 512))
    torch.save(w, tmp_path / "dense.pt")
    torch.save(st.to_sparse_semi_structured(w), tmp_path / "packed.pt")
    sizes = [(tmp_path / f"{name}.pt").stat().st_size for name in ("packed", "dense")]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("transposable", [False, True])
def test_a_layer_with_a_packed_parameter_is_loaded(tmp_path, transposable):
    layer, x = torch.nn.Linear(32, 16), torch.randn(4, 32)
    packed = st.sparsify24(layer.weight).detach() if transposable else s24.compress(
        layer.weight, on_excess="prune")  # fmt: skip
    packed = packed if transposable else st.to_sparse_semi_structured(packed)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    torch.save(layer, tmp_path / "layer.pt")
    other = torch.nn.Linear(32, 16)
    other.load_state_dict(torch.load(tmp_path / "state.pt"), assign=True)
    whole = torch.load(tmp_path / "layer.pt", weights_only=False)
    for net in (other, whole, copy.deepcopy(layer)):
        assert isinstance(net.weight, torch.nn.Parameter)
        assert len(net.weight.parts) == len(packed.parts)
        assert torch.equal(net(x), layer(x))
    assert not whole.weight.requires_grad
    shape = torch.load(tmp_path / "state.pt", map_location="meta")["weight"].shape
    assert shape == (16, 32)


@pytest.mark.parametrize(("part", "value"), [(1, 0xFF), (1, 0x00)])
def test_a_damaged_file_is_refused(tmp_path, part, value):
    a = st.to_sparse_semi_structured(matrix())
    a.parts[part].fill_(value)
    torch.save(a, tmp_path / "a.pt")
    with pytest.raises(s24.FormatError, match="code"):
        torch.load(tmp_path / "a.pt")


@pytest.mark.parametrize("dtype", TYPES)
def test_arrays_become_tensors_and_tensors_arrays(dtype):
    w = matrix(dtype)
    A = s24.compress(w)
    a = st.to_sparse_semi_structured(A)
    assert torch.equal(a.to_dense().double(), w.double())
    assert a.dtype == w.dtype
    assert torch.equal(st.to_sparse_semi_structured(A.T).to_dense().double(), w.t().double())
    back = a.to_array()
    assert np.shares_memory(back.values.view(np.uint8), A.values.view(np.uint8))
    np.testing.assert_array_equal(back.toarray(), A.toarray())
    np.testing.assert_array_equal(a.t().to_array().toarray(), A.toarray().T)


def test_a_state_with_packed_weights_is_saved_as_arrays(tmp_path, suffix, device):
    layer = torch.nn.Linear(32, 16).to(device)
    layer.weight = torch.nn.Parameter(st.to_sparse_semi_structured(s24.prune(layer.weight)))
    turned, both = layer.weight.detach().t(), st.sparsify24(torch.randn(8, 12, device=device))
    state = {**layer.state_dict(), "turned": turned, "both": both}
    save, load = FORMATS[suffix]
    save(tmp_path / f"a.{suffix}", state)
    loaded = load(tmp_path / f"a.{suffix}")
    assert loaded.keys() == state.keys()
    for name in ("weight", "turned", "both"):
        assert isinstance(loaded[name], s24.Sparse24Array)
        np.testing.assert_array_equal(loaded[name].toarray(), state[name].to_dense().cpu())
    assert (loaded["turned"].axis, loaded["both"].transposable) == (-2, True)
    np.testing.assert_array_equal(loaded["bias"], layer.bias.detach().cpu())
    save(tmp_path / f"a.{suffix}", layer.weight)
    assert load(tmp_path / f"a.{suffix}").shape == (16, 32)


def test_a_tensor_that_learns_is_an_array_without_a_gradient():
    packed = torch.nn.Parameter(st.to_sparse_semi_structured(matrix()))
    assert packed.to_array().shape == (9, 22)


def test_what_is_no_matrix_is_refused():
    with pytest.raises(s24.ShapeError, match=r"must be a matrix or a stack .*A\[i\]"):
        st.to_sparse_semi_structured(s24.random((2, 3, 4, 8), rng=0))
    with pytest.raises(s24.ShapeError, match="before expand"):
        st.to_sparse_semi_structured(matrix()).expand(3, -1, -1).to_array()


def test_an_array_whose_check_was_put_off_is_checked():
    A = s24.compress(np.ones((4, 8), np.float32), check="deferred")
    with pytest.raises(s24.PatternError, match="more than 2"):
        st.to_sparse_semi_structured(A)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transposable", [False, True])
def test_a_packed_matrix_is_loaded_on_any_device(tmp_path, device, dtype, transposable):
    x = torch.randn(20, 40).to(getattr(torch, dtype)).to(device)
    packed = st.sparsify24(x) if transposable else st.to_sparse_semi_structured(s24.prune(x))
    torch.save(packed, tmp_path / "a.pt")
    for place in ("cpu", device):
        again = torch.load(tmp_path / "a.pt", map_location=place)
        assert again.device.type == place
        assert len(again.parts) == len(packed.parts)
        assert torch.equal(again.to_dense().cpu(), packed.to_dense().cpu())
        assert torch.equal(again.t().to_dense().cpu(), packed.to_dense().t().cpu())
    array = packed.to_array()
    assert array.device.startswith(device)
    again = st.to_sparse_semi_structured(array)
    b = torch.randn(40, 8).to(x)
    assert torch.equal(again @ b, packed @ b)
