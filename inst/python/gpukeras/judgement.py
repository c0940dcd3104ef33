"""The verdict of `gpu_check()`: pure functions from facts to one verdict, one cause, one fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .causes import CAUSES, Cause, fill_fix
from .signs import Facts, count_gpus, find_dict, find_fact, find_list, find_text, is_cuda_build

UNTRACED = (
    "The GPU computes, but no training step has been traced on it: that training runs there is "
    "not proven."
)
NOT_DETERMINED = "not determined"


@dataclass(frozen=True)
class Finding:
    """One thing that `gpu_check()` looked at.

    Args:
        id: Such as "driver", or a cause's id such as "C7".
        status: "ok", "note" or "problem".
        title: What was looked at, or the cause.
        evidence: What was found.
        fix: What to do about a problem, else "".
    """

    id: str
    status: str
    title: str
    evidence: str
    fix: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What `gpu_check()` answers.

    Args:
        verdict: "CONFIRMED", "PARTIAL", "UNPROVEN" or "NOT USED".
        cause: The one root cause, or None (there is none, or it is not determined).
        cause_id: Its id, or None.
        fix: What to do about it, to copy, or "".
        evidence: What the verdict and the cause stand on, sentences.
        findings: All that was looked at; problems first.
    """

    verdict: str
    cause: str | None
    cause_id: str | None
    fix: str
    evidence: tuple[str, ...]
    findings: tuple[Finding, ...]


def judge(facts: Facts) -> Diagnosis:
    """The verdict on these facts; facts that are missing are not determined, never a "no"."""
    situation = name_situation(facts)
    detected = [(cause, sign) for cause in CAUSES if (sign := cause.detect(facts))]
    roots = [(cause, sign) for cause, sign in detected if situation in cause.explains]
    root_id = roots[0][0].id if roots else None
    findings = [_report_cause(cause, sign, root_id, facts) for cause, sign in detected]
    findings.sort(key=lambda finding: finding.status != "problem")
    findings += take_inventory(facts)
    if not roots:
        verdict, evidence = _judge_situation(situation, facts)
        return Diagnosis(verdict, None, None, "", evidence, tuple(findings))
    root, sign = roots[0]
    title = root.title.replace("{evidence}", sign)
    fix = fill_fix(root.fix, facts)
    return Diagnosis("NOT USED", title, root.id, fix, (sign,), tuple(findings))


def name_situation(facts: Facts) -> str:
    """What TensorFlow does with the GPU, in a word.

    "works": a visible GPU computed rightly; "failed": it did not; "untested": it was not tried;
    "hidden": GPUs are listed, none visible; "unlisted": none is listed; "unknown".
    """
    physical = find_list(facts, "tensorflow", "physical_gpus")
    visible = find_list(facts, "tensorflow", "visible_gpus")
    visible = physical if visible is None else visible
    if visible:
        proven = find_fact(facts, "proof", "ok")
        return {True: "works", False: "failed"}.get(
            proven if proven in (True, False) else None, "untested"
        )
    if physical:
        return "hidden"
    return "unlisted" if physical == [] else "unknown"


def _judge_situation(situation: str, facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Verdict and evidence where no cause is proven."""
    if situation == "works":
        return "UNPROVEN", (describe_proof(facts), UNTRACED)
    if situation == "untested":
        reason = find_text(facts, "proof", "error") or "no test was run"
        return "UNPROVEN", (
            "TensorFlow lists a GPU; whether it computes is not determined: " + reason,
        )
    if situation == "unknown":
        return "UNPROVEN", ("Whether TensorFlow sees a GPU is not determined.",)
    seen = "may use no GPU" if situation == "hidden" else "lists no GPU"
    return "NOT USED", (f"TensorFlow {seen}; the cause is not determined.",)


def _report_cause(cause: Cause, sign: str, root_id: str | None, facts: Facts) -> Finding:
    # Without a GPU, say, a build for the CPU is right: only the root is sure to be a problem.
    status = "problem" if cause.id == root_id or cause.severity == "error" else "note"
    title = cause.title.replace("{evidence}", sign)
    return Finding(cause.id, status, title, sign, fill_fix(cause.fix, facts))


# What else was looked at -------------------------------------------------------------------------


def take_inventory(facts: Facts) -> list[Finding]:
    """One finding for each part that must be right, "note" where it is missing or not known."""
    findings = []
    for name, title, look in INVENTORY:
        seen = look(facts)
        status = "note" if seen is None or seen.startswith("none") else "ok"
        findings.append(Finding(name, status, title, seen or NOT_DETERMINED))
    return findings


def describe_platform(facts: Facts) -> str | None:
    """System, release and processor."""
    parts = [find_text(facts, "platform", key) for key in ("system", "release", "machine")]
    return " ".join(part for part in parts if part) or None


def describe_hardware(facts: Facts) -> str | None:
    """How many NVIDIA GPUs the computer has."""
    count = count_gpus(facts)
    if count is None:
        return "none on the PCI bus" if find_list(facts, "hardware", "nvidia_gpus") == [] else None
    return f"{count} NVIDIA GPU"


def describe_driver(facts: Facts) -> str | None:
    """Version of the driver's kernel module, and its device nodes."""
    text = find_text(facts, "driver", "version")
    if text is None:
        return None
    version = re.search(r"\d+\.\d+(\.\d+)?", text)
    nodes = find_list(facts, "driver", "device_nodes") or ["no device nodes"]
    found = f"{version.group() if version else text[:60]}, {', '.join(map(str, nodes))}"
    return found if text else "none loaded"


def describe_python(facts: Facts) -> str | None:
    """Which Python runs, and who chose it."""
    executable = find_text(facts, "python", "executable")
    if not executable:
        return None
    forced = find_text(facts, "session", "forced")
    chosen = f", chosen by {forced}" if forced else ""
    return f"{find_text(facts, 'python', 'version') or ''} {executable}{chosen}".strip()


def describe_tensorflow(facts: Facts) -> str | None:
    """Version and build of TensorFlow."""
    version = find_text(facts, "tensorflow", "version")
    if not version:
        return None
    cuda = find_text(facts, "build", "cuda_version")
    build = {True: f"built with CUDA {cuda or ''}".strip(), False: "built without CUDA"}
    known = is_cuda_build(facts)
    return version if known is None else f"{version}, {build[known]}"


def describe_gpus(facts: Facts) -> str | None:
    """GPUs that TensorFlow lists and may use."""
    physical = find_list(facts, "tensorflow", "physical_gpus")
    if physical is None:
        return None
    visible = find_list(facts, "tensorflow", "visible_gpus")
    if not physical:
        return "none listed"
    hidden = "" if visible is None or visible == physical else f" ({len(visible)} visible)"
    return ", ".join(str(name) for name in physical) + hidden


def describe_proof(facts: Facts) -> str | None:
    """What the test computation showed."""
    proof = find_dict(facts, "proof")
    if not proof and name_situation(facts) in ("unlisted", "hidden"):
        return "none: there is no GPU to test"
    error, tolerance = proof.get("deviation"), proof.get("tolerance")
    if not isinstance(error, (int, float)) or not isinstance(tolerance, (int, float)):
        return find_text(facts, "proof", "error") or None
    return (
        f"A matrix product on {proof.get('device')} with soft placement off deviates from NumPy by "
        f"{error:.1e}, tolerance {tolerance:.1e}."
    )


INVENTORY: Sequence[tuple[str, str, Callable[[Facts], str | None]]] = (
    ("platform", "Operating system", describe_platform),
    ("hardware", "NVIDIA hardware", describe_hardware),
    ("driver", "NVIDIA driver", describe_driver),
    ("python", "Python", describe_python),
    ("tensorflow", "TensorFlow", describe_tensorflow),
    ("gpus", "GPUs in TensorFlow", describe_gpus),
    ("compute", "Test computation", describe_proof),
)


# As text -----------------------------------------------------------------------------------------


def format_check(diagnosis: Diagnosis) -> list[str]:
    """A diagnosis as plain lines: verdict, cause, evidence, fix, findings."""
    unknown = NOT_DETERMINED if diagnosis.verdict == "NOT USED" else "none found"
    label = f" [{diagnosis.cause_id}]" if diagnosis.cause_id else ""
    lines = [f"GPU: {diagnosis.verdict}", f"Cause: {diagnosis.cause or unknown}{label}"]
    lines += [f"Evidence: {line}" for line in diagnosis.evidence]
    lines += [f"Fix: {diagnosis.fix}"] if diagnosis.fix else []
    others = [finding for finding in diagnosis.findings if finding.id != diagnosis.cause_id]
    return lines + [line for finding in others for line in _format_finding(finding)]


def _format_finding(finding: Finding) -> list[str]:
    mark = {"ok": "-", "note": "?", "problem": "!"}[finding.status]
    lines = [f"{mark} {finding.title.rstrip('.')}: {finding.evidence}"]
    return [*lines, f"  Fix: {finding.fix}"] if finding.status == "problem" else lines


def format_facts(facts: Any, path: str = "") -> list[str]:  # noqa: ANN401
    """Facts as lines "platform.system: Linux"."""
    if isinstance(facts, Mapping) and facts:
        return [
            line
            for key, value in facts.items()
            for line in format_facts(value, f"{path}.{key}" if path else str(key))
        ]
    unknown = "unset" if path.startswith("environment.") else NOT_DETERMINED
    return [f"{path}: {unknown if facts is None else facts}"]


def redact(text: str, users: Sequence[str], hosts: Sequence[str], homes: Sequence[str]) -> str:
    """Text without the names of the user, the host and the home folder."""
    for home in sorted((home for home in homes if len(home) > 1), key=len, reverse=True):
        text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
    text = re.sub(r"(/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:;,'\"]+", r"\1<user>", text)
    for names, mark in ((users, "<user>"), (hosts, "<host>")):
        for name in (name for name in names if name and name not in ("root", "localhost")):
            text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", mark, text)
    return text
