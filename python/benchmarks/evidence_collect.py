"""Runs `evidence_bench.py` until all cases are measured or the time is over.

A case can end its process: XLA aborts, the driver hangs, memory runs out. Then that case is told as
failed, and the others go on in a new process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence_cases import allot, need_time, read_flags
from evidence_questions import NO_TIME

PROGRAM = Path(__file__).with_name("evidence_bench.py")
START_S = 5.0  # with less left no process is started
END_S = 2.0  # that a process has to end by itself


def collect_cases(
    cases: Sequence[str], flags: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> dict[str, Any]:
    """The record of each case, whatever became of it.

    Args:
        cases: Their names, in the order of their worth.
        flags: "on_cpu", "quick".
        environment: Of the processes; EVIDENCE_FOLDER is where they write, and KERAS_BACKEND what
            Keras runs on.
        limit_s: Seconds for all of them.
    """
    began = time.monotonic()
    out = Path(environment["EVIDENCE_FOLDER"], "cases.jsonl")
    out.unlink(missing_ok=True)
    found: dict[str, Any] = {}
    waiting = list(cases)
    while waiting and limit_s - (time.monotonic() - began) > START_S:
        together, later = split_cases(waiting)
        left_s = limit_s - (time.monotonic() - began)
        kept_s = [*need_time(later, "quick" in flags), START_S] if later else []
        given_s = allot(left_s, left_s, kept_s)
        end = run_bench(out, together, flags, environment, given_s)
        found = {**read_found(read_lines(out), end), **found}
        left = [name for name in together if name not in found]
        if end["problem"] and left == together:  # nor would another process come to a case
            found |= {name: {"problem": explain_end(end)} for name in together}
            left = []
        waiting = (left if end["problem"] else []) + later
    found |= {name: {"problem": NO_TIME} for name in cases if name not in found}
    marks: dict[str, Any] = {flag: flag in flags for flag in ("on_cpu", "quick")}
    marks |= {"backend": environment.get("KERAS_BACKEND", "tensorflow")}
    return {"seconds": round(time.monotonic() - began, 1), "problem": "", **marks, "found": found}


def split_cases(cases: Sequence[str]) -> tuple[list[str], list[str]]:
    """The cases that one process can measure, those with XLA's flags of the first; and the rest."""
    same = [name for name in cases if read_flags(name) == read_flags(cases[0])]
    return same, [name for name in cases if name not in same]


def run_bench(
    out: Path,
    cases: Sequence[str],
    flags: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
) -> dict[str, Any]:
    """How a process that measures cases ended."""
    from gpukeras.core.child_process import run_child

    options = [f"--{flag.replace('_', '-')}" for flag in flags]
    seconds = str(limit_s - END_S)
    arguments = (str(PROGRAM), str(out), "--seconds", seconds, *options, *cases)
    xla = f"{environment.get('XLA_FLAGS', '')} {read_flags(cases[0])}".strip()
    environment = {**environment, "XLA_FLAGS": xla} if xla else environment
    return asdict(run_child(sys.executable, arguments, environment, limit_s))


def read_lines(out: Path) -> list[dict[str, Any]]:
    """The records that were written; a line that was not finished is left out."""
    lines: list[dict[str, Any]] = []
    with suppress(FileNotFoundError):
        for line in out.read_text().splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
    return lines


def read_found(lines: Sequence[Mapping[str, Any]], end: Mapping[str, Any]) -> dict[str, Any]:
    """Each case that was begun, with its record, or with how its process ended."""
    found: dict[str, Any] = {}
    for line in lines:
        if "begin" in line:
            found.setdefault(line["begin"], {"problem": explain_end(end)})
        else:
            found[line["end"]] = {name: value for name, value in line.items() if name != "end"}
    return found


def explain_end(end: Mapping[str, Any]) -> str:
    """Why a process ended in the midst of a case, in one line."""
    lines = [line for line in end["stderr"].splitlines() if line.strip()]
    if any(line.startswith("Timeout (") for line in lines):
        return "did not end in its time"
    return "failed: " + ": ".join([end["problem"] or "no answer", *lines[-1:]])[:300]
