"""Command line: `python -m gpukeras.accelerate script.py [arguments]` runs a script unchanged."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from gpukeras.accelerate import switch

USAGE = "usage: python -m gpukeras.accelerate [--report] script.py [arguments]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a script with acceleration on; `--report` prints then what became of its calls."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    shows = words[:1] == ["--report"]
    words = words[shows:]
    if not words or words[0].startswith("-"):
        print(USAGE, file=sys.stderr)
        return 2
    before, path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
    was = switch.switch(True)
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv, sys.path[0] = before, path
        note = switch.read_state().note
        switch.switch(was)
        if shows:
            lines = [*map(format_call, switch.report()), *([note] if note else [])]
            print("\n".join(lines), file=sys.stderr)
    return 0


def format_call(call: switch.Call) -> str:
    """Returns a line about a call."""
    rows = "" if call.rows is None else f", {call.rows:,} rows"
    what = f"{call.function}() of {call.model}{rows}"
    return f"{what}: {call.engine}, {call.seconds:.2f} s, {call.reason}"


if __name__ == "__main__":
    sys.exit(main())
