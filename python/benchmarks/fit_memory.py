"""Memory of a process that trains again and again: fit_memory.py [FITS], prints a table.

Each case in a process of its own: one small model fitted FITS times, and as many new models
fitted once. MiB of resident memory after some of the fits; the last column is the growth a fit from
the tenth on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).parents[2] / "inst" / "python"
TESTS = Path(__file__).parents[1] / "tests" / "support"
ENGINES = ("graph_loop", "auto")
MARKS = (10, 25, 50, 75, 100)
sys.path[:0] = [str(CORE), str(TESTS)]  # also where R starts this file


def measure(kind: str, engine: str, fits: int) -> dict[int, float]:
    """Trains in this process; MiB after some of the fits.

    Args:
        kind: "one" for one model all along, "new" for a new one each time.
        engine: What trains.
        fits: How often.
    """
    from small_fits import make_dataset, make_model

    from gpukeras.training import fit as training_fit

    data, model, found = make_dataset(2000, validation=0.1), make_model(optimizer="adam"), {}
    for fit in range(1, fits + 1):
        if kind == "new":
            model = make_model(optimizer="adam")
        training_fit.fit(model, data, {"epochs": 2, "engine": engine})
        if fit in MARKS or fit == fits:
            found[fit] = resident_mib()
    return found


def resident_mib() -> float:
    """What the process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_apart(kind: str, engine: str, fits: int) -> dict[int, float]:
    """The same in a child process."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, __file__, str(fits), kind, engine]
    child = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return {int(fit): mib for fit, mib in json.loads(child.stdout.splitlines()[-1]).items()}


def main(fits: int) -> None:
    """Prints a line a case."""
    marks = [mark for mark in MARKS if mark < fits] + [fits]
    print(f"{'model':6}{'engine':11}" + "".join(f"{mark:>7}" for mark in marks) + "  MiB a fit")
    for kind in ("one", "new"):
        for engine in ENGINES:
            found = measure_apart(kind, engine, fits)
            values = "".join(f"{found[mark]:7.0f}" for mark in marks)
            growth = (found[marks[-1]] - found[marks[0]]) / max(1, marks[-1] - marks[0])
            print(f"{kind:6}{engine:11}{values}{growth:11.2f}", flush=True)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], count)))
    else:
        main(count)
