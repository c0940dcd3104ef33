"""How much a process grows that trains on files larger than it may become.

    data_memory.py FOLDER SUFFIX

The process first trains on a small file of the same kind, so that TensorFlow, pyarrow and their
threads are there; what counts is its peak resident memory after that. Linux alone tells it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from data_cases import open_table
from data_files import write_table

from gpukeras.models import mlp
from gpukeras.training import fit

BATCH = 1024


def read_status(field: str) -> float:
    """Bytes of one line of the process's status, such as VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def reset_peak() -> None:
    """Lets the kernel count the peak (VmHWM) anew."""
    Path("/proc/self/clear_refs").write_text("5")


def train(path: Path) -> Any:
    """One epoch of a small network on a file or a glob."""
    data = open_table(path, batch_size=BATCH)
    model = mlp.build_mlp(data, {"units": [64]})
    return fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"})


def measure(folder: Path, suffix: str) -> dict[str, float]:
    """Trains on all files of a suffix in a folder."""
    files = sorted(folder.glob(f"*.{suffix}"))
    with tempfile.TemporaryDirectory() as small:
        train(write_table(Path(small, f"small.{suffix}"), 20_000, columns=40))
    before = read_status("VmRSS")
    reset_peak()
    began = time.perf_counter()
    report = train(files[0] if len(files) == 1 else folder / f"*.{suffix}")
    return {
        "files": len(files),
        "file_bytes": float(sum(file.stat().st_size for file in files)),
        "rows": report.rows,
        "baseline_bytes": before,
        "extra_bytes": read_status("VmHWM") - before,
        "total_s": time.perf_counter() - began,
        "input_share": report.input_share,
    }


def main(arguments: list[str]) -> None:
    """Measures and prints the record."""
    folder, suffix = arguments
    print(json.dumps(measure(Path(folder), suffix)))


if __name__ == "__main__":
    main(sys.argv[1:])
