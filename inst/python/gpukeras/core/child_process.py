"""Runs child processes that may hang or crash, to their end; see `attached_process` for others."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CORE = Path(__file__).parents[2]  # where `-m gpukeras...` is found
OUTPUT_LIMIT = 4 * 2**20  # bytes kept of each stream, so that endless output cannot fill memory
DRAIN_S = 2.0  # how long grandchildren may keep a dead child's pipes open


@dataclass(frozen=True)
class ChildEnd:
    """The outcome of a child process.

    Args:
        stdout: Standard output, cut at 4 MiB.
        stderr: Standard error, cut at 4 MiB.
        problem: "" for exit status 0, else a description such as "killed by SIGABRT".
    """

    stdout: str
    stderr: str
    problem: str


def run_child(
    python: str, arguments: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> ChildEnd:
    """Runs a Python program until it ends or reaches its time limit, then kills its process group.

    Args:
        python: Path of the Python interpreter.
        arguments: Command-line arguments, such as ("-m", "gpukeras.diagnostics.probes.listing").
        environment: The child's complete environment.
        limit_s: Time limit in seconds.
    """
    try:
        child = subprocess.Popen(
            [python, *arguments],
            cwd=CORE,
            env=own_library_first(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a new process group, which can be killed as a whole
        )
    except (OSError, ValueError) as error:
        return ChildEnd("", "", f"could not be started: {type(error).__name__}: {error}")
    stdout, stderr = _Drain(child.stdout), _Drain(child.stderr)
    try:
        child.wait(limit_s)
        problem = explain_status(child.returncode)
    except subprocess.TimeoutExpired:
        problem = f"did not end within {limit_s:.0f} s"
    finally:  # after an interrupt too
        _kill(child)
    return ChildEnd(stdout.text(), stderr.text(), problem)


def own_library_first(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns variables by which a child of this Python finds its own libpython.

    R puts the system's folders into LD_LIBRARY_PATH, which come before those that a program names
    itself. A Python of pyenv or conda would load the system's libpython of the same minor version,
    and fail at its first module that needs another symbol, such as `ssl`.
    """
    searched = environment.get("LD_LIBRARY_PATH", "")
    folder, name = map(sysconfig.get_config_var, ("LIBDIR", "INSTSONAME"))
    if not searched or not folder or not name or not (Path(folder) / name).is_file():
        return dict(environment)
    return {**environment, "LD_LIBRARY_PATH": f"{folder}:{searched}"}


def explain_status(status: int) -> str:
    """Describes an exit status in words; "" for success."""
    if status >= 0:
        return f"exit status {status}" if status else ""
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # it has already ended
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    with suppress(subprocess.TimeoutExpired):  # a bad driver can block it in the kernel
        child.wait(DRAIN_S)


class _Drain:
    """A thread that reads a pipe to its end and keeps the first `OUTPUT_LIMIT` bytes."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        assert pipe is not None  # made with subprocess.PIPE
        self._kept = bytearray()
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):  # the pipe was closed meanwhile
            while chunk := os.read(self._pipe.fileno(), 65536):
                self._kept += chunk[: OUTPUT_LIMIT - len(self._kept)]

    def text(self) -> str:
        self._thread.join(DRAIN_S)
        if not self._thread.is_alive():
            self._pipe.close()
        return bytes(self._kept).decode(errors="replace")
