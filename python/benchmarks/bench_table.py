"""The table of a benchmark: cases by name, a line for each thing measured."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


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


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--json")
    return parser


def run_cases(cases: Mapping[str, Callable[[], list[Row]]], options: argparse.Namespace) -> None:
    """Runs the cases asked for and prints their table."""
    print("| what | gpukeras | compared with | ratio | promised | |\n|---|---|---|---|---|---|")
    rows: list[Row] = []
    for name, case in cases.items():
        if re.search(options.only, name):
            made = case()
            print("\n".join(map(format_row, made)), flush=True)
            rows.extend(made)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))
