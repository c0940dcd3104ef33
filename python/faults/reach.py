"""Which tests reach a line of the core: read from coverage.py's file."""

from __future__ import annotations

from pathlib import Path

from coverage import CoverageData
from sites import Fault

CHILD = "child:"
FILE_S = 0.2  # to import a file of tests


def read_reach(data: Path, core: str) -> dict[str, dict[int, set[str]]]:
    """The contexts of each line of each file.

    Args:
        data: The file of a run with `contexts.py`, combined.
        core: The folder of the core in that run; files are named from there.
    """
    measured = CoverageData(str(data))
    measured.read()
    reach = {}
    for file in measured.measured_files():
        if file.startswith(core + "/"):
            contexts = measured.contexts_by_lineno(file)
            reach[file[len(core) + 1 :]] = {
                # A fork has the context of its server as well, before a bar.
                line: {name.rpartition("|")[2] for name in names}
                for line, names in contexts.items()
            }
    return reach


def choose_tests(fault: Fault, lines: dict[int, set[str]], known: dict[str, float]) -> list[str]:
    """The tests that reach a fault, those of its own module first, then the fastest.

    What counts on import is reached by all tests that run anything of its file.

    Args:
        fault: The fault.
        lines: The contexts of each line of its file.
        known: The seconds of each test that may be chosen.
    """
    at_fault = [lines.get(line, set()) for line in range(fault.line, fault.end + 1)]
    names = set().union(*at_fault) - {""}
    if not names or fault.on_import:
        names = set().union(*lines.values()) - {""}
    begun = {name[len(CHILD) :].partition("::")[0] for name in names if name.startswith(CHILD)}
    reached = [name for name in known if name in names or name.partition("::")[0] in begun]
    own = f"/test_{Path(fault.file).name}::"
    return sorted(reached, key=lambda name: (own not in name, known[name], name))


def take_seconds(tests: list[str], known: dict[str, float], most_s: float) -> list[str]:
    """The first of some tests, as many as take so many seconds, and at least one of them."""
    taken, files, spent_s = [], set[str](), 0.0
    for name in tests:
        file = name.partition("::")[0]
        spent_s += known[name] + (0 if file in files else FILE_S)
        if taken and spent_s > most_s:
            break
        taken.append(name)
        files.add(file)
    return taken
