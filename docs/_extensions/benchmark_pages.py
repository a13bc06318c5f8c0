"""Writes the benchmark pages and their figures from the recorded runs, before a build reads."""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import advice_figures
import crossover
import glance
import headlines
import hopper_figures
import hybrid_figures
import hybrid_pictures
import recorded

GENERATED = Path(__file__).resolve().parents[1] / "benchmarks" / "generated"
RIVALS = headlines.RIVALS | {
    "copy": "a plain copy",
    "cupy": "CuPy, dense",
    "torch": "PyTorch, dense",
    "torch_compiled": "PyTorch, dense, compiled",
    "torch_eager": "PyTorch, dense, eager",
    "ddp": "torch's DistributedDataParallel",
    "decompress_blas": "decompressing for BLAS",
    "numpy_float64": "NumPy, dense, in float64",
}
MOST_BARS = 120  # of a picture that one can still read
SCREEN = 30  # bars that one sees at a time


def _heading(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]


def _list_table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (header, *rows):
        lines += [f"   {'* -' if i == 0 else '  -'} {cell}" for i, cell in enumerate(row)]
    return [*lines, ""]


def _summary_page() -> str:
    lines = []
    suites = recorded.suites()
    if not suites:
        lines += ["No run has been recorded yet.", ""]
    else:
        lines += ["How many times faster than its rivals sparse24 ran, in the geometric mean:", ""]
        lines += _summary_table("", suites)
    listed = recorded.unverified_lines()
    if listed:
        lines += [".. warning::", "", "   Not yet verified on a GPU in their present form:", ""]
        lines += [f"   {line.replace('`', '``')}" for line in listed]
        lines.append("")
    for gpu in recorded.others():
        found = recorded.suites(gpu)
        machines = recorded.machines([record["header"] for record in found.values()])
        if found:
            lines += _heading(recorded.name_of(gpu), "-")
            lines += [f"By the same drivers, on {'; '.join(machines)}:", ""]
            lines += _summary_table(gpu, found)
    return "\n".join(lines) + "\n"


def _summary_table(gpu: str, suites: dict[str, dict[str, Any]]) -> list[str]:
    rows = []
    for name, record in suites.items():
        stale = sum(map(recorded.is_stale, record["cases"]))
        for rival, count, least, mean, most in recorded.summary(record):
            span = f"{recorded.number(least)} – {recorded.number(most)}"
            note = f"{stale} stale" if stale else ""
            against = RIVALS.get(rival, rival)
            rows.append([f":doc:`{name} <generated/{_page(gpu, name)}>`", against, str(count),
                         f"**{recorded.number(mean)}**", span, note])  # fmt: skip
    if not rows:
        return []
    return _list_table(["suite", "rival", "cases", "mean", "range", ""], rows)


def _page(gpu: str, suite: str) -> str:
    """The name of a suite's page."""
    return f"suite_{gpu}_{suite}" if gpu else f"suite_{suite}"


def _suite_page(name: str, record: dict[str, Any], figures: list[str], gpu: str = "") -> str:
    where = f", {gpu.upper()}" if gpu else ""
    lines = _heading(f"{name}{where}: {recorded.TITLES.get(name, name)}", "=")
    lines += [f"Recorded on {recorded.machine(record['header'])}.  Times in microseconds.", ""]
    for figure in figures:
        lines += [f".. image:: {figure}", "   :width: 100%", f"   :alt: speed-up, suite {name}", ""]
    lines += _records_table([_case_row(case) for case in record["cases"]])
    if any(map(recorded.is_stale, record["cases"])):
        lines += ["*Stale*: the kernel changed after this case was timed.", ""]
    for key, rows in record.items():
        if key != "cases" and isinstance(rows, list) and rows and isinstance(rows[0], dict):
            lines += _heading(key.capitalize(), "-")
            lines += _records_table([{k: _cell(v) for k, v in row.items()} for row in rows])
    return "\n".join(lines)


def _case_row(case: dict[str, Any]) -> dict[str, str]:
    """The cells of a case by column, the usual ones first, then whatever else it says."""
    known = ("name", "m", "k", "n", "ours_us", "spread", "ours_kernel", "rivals", "digests")
    row = {"case": case["name"]}
    if "m" in case and "n" in case and "k" in case:
        row["m×k×n"] = f"{case['m']}×{case['k']}×{case['n']}"
    row |= {"sparse24": _cell(case["ours_us"]), "±": _cell(case.get("spread"))}
    row |= {rival: _cell(us) for rival, us in case.get("rivals", {}).items()}
    row["kernel"] = case.get("ours_kernel", "")
    row |= {key: _cell(value) for key, value in case.items() if key not in known}
    row["state"] = "stale" if recorded.is_stale(case) else ""
    return row


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return recorded.number(value) if abs(value) >= 1e-3 or not value else f"{value:.1e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _records_table(rows: list[dict[str, str]]) -> list[str]:
    """A table of rows by column; a column that is empty everywhere is left out."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    columns = [c for c in columns if any(row.get(c) for row in rows)]
    return _list_table(columns, [[row.get(c, "") for c in columns] for row in rows])


def _masks_page(record: dict[str, Any]) -> str:
    """The accuracy of masks: no times of kernels, so a page of its own kind."""
    cases, sentences = record["cases"], record["sentences"]
    lines = [
        "masks: how well they serve",
        "==========================",
        "",
        f"Recorded on {recorded.machine(record['header'])}.  All 36 matrices of a sentence encoder "
        f"(MiniLM, six layers) pruned to 2:4 in one shot; {sentences['calibration']} docstrings of "
        f"the standard library calibrate, and {sentences['held_out']} others judge by the mean "
        "cosine of their embeddings to the dense ones.  :doc:`/explanation/masks` explains the "
        "ways.",
        "",
    ]
    rows = [
        [case["name"], f"**{case['cosine']:.3f}**", f"{case['kept_energy']:.1%}",
         f"{case['ours_us'] / 1e6:.0f} s"]
        for case in cases
    ]  # fmt: skip
    lines += _list_table(["method", "mean cosine", "kept energy", "CPU time"], rows)
    lines += ["What a permutation of its columns adds to the kept magnitude of each matrix:", ""]
    rows = [
        [row["name"], "x".join(map(str, row["shape"])), f"{row['kept']:.2%}",
         f"{row['kept_permuted']:.2%}"]
        for row in record["permutation"]
    ]  # fmt: skip
    return "\n".join(lines + _list_table(["matrix", "shape", "as it is", "permuted"], rows))


def _toctree() -> str:
    pages = [
        f"   generated/{_page(gpu, name)}"
        for gpu in ("", *recorded.others())
        for name in recorded.suites(gpu)
    ]
    return "\n".join([".. toctree::", "   :maxdepth: 1", "", *pages, ""]) if pages else ""


def _draw(page: str, record: dict[str, Any]) -> list[str]:
    """One figure a rival of a suite's page; returns the file names."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from sparse24 import plot

    drawn = []
    for rival in recorded.rivals(record["cases"]):
        bars = _bars(record["cases"], rival)
        if not bars:
            continue
        figure, ax = plt.subplots(figsize=(9, 1.1 + 0.22 * len(bars)), layout="constrained")
        plot.speedup(bars, rival=rival, ax=ax)
        means = len(bars) < len(recorded.ratios(record["cases"], rival))
        title = RIVALS.get(rival, rival) + means * ", geometric means over zeros and shapes"
        ax.set(title=title, xlabel="its time / ours")
        tall = len(bars) > SCREEN
        ax.tick_params(axis="x", top=tall, labeltop=tall)
        drawn.append(f"{page}_{rival}.png")
        figure.savefig(GENERATED / drawn[-1], dpi=110)
        plt.close(figure)
    return drawn


def _bars(cases: list[dict[str, Any]], rival: str) -> list[dict[str, Any]]:
    """The cases that have the rival; of many, the geometric means by family and columns."""
    found = [case for case in cases if recorded.ratios([case], rival)]
    if len(found) <= MOST_BARS:
        return found
    groups = defaultdict(list)
    for case in found:
        groups[f"{case['dtype']} {case.get('family', '')}, n = {case['n']}"].append(case)
    means = {
        name: statistics.geometric_mean(recorded.ratios(group, rival))
        for name, group in groups.items()
    }
    return [{"name": name, "ours_us": 1.0, "rivals": {rival: x}} for name, x in means.items()]


def write_pages(app) -> None:
    shutil.rmtree(GENERATED, ignore_errors=True)
    GENERATED.mkdir(parents=True)
    (GENERATED / "summary.txt").write_text(_summary_page())
    (GENERATED / "toctree.txt").write_text(_toctree())
    for gpu in ("", *recorded.others()):
        for name, record in recorded.suites(gpu).items():
            page = _page(gpu, name)
            text = (
                _masks_page(record)
                if "permutation" in record
                else _suite_page(name, record, _draw(page, record), gpu)
            )
            (GENERATED / f"{page}.rst").write_text(text)
    advice_figures.write(GENERATED)
    crossover.write(GENERATED)
    glance.write(GENERATED)
    hopper_figures.write(GENERATED)
    hybrid_figures.write(GENERATED)
    hybrid_pictures.write(GENERATED)


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
