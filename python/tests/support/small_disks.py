"""Disks that are full, become read-only or vanish, for tests: file systems of a few kilobytes."""

import subprocess
from contextlib import contextmanager, suppress

import pytest


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """A file system in memory.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder):
        self.folder = folder

    def fill(self):
        """Leaves no room."""
        with (self.folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass

    def empty(self):
        """Makes room again."""
        (self.folder / "ballast").unlink()

    def make_read_only(self):
        """Lets nothing be written any more, as a disk with errors."""
        run("mount", "--bind", str(self.folder), str(self.folder))
        run("mount", "-o", "remount,bind,ro", str(self.folder))

    def vanish(self):
        """Takes the file system away, as a network's that is not reached any more."""
        run("umount", "-l", str(self.folder))


BREAKING = ("fill", "make_read_only", "vanish")


@contextmanager
def small_disk(folder, kilobytes=1024):
    """Yields a disk of so many kilobytes; skips the test where none may be mounted."""
    folder.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems may not be mounted here")
    try:
        yield Disk(folder)
    finally:
        for _ in ("read-only", "the disk"):
            subprocess.run(["umount", "-l", str(folder)], capture_output=True)
