"""What `gpu_evidence.py` found, as Markdown, and whether there is a GPU to ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evidence_questions import NOT_EVIDENCE, count_cases, format_questions, to_cell


def has_gpu(root: str | Path = "/") -> bool:
    """Whether there is an NVIDIA GPU with its driver, or Windows' through WSL."""
    root = Path(root)
    return any((root / name).exists() for name in ("dev/nvidia0", "dev/nvidiactl", "dev/dxg"))


def format_results(results: Mapping[str, Any]) -> str:
    """All that was found: the steps' table, then one for each question."""
    parts = [f"# {NOT_EVIDENCE}"] if results.get("on_cpu") else []
    parts += [format_table(results), format_questions(results.get("cases") or {})]
    return "\n\n".join(parts).strip()


def format_table(results: Mapping[str, Any]) -> str:
    """The steps as one Markdown table; what did not end says why."""
    rows = [("what", "result"), ("---", "---"), *_check_rows(results.get("check") or {})]
    rows += _use_rows(results.get("use") or {})
    tests, trace = results.get("tests") or {}, results.get("trace") or {}
    rows += [("tests on the GPU", tests.get("summary") or tests.get("problem") or "not run")]
    rows += [("failed test", to_cell(line)) for line in tests.get("failed") or ()]
    rows += [("trace", _describe_trace(trace))]
    rows += [("measurements", count_cases(results.get("cases") or {}))]
    return "\n".join(f"| {name} | {text} |" for name, text in rows)


def _check_rows(check: Mapping[str, Any]) -> list[tuple[str, str]]:
    verdict = check.get("verdict") or check.get("problem") or "not run"
    cause = f": {check['cause']}" if check.get("cause") else ""
    found = {item["id"]: item["evidence"] for item in check.get("findings") or ()}
    shown = [("hardware", "GPU"), ("driver", "driver")]
    shown += [("tensorflow", "TensorFlow"), ("jax", "JAX")]
    rows = [(title, found[name]) for name, title in shown if name in found]
    rows += [("gpu_check()", verdict + cause)]
    return rows + [("evidence", line) for line in check.get("evidence") or ()]


def _use_rows(use: Mapping[str, Any]) -> list[tuple[str, str]]:
    verdict = use.get("verdict") or use.get("problem") or "not run"
    lines = [("own model", line) for line in use.get("evidence") or ()]
    return [("gpu_check(model, data)", verdict), *lines]


def _describe_trace(trace: Mapping[str, Any]) -> str:
    if trace.get("kernels") is None:
        return trace.get("problem") or "not run"
    return f"{trace['kernels']} kernels, {1000 * trace['kernel_s']:.1f} ms on the GPU's streams"
