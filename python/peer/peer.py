"""Keras' own tests, once with Keras and once with its `fit()` going through gpukeras.

    KERAS_SOURCE=folder python python/peer/peer.py [--backend jax] [--engines auto,keras]
        [--only EXPRESSION]

The folder is a git clone or an unpacked archive of Keras' sources at the installed version. The
tests of its trainers, callbacks, optimizers and models that call `fit()`, `evaluate()` or
`predict()` and pass there are run again for each engine. Each then passes, is refused by a sentence
of gpukeras' (by both, where Keras refuses the same call), differs for a reason that `explained`
gives, or differs; the last must not happen, and makes the exit status 1. README.md has the table of
the last whole run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from explained import explain

ENGINES = ("auto", "keras", "graph_loop", "compiled")
# "refused by both": the call that gpukeras refuses is one that Keras refuses in that test, too, by
# an error of another class.
KINDS = ("passes", "refused by both", "refused", "explained", "differs")
FOLDERS = ("trainers", "callbacks", "optimizers", "models")
CALL = re.compile(r"\.(fit|evaluate|predict)\(")
HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "inst" / "python"
LIMIT_S = 3600  # a run
Records = dict[str, dict[str, Any]]
Found = dict[str, list[tuple[str, str]]]


def check_source(folder: str, installed: str) -> str:
    """Why a folder cannot serve as Keras' sources of a version, or ""."""
    if not folder:
        return "Set KERAS_SOURCE to a folder with Keras' sources: a git clone or an unpacked tree."
    file = Path(folder, "keras", "src", "version.py")
    if not file.is_file():
        return f"KERAS_SOURCE holds no sources of Keras: there is no {file}."
    found = re.search(r'__version__ = "([^"]+)"', file.read_text(encoding="utf-8"))
    if found is None or found[1] != installed:
        which = "an unknown version" if found is None else found[1]
        return (
            f"KERAS_SOURCE holds Keras {which}, but {installed} is installed. "
            f"In a git clone, run git checkout v{installed}."
        )
    return ""


def find_files(source: Path) -> list[str]:
    """Test files that train, evaluate or predict."""
    found = [file for name in FOLDERS for file in (source / "keras/src" / name).rglob("*_test.py")]
    return sorted(
        str(file.relative_to(source)) for file in found if CALL.search(file.read_text("utf-8"))
    )


def read_records(path: Path) -> Records:
    """The last record of each test; a failure outlasts what comes after it."""
    records: Records = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        record = json.loads(line)
        if records.get(record["test"], {}).get("outcome") != "failed":
            records[record["test"]] = record
    return records


def run_tests(
    source: Path, tests: list[str], engine: str, folder: Path, *, only: str, backend: str
) -> Records:
    """Runs tests in a process of their own; "" as the engine is Keras alone."""
    records = folder / f"{engine or 'native'}.jsonl"
    chosen = folder / "tests.txt"
    records.unlink(missing_ok=True)
    chosen.write_text("\n".join(tests), "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (source, HERE, CORE))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KERAS_BACKEND": backend,
        "PEER_ENGINE": engine,
        "PEER_RECORDS": str(records),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["-p", "peer_plugin", "--continue-on-collection-errors", "--tb=short"]
    command += [*(["-k", only] if only else []), f"@{chosen}"]
    with (folder / f"{engine or 'native'}.log").open("w") as log:
        try:
            subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log,
                           timeout=LIMIT_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"The run was ended after {LIMIT_S / 60:.0f} minutes.", flush=True)
    return read_records(records)


def judge(native: dict[str, Any], record: dict[str, Any] | None) -> tuple[str, str]:
    """What became of a test that Keras passes: one of `KINDS`, and why."""
    if record is None:
        return "differs", "It was not run to its end."
    if record["outcome"] == "passed":
        return "passes", ""
    if record.get("refusal"):
        alike = record["raised"][-1] in native["raised"]
        return "refused by both" if alike else "refused", record["refusal"]
    error = " ".join(record["error"].split())[:200]
    reason = explain(record["test"], error)
    return ("explained", reason) if reason else ("differs", error)


def compare(native: Records, wanted: list[str], records: Records) -> Found:
    """Tests with their reasons, by what became of them."""
    found: Found = {kind: [] for kind in KINDS}
    for test in wanted:
        kind, why = judge(native[test], records.get(test))
        found[kind].append((test, why))
    return found


def show(engine: str, found: Found) -> None:
    """Prints an engine's part of the table."""
    print(f"\n{engine}: {count_kinds(found)}")
    for folder in FOLDERS:
        own = {
            kind: [pair for pair in tests if pair[0].startswith(f"keras/src/{folder}/")]
            for kind, tests in found.items()
        }
        if any(own.values()):
            print(f"  {folder}: {count_kinds(own)}")
    for kind in ("refused", "refused by both", "explained"):
        for sentence, count in Counter(why for _, why in found[kind]).most_common():
            print(f"  {kind}, {count}: {sentence}")
    for test, why in found["differs"]:
        print(f"  differs: {test.split('::', 1)[-1]}\n    {why}", flush=True)


def count_kinds(found: Found) -> str:
    """How many tests there are of each kind, in words."""
    return ", ".join(f"{len(tests)} {kind}" for kind, tests in found.items())


def show_native(records: Records) -> None:
    """Prints what Keras' own run says of the tests."""
    counts = Counter(record["outcome"] for record in records.values())
    print("Keras: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    failed = [one for one in records.values() if one["outcome"] in ("failed", "unread")]
    reasons = Counter(" ".join(one["error"].split())[-110:] for one in failed)
    for why, count in reasons.most_common():
        print(f"  not passed, {count}: ... {why}")


def read_arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="tensorflow", choices=("tensorflow", "jax"))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--only", default="", help="as pytest's -k")
    parser.add_argument("--records", help="a folder that keeps what the runs said")
    parser.add_argument("--again", action="store_true", help="take Keras' run from --records")
    return parser.parse_args()


def main() -> int:
    """Runs, compares, prints; 1 where something differs."""
    options, folder = read_arguments(), os.environ.get("KERAS_SOURCE", "")
    refused = check_source(folder, version("keras"))
    if refused:
        print(refused, file=sys.stderr)
        return 2
    source = Path(folder).resolve()
    kept = Path(options.records or tempfile.mkdtemp())
    how = {"only": options.only, "backend": options.backend}
    kept.mkdir(parents=True, exist_ok=True)
    if options.again:
        native = read_records(kept / "native.jsonl")
    else:
        native = run_tests(source, find_files(source), "", kept, **how)
    show_native(native)
    wanted = [
        test for test, one in native.items() if one["outcome"] == "passed" and one.get("calls")
    ]
    print(f"{len(wanted)} tests train, evaluate or predict, and pass.", flush=True)
    differs = 0
    for engine in options.engines.split(",") if wanted else []:
        found = compare(native, wanted, run_tests(source, wanted, engine, kept, **how))
        show(engine, found)
        differs += len(found["differs"])
    return 1 if differs or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
