"""Derives one verdict, one cause and one fix from the facts of `gpu_check()`; pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpukeras.diagnostics.findings import Finding, describe_product, take_inventory
from gpukeras.diagnostics.rules.catalog import CAUSES
from gpukeras.diagnostics.rules.jax import find_start_error
from gpukeras.diagnostics.rules.placement import count_heavy
from gpukeras.diagnostics.rules.rule import Cause, fill_fix
from gpukeras.system.facts import NOT_USED, Facts, UseFacts, count_fresh, is_simulated
from gpukeras.system.known_issues import find_bugs

SIMULATED = "The driver is simulated, for tests: nothing is proven of a GPU."


@dataclass(frozen=True)
class Diagnosis:
    """The result of `gpu_check()`.

    Args:
        verdict: "CONFIRMED", "PARTIAL", "UNPROVEN" or "NOT USED".
        cause: The root cause, or None (there is none, or it is not determined).
        cause_id: Id of the root cause, or None.
        fix: A fix to copy, or "".
        evidence: Sentences that support the verdict and the cause.
        findings: All findings, problems first.
    """

    verdict: str
    cause: str | None
    cause_id: str | None
    fix: str
    evidence: tuple[str, ...]
    findings: tuple[Finding, ...]


def diagnose(facts: Facts) -> Diagnosis:
    """Diagnoses facts; a missing fact counts as not determined, never as "no"."""
    situation = name_situation(facts)
    detected = [(cause, sign) for cause in CAUSES if (sign := cause.find(facts))]
    root = next((found for found in detected if situation in found[0].situations), None)
    root_id = root[0].id if root else None
    findings = [_report_cause(cause, sign, root_id, facts) for cause, sign in detected]
    findings += list_bugs(facts, {cause.id for cause, _ in detected})
    findings.sort(key=lambda finding: finding.status != "problem")
    findings += take_inventory(facts)
    if root is None:
        verdict, evidence = judge_situation(situation, facts)
        return Diagnosis(verdict, None, None, "", evidence, tuple(findings))
    cause, sign = root
    title = cause.title.replace("{evidence}", sign)
    fix = fill_fix(cause.fix, facts)
    return Diagnosis("NOT USED", title, cause.id, fix, (sign,), tuple(findings))


def find_root_id(facts: Facts) -> str | None:
    """Returns the id of the root cause that the facts prove so far, or None."""
    situation = name_situation(facts)
    roots = (cause for cause in CAUSES if situation in cause.situations)
    return next((cause.id for cause in roots if cause.find(facts)), None)


def _report_cause(cause: Cause, sign: str, root_id: str | None, facts: Facts) -> Finding:
    # Without a GPU, for example, a CPU build is correct: only the root is certainly a problem.
    status = "problem" if cause.id == root_id or cause.is_problem(facts) else "note"
    title = cause.title.replace("{evidence}", sign)
    return Finding(cause.id, status, title, sign, fill_fix(cause.fix, facts))


MENDED = {
    "preload": "gpukeras loads the libraries before TensorFlow",
    "jit off": "gpukeras trains without XLA here",
}


def list_bugs(facts: Facts, detected: Collection[str]) -> list[Finding]:
    """Returns known bugs of the installed versions that no detected cause covers."""
    return [
        Finding(
            bug.id,
            # Only gpukeras trains without XLA: Keras' fit() would still abort the process.
            "note" if bug.mends == "preload" else "problem",
            bug.what,
            "; ".join(filter(None, (sign, MENDED.get(bug.mends)))),
            fill_fix(bug.fix, facts),
        )
        for bug, sign in find_bugs(facts)
        if bug.cause not in detected
    ]


def name_situation(facts: Facts) -> str:
    """Names the backend's state of GPU use.

    "works": a visible GPU computes correctly; "failed": it does not, or JAX cannot start on it;
    "untested": it was not tested; "hidden": GPUs are listed, none is visible; "late": this session
    lists none, but a new process with the same environment does; "unlisted": none is listed;
    "unknown".
    """
    physical, fresh = facts.runtime.physical_gpus, count_fresh(facts)
    if find_start_error(facts) and not physical:
        return "failed"
    if physical == () and fresh:
        return "late"
    # If the session has no list, the list of a child process counts.
    listed = fresh if physical is None else len(physical)
    visible = facts.runtime.visible_gpus
    if listed if visible is None else visible:
        return name_proof(facts)
    if listed:
        return "hidden"
    return "unlisted" if listed == 0 else "unknown"


def name_proof(facts: Facts) -> str:
    """Returns "works", "failed" or "untested", from the child process or the user's model here."""
    proven = facts.proof.ok
    if proven is True or proven is False:
        return "works" if proven else "failed"
    return "works" if describe_numeric(facts.use) else "untested"


# Without a proven cause -------------------------------------------------------------------------


def judge_situation(situation: str, facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Returns verdict and evidence if no cause is proven."""
    if situation == "works":
        return judge_use(facts)
    name = facts.backend_name
    if situation in ("failed", "untested"):
        reason = facts.proof.error or facts.proof.ended
        reason = reason or facts.skipped.get("compute") or "no test was run"
        return "UNPROVEN", (
            f"{name} lists a GPU; whether it computes is not determined: {reason}.",
        )
    if situation == "unknown":
        reason = explain_unknown(facts)
        return "UNPROVEN", (f"Whether {name} sees a GPU is not determined{reason}.",)
    seen = "may use no GPU" if situation == "hidden" else "lists no GPU"
    return "NOT USED", (f"{name} {seen}; the cause is not determined.",)


def explain_unknown(facts: Facts) -> str:
    """Returns why the backend's list of GPUs is unknown, as the end of a sentence."""
    tried = facts.listings.values()
    errors = [error for listing in tried if (error := listing.error)]
    return f": {errors[-1]}" if errors else ""


def judge_use(facts: Facts) -> tuple[str, tuple[str, ...]]:
    """Returns the verdict on a GPU that computes: whether training on it is proven.

    CONFIRMED needs three things: a correct result with soft placement off, memory that one training
    step allocated on the GPU, and kernels on its streams (or, if profiling is forbidden, heavy ops
    placed on it). PARTIAL: heavy ops run on the CPU as well.
    """
    own = facts.use != NOT_USED
    use = facts.use if own else facts.proof.use
    whose = "your model" if own else "a small model, in a child process"
    computed = describe_product(facts) or describe_numeric(use)
    memory, ran = judge_memory(use), judge_kernels(use, facts.backend)
    seen = tuple(text for text in (computed, memory, ran) if text)
    on_cpu = list_heavy(use, "CPU")
    if on_cpu and list_heavy(use, "GPU"):
        shown = ", ".join(on_cpu)
        return "PARTIAL", (*seen, f"The training step of {whose} computes on the CPU too: {shown}.")
    if is_simulated(facts):
        return "UNPROVEN", (*seen, SIMULATED)
    if computed and memory and ran:
        return "CONFIRMED", (*seen, f"Trained was {whose}.")
    missing = {"a right result": computed, "its memory in a training step": memory}
    missing["kernels or ops of a training step on it"] = ran
    lacking = " and ".join(name for name, found in missing.items() if not found)
    return "UNPROVEN", (*seen, f"Not determined: {lacking}.")


def describe_numeric(use: UseFacts) -> str | None:
    """Describes a model's correct output on a GPU with its deviation; None without one."""
    device = use.device or ""
    error, bound = use.numeric.deviation, use.numeric.tolerance
    right = use.numeric.ok is True and device.startswith("GPU")
    if not right or error is None or bound is None:
        return None
    return (
        f"The model's output on {device} deviates from the CPU's by {error:.1e} of the largest, "
        f"tolerance {bound:.1e}."
    )


def judge_memory(use: UseFacts) -> str:
    """Describes the memory that a training step took on the GPU, or ""."""
    rise, held = use.peak_rise_bytes, use.held_bytes
    expected = use.expected_bytes
    if held is not None and expected and held >= expected:
        return (
            f"JAX held {held / 2**20:.1f} MiB more of the GPU's memory for a step's rows, which "
            f"have {expected / 2**20:.1f} MiB."
        )
    if rise is None or expected is None or rise < max(expected, 1):
        return ""
    return (
        f"One training step took {rise / 2**20:.1f} MiB of the GPU's memory; its rows and "
        f"gradients need {expected / 2**20:.1f} MiB."
    )


def judge_kernels(use: UseFacts, backend: str) -> str:
    """Describes the kernels that ran on the GPU, or else the ops placed on it, or ""."""
    trace = use.trace
    if (trace.kernel_s or 0.0) > 0 and (trace.kernels or 0) > 0:
        busy = trace.busy_share
        share = "" if busy is None else f", {100 * busy:.0f} % of the time"
        return f"The profiler saw {trace.kernels} kernels on the GPU's streams{share}."
    if backend == "jax":  # see jax_usage
        return describe_variables(use.variables)
    placed = list_heavy(use, "GPU")
    return f"TensorFlow placed on the GPU: {', '.join(placed)}." if placed else ""


def describe_variables(devices: Mapping[str, int]) -> str:
    """Describes the variables that JAX's steps left on GPUs alone, or ""."""
    if not devices or not all(device.startswith("GPU") for device in devices):
        return ""
    counts = " and ".join(f"{count} on {device}" for device, count in devices.items())
    return f"The variables that JAX's steps computed are there: {counts}."


def list_heavy(use: UseFacts, kind: str) -> list[str]:
    """Returns the heavy ops with their number on all devices of a kind ("CPU" or "GPU")."""
    return [f"{count} {op}" for op, count in count_heavy(use, kind).items()]
