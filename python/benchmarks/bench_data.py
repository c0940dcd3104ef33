"""Measures how data reaches a fit, against the ways that users have today:  make bench-data

    bench_data.py [--quick] [--only REGEX] [--size-gib 4] [--json PATH]

--quick: small data, to see that everything runs; no promise can be judged by it. --only: cases
whose name matches: csv, parquet, gather, windows, sources, generator, images, memory-csv,
memory-parquet, memory-glob. Needs gpukeras on PYTHONPATH; the generators need R with gpukeras
installed, the sources PostgreSQL, moto, DuckDB and ADBC, which `make setup-test` installs.
Each case runs in a process of its own; within it the ways take turns, and medians count.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench_table import HERE, Row, compare, make_parser, run_cases, run_program

GIB = 2.0**30
MIB = 2.0**20
SOURCE_ROUNDS = 5  # of all kinds in turn


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


def window_rows(quick: bool) -> list[Row]:
    """Shuffled windows of a time series, and their memory beside that of the rows alone."""
    rows = (
        100_000 if quick else 1_000_000
    )  # fewer need no more memory than the rows measured before
    found = run_program("data_windows.py", "time", rows // 5, 1)
    what = "windows of 96 rows x 20 columns"
    time = f"{what}, {rows // 5:,} rows: one epoch of batches"
    peaks = [
        run_program("data_windows.py", "memory", way, rows)["peak_bytes"] / MIB
        for way in ("windows", "rows")
    ]
    ratio = peaks[0] / peaks[1]
    memory = Row(
        f"{what}, {rows:,} rows: peak memory of an epoch",
        f"{peaks[0]:.0f} MiB",
        f"{peaks[1]:.0f} MiB (the rows without windows)",
        f"{ratio:.2f}",
        "at most 1.2",
        ratio <= 1.2,
    )
    return [compare(time, found, "gpukeras", "timeseries_dataset_from_array", 5.0), memory]


def source_rows(quick: bool) -> list[Row]:
    """The same rows in Parquet files, databases and a bucket: a first and a later epoch, memory."""
    rows, rounds = (40_000, 1) if quick else (2_000_000, SOURCE_ROUNDS)
    found = run_program("data_sources.py", "compare", rows, rounds)
    made = []
    for kind, least in (("duckdb", 0.5), ("postgres", 0.5), ("s3", 0.8)):
        for when, promise in (("first", least), ("later", 0.9)):
            seconds = {one: f"{found[one][f'{when}_s']:.3f} s" for one in (kind, "parquet")}
            what = (
                f"{kind}, {rows:,} rows x 30 columns: {when} epoch, load {found[kind]['load']:.1f}"
            )
            ratio = found[kind][f"{when}_ratio"]
            compared = seconds[kind], f"{seconds['parquet']} (parquet)", f"{ratio:.2f}"
            made.append(Row(what, *compared, f"at least {promise:g}", ratio >= promise))
        extra = found[kind]["extra_bytes"]
        text = f"{extra / MIB:.0f} MiB"
        made.append(Row(f"{kind}: memory", text, "", "", "below 400 MB", extra < 400e6))
    return made


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
        "windows": lambda: window_rows(quick),
        "sources": lambda: source_rows(quick),
        "generator": lambda: generator_rows(quick),
        "images": lambda: image_rows(quick),
        "memory-csv": lambda: memory_rows("csv", 1, size_bytes),
        "memory-parquet": lambda: memory_rows("parquet", 1, size_bytes),
        "memory-glob": lambda: memory_rows("csv", 100, size_bytes),
    }


def main() -> None:
    """Runs the cases asked for and prints their table."""
    parser = make_parser(__doc__)
    parser.add_argument("--size-gib", type=float)
    options = parser.parse_args()
    size_gib = options.size_gib or (0.05 if options.quick else 4.0)
    run_cases(plan_cases(options.quick, size_gib * GIB), options)


if __name__ == "__main__":
    main()
