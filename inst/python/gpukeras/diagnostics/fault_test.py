"""Trains with two workers on this computer, makes one of them fail on purpose, and looks on.

    two workers train --> worker 2 is killed, stopped or slow --> what worker 1 tells, and when

It shows that a lost worker is noticed here, before a training of days relies on it.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.core.options import Spec, check_choice, check_number, option
from gpukeras.diagnostics import fault_worker
from gpukeras.distributed.launcher.launch import ERROR_LINES, Launch
from gpukeras.distributed.launcher.launcher import start_launch
from gpukeras.distributed.launcher.worker_process import parse_error

FAULTS = {"kill": "was killed", "stop": "was stopped, as a computer that hangs", "slow": "was slow"}
SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP"}  # by name: Python on Windows has neither
START_S = 120.0  # for two processes to import TensorFlow on a busy computer
LOOK_S = 0.05


@dataclass(frozen=True)
class FaultSpec(Spec):
    """Options of a test.

    Args:
        kind: "kill" (as out of memory does), "stop" (a process that no longer runs) or "slow".
        timeout_s: Seconds of silence after which a worker counts as lost.
    """

    kind: str = option("kill", check_choice, tuple(FAULTS))
    timeout_s: float = option(5.0, check_number, 1.0, 600.0, arg="timeout")


@dataclass(frozen=True)
class FaultTest:
    """The result of a test.

    Args:
        kind: The fault.
        found: Whether the other worker named the one with the fault.
        sentence: The result in a sentence.
        said: What the other worker told: its error, or a note in its report.
        seconds: From the fault to the end of the other worker; of "slow" the whole training.
        timeout_s: As asked.
    """

    kind: str
    found: bool
    sentence: str
    said: str
    seconds: float
    timeout_s: float


def run_fault_test(options: Mapping[str, Any]) -> FaultTest:
    """Runs a test; it takes as long as two processes need to start, and the time-out.

    Args:
        options: Fields of `FaultSpec`.

    Raises:
        SpecError: for a wrong option.
        ClusterError: if the workers do not train at all.
        RuntimeMissingError: where workers cannot be started.
    """
    spec = FaultSpec.from_dict(options)
    with tempfile.TemporaryDirectory(prefix="gpukeras-fault-") as folder:
        launch = start_launch(
            fault_worker.__file__,
            2,
            {
                "args": [spec.kind, str(spec.timeout_s)],
                "log_dir": folder,
                "variables": {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"},
            },
        )
        try:
            return _run(launch, spec)
        finally:
            launch.stop()


def _run(launch: Launch, spec: FaultSpec) -> FaultTest:
    _await(launch, lambda: "epoch" in read_told(launch, 2))
    began = time.monotonic()
    pid = int(read_told(launch, 2)["pid"])
    if spec.kind in SIGNALS:
        os.kill(pid, signal.Signals[SIGNALS[spec.kind]])
    try:
        _await_end(launch, START_S + spec.timeout_s)
        seconds = time.monotonic() - began
    finally:
        if spec.kind == "stop":  # a stopped process takes no other signal
            os.kill(pid, signal.SIGKILL)
    notes = read_told(launch, 1).get("notes", ())
    slow = [note for note in notes if "was slow" in note]
    said = parse_error(launch.tail(1, ERROR_LINES)) or "".join(slow)
    return describe(spec, said, seconds)


def describe(spec: FaultSpec, said: str, seconds: float) -> FaultTest:
    """Returns the record of a test by what the other worker told."""
    is_named = "orker 2 (" in said
    end = f"worker 1 named it after {seconds:.1f} s" if is_named else "worker 1 did not name it"
    sentence = f"Worker 2 {FAULTS[spec.kind]}, and {end}."
    return FaultTest(spec.kind, is_named, sentence, said, seconds, spec.timeout_s)


def read_told(launch: Launch, worker: int) -> dict[str, Any]:
    """Returns what a worker has told in its log, the latest value of each name."""
    log = Path(launch.look().workers[worker - 1].log)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told: dict[str, Any] = {}
    for line in lines:
        if line.startswith(fault_worker.MARK):
            told.update(json.loads(line[len(fault_worker.MARK) :]))
    return told


def _await(launch: Launch, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        record = launch.look()
        if not record.running or time.monotonic() > deadline:
            failure = record.failure
            why = "they were not ready in time" if failure is None else failure.error
            raise ClusterError(
                f"The test's workers did not train: {why.rstrip('.')}.",
                hint="gpu_launch() starts workers in the same way, and keeps their logs.",
            )
        time.sleep(LOOK_S)


def _await_end(launch: Launch, limit_s: float) -> None:
    """Waits until worker 1 has ended, or the limit."""
    deadline = time.monotonic() + limit_s
    while launch.look().workers[0].status == "running" and time.monotonic() < deadline:
        time.sleep(LOOK_S)
