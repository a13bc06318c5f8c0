"""What surrounds the plain product, added to ``gemm.json``.

    python tests/bench/bench_gemm_variants.py [--sets epilogues orders eight_bit tf32 float32]

Epilogues and orders run at 8192 x 8192 x 8192.  ``plain_us`` is our product without the epilogue,
``best_order_us`` that in the order that the layer benchmark uses, both timed in the same
rounds.  An operand in an order that the instruction lacks is transposed inside the time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cupy as cp
import numpy as np
import torch
from bench_gemm import STEMS, TORCH, as_cupy, operands
from harness import Contender, case, race, to_torch, write_suite
from machine import needs_gpus

import sparse24 as s24
from sparse24 import _dtypes
from sparse24.formats import tensor_float

M = K = N = 8192
ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu")


def timed(calls: dict, **torch_calls) -> dict[str, Contender]:
    contenders = {name: Contender([call]) for name, call in calls.items()}
    for name, call in torch_calls.items():
        contenders[name] = Contender([call], library="torch")
    race(contenders)
    return contenders


def checked(got, want: torch.Tensor) -> float:
    """Relative error of the first rows; raises if it is not that of rounding."""
    got = to_torch(got, torch.bfloat16 if got.dtype.name == "bfloat16" else None)
    rows = got[:32].double()
    error = float((rows - want[:32]).norm() / want[:32].norm())
    if not error < 2e-2:
        raise AssertionError(f"wrong result: relative error {error}")
    return error


def epilogues(name: str = "bfloat16") -> list[dict]:
    """Bias and activation of a layer, beside cuBLAS with its own fused bias and gelu."""
    a, pruned, w, x = operands(M, K, N, name)
    tokens, weight = as_cupy(x), a.T
    y = cp.empty((N, M), _dtypes.numpy_dtype(name))
    bias = cp.random.standard_normal(M, dtype=cp.float32)
    bias_t = torch.from_dlpack(bias).to(TORCH[name])
    exact = x[:32].double() @ pruned.double().T + torch.from_dlpack(bias).double()
    functions = {
        None: lambda z: z, "relu": torch.relu, "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }  # fmt: skip
    calls, errors = {"plain": lambda: s24.matmul(tokens, weight, y)}, {}
    for kind in ACTIVATIONS:
        epilogue = s24.Epilogue(bias=bias, activation=kind)
        call = lambda epilogue=epilogue: s24.matmul(tokens, weight, y, epilogue=epilogue)  # noqa: E731
        call()
        errors[kind] = checked(y, functions[kind](exact))
        calls[kind or "identity"] = call
    fused = lambda: torch._addmm_activation(bias_t, x, w.t(), use_gelu=True)  # noqa: E731
    found = timed(calls, cublas=fused)
    kernel = s24.explain(tokens, weight, epilogue=s24.Epilogue(bias=bias)).chosen
    rows = []
    for kind in ACTIVATIONS:
        rivals = {"cublas": found["cublas"]} if kind == "gelu_tanh" else {}
        rows.append(
            case(
                f"{name} {M}x{K}x{N}, bias" + (f" and {kind}" if kind else ""),
                ours=found[kind or "identity"], kernel=kernel, rivals=rivals, m=M, k=K, n=N,
                dtype=name, error=errors[kind], plain_us=round(found["plain"].us, 3),
            )
        )  # fmt: skip
    return rows


def orders(name: str, out_name: str) -> list[dict]:
    """A @ b with b and the result in either order; b of 8-bit types may need a transpose."""
    a, pruned, _, x = operands(M, K, N, name)
    exact = pruned[:32].double() @ x.double().T
    by_columns = as_cupy(x).T
    by_rows = cp.ascontiguousarray(by_columns)
    results = {o: cp.empty((M, N), _dtypes.numpy_dtype(out_name), order=o) for o in "CF"}
    options = {"dtype": out_name, "b_dtype": name}
    calls, errors, kernels = {}, {}, {}
    for b_order, b in (("column", by_columns), ("row", by_rows)):
        for out_order, out in (("column", results["F"]), ("row", results["C"])):
            key = f"b by {b_order}, result by {out_order}"
            call = lambda b=b, out=out: s24.matmul(a, b, out, **options)  # noqa: E731
            call()
            errors[key] = checked(cp.ascontiguousarray(out), exact)
            kernels[key] = s24.explain(a, b, out, **options).chosen
            calls[key] = call
    found = timed(calls)
    best = found["b by column, result by column"].us
    return [
        case(
            f"{name} {M}x{K}x{N}, {key}", ours=found[key], kernel=kernels[key], rivals={}, m=M,
            k=K, n=N, dtype=name, error=errors[key], best_order_us=round(best, 3),
        )
        for key in calls
    ]  # fmt: skip


def tf32() -> list[dict]:
    """float32 at 1:2 in TF32 beside cuBLAS in TF32."""
    rows = []
    for m, k, n in ((4096, 4096, 4096), (8192, 8192, 8192), (14336, 4096, 4096)):
        w, x = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        a = s24.compress(w, pattern=(1, 2), on_excess="prune")
        pruned = to_torch(a.toarray()).contiguous()
        b = as_cupy(x).T
        out = cp.empty((n, m), np.float32).T
        packed = tensor_float.TensorFloat(a.values, a.indices, a.shape)
        packed.multiply(b, out)
        exact = pruned[:32].double() @ x.double().T
        error = checked(cp.ascontiguousarray(out[:32]), exact)
        torch.backends.cuda.matmul.allow_tf32 = True
        y = torch.empty(n, m, device="cuda")
        found = timed(
            {"ours": lambda packed=packed, b=b, out=out: packed.multiply(b, out)},
            cublas=lambda x=x, w=w, y=y: torch.mm(x, w.t(), out=y),
        )
        torch.backends.cuda.matmul.allow_tf32 = False
        rows.append(
            case(
                f"TF32 at 1:2 {m}x{k}x{n}", ours=found["ours"], kernel="sparse_wgmma",
                rivals={"cublas": found["cublas"]}, m=m, k=k, n=n, dtype="float32", error=error,
            )
        )  # fmt: skip
    return rows


FLOAT32_SHAPES = (
    (4096, 4096, 64), (4096, 4096, 512), (4096, 4096, 4096), (14336, 4096, 1024),
    (8192, 8192, 8192),
)  # fmt: skip


def float32() -> list[dict]:
    """float32 at 2:4 beside cuBLAS in FP32, and the error of both."""
    rows = []
    for m, k, n in FLOAT32_SHAPES:
        w, x = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        a = s24.compress(w, on_excess="prune")
        tokens, y = as_cupy(x), cp.empty((n, m), np.float32)
        s24.matmul(tokens, a.T, y)
        pruned = to_torch(a.toarray())
        exact = x[:32].double() @ pruned.double().T
        error = checked(y, exact)
        z = torch.mm(x, pruned.t())
        cublas_error = float((z[:32].double() - exact).norm() / exact.norm())
        found = timed(
            {"ours": lambda a=a, t=tokens, y=y: s24.matmul(t, a.T, y)},
            cublas=lambda x=x, w=w, z=z: torch.mm(x, w.t(), out=z),
        )
        rows.append(
            case(
                f"float32 {m}x{k}x{n}", ours=found["ours"],
                kernel=s24.explain(tokens, a.T).chosen, rivals={"cublas": found["cublas"]},
                m=m, k=k, n=n, dtype="float32", error=error, cublas_error=cublas_error,
            )
        )  # fmt: skip
    return rows


SETS = {
    "epilogues": epilogues,
    "orders": lambda: orders("bfloat16", "bfloat16"),
    "eight_bit": lambda: orders("float8_e4m3fn", "bfloat16") + orders("int8", "bfloat16"),
    "tf32": tf32,
    "float32": float32,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    needs_gpus()
    for name in arguments.sets:
        rows = SETS[name]()
        for row in rows:
            beside = {k: v for k, v in row.items() if k.endswith("_us")} | row["rivals"]
            print(row["name"], beside, row["ours_kernel"], flush=True)
        write_suite("gemm", rows, stems=(*STEMS, "sparse_split", "transpose"), out=arguments.out)


if __name__ == "__main__":
    main()
