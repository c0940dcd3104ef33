"""Implements `gpu_check()`: reads the facts and diagnoses them."""

from __future__ import annotations

import getpass
import json
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.keras_types import Model
from gpukeras.diagnostics.collect import read_facts
from gpukeras.diagnostics.findings import NOT_DETERMINED, PARTS, Finding
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


# A diagnosis for a terminal, and its facts for a bug report --------------------------------------


SCREEN = 24  # lines


def format_check(diagnosis: Diagnosis, height: int | None = None) -> list[str]:
    """Formats a diagnosis as plain lines: verdict, cause, evidence, fix, findings.

    Args:
        diagnosis: The result of `diagnose()`.
        height: Maximum number of lines; notes beyond it are left out. None for no limit.
    """
    unknown = NOT_DETERMINED if diagnosis.verdict == "NOT USED" else "none found"
    label = f" [{diagnosis.cause_id}]" if diagnosis.cause_id else ""
    lines = [f"GPU: {diagnosis.verdict}", f"Cause: {diagnosis.cause or unknown}{label}"]
    lines += [f"Evidence: {line}" for line in diagnosis.evidence]
    lines += [f"Fix: {diagnosis.fix}"] if diagnosis.fix else []
    others = [finding for finding in diagnosis.findings if finding.id != diagnosis.cause_id]
    notes = [finding for finding in others if finding.status == "note" and finding.id not in PARTS]
    for finding in (finding for finding in others if finding not in notes):
        lines += _format_finding(finding)
    return _fit(lines, [line for note in notes for line in _format_finding(note)], height)


def _fit(lines: list[str], notes: list[str], height: int | None) -> list[str]:
    room = len(notes) if height is None else max(0, height - len(lines))
    if len(notes) <= room:
        return lines + notes
    kept = max(0, room - 1)
    return [*lines, *notes[:kept], f"... and {len(notes) - kept} more: --json lists all"]


def _format_finding(finding: Finding) -> list[str]:
    mark = {"ok": "-", "note": "?", "problem": "!"}[finding.status]
    lines = [f"{mark} {finding.title.rstrip('.')}: {finding.evidence}"]
    return [*lines, f"  Fix: {finding.fix}"] if finding.status == "problem" else lines


def format_facts(facts: Any, path: str = "") -> list[str]:  # noqa: ANN401
    """Formats facts as lines such as "platform.system: Linux"."""
    if isinstance(facts, Mapping) and facts:
        return [
            line
            for key, value in facts.items()
            for line in format_facts(value, f"{path}.{key}" if path else str(key))
        ]
    unknown = "unset" if path.startswith("environment.") else NOT_DETERMINED
    return [f"{path}: {unknown if facts is None else facts}"]


def redact(text: str, users: Sequence[str], hosts: Sequence[str], homes: Sequence[str]) -> str:
    """Replaces the names of the user, the host and the home folder in a text.

    Args:
        text: The text.
        users: User names, replaced by "<user>".
        hosts: Host names, replaced by "<host>".
        homes: Paths of home folders, replaced by "~".
    """
    for home in sorted((home for home in homes if len(home) > 1), key=len, reverse=True):
        text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
    text = re.sub(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:;,'\"]+", r"\1<user>", text)
    for names, mark in ((users, "<user>"), (hosts, "<host>")):
        for name in (name for name in names if name and name not in ("root", "localhost")):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mark, text)
    return text
