"""`gpu_check()`: reads the facts and has them judged."""

from __future__ import annotations

import getpass
import json
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpukeras.diagnostics.collect import read_facts
from gpukeras.diagnostics.report import format_check, format_facts, redact
from gpukeras.diagnostics.verdict import Diagnosis, diagnose


@dataclass(frozen=True)
class Check(Diagnosis):
    """A diagnosis with the facts that it stands on."""

    facts: dict[str, Any]


def check(session: Mapping[str, Any] | None = None, model: Any = None, data: Any = None) -> Check:
    """Whether the GPU is used, or why not. Never raises on an odd machine.

    Args:
        session: What R knows: see `system.facts`; `environment` is
            R's reading of the set variables by name.
        model: A compiled Keras model; with `data`, one that is trained for a few steps to prove
            that its training is on the GPU. It is left as it was.
        data: A dataset that fits it.

    Raises:
        ModelError, DataError, SpecError: if the model or the data cannot be trained at all.
    """
    facts = read_facts(session, model, data)
    return Check(**vars(diagnose(facts)), facts=facts)


def report(session: Mapping[str, Any] | None = None) -> str:
    """The check as plain text for a bug report, without the names of user, host and home."""
    found = check(session)
    lines = [*format_check(found), "", "Facts", *format_facts(found.facts)]
    return redact("\n".join(lines), **read_names())


def to_json(found: Check) -> str:
    """A check as JSON."""
    return json.dumps(asdict(found), indent=2, default=str)


def read_names() -> dict[str, list[str]]:
    """Names that a report must not hold: of the user, the host and the home folder."""
    readers = (getpass.getuser, socket.gethostname, platform.node, lambda: str(Path.home()))
    names = []
    for read in readers:
        try:
            names.append(read())
        except Exception:  # no passwd entry, say
            names.append("")
    user, host, node, home = names
    return {"users": [user], "hosts": [host, node, host.split(".")[0]], "homes": [home]}
