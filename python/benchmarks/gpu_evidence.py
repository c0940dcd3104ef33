"""Evidence from a computer with an NVIDIA GPU: `make gpu-evidence`.

    check the GPU -> check training of one's own -> measurements -> tests marked `gpu` -> a trace

Everything runs in child processes with time limits, in 10 minutes at most together, and is written
to evidence/: `healthy.json` (the facts of the check, without names), `trace.xplane.pb`,
`results.json` and `results.md`. Without an NVIDIA GPU it says so, writes nothing, and succeeds.

`--backend jax` proves the same through JAX, and writes to evidence/jax/. It needs NumPy, JAX with
CUDA, Keras and pytest alone.

`--on-cpu` goes the same way on any computer, to try the command itself: nothing of it is evidence
of a GPU, every table says so, and results alone are written, only where `--out` says. `--quick`
makes the models and rows tiny, `--only` takes the cases whose names match a pattern.
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

from evidence_cases import allot, choose_cases
from evidence_collect import collect_cases
from evidence_table import format_results, has_gpu

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "inst" / "python"
TESTS = HERE.parent / "tests"
BUDGET_S = 570.0  # of 10 minutes, the rest is for starting and writing
# Seconds that a step may take at most, and that are kept for it until it begins.
STEPS: Mapping[str, tuple[float, float]] = {
    "check": (200.0, 60.0),
    "use": (90.0, 30.0),
    "cases": (330.0, 220.0),
    "tests": (240.0, 150.0),
    "trace": (60.0, 30.0),
}
LEAST_S = 10.0  # to begin a step
OTHER_TESTS = {"tensorflow": "jax", "jax": "tf"}  # the mark of tests that need the other backend


def main(arguments: Sequence[str] | None = None) -> int:
    """Collects and writes the evidence; 0 also where there is no GPU to collect it from."""
    options = read_options(arguments)
    if not options.on_cpu and not has_gpu():
        print("This computer has no NVIDIA GPU: there is no evidence to collect.")
        return 0
    results = collect(options)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_results(results, options.out)
    print(format_results(results))
    return 0 if options.on_cpu or results["check"].get("verdict") == "CONFIRMED" else 1


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--backend", default="tensorflow", choices=list(OTHER_TESTS))
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--seconds", type=float, default=BUDGET_S)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--on-cpu", action="store_true")
    options = parser.parse_args(arguments)
    if options.out is None and not options.on_cpu:
        options.out = HERE / "evidence" / ("jax" if options.backend == "jax" else "")
    return options


def collect(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the steps one after another, as far as the time goes."""
    deadline, scale = time.monotonic() + options.seconds, min(1.0, options.seconds / BUDGET_S)
    results: dict[str, Any] = {"backend": options.backend, "on_cpu": options.on_cpu, "check": {}}
    with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
        environment = make_environment(folder, options.on_cpu, options.backend)
        for place, name in enumerate(options.steps):
            later = [scale * STEPS[one][1] for one in options.steps[place + 1 :]]
            limit = allot(deadline - time.monotonic(), STEPS[name][0], later)
            if limit < LEAST_S:
                results[name] = {"problem": "no time was left"}
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            results[name] = run_step(name, options, environment, limit)
        trace = Path(folder, "trace.xplane.pb")
        if trace.exists() and not options.on_cpu:
            options.out.mkdir(parents=True, exist_ok=True)
            write_beside(options.out / trace.name, trace.read_bytes())
    return results


def make_environment(folder: str, on_cpu: bool, backend: str = "tensorflow") -> dict[str, str]:
    """The environment of the steps; without a GPU nothing may be taken for one's work."""
    path = os.pathsep.join((str(CORE), str(TESTS / "support"), str(HERE)))
    own = {"PYTHONPATH": path, "EVIDENCE_FOLDER": folder, "KERAS_BACKEND": backend}
    if backend == "jax":
        # Keras, or a test, may import JAX before gpukeras does, which sets the same.
        own["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if on_cpu:
        own |= {"jax": {"JAX_PLATFORMS": "cpu"}, "tensorflow": {}}[backend]
        own["CUDA_VISIBLE_DEVICES"] = "-1"
    return {**os.environ, **own}


def run_step(
    name: str, options: argparse.Namespace, environment: Mapping[str, str], limit_s: float
) -> dict[str, Any]:
    """A step's answer, within its limit."""
    from gpukeras.core.child_process import run_child

    if name == "cases":
        cases = [case.name for case in choose_cases(options.only, backend=options.backend)]
        flags = [flag for flag in ("on_cpu", "quick") if getattr(options, flag)]
        return collect_cases(cases, flags, environment, limit_s)
    began = time.monotonic()
    end = run_child(sys.executable, list_arguments(name, options.backend), environment, limit_s)
    return read_step(name, asdict(end), time.monotonic() - began)


def list_arguments(name: str, backend: str = "tensorflow") -> tuple[str, ...]:
    """What Python runs for a step."""
    if name == "check":
        return ("-m", "gpukeras", "check", "--json")
    if name == "tests":
        files = find_gpu_tests()
        marks = f"gpu and not {OTHER_TESTS[backend]}"
        return ("-m", "pytest", *files, "-v", "-m", marks, "-p", "no:cacheprovider")
    return (str(HERE / "evidence_steps.py"), name)


def find_gpu_tests() -> list[str]:
    """The files with tests marked `gpu`: collecting all others takes longer than running these."""
    files = sorted(TESTS.rglob("test_*.py"))
    return [str(file) for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


def read_step(name: str, end: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """A step's answer, or how it ended without one."""
    record = {"seconds": round(seconds, 1), "problem": end["problem"]}
    if name == "tests":
        return {**record, **read_tests(end["stdout"], end["problem"])}
    begin = end["stdout"].find("{")
    try:
        return {**record, **json.loads(end["stdout"][begin:])} if begin >= 0 else record
    except ValueError:
        return {**record, "problem": end["problem"] or "no answer", "stderr": end["stderr"][-2000:]}


def read_tests(stdout: str, problem: str) -> dict[str, Any]:
    """What pytest said last, and which tests failed; what had passed, where it was ended."""
    lines = stdout.strip().splitlines() or ["no output"]
    ends = ("FAILED", "ERROR")
    failed = [line for line in lines if line.startswith(ends)]
    summary = lines[-1].strip("= ")
    if problem.startswith("did not end"):
        passed = sum(" PASSED" in line for line in lines)
        summary = f"{problem}; {passed} had passed"
        failed = [line for line in lines if any(f" {end}" in line for end in ends)]
    return {"summary": summary} | ({"failed": failed} if failed else {})


def write_results(results: dict[str, Any], out: Path) -> None:
    """Writes the facts and the results, without the names of user, host and home."""
    from gpukeras.diagnostics.check import read_names, redact

    names = read_names()
    facts = results["check"].pop("facts", None)
    texts = {"results.json": json.dumps(results, indent=2), "results.md": format_results(results)}
    if facts is not None and not results.get("on_cpu"):
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
