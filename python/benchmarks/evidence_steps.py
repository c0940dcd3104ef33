"""The steps of `gpu_evidence.py` that train a model, each in a process of its own.

`evidence_steps.py use|trace` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime, tracing
from gpukeras.backend.jax_module import jax
from gpukeras.data.dataset import map_dataset
from gpukeras.diagnostics import check, jax_usage
from gpukeras.models import mlp
from gpukeras.profiler.trace import gpu_summary

ROWS, COLUMNS, CLASSES = 100_000, 64, 10
BATCH, SEED = 256, 1
HOSTNAMES = 4  # the field of XSpace


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Random features and classes that depend on them."""
    random = np.random.default_rng(SEED)
    features = random.normal(size=(ROWS, COLUMNS))
    return features, np.argmax(features[:, :CLASSES], axis=1)


def make_data() -> map_dataset.MapDataset:
    """The rows as gpukeras stages them."""
    features, labels = make_rows()
    options = {"batch_size": BATCH, "scale": False, "seed": SEED}
    label = {"name": "y", "kind": "integer", "values": labels, "levels": []}
    return map_dataset.build_dataset({"kind": "array", "values": features}, options, label)


def run_use() -> dict[str, Any]:
    """`gpu_check(model, data)` in this process."""
    devices.setup()
    data = make_data()
    found = asdict(check.check(None, mlp.build_mlp(data, {}), data))
    return {name: found[name] for name in ("verdict", "cause", "evidence", "findings")} | {
        "use": found["facts"].get("use")
    }


def run_trace() -> dict[str, Any]:
    """A trace of some training steps, kept as a file, and what it holds."""
    devices.setup()
    folder = Path(os.environ["EVIDENCE_FOLDER"])
    data = make_data()
    model = mlp.build_mlp(data, {})
    x, y = (array[: 20 * BATCH] for array in data.arrays[:2])
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)  # compiled before it is traced
    with open_profile(str(folder / "profile")):
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    found = next((folder / "profile").rglob("*.xplane.pb"))
    (folder / "trace.xplane.pb").write_bytes(without_field(found.read_bytes(), HOSTNAMES))
    return read_trace(found)


def open_profile(folder: str) -> Any:
    """A context whose work is traced."""
    return jax().profiler.trace(folder) if runtime.backend() == "jax" else tracing.profile(folder)


def read_trace(path: Path) -> dict[str, Any]:
    """What a trace holds, by the backend's own reader."""
    if runtime.backend() != "jax":
        return gpu_summary.read_trace(path).to_facts()
    return jax_usage.count_kernels(jax().profiler.ProfileData.from_file(str(path)).planes)


def without_field(message: bytes, number: int) -> bytes:
    """A Protobuf message without one of its fields.

    Args:
        message: As it is written: a tag before each field, with the number and kind of it.
        number: The field's.

    Raises:
        ValueError: if it is not a message.
    """
    kept, place = [], 0
    while place < len(message):
        tag, end = _read_varint(message, place)
        if tag & 7 == 2:  # its length, and so many bytes
            length, end = _read_varint(message, end)
            end += length
        elif tag & 7 == 0:
            _, end = _read_varint(message, end)
        elif tag & 7 in (1, 5):
            end += {1: 8, 5: 4}[tag & 7]
        else:
            raise ValueError("not a Protobuf message")
        if end > len(message):
            raise ValueError("a Protobuf message that is cut off")
        if tag >> 3 != number:
            kept.append(message[place:end])
        place = end
    return b"".join(kept)


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
        if byte < 128:
            return value, place
    raise ValueError("a Protobuf message that is cut off")


STEPS = {"use": run_use, "trace": run_trace}

if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](), default=str))
