"""Parses the log that TensorFlow's C++ code prints to standard error into facts.

File names and line numbers in the log change between versions, so only its wording is matched.
"""

from __future__ import annotations

import re
from typing import Any

# Set in the child process: logs each opened library and the driver diagnostics.
VERBOSE = {
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TF_CPP_VMODULE": "dso_loader=1,cuda_diagnostics=1",
}
LINES_KEPT = 12
LINE_LENGTH = 300

# Sources: logs of TensorFlow 2.21 on simulated failing drivers, strings in its libraries, and the
# threads cited in rules/.
FLAGS = {
    "skipped": r"Cannot dlopen some GPU libraries",
    "ptx": r"LLVM ERROR: PTX version|PTX version [\d.]+ does not support target",
    "libdevice": r"libdevice not found",
    "ptxas": r"No PTX compilation provider is available|ptxas (?:was )?not found",
    "insufficient_driver": r"CUDA driver version is insufficient for CUDA runtime version",
    "busy": r"CUDA-capable device\(s\) is/are busy or unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
    "out_of_memory": r"CUDA_ERROR_OUT_OF_MEMORY|ran out of memory trying to allocate|out of memory",
    "not_initialized": r"CUDA_ERROR_NOT_INITIALIZED",
    "cupti": r"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES|CUPTI needs root|CUPTI_ERROR_NOT_INITIALIZED",
}
MISSING = re.compile(r"Could not load dynamic library '([^']+)'; dlerror: (.*)")
CUINIT = re.compile(r"failed call to cuInit: (.*)")
CUINIT_CODE = re.compile(r"CUDA_ERROR_\w+|UNKNOWN ERROR \(\d+\)")
NO_KERNELS = re.compile(r"kernel binaries compatible with compute capability ([\d.]+[a-z]?)")
IGNORED = re.compile(r"Ignoring visible gpu device.*")
CUDNN = re.compile(
    r"Loaded runtime CuDNN library: (\d[\d.]*\d) but source was compiled with: (\d[\d.]*\d)"
)
PREFIX = re.compile(
    r"^(?:\S+ \S+: )?[IWEF]\d{4} [\d:.]+\s+\d+ "  # time and thread id from absl
    r"|^[\d-]+ [\d:.]+: [IWEF] "  # TensorFlow's own prefix
)
TELLING = re.compile(
    r"CUDA|cuda|dlerror|GPU|gpu|DNN|PTX|ptx|libdevice|XLA|Check failed|ERROR|Error|rror:"
)


def parse_log(text: str) -> dict[str, Any]:
    """Parses TensorFlow's log into facts (`log` in the facts of a child process).

    Args:
        text: Standard error of a process that imported TensorFlow.
    """
    facts: dict[str, Any] = {
        "missing_libraries": {name: _cut_reason(why) for name, why in MISSING.findall(text)},
        "cuinit": _find_cuinit(text),
        "capability": _find(NO_KERNELS, text),
        "ignored": IGNORED.findall(text)[:LINES_KEPT],
        "cudnn": " < ".join(next(iter(CUDNN.findall(text)), ())),
    }
    facts |= {name: re.search(pattern, text) is not None for name, pattern in FLAGS.items()}
    return facts | {"lines": find_telling(text)}


def find_telling(text: str) -> list[str]:
    """Returns the log lines on GPUs or errors, without time and process id."""
    lines = [PREFIX.sub("", line.strip()) for line in text.splitlines() if TELLING.search(line)]
    return list(dict.fromkeys(line[:LINE_LENGTH] for line in lines))[-LINES_KEPT:]


def _find(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match.group(1) if match else ""


def _find_cuinit(text: str) -> str:
    said = _find(CUINIT, text)
    return _find(re.compile(f"({CUINIT_CODE.pattern})"), said) or said[:LINE_LENGTH]


def _cut_reason(dlerror: str) -> str:
    """Returns the loader's reason without the search path, which is a separate fact."""
    return dlerror.partition("; LD_LIBRARY_PATH")[0].strip()[:LINE_LENGTH]
