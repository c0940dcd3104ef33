"""Command line of the core: `python -m gpukeras check`, `report`, `devices` or `contract`.

`python -m gpukeras serve MODEL.keras` serves predictions; `serve --help` lists its options.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from gpukeras.backend import devices
from gpukeras.core.errors import GpuKerasError
from gpukeras.diagnostics import check
from gpukeras.diagnostics.check import SCREEN, format_check


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status of `check` is 0 only when the GPU is confirmed."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["serve"]:
        from gpukeras.serving import server_main  # imported here because it imports the whole core

        return server_main.main(arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m gpukeras", description=__doc__)
    parser.add_argument("command", choices=("check", "report", "devices", "contract"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    commands = {
        "check": run_check,
        "report": run_report,
        "devices": run_devices,
        "contract": run_contract,
    }
    try:
        return commands[options.command](options.json)
    except GpuKerasError as error:
        print(error, file=sys.stderr)
        return 1


def run_check(as_json: bool) -> int:
    """Prints the verdict."""
    found = check.check()
    print(check.to_json(found) if as_json else "\n".join(format_check(found, SCREEN)))
    return 0 if found.verdict == "CONFIRMED" else 1


def run_report(as_json: bool) -> int:
    """Prints the text for a bug report."""
    text = check.report()
    print(json.dumps({"report": text}) if as_json else text)
    return 0


def run_devices(as_json: bool) -> int:
    """Prints the devices."""
    records = [dataclasses.asdict(device) for device in devices.read_devices()]
    if as_json:
        print(json.dumps(records, indent=2))
        return 0
    for record in records:
        print("  ".join(str(record[name]) for name in ("name", "label", "compute_capability")))
    return 0


def run_contract(as_json: bool) -> int:
    """Prints the entry points with their arguments, always as JSON."""
    from gpukeras.api import contract  # imported here because it imports the whole core

    print(json.dumps(contract(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
