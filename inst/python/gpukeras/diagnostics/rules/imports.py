"""Causes of an import that fails although the package is installed (C22 to C28).

They are judged by what happened in this process, whose libraries R has chosen. Only a crash is
taken from a child process, since this one would not survive it.
"""

from __future__ import annotations

from gpukeras.diagnostics.rules.rule import LATE, LISTED, UNLISTED, Cause, share
from gpukeras.system.facts import Facts

HERE = (*UNLISTED, *LATE, *LISTED)  # a GPU that other processes list is of no use to this one


def find_kind(facts: Facts) -> str:
    """Returns the kind of the import error in this session, see `load_errors`, or ""."""
    imported = facts.runtime.imported is True
    return "" if imported else facts.import_error.kind or ""


def fails_otherwise(facts: Facts) -> bool:
    """Whether the backend's import fails here for another reason than that it is missing."""
    return find_kind(facts) not in ("", "missing") or detect_illegal(facts) is not None


def describe_version(facts: Facts, kind: str) -> str | None:
    """Describes what an import lacks here, if it fails for a reason of this kind.

    Args:
        facts: The facts.
        kind: See `load_errors.LoadError`.
    """
    if find_kind(facts) != kind:
        return None
    error = facts.import_error
    if not error.version:
        return error.said or None
    needs, loaded = error.needed_by or "a package", error.mapped or "none"
    seen = f"{needs} needs {error.version}; this process has {loaded}"
    seen += f", which ends with {error.newest}" if error.newest else ""
    return seen + (f"; {error.newer} has it" if error.newer else "")


def detect_old_cxx(facts: Facts) -> str | None:
    """Detects C22: this process has loaded a C++ library older than a package needs."""
    return describe_version(facts, "c++")


def detect_old_glibc(facts: Facts) -> str | None:
    """Detects C23: the system's C library is older than a package needs."""
    return describe_version(facts, "c")


def detect_ssl(facts: Facts) -> str | None:
    """Detects C24: OpenSSL's libraries are missing, or of another version than Python's."""
    return describe_version(facts, "ssl")


def detect_absent_library(facts: Facts) -> str | None:
    """Detects C25: a shared library that a package needs is missing."""
    return describe_version(facts, "absent")


def detect_damaged_library(facts: Facts) -> str | None:
    """Detects C26: a shared library is damaged, or of another build."""
    return describe_version(facts, "damaged")


def detect_illegal(facts: Facts) -> str | None:
    """Detects C27: a process that imports the backend or computes dies by SIGILL."""
    ends = [tried.error for tried in facts.listings.values()]
    ends += [facts.proof.ended, facts.import_alone]
    died = "killed by SIGILL" in ends and not find_kind(facts)
    return "a process that only imports and computes is killed by SIGILL" if died else None


def detect_failing_import(facts: Facts) -> str | None:
    """Detects C28: an import fails for another reason, or ends its process."""
    ended = facts.import_alone or ""
    if ended.startswith("killed") and not find_kind(facts) and detect_illegal(facts) is None:
        return f"a process that only imports {facts.backend_name} is {ended}"
    return describe_version(facts, "other")


CAUSES = share(
    # glibc, elf/dl-version.c; libstdc++ manual, ABI policy: GLIBCXX and CXXABI versions
    Cause(
        "C22",
        "python",
        "R was started with an older C++ library (libstdc++) than Python's packages need.",
        detect_old_cxx,
        "Start R with the newer library, in a shell: LD_PRELOAD={newer} R (RStudio Server: its "
        "folder as rsession-ld-library-path in /etc/rstudio/rserver.conf). Or take R and Python "
        "of one distribution: both of the operating system, or both of conda.",
    ),
    # glibc, elf/dl-version.c
    Cause(
        "C23",
        "python",
        "The system's C library (glibc) is older than Python's packages need.",
        detect_old_glibc,
        "Restart R, and make the environment on this computer, where pip chooses packages for its "
        "glibc: install_gpukeras(new = TRUE). Or use a newer distribution, or a container.",
    ),
    # CPython, Modules/_ssl.c; OpenSSL 3: versions OPENSSL_3.x.0 of its symbols
    Cause(
        "C24",
        "python",
        "Python cannot load OpenSSL (libssl, libcrypto), or R has loaded another one.",
        detect_ssl,
        "Start R with Python's own, in a shell: LD_LIBRARY_PATH=/path/to/environment/lib R. Or "
        "take R and Python of one distribution: both of the operating system, or both of conda; "
        "a Python that was built without OpenSSL is built anew.",
    ),
    # glibc, elf/dl-load.c: cannot open shared object file
    Cause(
        "C25",
        "python",
        "A shared library that Python's packages need is missing.",
        detect_absent_library,
        "Install the system's package that has it (apt-file search, dnf provides), or start R "
        "with its folder in LD_LIBRARY_PATH. If it belongs to a Python package: restart R, then "
        "install_gpukeras(new = TRUE).",
    ),
    # glibc, elf/dl-load.c and dl-lookup.c
    Cause(
        "C26",
        "python",
        "A shared library of Python's packages is damaged, or of another build.",
        detect_damaged_library,
        "Restart R, then install_gpukeras(new = TRUE), which makes the environment anew; look "
        "whether the disk or the quota is full, and take foreign folders out of LD_LIBRARY_PATH.",
    ),
    # tensorflow.org/install/pip: hardware requirements; TensorFlow's and JAX's wheels need AVX
    Cause(
        "C27",
        "python",
        "The processor does not know an instruction of TensorFlow's or JAX's package.",
        detect_illegal,
        "Use a computer with AVX (grep avx /proc/cpuinfo; a virtual machine may hide it: give it "
        "the host's processor), or a build for this one: conda-forge has some without AVX.",
    ),
    # Python: an import runs the code of all packages that it needs
    Cause(
        "C28",
        "python",
        "Python's packages are installed, and an import fails.",
        detect_failing_import,
        "Restart R and load gpukeras before all else. If it fails again, packages do not fit: "
        "install_gpukeras(new = TRUE) makes an environment of those that do.",
        backend="tensorflow",
    ),
    explains=HERE,
    is_fault=True,
)
