"""Samples a process, its computer and GPUs: `python -m gpukeras.monitor.sampler PID INTERVAL`.

A process of its own: a thread of R's Python does not run while R itself computes, as reticulate
keeps Python's lock, and here nothing waits for a lock of the training's. It imports neither
TensorFlow nor NumPy. It prints JSON: a header once it is ready, then a line for each sample,
`[seconds since the header, [host values], [[values of a GPU], ...]]`. It ends when a line or the
end of a file comes by standard input, when its parent has ended, and when the process has.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Sequence

import psutil

from gpukeras.monitor.host import HostReader, count_cores
from gpukeras.monitor.nvml import GpuReader, open_gpus

SHORTEST_S = 0.05  # processor times are counted in hundredths of a second: less tells nothing


def main(arguments: Sequence[str]) -> None:
    """Samples until it is told to end."""
    pid, interval = int(arguments[0]), float(arguments[1])
    told = threading.Event()
    threading.Thread(target=_wait_for_word, args=(told,), daemon=True).start()
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    host = HostReader(pid)
    header = {
        "gpus": [dataclasses.asdict(reader.gpu) for reader in gpus.readers],
        "gpu_error": gpus.error,
        "cores": count_cores(),
        "computer_cores": psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
    }
    print(json.dumps(header), flush=True)
    try:
        sample(host, gpus.readers, interval, told)
    except psutil.NoSuchProcess:
        return


def _wait_for_word(told: threading.Event) -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(): Python could not end while that waits
    told.set()


def sample(
    host: HostReader, gpus: Sequence[GpuReader], interval: float, told: threading.Event
) -> None:
    """Prints a sample at each interval, and one at the end for what is left of the last.

    Moments that were missed, as on a computer with too much to do, are left out.
    """
    parent, began = os.getppid(), time.monotonic()
    last = began
    while os.getppid() == parent:  # it changes when the parent dies
        wait = interval - (time.monotonic() - began) % interval
        ended = told.wait(wait)
        now = time.monotonic()
        if now - last >= min(interval / 2, SHORTEST_S):
            line = [round(now - began, 4), host.read(), [gpu.read() for gpu in gpus]]
            print(json.dumps(line), flush=True)
            last = now
        if ended:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
