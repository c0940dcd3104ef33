"""Writes folders and files atomically: each appears complete or not at all.

    clean_up(target); with partial_folder(target) as partial: ...; move_folder(partial, target)

A new folder is created next to its target as `.<name>.partial-<process>`, synced to disk and
renamed. The next clean-up removes what a killed process left behind.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpukeras.core.safe_files import create_file


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """Yields a hidden folder next to the target; deletes it at exit unless it was renamed."""
    partial = target.parent / f".{target.name}.partial-{_process()}"
    shutil.rmtree(partial, ignore_errors=True)  # left by an earlier call
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move_folder(partial: Path, target: Path) -> None:
    """Renames the partial folder to the target, then deletes the folder it replaces."""
    sync_folder(partial)
    old = target.parent / f".{target.name}.old-{_process()}"
    if os.path.lexists(target):
        target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        if old.exists():
            old.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def clean_up(target: Path) -> None:
    """Deletes leftovers of killed local processes; restores a target that was not replaced."""
    for kind in ("partial", "old"):
        prefix = f".{target.name}.{kind}-"
        for folder in target.parent.iterdir():
            if not folder.name.startswith(prefix) or _runs(folder.name[len(prefix) :]):
                continue
            if kind == "old" and not os.path.lexists(target) and not folder.is_symlink():
                folder.rename(target)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _process() -> str:
    return f"{os.getpid()}@{socket.gethostname()}"


def _runs(process: str) -> bool:
    """Whether a process may still run; True if it is on another computer."""
    number, _, host = process.partition("@")
    if host != socket.gethostname() or not number.isdigit():
        return True
    import psutil  # only leftovers need it

    return psutil.pid_exists(int(number)) and int(number) != os.getpid()


@contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """Yields the path of a hidden file, which takes the place of `path` unless an error is raised.

    Args:
        path: The file that is to be there whole or not at all.

    Raises:
        OSError: if it cannot be put there; what was there stays.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file and syncs it to disk."""
    with create_file(path) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Syncs a folder's entries to disk, where the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open a folder
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
