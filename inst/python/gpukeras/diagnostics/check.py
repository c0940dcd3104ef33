"""Implements `gpu_check()`: reads the facts and diagnoses them."""

from __future__ import annotations

import getpass
import json
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.keras_types import Model
from gpukeras.diagnostics.collect import read_facts
from gpukeras.diagnostics.report import format_check, format_facts, redact
from gpukeras.diagnostics.verdict import Diagnosis, diagnose
from gpukeras.system.facts import parse_facts


@dataclass(frozen=True)
class Check(Diagnosis):
    """A diagnosis with the facts it is based on, as they were recorded."""

    facts: dict[str, Any]


def check(
    session: Mapping[str, Any] | None = None, model: Model | None = None, data: Any = None
) -> Check:
    """Checks whether the GPU is used, or why not. Never raises on an unusual machine.

    Args:
        session: Facts from R, see `system.facts`; its entry `environment` maps the names of set
            environment variables to the values that R reads.
        model: A compiled Keras model; it is trained on `data` for a few steps to prove that its
            training runs on the GPU, then restored.
        data: A dataset that fits the model.

    Raises:
        ModelError, DataError, SpecError: if the model or the data cannot be trained at all.
    """
    facts = read_facts(session, model, data)
    return Check(**vars(diagnose(parse_facts(facts))), facts=facts)


def report(session: Mapping[str, Any] | None = None) -> str:
    """Returns the check as plain text for a bug report, without names of user, host and home."""
    checked = check(session)
    lines = [*format_check(checked), "", "Facts", *format_facts(checked.facts)]
    return redact("\n".join(lines), **read_names())


def to_json(checked: Check) -> str:
    """Converts a check to JSON."""
    return json.dumps(asdict(checked), indent=2, default=str)


def read_names() -> dict[str, list[str]]:
    """Returns the names that a report must not contain: of user, host and home folder."""
    readers = (getpass.getuser, socket.gethostname, platform.node, lambda: str(Path.home()))
    names = []
    for read in readers:
        try:
            names.append(read())
        except Exception:  # for example, no passwd entry
            names.append("")
    user, host, node, home = names
    return {"users": [user], "hosts": [host, node, host.split(".")[0]], "homes": [home]}
