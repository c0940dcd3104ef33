"""A worker: `python -m gpukeras.many.workers.main FOLDER SETUP`, a child of the process that plans.

    {"job": 3, "model": "model-2.keras", ...} --> standard input
    {"ready": true}, {"job": 3, "history": {...}, ...} <-- standard output

Rows, models and states lie in the folder. It ends when standard input closes, and when its parent
has died, in the middle of a training too; the folder then goes. With a third argument, its place,
files of the folder stand for standard input and output, see `many.futures`.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.preemption import ignore_preemption

LOOK_S = 1.0  # seconds between two checks whether the parent still runs
FILE_S = 0.1  # between two looks at a file of jobs
QUIET_S = 300.0  # without a sign of life in it


def main(arguments: Sequence[str]) -> None:
    """Trains what it is asked to, until it is to end.

    Args:
        arguments: The folder, the arguments of `devices.setup()` as JSON, and the place, if any.
    """
    ignore_preemption()
    folder, setup = Path(arguments[0]), json.loads(arguments[1])
    asked = queue.SimpleQueue[dict[str, Any]]()
    if len(arguments) > 2:
        place = arguments[2]
        says = open(folder / f"said-{place}.jsonl", "a")  # noqa: SIM115 (for the worker's life)
        file = folder / f"asked-{place}.jsonl"
        threading.Thread(target=_follow, args=(asked, file), daemon=True).start()
    else:
        says = os.fdopen(os.dup(1), "w")
        threading.Thread(target=_listen, args=(asked, folder), daemon=True).start()
        threading.Thread(target=_watch, args=(os.getppid(), folder), daemon=True).start()
    os.dup2(2, 1)  # what libraries print is no answer

    from gpukeras.backend import devices, runtime
    from gpukeras.many.workers.rows import open_rows
    from gpukeras.models import registry

    devices.setup(**setup)
    registry.custom_objects()
    data, models = open_rows(folder), dict[str, Any]()
    print(json.dumps({"ready": True}), file=says, flush=True)
    while True:
        job = asked.get()
        if setup["seed"] is not None:  # which worker gets which training depends on times
            runtime.set_seed(setup["seed"])
        print(json.dumps({"job": job["job"], **_answer(job, folder, data, models)}), file=says)
        says.flush()


def _listen(asked: queue.SimpleQueue[dict[str, Any]], folder: Path) -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    _end(folder)


def _follow(asked: queue.SimpleQueue[dict[str, Any]], path: Path) -> None:
    """Takes jobs from a file, until it is gone or shows no sign of life."""
    read = 0
    touched = 0
    since = time.monotonic()
    while True:
        try:
            with path.open("rb") as file:
                now = os.fstat(file.fileno()).st_mtime_ns
                file.seek(read)
                lines = file.read()
        except OSError:
            os._exit(0)
        whole = lines[: lines.rfind(b"\n") + 1]
        read += len(whole)
        for line in whole.splitlines():
            asked.put(json.loads(line))
        if now != touched:
            touched, since = now, time.monotonic()
        elif time.monotonic() - since > QUIET_S:
            os._exit(0)
        time.sleep(FILE_S)


def _watch(parent: int, folder: Path) -> None:
    # A fork of the parent may hold standard input open.
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    _end(folder)


def _end(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # the main thread may be in a training


def _answer(
    job: Mapping[str, Any], folder: Path, data: Any, models: dict[str, Any]
) -> dict[str, Any]:
    """Returns what came of a training, or why it failed."""
    from gpukeras.many.jobs import try_job

    result = try_job(lambda: _train(job, folder, data, models))
    told = {"error": result.error, "seconds": result.seconds}
    if result.fitted is None:
        return told
    return {**told, "history": vars(result.fitted.history)}


def _train(asked: Mapping[str, Any], folder: Path, data: Any, models: dict[str, Any]) -> Any:
    from gpukeras.many.jobs import Job, run_job

    name = asked["model"]
    if name not in models:
        models.clear()
        models[name] = _load(folder / name, data)
    with np.load(folder / asked["rows"]) as rows:
        job = Job(asked["job"], models[name], rows["train"], rows["held_out"], **asked["how"])
    fitted = run_job(job, data)
    if fitted.state or fitted.outputs is not None:
        _write_arrays(folder / asked["arrays"], fitted)
    return fitted


def _load(path: Path, data: Any) -> Any:
    from gpukeras.backend.keras_files import load_model
    from gpukeras.training.keras_functions import build_on

    model = load_model(path)
    build_on(model, data)
    return model


def _write_arrays(path: Path, fitted: Any) -> None:
    arrays = {
        f"{part}-{place}": array
        for part, values in fitted.state.items()
        for place, array in enumerate(values)
    }
    if isinstance(fitted.outputs, np.ndarray):  # the table has no predictions of several outputs
        arrays["outputs"] = fitted.outputs
    np.savez(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1:])
