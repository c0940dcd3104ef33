"""Formats a diagnosis for a terminal and its facts for a bug report, and redacts names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpukeras.diagnostics.findings import NOT_DETERMINED, PARTS, Finding
from gpukeras.diagnostics.verdict import Diagnosis

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
    notes = [finding for finding in others if _is_note(finding)]
    for finding in (finding for finding in others if finding not in notes):
        lines += _format_finding(finding)
    return _fit(lines, [line for note in notes for line in _format_finding(note)], height)


def _is_note(finding: Finding) -> bool:
    return finding.status == "note" and finding.id not in PARTS


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
