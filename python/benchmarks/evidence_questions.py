"""The tables of `gpu_evidence.py`'s measurements: one for each question. All pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evidence_cases import QUESTIONS, Question, choose_cases

ARRAYS, PIPELINE, STEPS = "Keras, arrays", "Keras, tf.data", "Keras, best steps_per_execution"
LIMIT, BARE = "limit: step alone", "bare lax.scan"
PEERS = {"tensorflow": PIPELINE, "jax": STEPS}  # Keras as an expert uses it
KNOWN, ASKED = "compiled, known trip counts", "compiled, run-time trip counts"
NOT_EVIDENCE = "CPU: not evidence of a GPU"
NO_TIME = "not run: no time left"
WIDTH = 9  # columns of a table
EXPLAINED = (
    "Each figure is the median of several turns in one run; the ways of a case took turns, after a "
    'warm-up. "times" is how many times as fast. The limit is the same step in a loop within one '
    "program, on one batch that is on the device already: no input at all. Compiled programs, "
    "with trip counts that XLA knows or not, run on rows that are on the device already. GPU busy "
    "is the share of time with a kernel, as NVML tells it; GPU memory is the most that a way added."
)
EXPLAINED_JAX = (
    " JAX keeps the peak of the whole session: GPU memory is told only of ways that raised it. "
    "Keras' best steps_per_execution stands beside it, found by a short search. The bare lax.scan "
    "is the small dense model without Keras: dropout, metrics and the gather of an epoch's rows."
)

Found = Mapping[str, Mapping[str, Any]]


def format_questions(cases: Mapping[str, Any]) -> str:
    """All tables, and why gpukeras chose what it chose.

    Args:
        cases: `found` (records by case), `backend`, `on_cpu`, `quick`, and `problem` if nothing was
            measured.
    """
    found: Found = cases.get("found") or {}
    backend = cases.get("backend") or "tensorflow"
    titles = {case.name: case.title for case in choose_cases(quick=bool(cases.get("quick")))}
    mark = f" ({NOT_EVIDENCE})" if cases.get("on_cpu") else ""
    parts = [_format_question(one, found, titles, mark, PEERS[backend]) for one in QUESTIONS]
    parts = [part for part in parts if part]
    explained = EXPLAINED + (EXPLAINED_JAX if backend == "jax" else "")
    return "\n\n".join([explained, *parts, _format_reasons(found, titles)]) if parts else ""


def count_cases(cases: Mapping[str, Any]) -> str:
    """How many cases were measured, failed, or found no time; in one line."""
    found: Found = cases.get("found") or {}
    if not found:
        return cases.get("problem") or "not run"
    late = sum(record.get("problem") == NO_TIME for record in found.values())
    failed = sum(bool(record.get("problem")) for record in found.values()) - late
    partly = sum(_is_partial(record) for record in found.values())
    parts = [f"{len(found) - late - failed} of {len(found)} cases measured"]
    parts += [f"{partly} of them in part"] if partly else []
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{late} not run"] if late else []
    mark = f" ({NOT_EVIDENCE})" if cases.get("on_cpu") else ""
    return ", ".join(parts) + mark


def _is_partial(record: Mapping[str, Any]) -> bool:
    return any(way.get("problem") for way in record.get("ways") or ())


def list_columns(peer: str) -> tuple[str, ...]:
    """The columns of a table.

    Args:
        peer: The way of Keras that is compared with, besides the default.
    """
    times = (f"times {ARRAYS}", f"times {peer}", "of the limit")
    return ("case", "way", "ms a step", "rows/s", *times, "GPU busy", "GPU memory")


def _format_question(
    question: Question, found: Found, titles: Mapping[str, str], mark: str, peer: str
) -> str:
    names = [name for name in question.cases if name in found]
    if not names:
        return ""
    columns = list_columns(peer) + ((f"times {titles[question.base]}",) if question.base else ())
    base = _step_times(found.get(question.base) or {}) if question.base else None
    rows = [row for name in names for row in _case_rows(titles[name], found[name], peer, base)]
    lines = [columns, ("---",) * len(columns), *rows]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"## {question.title}{mark}\n\n{table}"


def _case_rows(
    title: str, record: Mapping[str, Any], peer: str, base: Mapping[str, float] | None
) -> list[tuple[str, ...]]:
    """A case's lines; what went wrong stands where the figures would be."""
    width = WIDTH + (base is not None)
    if record.get("problem"):
        return [(title, "", to_cell(record["problem"]), *[""] * (width - 3))]
    steps, rows = _step_times(record), []
    for way in record.get("ways") or ():
        name = way["way"]
        if way.get("problem"):
            rows.append((title, name, to_cell(way["problem"]), *[""] * (width - 3)))
            continue
        shown = f"{name}: {way['steps']}" if way.get("steps") else name
        row = (title, shown, *_figures(way), *_ratios(steps, name, peer), *_gpu(way))
        rows.append(row if base is None else (*row, _times(base.get(name), steps[name])))
    return rows


def _step_times(record: Mapping[str, Any]) -> dict[str, float]:
    return {way["way"]: way["step_s"] for way in record.get("ways") or () if way.get("step_s")}


def _figures(way: Mapping[str, Any]) -> tuple[str, str]:
    return f"{1000 * way['step_s']:.3f}", f"{way['rows_per_s']:,.0f}"


def _ratios(steps: Mapping[str, float], name: str, peer: str) -> tuple[str, str, str]:
    limit = steps.get(LIMIT)
    share = f"{100 * limit / steps[name]:.0f} %" if limit else "-"
    return _times(steps.get(ARRAYS), steps[name]), _times(steps.get(peer), steps[name]), share


def _times(other_s: float | None, own_s: float) -> str:
    return f"{other_s / own_s:.2f}" if other_s else "-"


def _gpu(way: Mapping[str, Any]) -> tuple[str, str]:
    busy, peak = way.get("busy_percent"), way.get("peak_bytes")
    shown = "-" if busy is None else f"{busy:.0f} %"
    return shown, "-" if peak is None else f"{peak / 2**20:,.0f} MiB"


def to_cell(text: str) -> str:
    """A text that cannot break a Markdown table."""
    return " ".join(text.replace("|", "/").split())


def _format_reasons(found: Found, titles: Mapping[str, str]) -> str:
    lines = ["## Why gpukeras chose so", ""]
    for name, record in found.items():
        lines += [_reason(titles[name], way) for way in _chosen(record)]
    return "\n".join(lines)


def _chosen(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [way for way in record.get("ways") or () if way.get("mode")]


def _reason(title: str, way: Mapping[str, Any]) -> str:
    rows = f"rows {way['mode']} ({way['mode_reason']})"
    engine = f"engine {way['engine']} ({way['engine_reason']})"
    return f"- {title}, {way['way']}: {rows}; {engine}; {way['precision']} on {way['trained_on']}."
