"""Diagnoses why gpukeras' own imports fail, such as NumPy's; needs the standard library alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpukeras.diagnostics.load_errors import read_load_error
from gpukeras.diagnostics.verdict import diagnose
from gpukeras.system import pip
from gpukeras.system.facts import parse_facts


def check_core(said: str, executable: str) -> dict[str, Any]:
    """Returns the diagnosis as plain values, with its facts; R takes it for `gpu_check()`.

    Args:
        said: The message of the import that failed in this process.
        executable: Path of this Python.
    """
    facts = {
        "python": pip.read_python({"python": executable}),
        "import_error": read_load_error(said, "gpukeras"),
    }
    return {**asdict(diagnose(parse_facts(facts))), "facts": facts}
