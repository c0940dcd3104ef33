"""Folders that appear whole or not at all.

    clean_up(target); with partial_folder(target) as partial: ...; move_folder(partial, target)

The new folder is made beside its place, `.<name>.partial-<process>`, brought to the disk, and
renamed. What a process that was killed has left is removed by the next clean-up.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpukeras.core.safe_files import create_file


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside the target that goes when it was not renamed."""
    partial = target.parent / f".{target.name}.partial-{_process()}"
    shutil.rmtree(partial, ignore_errors=True)  # of this process: an earlier call of its own
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def move_folder(partial: Path, target: Path) -> None:
    """Puts the new folder in its place; the old one goes last."""
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
    """Removes what killed processes of this computer left; brings back a folder on its way out."""
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
    """Whether a process may still run: of another computer, that cannot be known."""
    number, _, host = process.partition("@")
    if host != socket.gethostname() or not number.isdigit() or os.name == "nt":
        return True  # on Windows, asking by a signal would end the process
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return int(number) != os.getpid()


def write_text(path: Path, text: str) -> None:
    """Writes a file that is on the disk afterwards."""
    with create_file(path) as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Brings a folder's entries to the disk, where the system lets one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows has no such thing
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
