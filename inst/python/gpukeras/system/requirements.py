"""Reports to R what an interpreter is and which requirements it does not meet.

R runs this in interpreters that could create an environment, in environments that it found, and in
the Python that it started, before it imports any other part of gpukeras. The module uses only the
standard library, because an interpreter may have nothing else.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import operator
import platform
import re
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpukeras.system.facts import WHEELS, parse_numbers

COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
BOUND = re.compile(r"([<>=!~]=|[<>])\s*([\w.*+-]+)")
REQUIREMENT = re.compile(
    r"([A-Za-z0-9][\w.-]*)\s*(?:\[([\w,.-]+)\])?\s*"
    r"((?:(?:[<>=!~]=|[<>])\s*[\w.*+-]+\s*(?:,\s*|$))*)"
)
CUDA = "and-cuda"
CUDA_WHEEL = "nvidia-cudnn-cu12"  # the extra installs it with eleven others


@dataclass(frozen=True)
class Requirement:
    """One requirement, such as "tensorflow[and-cuda]>=2.21,<2.22".

    Args:
        text: The whole requirement.
        name: Name of the distribution.
        extra: The requested extra, or "".
        bounds: Version bounds, pairs such as (">=", "2.21").
    """

    text: str
    name: str
    extra: str
    bounds: tuple[tuple[str, str], ...]


def parse_requirement(text: str) -> Requirement:
    """Parses a requirement without environment markers.

    Raises:
        ValueError: for a text that is not a requirement.
    """
    match = REQUIREMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no requirement, such as 'keras>=3.12,<4'")
    name, extra, rest = match.groups()
    bounds = tuple(BOUND.findall(rest))
    limits = ",".join(sign + version for sign, version in bounds)
    text = name + (f"[{extra}]" if extra else "") + limits
    return Requirement(text, re.sub(r"[-_.]+", "-", name).lower(), extra or "", bounds)


def is_within(version: str, bounds: Sequence[tuple[str, str]]) -> bool:
    """Whether a version satisfies all bounds; a version without numbers does."""
    numbers = parse_numbers(version)
    return not numbers or all(_keeps(numbers, sign, bound) for sign, bound in bounds)


def _keeps(numbers: tuple[int, ...], sign: str, bound: str) -> bool:
    limit = parse_numbers(bound)
    if sign == "~=":  # at least this version, with all but the last number equal
        return _keeps(numbers, ">=", bound) and numbers[: len(limit) - 1] == limit[:-1]
    width = len(limit) if bound.endswith("*") else max(len(numbers), len(limit))
    padded = [(parts + (0,) * width)[:width] for parts in (numbers, limit)]
    return bool(COMPARISONS[sign](*padded))


def list_lacking(
    requirements: Sequence[str], installed: Mapping[str, str]
) -> list[dict[str, str | bool]]:
    """Returns the requirements that are missing, or installed in another version or build.

    Args:
        requirements: Requirements in pip's syntax.
        installed: Versions by distribution.

    Returns:
        A dict for each: `wanted`; `found`, "" if nothing is installed; `install`, the requirement
        to pass to pip; and `clash`, whether a package must be removed first.
    """
    judged = (_judge_one(parse_requirement(text), installed) for text in requirements)
    return [record for record in judged if record is not None]


def _judge_one(
    requirement: Requirement, installed: Mapping[str, str]
) -> dict[str, str | bool] | None:
    if requirement.name in WHEELS:
        return _judge_tensorflow(requirement, installed)
    version = installed.get(requirement.name)
    if version is not None and is_within(version, requirement.bounds):
        return None
    return _record(
        requirement, f"{requirement.name} {version}" if version else "", requirement.text
    )


def _judge_tensorflow(
    requirement: Requirement, installed: Mapping[str, str]
) -> dict[str, str | bool] | None:
    """Judges TensorFlow: all its builds install the same files, so two of them break each other."""
    owners = [name for name in WHEELS if name in installed]
    installed_text = " and ".join(f"{name} {installed[name]}".strip() for name in owners)
    if not owners or len(owners) > 1:
        return _record(requirement, installed_text, requirement.text, clash=len(owners) > 1)
    fits = is_within(installed[owners[0]], requirement.bounds)
    if requirement.extra != CUDA:
        limits = ",".join(sign + bound for sign, bound in requirement.bounds)
        return None if fits else _record(requirement, installed_text, owners[0] + limits)
    if owners[0] != requirement.name:
        return _record(requirement, installed_text, requirement.text, clash=True)
    if CUDA_WHEEL not in installed:
        return _record(requirement, f"{installed_text} without CUDA's libraries", requirement.text)
    return None if fits else _record(requirement, installed_text, requirement.text)


def _record(
    requirement: Requirement, installed: str, install: str, clash: bool = False
) -> dict[str, str | bool]:
    return {"wanted": requirement.text, "found": installed, "install": install, "clash": clash}


# Reading -----------------------------------------------------------------------------------------


def read_versions(requirements: Sequence[str]) -> dict[str, str]:
    """Returns installed versions of the required packages and of all builds of TensorFlow."""
    names = {*WHEELS, CUDA_WHEEL, *(parse_requirement(text).name for text in requirements)}
    versions = {
        name: version for name in sorted(names) if (version := _read_version(name)) is not None
    }
    # Keras between its releases, which TensorFlow's release candidates ask for.
    if "keras" in names and "keras" not in versions and (nightly := _read_version("keras-nightly")):
        versions["keras"] = nightly
    unknown = not any(name in versions for name in WHEELS)
    if unknown and importlib.util.find_spec("tensorflow") is not None:
        versions["tensorflow"] = ""  # a custom build without metadata
    return versions


def _read_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name) or ""
    except importlib.metadata.PackageNotFoundError:
        return None


def read_lacking(requirements: Sequence[str]) -> list[dict[str, str | bool]]:
    """Returns the requirements that this interpreter does not meet."""
    return list_lacking(requirements, read_versions(requirements))


def read_faults() -> list[str]:
    """Returns why R cannot use an environment made by this interpreter; empty if it can."""
    faults = [
        f"has no module {name}, which Debian has in python3-venv"
        for name in ("venv", "ensurepip")
        if importlib.util.find_spec(name) is None
    ]
    if not _has_shared_library():
        faults.append("has no shared library of Python, which Debian has in libpython3-dev")
    return faults


def _has_shared_library() -> bool:
    if platform.system() == "Windows" or sysconfig.get_config_var("PYTHONFRAMEWORK"):
        return True
    folder, multiarch = (sysconfig.get_config_var(name) or "" for name in ("LIBDIR", "MULTIARCH"))
    stem = f"libpython{sys.version_info[0]}.{sys.version_info[1]}"
    folders = (Path(folder), Path(folder, multiarch), Path(sys.base_prefix, "lib"))
    endings = (".so*", ".dylib")
    return any(any(path.glob(stem + ending)) for path in folders for ending in endings)


def main(requirements: Sequence[str]) -> None:
    """Prints this interpreter's path, version, faults and unmet requirements as one JSON line."""
    print(
        json.dumps(
            {
                "python": getattr(sys, "_base_executable", "") or sys.executable,
                "version": platform.python_version(),
                "faults": read_faults(),
                "lacking": read_lacking(requirements),
            }
        )
    )
