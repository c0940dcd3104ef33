"""Samples a process, its computer and GPUs: `python -m gpukeras.monitor.sampler PID INTERVAL`.

The sampler is a separate process because a Python thread in R does not run while R computes:
reticulate holds the GIL. It also never waits for a lock of the training process. It imports neither
TensorFlow nor NumPy. It prints JSON: a header once it is ready, then one line per sample,
`[seconds since the header, [host values], [[values of a GPU], ...], [joules since the header, of
the processors and each GPU]]`. It ends when standard input
delivers a line or closes, when its parent has ended, or when the sampled process has ended.
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

from gpukeras.monitor.energy import Rapl
from gpukeras.monitor.host import HostReader
from gpukeras.monitor.nvml import GpuReader, open_gpus
from gpukeras.system.host import count_cores

SHORTEST_S = 0.05  # CPU times have a resolution of 0.01 s, so shorter intervals are too noisy


def main(arguments: Sequence[str]) -> None:
    """Prints the header, then samples until standard input, the parent or the process ends."""
    pid, interval = int(arguments[0]), float(arguments[1])
    told = threading.Event()
    threading.Thread(target=_wait_for_word, args=(told,), daemon=True).start()
    gpus, gpu_error = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    host, rapl = HostReader(pid), Rapl()
    header = {
        "gpus": [dataclasses.asdict(reader.gpu) for reader in gpus],
        "gpu_error": gpu_error,
        "energy_error": rapl.error,
        "cores": count_cores(),
        "computer_cores": psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
    }
    print(json.dumps(header), flush=True)
    try:
        sample(host, rapl, gpus, interval, told)
    except psutil.NoSuchProcess:
        return


def _wait_for_word(told: threading.Event) -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(): Python cannot exit while it blocks
    told.set()


def sample(
    host: HostReader,
    rapl: Rapl,
    gpus: Sequence[GpuReader],
    interval: float,
    told: threading.Event,
) -> None:
    """Prints one sample per interval, and a last one for the remaining part of an interval.

    Samples that are missed on an overloaded computer are skipped.

    Args:
        host: Reader of the computer and the process.
        rapl: Reader of the processors' energy.
        gpus: Readers of the GPUs.
        interval: Seconds between two samples.
        told: Event that ends the sampling.
    """
    parent, began = os.getppid(), time.monotonic()
    last = began
    while os.getppid() == parent:  # it changes when the parent dies
        wait = interval - (time.monotonic() - began) % interval
        ended = told.wait(wait)
        now = time.monotonic()
        if now - last >= min(interval / 2, SHORTEST_S):
            joules = [rapl.read(), *(gpu.read_joules() for gpu in gpus)]
            line = [round(now - began, 4), host.read(), [gpu.read() for gpu in gpus]]
            print(json.dumps([*line, joules]), flush=True)
            last = now
        if ended:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
