"""The steps of `gpu_evidence.py` that need TensorFlow, each in a process of its own.

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

from gpukeras.backend import devices, tracing
from gpukeras.data import dataset
from gpukeras.diagnostics import check
from gpukeras.models import builder
from gpukeras.profiler.trace import gpu_summary

ROWS, COLUMNS, CLASSES = 100_000, 64, 10
BATCH, SEED = 256, 1


def make_rows() -> tuple[np.ndarray, np.ndarray]:
    """Random features and classes that depend on them."""
    random = np.random.default_rng(SEED)
    features = random.normal(size=(ROWS, COLUMNS))
    return features, np.argmax(features[:, :CLASSES], axis=1)


def make_data() -> dataset.MapDataset:
    """The rows as gpukeras stages them."""
    features, labels = make_rows()
    options = {"batch_size": BATCH, "scale": False, "seed": SEED}
    label = {"name": "y", "kind": "integer", "values": labels, "levels": []}
    return dataset.build_dataset({"kind": "array", "values": features}, options, label)


def run_use() -> dict[str, Any]:
    """`gpu_check(model, data)` in this process."""
    devices.setup()
    data = make_data()
    found = asdict(check.check(None, builder.build_mlp(data, {}), data))
    return {name: found[name] for name in ("verdict", "cause", "evidence", "findings")} | {
        "use": found["facts"].get("use")
    }


def run_trace() -> dict[str, Any]:
    """A trace of some training steps, kept as a file, and what it holds."""
    devices.setup()
    folder = Path(os.environ["EVIDENCE_FOLDER"])
    data = make_data()
    model = builder.build_mlp(data, {})
    x, y = (array[: 20 * BATCH] for array in data.arrays[:2])
    model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)  # compiled before it is traced
    with tracing.profile(str(folder / "profile")):
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)
    found = next((folder / "profile").rglob("*.xplane.pb"))
    space = tracing.trace_message()
    space.ParseFromString(found.read_bytes())
    space.ClearField("hostnames")
    (folder / "trace.xplane.pb").write_bytes(space.SerializeToString())
    return gpu_summary.read_trace(found).to_facts()


STEPS = {"use": run_use, "trace": run_trace}

if __name__ == "__main__":
    print(json.dumps(STEPS[sys.argv[1]](), default=str))
