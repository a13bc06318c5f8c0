"""Every kernel compiles for its chips, with the instructions it was written for, unspilled."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")

from sparse24._arrays import cupy_module
from sparse24._errors import CompileError
from sparse24._records import PLAIN, Problem
from sparse24.kernels import (
    epilogue,
    loader,
    sparse_decode,
    sparse_mma,
    sparse_skinny,
    sparse_tile,
    targets,
)

pytestmark = pytest.mark.usefixtures("disassembler")


def _name(target: targets.Target) -> str:
    values = "-".join(str(value) for _, value in target.defines)
    return f"{target.stem}-{target.arch}-{values}"


# What is done to products of hybrid matrices in 16 bits, without a pass that widens them.
NARROW_EPILOGUES = [
    targets.Target(
        "apply_epilogue",
        (("ACCUMULATOR", name), ("OUTPUT", name), ("EPILOGUE", bits), ("ACTIVATION", 3)),
        arch, None,
    )
    for name in ("float16", "bfloat16")
    for bits in (0, epilogue.C | epilogue.ACTIVATION, 511)
    for arch in ("sm_80", "sm_90a", "sm_120")
]  # fmt: skip


def _of_other_chips() -> Iterator[targets.Target]:
    """What is chosen there of kernels whose own checks are for some of their chips alone."""
    for capability, arch in ((100, "sm_100a"), (120, "sm_120")):
        for (dtype, out, n), order in itertools.product(
            (("float16", "float16", 8), ("bfloat16", "bfloat16", 32), ("int8", "int32", 16)),
            ("column", "row"),
        ):
            wanted = Problem(
                4096, n, 4096, 1, dtype, dtype, out, order, order, compute_capability=capability
            )
            for kernel, defines in (
                (sparse_decode, sparse_decode.defines),
                (sparse_skinny, sparse_tile.defines), (sparse_mma, sparse_tile.defines),
            ):  # fmt: skip
                if kernel.refuses(wanted) is None and kernel.configs(wanted):
                    macros = defines(wanted, kernel.configs(wanted)[0], PLAIN)
                    yield targets.Target(kernel.__name__.rpartition(".")[2], macros, arch, None)
    own = targets.targets()
    archs = {stem: {t.arch for t in own if t.stem == stem} for stem in {t.stem for t in own}}
    for target in {target.stem: target for target in own if target.arch != "sm_90a"}.values():
        if target.stem.startswith("hybrid_"):  # a sample
            for arch in sorted({"sm_86", "sm_89", "sm_100a"} - archs[target.stem]):
                yield dataclasses.replace(target, arch=arch)
    for target in own:
        if target.stem == "transpose":
            for arch in ("sm_80", "sm_100a", "sm_120"):
                yield dataclasses.replace(target, arch=arch)
            continue
        emulated = "float8" in str(target.defines)  # by products of float16
        if target.arch == "sm_120" and "sm_100a" not in archs[target.stem] and not emulated:
            yield dataclasses.replace(target, arch="sm_100a")


# Bytes that a kernel keeps on a stack all the same, by its macros and its chip: scatter with units
# of 128 columns, by 97 columns of b and more, where the two blocks of a band cannot form a cluster;
# a matrix of float32 by eight columns.
STACKS = {
    ((("ELEMENT", "bfloat16"), ("TILES", 16), ("STAGES", 4), ("BATCH", 9), ("EARLY", 2),
      ("BASE", 0), ("CLUSTER", 1), ("UNIT_COLUMNS", 128), ("BY_WARPS", 0), ("SHARING", 0)),
     "sm_90a"): 72,
    ((("COLUMNS", 8), ("PAIRS", 2), ("PARTS", 1), ("B_COLUMN", 1), ("OUTPUT", "float32"),
      ("EPILOGUE", 0), ("ACTIVATION", 0)), "sm_100a"): 128,
}  # fmt: skip
# And by its name and its chip.
STACKS_OF_OTHER_CHIPS = {("sparse_decode", "sm_120"): 8}
# And by its name and the bits of a quantised A, where blocks share a tile along k: once a tile,
# behind the products.
STACKS_OF_SHARED_TILES = {("sparse_mixed", 0): 8}

# The compiler of the recorded runs.  Others give some kernels a few bytes on a stack: 13.2 eight of
# them, 12.8 twelve.
RECORDED = 13, 0


def _together() -> dict[str, list[targets.Target]]:
    """The targets of each kernel and chip, which are disassembled together."""
    found: dict[str, list[targets.Target]] = {}
    for target in [*targets.targets(), *NARROW_EPILOGUES, *_of_other_chips()]:
        found.setdefault(f"{target.stem}-{target.arch}", []).append(target)
    return found


def _complaints(target: targets.Target, code: str, kernels: dict[str, targets.Resources]):
    if not kernels:
        yield "the cubin holds no kernel"
    if target.instruction is not None and target.instruction not in code:
        yield f"there is no {target.instruction}"
    for name, used in kernels.items():
        if used.local:
            yield f"{name} spills {used.local} bytes"
        if cupy_module().cuda.nvrtc.getVersion() == RECORDED:
            expected = STACKS_OF_OTHER_CHIPS.get((target.stem, target.arch), 0)
            macros = dict(target.defines)
            if macros.get("K_PARTS", 1) > 1:
                shared = target.stem, macros.get("BITS", 0)
                expected = STACKS_OF_SHARED_TILES.get(shared, expected)
            expected = STACKS.get((target.defines, target.arch), expected)
            if used.stack != expected:
                yield f"{name} keeps {used.stack} bytes on a stack"
    for line in targets.overwritten(code):
        yield f"a register in use is overwritten: {line}"


@pytest.mark.parametrize("of_one_kernel", _together().values(), ids=_together())
def test_compiles_to_the_named_instruction_without_spills(of_one_kernel):
    found = targets.inspect_all(of_one_kernel)
    assert len(found) == len(of_one_kernel)
    assert [
        f"{_name(target)}: {complaint}"
        for target, (code, kernels) in zip(of_one_kernel, found)
        for complaint in _complaints(target, code, kernels)
    ] == []


def test_what_is_disassembled_together_is_told_apart():
    rows = (1, "STG.E.U8"), (2, None), (2, "STG.E.U16")
    found = targets.inspect_all(
        [targets.Target("transpose", (("BYTES", size),), "sm_90a", name) for size, name in rows]
    )
    (bytewise, _), (unread, _), (pairwise, _) = found
    assert "STG.E.U8" in bytewise
    assert "STG.E.U16" not in bytewise
    assert unread == ""
    assert "STG.E.U16" in pairwise
    assert "STG.E.U8" not in pairwise
    assert all(kernels.keys() == {"transpose"} for _, kernels in found)


def test_instructions_that_are_not_shown_are_missed(monkeypatch):
    monkeypatch.setattr(targets, "_run", lambda *command, of: "/*0000*/ NOP;\n")
    with pytest.raises(CompileError, match="nvdisasm wrote 1 lines for 2 instructions"):
        targets._disassembled([bytes(32)], "sm_90a")


def test_an_overwritten_register_is_found():
    code = """
        /*0010*/  HGMMA.SP.64x8x32.F32.BF16 R24, R48, gdesc[UR4].tnspB, R24, R54, 0x0, gsb0 ;
        /*0020*/  @P0 LDS.64 R52, [R9] ;
        /*0030*/  LDS.64 R54, [R9+0x8] ;
        /*0040*/  WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0050*/  IMAD.MOV.U32 R54, RZ, RZ, R8 ;
    """
    assert targets.overwritten(code) == ["/*0030*/  LDS.64 R54, [R9+0x8] ;"]


def test_a_group_in_flight_keeps_its_registers():
    code = """
        /*0010*/  HGMMA.SP.64x64x32.F32.BF16 R56, gdesc[UR24], RZ, !UPT, R92, 0x0, gsb0 ;
        /*0020*/  QGMMA.SP.64x64x64.F32.E4M3.E4M3 R56, gdesc[UR28], R56, R93, gsb0 ;
        /*0030*/  WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0040*/  LDS.64 R90, [R9] ;
        /*0050*/  LDS R92, [R9] ;
        /*0060*/  LDS R93, [R9] ;
    """
    assert targets.overwritten(code) == ["/*0060*/  LDS R93, [R9] ;"]


def test_a_dense_instruction_may_end_a_group():
    code = """
        /*0010*/  HGMMA.SP.64x16x32.F32 R32, gdesc[UR20].tnspB, R32, R42, 0x0 ;
        /*0020*/  HGMMA.64x16x16.F32 R32, gdesc[UR16].tnspB, R32 ;
        /*0030*/  HGMMA.64x16x16.F32 R24, gdesc[UR16].tnspB, RZ, !UPT, gsb0 ;
        /*0040*/  IMAD.MOV.U32 R25, RZ, RZ, R8 ;
        /*0050*/  LDS R42, [R9] ;
        /*0060*/  WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0070*/  LDS R42, [R9] ;
    """
    assert [line[:8] for line in targets.overwritten(code)] == ["/*0040*/", "/*0050*/"]


def test_every_source_has_a_target():
    assert {target.stem for target in targets.targets()} == set(targets.stems())


def test_a_compile_error_shows_log_and_options():
    with pytest.raises(CompileError, match=r"(?s)-arch=sm_90a.*no member") as caught:
        loader.compile_cubin("cast", (("ELEMENT", "nonsense"), ("OUTPUT", "float16")), "sm_90a")
    assert "cast.cu did not compile" in str(caught.value)


def test_options_repeat_none_that_cupy_adds():
    """NVRTC before 12.9, as torch for CUDA 12.8 brings it, refuses one that is given twice."""
    both = {"-default-device", "--device-as-default-execution-space"}  # two names of the same
    assert both.isdisjoint(loader.options((), "sm_90a"))
