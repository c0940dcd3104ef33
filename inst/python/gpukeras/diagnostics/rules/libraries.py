"""Causes in CUDA libraries: not searched, hidden or missing (C9 to C11, C14, F5)."""

from __future__ import annotations

import re

from gpukeras.diagnostics.rules import versions
from gpukeras.diagnostics.rules.packages import (
    describe_no_libraries,
    find_owner,
    list_missing,
    select_needed,
)
from gpukeras.diagnostics.rules.rule import LATE, UNLISTED, Cause, share
from gpukeras.system import known_issues
from gpukeras.system.facts import Facts, count_listed
from gpukeras.system.known_issues import KnownBug

PATH = "LD_LIBRARY_PATH"
WITHOUT_PATH = f"without {PATH}"


def describe_preloading(facts: Facts, bug: KnownBug) -> str | None:
    """Returns evidence that preloading the libraries fixes a bug, in a new process or this one."""
    sign = bug.applies(facts)
    if not sign or count_listed(facts, "as it is") or count_listed(facts, WITHOUT_PATH):
        return None
    listed = count_listed(facts, "preloaded")
    if listed and count_listed(facts, "as it is") == 0:
        return f"{sign}; TensorFlow lists none, and {listed} GPU with the libraries loaded first"
    mended = listed != 0 and facts.preload.status == "done"
    return f"{sign}; gpukeras loaded the libraries first, which mends it" if mended else None


def detect_cusolver(facts: Facts) -> str | None:
    """Detects C9: TensorFlow 2.21 does not search its cusolver folder."""
    return None if detect_path_clash(facts) else describe_preloading(facts, known_issues.CUSOLVER)


def detect_pip_paths(facts: Facts) -> str | None:
    """Detects C10: TensorFlow 2.16.1 does not search the folders of its CUDA wheels."""
    return None if detect_cusolver(facts) else describe_preloading(facts, known_issues.PIP_PATHS)


def detect_lost_library(facts: Facts) -> str | None:
    """Detects C11: one or a few libraries are missing or damaged."""
    missing = list_missing(facts)
    if not missing or describe_no_libraries(facts):
        return None
    texts = [_describe_lost(name, why) for name, why in sorted(missing.items())]
    return "; ".join(texts)


def _describe_lost(name: str, why: str) -> str:
    # The loader names the missing library, which may be a dependency of this one.
    named = re.match(r"(?:\S*/)?(lib[\w-]+\.so[.\d]*):\s*", why)
    culprit = named.group(1) if named and find_owner(named.group(1)) else name
    needed = "" if culprit == name else f", which {name} needs"
    reason = why.removeprefix(f"{culprit}: ") or "not found"
    return f"{culprit} of {find_owner(culprit)}{needed}: {reason}"


def describe_path(facts: Facts) -> str:
    """Describes LD_LIBRARY_PATH as the processes had it, and whether R set it."""
    value = facts.readings(PATH).get("c") or ""
    own = facts.session.ldpaths or ""
    by_r = ", which begins with what R's etc/ldpaths puts there" if own else ""
    return f"{PATH} is {value}" + (by_r if value.startswith(own) else "")


def changed_path(facts: Facts) -> bool:
    """Whether LD_LIBRARY_PATH differs from its value at process start."""
    readings = facts.readings(PATH)
    if not {"c", "start"} <= readings.keys():
        return False
    return (readings["c"] or "") != (readings["start"] or "")


def detect_path_clash(facts: Facts) -> str | None:
    """Detects C14: libraries on LD_LIBRARY_PATH precede those of the wheels."""
    value = facts.readings(PATH).get("c")
    if count_listed(facts, "as it is") != 0 or not value or changed_path(facts):
        return None
    listed = count_listed(facts, WITHOUT_PATH)
    if listed:
        return f"{describe_path(facts)}; TensorFlow lists no GPU with it, and {listed} without it"
    listed, spoilt = count_listed(facts, "preloaded"), list_spoilt(facts)
    if not listed or not spoilt or known_issues.PIP_PATHS.applies(facts):
        return None
    return (
        f"{describe_path(facts)}; TensorFlow lists no GPU as it is ({'; '.join(spoilt)}), and "
        f"{listed} with the wheels' own libraries loaded first"
    )


def list_spoilt(facts: Facts) -> list[str]:
    """Returns the loader's reasons for existing libraries that it could not load."""
    logged = facts.listing("as it is").log.missing_libraries
    missing = select_needed(logged)
    if known_issues.CUSOLVER.applies(facts):
        missing.pop("libcusolver.so.11", None)
    return [why or name for name, why in sorted(missing.items())]


def detect_late_path(facts: Facts) -> str | None:
    """Detects F5: LD_LIBRARY_PATH was set after process start, so only new processes use it."""
    if not changed_path(facts) or facts.session.forked is True:
        return None
    readings = facts.readings(PATH)
    before, now = (readings[who] or "unset" for who in ("start", "c"))
    change = f"{PATH} was {before} at the start and is {now} now"
    own, fresh = facts.runtime.physical_gpus, count_listed(facts, "as it is")
    if own == () and fresh:
        return f"{change}; a process started now lists {fresh} GPU, this one none"
    listed = count_listed(facts, WITHOUT_PATH)
    if fresh == 0 and listed:
        return f"{change}; a process started now lists no GPU with it, and {listed} without it"
    return None


LOADED_FIRST = (
    "Restart R, with library(gpukeras) and gpu_setup() before anything else uses Python: gpukeras "
    "loads the wheels' own libraries first"
)

CAUSES = share(
    Cause(
        "C9",
        "libraries",
        known_issues.CUSOLVER.what,
        detect_cusolver,
        known_issues.CUSOLVER.fix,
        explains=LATE,
    ),
    Cause(
        "C10",
        "libraries",
        known_issues.PIP_PATHS.what,
        detect_pip_paths,
        known_issues.PIP_PATHS.fix,
        explains=LATE,
    ),
    # TensorFlow's log with TF_CPP_VMODULE=dso_loader=1
    Cause(
        "C11",
        "libraries",
        "A CUDA library is missing or damaged.",
        detect_lost_library,
        '{python} -m pip install --force-reinstall "tensorflow[and-cuda]=={version}"',
    ),
    # ld.so(8): LD_LIBRARY_PATH is searched before RUNPATH; tensorflow (R) #452, keras3 #1456
    Cause(
        "C14",
        "libraries",
        "Other CUDA libraries on LD_LIBRARY_PATH come before TensorFlow's own.",
        detect_path_clash,
        "Take that folder out of LD_LIBRARY_PATH (look in the shell's start files, .Renviron and "
        "$R_HOME/etc/ldpaths). Or: " + LOADED_FIRST,
        explains=UNLISTED + LATE,
    ),
    # ld.so(8); docs.posit.co: rsession-ld-library-path; tensorflow (R) #452
    Cause(
        "F5",
        "libraries",
        "LD_LIBRARY_PATH was changed after this process had started, which is too late for it.",
        detect_late_path,
        "Leave Sys.setenv(LD_LIBRARY_PATH = ) out, and restart R with the right path: set in the "
        "shell, in $R_HOME/etc/ldpaths, or as rsession-ld-library-path in "
        "/etc/rstudio/rserver.conf. Or: " + LOADED_FIRST,
        explains=UNLISTED + LATE,
    ),
    *versions.CAUSES,
    backend="tensorflow",
)
