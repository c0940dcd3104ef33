"""Small faults in the core, one at a time: do the tests find them?

    python python/faults/faults.py [--number 120] [--seed 1] [--records FOLDER] [--processes 2]
        [--seconds 30] [--only data/] [--tests python/tests]

Runs all tests that are not nightly once, to learn which of them reach which line (with counters, so
it takes twice as long as without). Then draws faults, and for each of them runs the tests that
reach it, until one fails: those of `make test` first, then the others, of each lane as many as take
some seconds of the processor without the fault. They run in a fork of a process that has imported
Keras. The table says for each package how many faults were drawn, found by `make test`, and found
by `make test-all`; faults.jsonl in the folder of records has a line for each. What is in the folder
is not done again.

R's tests do not run. A fault that no test finds is looked at by hand: a test is missing, the code
is needless, or the fault changes nothing that anyone can see.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from reach import choose_tests, read_reach, take_seconds
from sites import Fault, draw_faults

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "python" / "tests" / "support"))
from keras_forks import Fork  # noqa: E402 - the tests' helper, that pytest finds by itself

CORE = Path("inst", "python", "gpukeras")
LANES = ("make test", "make test-all")  # in the order in which a fault's tests run
IN_TEST = "not nightly and not slow"  # as the Makefile has it
LEFT_OUT = (".git", ".venv", ".rlib", "__pycache__", ".pytest_cache", ".mypy_cache", ".debian13*")
ROOT_DIR = "--rootdir=."  # tests are named from there, also in what fails
PATIENCE_S = 60  # for tests that do not end, beside ten times what they take without the fault
SECONDS = itertools.count(1)
RUN_PYTEST = "import os, sys, pytest; os.setsid(); sys.exit(pytest.main(sys.argv[1:]))"


@dataclass(frozen=True)
class Suite:
    """The tests that passed, and what they reach.

    Attributes:
        reach: The names of the tests that run a line, by file and line.
        seconds: Of each test.
        in_test: The names of those that `make test` runs.
    """

    reach: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]
    in_test: frozenset[str]

    def lane(self, name: str) -> dict[str, float]:
        """The seconds of the tests that a lane adds to the one before."""
        wanted = name == LANES[0]
        return {
            test: took for test, took in self.seconds.items() if (test in self.in_test) == wanted
        }


def copy_tree(folder: Path) -> Path:
    """A copy of the repository, that shares its environment."""
    tree = folder / "gpukeras"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def run_module(
    tree: Path, arguments: list[str], variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m ARGUMENTS` in a tree."""
    environment = os.environ | {"PYTHONPATH": str(HERE), "TF_CPP_MIN_LOG_LEVEL": "2"} | variables
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", *arguments],
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_fork(tree: Path, arguments: list[str], limit_s: float) -> tuple[int, str]:
    """Runs pytest in a tree, in a process that has imported Keras already.

    Returns:
        Its status and what it said.

    Raises:
        subprocess.TimeoutExpired: It has taken too long, and was ended with its children.
    """
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    command = ["-c", RUN_PYTEST, *arguments]
    fork = Fork(command, environment, subprocess.STDOUT, folder=tree)
    try:
        said, _ = fork.communicate(limit_s)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(fork.pid, 9)
        raise
    return fork.returncode, said


def measure_reach(records: Path, folder: str, processes: int) -> None:
    """Runs all tests of a folder with counters, and keeps which of them reach which line.

    Raises:
        RuntimeError: No test ran.
    """
    with tempfile.TemporaryDirectory() as place:
        tree = copy_tree(Path(place))
        config = f"--rcfile={HERE / 'coverage.ini'}"
        variables = {
            "COVERAGE_FILE": str(records / "counts" / "coverage"),
            "GPUKERAS_SECONDS": str(records / "seconds.tsv"),
        }
        (records / "counts").mkdir(exist_ok=True)
        tests = ["pytest", "-q", ROOT_DIR, "-p", "contexts", "-n", str(processes)]
        tests += ["--dist", "loadfile", folder]
        run = run_module(tree, ["coverage", "run", config, "-m", *tests], variables)
        (records / "tests.log").write_text(run.stdout, "utf-8")
        if run.returncode > 1:
            raise RuntimeError(f"The tests could not run: see {records / 'tests.log'}.")
        run_module(tree, ["coverage", "combine", config, "--quiet"], variables)
        collected = run_module(
            tree, ["pytest", "-q", ROOT_DIR, "--collect-only", "-m", IN_TEST, folder], {}
        )
        names = [line for line in collected.stdout.splitlines() if "::" in line]
        (records / "in_test.txt").write_text("\n".join(names), "utf-8")
        (records / "core.txt").write_text(str(tree.resolve() / CORE), "utf-8")


def read_suite(records: Path) -> Suite:
    """What `measure_reach()` has kept."""
    failed = {
        line.split(" ")[1]
        for line in (records / "tests.log").read_text("utf-8").splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    }
    lines = (records / "seconds.tsv").read_text("utf-8").splitlines()
    seconds = {name: float(took) for took, name in (line.split("\t", 1) for line in lines)}
    return Suite(
        reach=read_reach(
            records / "counts" / "coverage", (records / "core.txt").read_text("utf-8")
        ),
        seconds={name: took for name, took in seconds.items() if name not in failed},
        in_test=frozenset((records / "in_test.txt").read_text("utf-8").splitlines()),
    )


@contextmanager
def with_fault(tree: Path, fault: Fault) -> Iterator[None]:
    """The fault is in the tree's core meanwhile.

    Each source gets a time of its own, as Python knows by its seconds and its size whether what it
    has compiled is still that file's.
    """
    path = tree / CORE / fault.file
    source = path.read_bytes()
    path.write_bytes(fault.apply(source))
    os.utime(path, times=(seconds := next(SECONDS), seconds))
    try:
        yield
    finally:
        path.write_bytes(source)
        os.utime(path, times=(seconds := next(SECONDS), seconds))


def find_failure(tree: Path, tests: list[str], limit_s: float) -> str:
    """The first of some tests that fails, or ""; tests that do not end have failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(tests))
        file.flush()
        arguments = ["-x", "-q", ROOT_DIR, "-m", "not nightly", "-p", "no:cacheprovider"]
        try:
            status, said = run_fork(tree, [*arguments, f"@{file.name}"], limit_s)
        except subprocess.TimeoutExpired:
            return "they do not end"
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if status and not failed:
        return said.strip().splitlines()[-1] if said.strip() else "pytest has crashed"
    return failed[0].split(" ")[1] if failed else ""


def try_fault(tree: Path, fault: Fault, suite: Suite, most_s: float) -> dict[str, Any]:
    """What the tests make of a fault, with those of a lane that take some seconds without it.

    Returns:
        `fault`, `tests` (how many reach it), `found_by` (a lane of `LANES`, or ""), `failure` (the
        first test that failed), `ran` (how many were to run) and `seconds` (that passed).
    """
    began = time.monotonic()
    record: dict[str, Any] = {"fault": fault.describe(), "tests": 0, "ran": 0, "found_by": ""}
    lines = suite.reach.get(fault.file, {})
    with with_fault(tree, fault):
        for lane in LANES:
            known = suite.lane(lane)
            reached = choose_tests(fault, lines, known)
            record["tests"] += len(reached)
            tests = take_seconds(reached, known, most_s)
            if tests and not record["found_by"]:
                record["ran"] += len(tests)
                record["failure"] = find_failure(tree, tests, PATIENCE_S + 10 * most_s)
                record["found_by"] = lane if record["failure"] else ""
    return record | {"seconds": round(time.monotonic() - began)}


def sum_up(records: list[dict[str, Any]]) -> str:
    """The table of packages, and the faults that nothing has found."""
    drawn, found, found_all = Counter[str](), Counter[str](), Counter[str]()
    for record in records:
        package = record["fault"].partition("/")[0].partition(":")[0]
        for name in (package, "all"):
            drawn[name] += 1
            found[name] += record["found_by"] == LANES[0]
            found_all[name] += bool(record["found_by"])
    rows = [f"{'package':<20}{'faults':>8}{LANES[0]:>12}{LANES[1]:>15}"]
    names = [*sorted(set(drawn) - {"all"}), "all"]
    rows += [f"{name:<20}{drawn[name]:>8}{found[name]:>12}{found_all[name]:>15}" for name in names]
    for record in records:
        if not record["found_by"]:
            rows.append(f"not found, {record['ran']} of {record['tests']} tests: {record['fault']}")
    return "\n".join(rows)


def read_arguments() -> argparse.Namespace:
    """The arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--number", type=int, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=Path, default=Path("faults"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a lane, for one fault")
    parser.add_argument("--only", default="", help="what names of files begin with: data/")
    parser.add_argument("--tests", default="python/tests", help="the folder of the tests that run")
    return parser.parse_args()


def main() -> None:
    """Runs what the folder of records does not have yet, and prints the table."""
    arguments = read_arguments()
    records = arguments.records.resolve()
    records.mkdir(parents=True, exist_ok=True)
    if not (records / "core.txt").exists():
        measure_reach(records, arguments.tests, arguments.processes)
    suite = read_suite(records)
    kept = records / "faults.jsonl"
    lines = kept.read_text("utf-8").splitlines() if kept.exists() else []
    done = {record["fault"]: record for record in map(json.loads, lines)}
    drawn = draw_faults(ROOT / CORE, arguments.number, arguments.seed, arguments.only)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.processes) as pool:
        trees: Queue[Path] = Queue()
        for number in range(arguments.processes):
            trees.put(copy_tree(Path(folder, str(number))))

        def run(fault: Fault) -> None:
            tree = trees.get()
            done[fault.describe()] = try_fault(tree, fault, suite, arguments.seconds)
            trees.put(tree)
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[fault.describe()]) + "\n")

        list(pool.map(run, [fault for fault in drawn if fault.describe() not in done]))
    print(sum_up([done[fault.describe()] for fault in drawn]))


if __name__ == "__main__":
    main()
