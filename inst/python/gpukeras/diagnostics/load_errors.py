"""Explains why a module's compiled part cannot be loaded in this process.

What the dynamic loader says is judged together with the libraries that this very process has
mapped: R may have loaded an older library than the one a new process would find.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from dataclasses import asdict, dataclass
from glob import glob
from typing import Any

from gpukeras.diagnostics.probes.driver import parse_memory_map
from gpukeras.system.facts import parse_numbers
from gpukeras.system.host import read_text

# What glibc's loader says (elf/dl-version.c, dl-load.c, dl-lookup.c), then those of macOS and
# Windows.
VERSION = re.compile(
    r"(?:^|: )(?P<library>[^:\n]+): version [`'](?P<version>[^'\n]+)' not found"
    r"(?: \(required by (?P<needed_by>[^)\n]+)\))?",
    re.MULTILINE,
)
ABSENT = re.compile(
    r"(?:^|: )(?P<library>[^:\n]+): cannot open shared object file|"
    r"Library not loaded: (?P<dylib>\S+)|(?P<dll>DLL load failed[^\n]*)",
    re.MULTILINE,
)
DAMAGED = re.compile(
    r"(?:^|: )(?P<library>[^:\n]+): (?:invalid ELF header|file too short|wrong ELF class|"
    r"ELF file|cannot read file data|undefined symbol|symbol \S+ version)|Symbol not found",
    re.MULTILINE,
)
KINDS = {"GLIBCXX_": "c++", "CXXABI_": "c++", "GLIBC_": "c", "OPENSSL_": "ssl"}
SSL = re.compile(r"\blib(?:ssl|crypto)\b|No module named '_ssl'")


@dataclass(frozen=True)
class LoadError:
    """What the loader says about a library.

    Args:
        kind: "c++", "c", "ssl", "absent", "damaged", "missing" (the module is not installed), or
            "other".
        library: The library, as the loader names it, or "".
        version: The version that is not found, such as "GLIBCXX_3.4.32", or "".
        needed_by: The file that needs it, or "".
    """

    kind: str
    library: str = ""
    version: str = ""
    needed_by: str = ""


def parse_load_error(text: str, module: str = "") -> LoadError:
    """Parses the message of a failed import.

    Args:
        text: The message.
        module: The module that was imported.
    """
    named = re.search(r"No module named '([\w.]+)'", text)
    if named and named[1] == module:
        return LoadError("missing")
    match = VERSION.search(text)
    if match:
        known = (kind for start, kind in KINDS.items() if match["version"].startswith(start))
        return LoadError(next(known, "damaged"), *(name or "" for name in match.groups()))
    for kind, pattern in (("absent", ABSENT), ("damaged", DAMAGED)):
        match = pattern.search(text)
        if match:
            library = next(filter(None, match.groups()), "")
            return LoadError("ssl" if SSL.search(library) else kind, library)
    return LoadError("ssl" if SSL.search(text) else "other")


def find_mapped(maps: str, library: str) -> str:
    """Returns the file of a library in the text of /proc/PID/maps, or "".

    Args:
        maps: The text.
        library: A library as the loader names it, such as "/lib/libstdc++.so.6"; the map shows the
            file behind it, such as "/usr/lib/libstdc++.so.6.0.30".
    """
    name = os.path.basename(library)
    files = [file for file in parse_memory_map(maps) if name]
    return next((file for file in files if os.path.basename(file).startswith(name)), "")


def find_newest(content: bytes, version: str) -> str:
    """Returns the newest version in a library's content of the family of another, or "".

    Args:
        content: The library's bytes.
        version: A version such as "GLIBCXX_3.4.32".
    """
    family = re.sub(r"\d.*", "", version)
    numbers = re.findall(re.escape(family.encode()) + rb"(\d+(?:\.\d+)*)\0", content)
    newest = max((number.decode() for number in numbers), key=parse_numbers, default="")
    return family + newest if newest else ""


# Reading -----------------------------------------------------------------------------------------


def read_load_error(text: str, module: str) -> dict[str, Any]:
    """Returns what a failed import says and what this process has loaded, as facts.

    Args:
        text: The message of the import in this process.
        module: The module that was imported.
    """
    error = parse_load_error(text, module)
    name = os.path.basename(error.library)
    lines = [line.strip() for line in text.splitlines() if error.library and error.library in line]
    maps = read_text("/proc/self/maps") or ""
    mapped = find_mapped(maps, error.library) or (error.library if error.version else "")
    newer = [path for path in _list_libraries(name) if error.version] if name else []
    return {
        **asdict(error),
        "said": lines[0] if lines else " ".join(text.split())[:400],
        "mapped": mapped,
        "newest": find_newest(_read_bytes(mapped), error.version) if error.version else "",
        "newer": next((path for path in newer if _has_version(path, error.version)), ""),
    }


def _list_libraries(name: str) -> list[str]:
    places = (sys.prefix, sys.base_prefix, os.environ.get("CONDA_PREFIX") or sys.prefix)
    folders = [os.path.join(place, "lib") for place in places]
    folders += [str(sysconfig.get_config_var("LIBDIR") or ""), *glob("/usr/lib/*-linux-gnu")]
    return [os.path.join(folder, name) for folder in dict.fromkeys([*folders, "/usr/lib64"])]


def _has_version(path: str, version: str) -> bool:
    return version.encode() + b"\0" in _read_bytes(path)


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
