"""Learns time-outs from what was observed: how long workers take to join, and between two calls.

    observed seconds --> file in the folder for caches, by cluster --> max(floor, 5 x the longest)

The rule is that of NVIDIA's Resiliency Extension (fault tolerance: time-outs are the longest
observed interval times `safety_factor`, 5). A cluster is known by its workers' hosts, since ports
change from launch to launch.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core import cache_folder
from gpukeras.core.messages import count_of
from gpukeras.core.options import is_number
from gpukeras.distributed.addresses import parse_address

SWITCH = "GPUKERAS_CLUSTER_CACHE"  # names another folder, or is "off"
FILE = "cluster-times.json"
FACTOR = 5.0
LEAST = 3  # observations; fewer change no time-out
MOST = 20  # observations of a kind that are kept: the latest
MOST_CLUSTERS = 100
MOST_S = 7 * 86_400.0  # of an observation in a file; the system's clocks wait for no 1e300 s
JOIN, CALL = "join", "call"
JOIN_S = 300.0  # without observations: workers of a batch system may start minutes apart
JOIN_FLOOR_S = 60.0
# Between two calls a worker compiles, validates and saves, which another model may do for longer
# than any before: as long as PyTorch waits for collectives of Gloo (30 minutes).
CALL_FLOOR_S = 1800.0


@dataclass(frozen=True)
class Timeout:
    """A time-out, and where it comes from.

    Args:
        what: "join" (all workers, at the start) or "call" (from one agreement to the next).
        seconds: The time-out; infinity for none.
        reason: Its source, as part of a sentence.
    """

    what: str
    seconds: float
    reason: str


def learn_timeout(what: str, observed: Sequence[float]) -> Timeout:
    """Returns the time-out by what was observed on this cluster.

    Args:
        what: "join" or "call".
        observed: Seconds.
    """
    floor_s = JOIN_FLOOR_S if what == JOIN else CALL_FLOOR_S
    if len(observed) < LEAST:
        without_s = JOIN_S if what == JOIN else math.inf
        return Timeout(what, without_s, f"fewer than {LEAST} observations on this cluster")
    longest = max(observed)
    reason = (
        f"{FACTOR:g} times the longest of {count_of(len(observed), 'observation')} on this "
        f"cluster ({longest:.3g} s), at least {floor_s:g} s"
    )
    return Timeout(what, max(floor_s, FACTOR * longest), reason)


def cluster_key(workers: Sequence[str]) -> str:
    """Returns the workers' hosts, in their order."""
    return " ".join(parse_address(worker).host for worker in workers)


class ClusterTimes:
    """The observations of one cluster, kept on this computer.

    Args:
        workers: Addresses of the workers.
        folder: Folder of the file; None keeps them as long as this process.
    """

    def __init__(self, workers: Sequence[str], folder: Path | None) -> None:
        """Reads what was observed before."""
        self._key, self._file = cluster_key(workers), None if folder is None else folder / FILE
        self._own = {} if self._file is None else read_times(self._file).get(self._key, {})

    def timeout(self, what: str) -> Timeout:
        """Returns a time-out by what was observed."""
        return learn_timeout(what, self._own.get(what, []))

    def add(self, what: str, seconds: float) -> None:
        """Keeps an observation; a disk that cannot be written to changes nothing."""
        self._own = {**self._own, what: [*self._own.get(what, []), seconds][-MOST:]}
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            others = read_times(self._file)  # other processes have written too
            others.pop(self._key, None)
            kept = {**dict(list(others.items())[1 - MOST_CLUSTERS :]), self._key: self._own}
            self._file.parent.mkdir(parents=True, exist_ok=True)
            cache_folder.write_record(self._file, kept)


def open_times(workers: Sequence[str], variables: Mapping[str, str] | None = None) -> ClusterTimes:
    """Opens the observations of a cluster in this user's folder for caches."""
    folder = cache_folder.read_folder("cluster", SWITCH, variables)
    unsafe = folder is None or cache_folder.find_risk(folder)
    return ClusterTimes(workers, None if unsafe else folder)


def read_times(file: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the observations of all clusters; those that are damaged are left out."""
    clusters = cache_folder.read_record(file)
    return {key: kinds for key, kinds in clusters.items() if _are_times(kinds)}


def _are_times(kinds: Any) -> bool:
    return isinstance(kinds, dict) and all(
        isinstance(times, list)
        and len(times) <= MOST
        and all(is_number(seconds) and 0 <= seconds <= MOST_S for seconds in times)
        for times in kinds.values()
    )
