"""Finds the folders of what lasts between sessions: programs, choices, and times of clusters.

They lie in the folder for caches that R gives gpukeras. An environment variable names another
folder for each, or is "off".
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpukeras.core.safe_files import open_regular, private_folder

MOST_BYTES = 2**20  # of a file that is read; those that are written have a tenth of it
OFF = ("off", "0", "false", "no")


def find_folder(
    name: str, switch: str, variables: Mapping[str, str], system: str, home: Path
) -> Path | None:
    """Returns a folder, or None if nothing is to be kept.

    Without the variable it is `tools::R_user_dir("gpukeras", "cache")` and the name.

    Args:
        name: The folder's name, such as "xla", or "" for the one around all of them.
        switch: The environment variable that names another folder.
        variables: The environment.
        system: The operating system, as `sys.platform` names it.
        home: The user's home folder.
    """
    named = variables.get(switch, "")
    if named.lower() in OFF:
        return None
    if named:
        return Path(named).expanduser().resolve()
    places = {"win32": Path(variables.get("LOCALAPPDATA", ""), "R", "cache")}
    places["darwin"] = home / "Library" / "Caches" / "org.R-project.R"
    chosen = variables.get("R_USER_CACHE_DIR") or variables.get("XDG_CACHE_HOME")
    caches = Path(chosen).expanduser() if chosen else places.get(system, home / ".cache")
    return (caches / "R" / "gpukeras" / name).absolute()


def read_folder(name: str, switch: str, variables: Mapping[str, str] | None = None) -> Path | None:
    """Returns a folder of this user on this computer; see `find_folder()`."""
    variables = os.environ if variables is None else variables
    return find_folder(name, switch, variables, sys.platform, Path(os.path.expanduser("~")))


def find_risk(folder: Path) -> str:
    """Returns why a folder must not be used, or "".

    Args:
        folder: The folder; one that is missing has no risk.
    """
    try:
        status = folder.stat()
    except OSError:
        return ""
    if os.name != "posix":
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    if status.st_mode & stat.S_IWOTH:
        return "can be written to by all users"
    return ""


def read_record(file: Path) -> dict[str, Any]:
    """Returns the JSON object of a file; an empty one if the file is damaged or missing."""
    try:
        with open_regular(file) as opened:
            return dict(json.loads(opened.read(MOST_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    """Writes a JSON object beside a file and renames, so that no reader sees half of it.

    Raises:
        OSError: if it cannot be written.
    """
    with private_folder(file) as folder:
        partial = folder / file.name
        partial.write_text(json.dumps(record), encoding="ascii")
        partial.replace(file)
