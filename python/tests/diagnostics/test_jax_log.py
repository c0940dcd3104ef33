"""The parser on what JAX and its CUDA plugin wrote over simulated drivers, and on other texts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.diagnostics.jax_log import PATTERNS, parse_jax_log

LOGS = Path(__file__).parents[1] / "support" / "logs"
FALLBACK = (
    "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. "
    "Falling back to cpu."
)
CUINIT = "RuntimeError: jaxlib/cuda/versions_helpers.cc:113: operation cuInit(0) failed: "
STREAM = "unable to create StreamExecutor for CUDA:0: CUDA error: : UNKNOWN ERROR (303)"
CUDNN = "Unable to load cuDNN. Is it installed?"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-plugin", {"fallback": FALLBACK}),
        ("start-failed", {"device": STREAM}),
        ("visible-minus-1", {"fallback": FALLBACK, "plugin": f"{CUINIT}CUDA_ERROR_NO_DEVICE"}),
        (
            "no-cudnn",
            {"fallback": FALLBACK, "plugin": f"RuntimeError: {CUDNN}", "library": CUDNN},
        ),
    ],
)
def test_real_logs_say_what_happened(name, said):
    found = parse_jax_log((LOGS / f"jax-{name}.txt").read_text())["jax"]
    assert {part: text for part, text in found.items() if text} == said


def test_a_plugin_of_another_version_is_named():
    found = parse_jax_log((LOGS / "jax-other-plugin.txt").read_text())["jax"]
    assert "jax_cuda12_plugin version 0.7.0 is installed" in found["plugin_version"]


def test_a_failed_check_of_later_versions_is_quoted():
    said = "CUDA backend will not be available. Error: Unable to load cuFFT. Is it installed?"
    found = parse_jax_log(f"CUDA version check failed during initialization. {said}")["jax"]
    assert found["check"] == found["library"] == "Unable to load cuFFT. Is it installed?"


@given(st.text())
def test_any_text_is_parsed(text):
    assert parse_jax_log(text)["jax"].keys() == {*PATTERNS, "plugin"}
