"""Workers that another engine starts: those of a plan of R's package future, on any computer.

    R: future::plan("cluster", workers = c("node1", "node2")) --> start(folder, place, setup)
    jobs --> FOLDER/asked-0.jsonl --> worker, beside R's process there --> FOLDER/said-0.jsonl

The folder of rows and models must be there under the same path. A worker ends when its file of jobs
is gone, and when nobody has touched it for five minutes, as where this process was killed; the
folder stays then.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.options import check_count

TOUCH_S = 10.0  # between two signs of life


@dataclass(frozen=True)
class Futures:
    """An engine that starts workers.

    Args:
        count: Workers that it has.
        start: Starts the worker of a folder, a place and the arguments of `devices.setup()` as
            JSON, and returns at once.
        end: Says why the worker of a place has ended, or "" while it runs.
    """

    count: int
    start: Callable[[str, str, str], Any]
    end: Callable[[str], str]


def check_workers(arg: str, value: Any) -> int | Futures:
    """Returns a number of workers, or an engine as R passes it: `{count, start, end}`."""
    if isinstance(value, Mapping) and value.keys() == {"count", "start", "end"}:
        return Futures(check_count(arg, value["count"]), value["start"], value["end"])
    return value if isinstance(value, Futures) else check_count(arg, value)


class JobFiles:
    """The files by which a worker of an engine is given jobs and answers.

    Args:
        futures: The engine.
        folder: The folder of rows and models.
        place: Its name in the folder.
        setup: The arguments of `devices.setup()`.
    """

    def __init__(
        self, futures: Futures, folder: Path, place: str, setup: Mapping[str, Any]
    ) -> None:
        """Starts the worker and waits for nothing."""
        self._futures, self._place = futures, place
        self._asked, self._said = folder / f"asked-{place}.jsonl", folder / f"said-{place}.jsonl"
        self._asked.touch()
        self._touched = time.monotonic()
        futures.start(str(folder), place, json.dumps(setup))

    @property
    def runs(self) -> bool:
        """Whether the worker runs."""
        if time.monotonic() - self._touched > TOUCH_S:
            self._touched = time.monotonic()
            os.utime(self._asked)
        return not self._futures.end(self._place)

    def write(self, line: bytes) -> None:
        """Appends a line to what is asked."""
        with self._asked.open("ab") as file:
            file.write(line)

    def read(self, place: int, size: int) -> bytes:
        """Returns what was said from a place on."""
        if not self._said.exists():
            return b""
        with self._said.open("rb") as file:
            file.seek(place)
            return file.read(size)

    def explain_end(self) -> str:
        """Says how the worker ended."""
        return f"its worker ended: {self._futures.end(self._place)}"

    def stop(self) -> None:
        """Ends the worker; further calls do nothing."""
        self._asked.unlink(missing_ok=True)
        self._said.unlink(missing_ok=True)
