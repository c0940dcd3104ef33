"""Measures how data reaches a fit, against the ways that users have today:  make bench-data

    bench_data.py [--quick] [--only REGEX] [--size-gib 4] [--json PATH]

--quick: small data, to see that everything runs; no promise can be judged by it. --only: cases
whose name matches: csv, parquet, gather, generator, images, memory-csv, memory-parquet,
memory-glob. Needs gpukeras on PYTHONPATH, and the generators R with gpukeras installed.
Each case runs in a process of its own; within it the ways take turns, and medians count.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GIB = 2.0**30
MIB = 2.0**20


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        what: What was measured.
        ours: The figure of gpukeras, with its unit.
        other: The figure it is compared with.
        ratio: How many times better gpukeras is, or the share that is promised.
        promise: What is promised, or "".
        kept: Whether it is kept, or None without a promise.
    """

    what: str
    ours: str
    other: str
    ratio: str
    promise: str = ""
    kept: bool | None = None


def compare(what: str, found: dict[str, float], ours: str, other: str, least: float) -> Row:
    """A line for two ways' seconds: the other's as a multiple of ours."""
    ratio = found[other] / found[ours]
    return Row(
        what,
        f"{found[ours]:.3f} s",
        f"{found[other]:.3f} s ({other})",
        f"{ratio:.2f}",
        f"at least {least:g}" if least else "",
        ratio >= least if least else None,
    )


def table_rows(kind: str, quick: bool) -> list[Row]:
    """A table's file, from its path to the last batch of an epoch."""
    rows = 20_000 if quick else 400_000
    found = run_program("data_cases.py", "table", kind, rows)
    least = {"csv": 5.0, "parquet": 20.0}[kind]
    what = f"{kind}, {rows:,} rows x 21 columns: one epoch of batches"
    return [compare(what, found, "gpukeras", "make_csv_dataset", least)]


def gather_rows(quick: bool) -> list[Row]:
    """Shuffled batches of a matrix in memory."""
    rows = 20_000 if quick else 200_000
    found = run_program("data_cases.py", "gather", rows)
    what = f"staged matrix, {rows:,} x 100: one epoch of batches"
    return [
        compare(what, found, "gpukeras", "plain gather", 0.5),
        compare(what, found, "gpukeras", "Keras' array adapter", 1.0),
    ]


def image_rows(quick: bool) -> list[Row]:
    """Augmented images of a folder."""
    count = 200 if quick else 2_000
    found = run_program("data_cases.py", "images", count)
    return [
        compare(f"{count:,} JPEGs, {when}", found, f"{when}, gpukeras", "first epoch, Keras", 1.0)
        for when in ("first epoch", "later epoch")
    ]


def generator_rows(quick: bool) -> list[Row]:
    """A generator written in R."""
    rows = 5_000 if quick else 200_000
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        command = ["Rscript", str(HERE / "data_generator.R"), str(rows), str(out)]
        subprocess.run(command, check=True, timeout=1800)
        found = json.loads(out.read_text())
    what = f"R generator, {rows:,} x 50"
    later = {"drained": found["drained"]["later_s"], "arrays": found["arrays"]["later_s"]}
    made = [compare(f"{what}, cache = TRUE: later epochs", later, "drained", "arrays", 1 / 1.2)]
    if "keras3" not in found:
        return [*made, Row(f"{what}: first epoch", "", "keras3 is not installed", "")]
    for way, first in (("drained", "cache = TRUE: first epoch"), ("called", "called: first epoch")):
        pair = {way: found[way]["first_s"], "keras3": found["keras3"]["first_s"]}
        made.append(compare(f"{what}, {first}", pair, way, "keras3", 1.0))
    return made


def memory_rows(kind: str, files: int, size_bytes: float) -> list[Row]:
    """How much a process grows by training on large files."""
    with tempfile.TemporaryDirectory() as folder:
        run_program("data_files.py", folder, kind, size_bytes, files)
        found = run_program("data_memory.py", folder, kind)
    extra = found["extra_bytes"] / MIB
    what = f"{files} {kind} file{'s' if files > 1 else ''}, {found['file_bytes'] / GIB:.1f} GiB"
    return [
        Row(
            f"{what}, {found['rows']:,.0f} rows: memory while training",
            f"{extra:.0f} MiB more",
            f"{found['baseline_bytes'] / MIB:.0f} MiB before, {found['total_s']:.0f} s in all",
            "",
            "below 400 MB",
            found["extra_bytes"] < 400e6,
        )
    ]


def plan_cases(quick: bool, size_bytes: float) -> dict[str, Callable[[], list[Row]]]:
    """All cases by name."""
    return {
        "csv": lambda: table_rows("csv", quick),
        "parquet": lambda: table_rows("parquet", quick),
        "gather": lambda: gather_rows(quick),
        "generator": lambda: generator_rows(quick),
        "images": lambda: image_rows(quick),
        "memory-csv": lambda: memory_rows("csv", 1, size_bytes),
        "memory-parquet": lambda: memory_rows("parquet", 1, size_bytes),
        "memory-glob": lambda: memory_rows("csv", 100, size_bytes),
    }


def run_program(name: str, *arguments: Any) -> Any:
    """A program beside this one in a process of its own; gives the record that it prints last."""
    command = [sys.executable, str(HERE / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def format_row(row: Row) -> str:
    """A line of the Markdown table."""
    kept = {True: "kept", False: "BROKEN", None: ""}[row.kept]
    return f"| {row.what} | {row.ours} | {row.other} | {row.ratio} | {row.promise} | {kept} |"


def main() -> None:
    """Runs the cases asked for and prints their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--size-gib", type=float)
    parser.add_argument("--json")
    options = parser.parse_args()
    size_gib = options.size_gib or (0.05 if options.quick else 4.0)
    print("| what | gpukeras | compared with | ratio | promised | |\n|---|---|---|---|---|---|")
    rows: list[Row] = []
    for name, case in plan_cases(options.quick, size_gib * GIB).items():
        if re.search(options.only, name):
            made = case()
            print("\n".join(map(format_row, made)), flush=True)
            rows.extend(made)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
