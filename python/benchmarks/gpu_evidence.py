"""Evidence from a computer with an NVIDIA GPU: `make gpu-evidence`.

    check the GPU -> check training of one's own -> tests marked `gpu` -> a trace -> timings

Everything runs in child processes with time limits, in 10 minutes at most together, and is written
to evidence/: `healthy.json` (the facts of the check, without names), `trace.xplane.pb`,
`results.json` and `results.md`. Without an NVIDIA GPU it says so, writes nothing, and succeeds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evidence_table import format_table, has_gpu

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "inst" / "python"
TESTS = HERE.parent / "tests"
BUDGET_S = 570.0  # of 10 minutes, the rest is for starting and writing
# Program, its arguments, and the most it may take of the budget.
STEPS: Mapping[str, tuple[tuple[str, ...], float]] = {
    "check": (("-m", "gpukeras", "check", "--json"), 240.0),
    "use": ((str(HERE / "evidence_steps.py"), "use"), 120.0),
    "tests": (("-m", "pytest", str(TESTS), "-q", "-m", "gpu", "-p", "no:cacheprovider"), 240.0),
    "trace": ((str(HERE / "evidence_steps.py"), "trace"), 90.0),
    "timings": ((str(HERE / "evidence_steps.py"), "timings"), 180.0),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Collects and writes the evidence; 0 also where there is no GPU to collect it from."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "evidence")
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    options = parser.parse_args(arguments)
    if not has_gpu():
        print("This computer has no NVIDIA GPU: there is no evidence to collect.")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    results = collect(options.steps, options.out)
    write_results(results, options.out)
    print(format_table(results))
    return 0 if results["check"].get("verdict") == "CONFIRMED" else 1


def collect(steps: Sequence[str], out: Path) -> dict[str, Any]:
    """Runs the steps one after another, as far as the time goes."""
    from gpukeras.children import run_child

    deadline = time.monotonic() + BUDGET_S
    results: dict[str, Any] = {"check": {}}
    with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
        path = os.pathsep.join((str(CORE), str(TESTS), str(HERE)))
        environment = {**os.environ, "PYTHONPATH": path, "EVIDENCE_FOLDER": folder}
        for name in steps:
            arguments, limit = STEPS[name]
            left = deadline - time.monotonic()
            if left < 10:
                results[name] = {"problem": "no time was left"}
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            end = run_child(sys.executable, arguments, environment, min(limit, left))
            results[name] = read_step(name, asdict(end))
        trace = Path(folder, "trace.xplane.pb")
        if trace.exists():
            write_beside(out / trace.name, trace.read_bytes())
    return results


def read_step(name: str, end: Mapping[str, Any]) -> dict[str, Any]:
    """A step's answer, or how it ended without one."""
    record = {"seconds": round(end["seconds"], 1), "problem": end["problem"]}
    if name == "tests":
        return {**record, "summary": (end["stdout"].strip().splitlines() or ["no output"])[-1]}
    begin = end["stdout"].find("{")
    try:
        return {**record, **json.loads(end["stdout"][begin:])} if begin >= 0 else record
    except ValueError:
        return {**record, "problem": end["problem"] or "no answer", "stderr": end["stderr"][-2000:]}


def write_results(results: dict[str, Any], out: Path) -> None:
    """Writes the facts and the results, without the names of user, host and home."""
    from gpukeras.diagnosis import read_names
    from gpukeras.reporting import redact

    names = read_names()
    facts = results["check"].pop("facts", None)
    texts = {"results.json": json.dumps(results, indent=2), "results.md": format_table(results)}
    if facts is not None:
        texts["healthy.json"] = json.dumps(facts, indent=2)
    for name, text in texts.items():
        write_beside(out / name, redact(text + "\n", **names).encode())


def write_beside(path: Path, content: bytes) -> None:
    """Writes beside and renames, so that a failure leaves older evidence as it was."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(content)
    beside.replace(path)


if __name__ == "__main__":
    sys.exit(main())
