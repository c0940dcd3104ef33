"""Parses what JAX prints while it looks for GPUs: its log, its warnings, and XLA's own log.

JAX says "a CUDA-enabled jaxlib is not installed" also where its CUDA plugin is installed and failed
to start, so this line is no proof that the plugin is missing.
"""

from __future__ import annotations

import re
from typing import Any

from gpukeras.diagnostics.tf_log import LINE_LENGTH, parse_log

# Sources: jax/_src/xla_bridge.py and jaxlib/plugin_support.py of jax 0.7.1, jax_plugins/xla_cuda12
# of jax-cuda12-pjrt 0.7.1; each was printed by these packages over a simulated driver, except the
# one on an outdated library and the one on a failed check, which is of later versions.
PATTERNS = {
    "fallback": r"(An NVIDIA GPU may be present on this machine, .*)",
    "plugin_version": r"(JAX plugin \S+ version \S+ is installed, but it is not .*)",
    "library": r"(Unable to load \w+\. Is it installed\?|Outdated \w+ installation found\.)",
    "check": r"CUDA backend will not be available\. Error: (.*)",
    "device": r"(unable to create StreamExecutor for CUDA:\d+: .*)",
}
CONFIGURATION = re.compile(r"Jax plugin configuration error: .*")
RAISED = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): .*")


def parse_jax_log(text: str) -> dict[str, Any]:
    """Parses standard error of a process that started JAX into facts.

    Returns:
        The facts of `tf_log.parse_log()`, as XLA's C++ code is the same in both backends, and
        `jax`: a line, or "", for each of `PATTERNS`, and `plugin`, the error of a CUDA plugin that
        did not register itself.
    """
    matches = {name: _find(pattern, text) for name, pattern in PATTERNS.items()}
    return parse_log(text) | {"jax": matches | {"plugin": _find_plugin_error(text)}}


def _find(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1)[:LINE_LENGTH].strip() if match else ""


def _find_plugin_error(text: str) -> str:
    """Returns the last error of the traceback below JAX's line on a plugin, or ""."""
    said = CONFIGURATION.search(text)
    if said is None:
        return ""
    # The next record of Python's logging ends the traceback.
    traceback = re.split(r"^[A-Z]+:\d{4}-", text[said.end() :], flags=re.MULTILINE)[0]
    raised = [line for line in traceback.splitlines() if RAISED.fullmatch(line)]
    return (raised[-1] if raised else said.group())[:LINE_LENGTH]
