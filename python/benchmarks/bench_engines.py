"""One engine on one model, without R: `bench_engines.py MODEL ENGINE SHARE EPOCHS OUT`.

Needs gpukeras on PYTHONPATH. Writes one JSON record to OUT.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench_models import CASES, SEED, make_rows

from gpukeras import pipeline, training


def measure(model: str, engine: str, share: float, epochs: int) -> dict[str, Any]:
    """Trains a model through one engine from float64 rows, as they come from R."""
    case = CASES[model]
    x, y = make_rows(case, share)
    network = case.build(case.shape)
    began = time.perf_counter()
    data = pipeline.build_dataset(
        {"kind": "array", "values": x},
        {"batch_size": case.batch, "scale": False, "seed": SEED},
        {"name": "y", "kind": "integer", "values": y, "levels": []},
    )
    report = training.fit(network, data, {"epochs": epochs, "engine": engine})
    return {
        "total_s": time.perf_counter() - began,
        "epoch_s": report.epoch_s,
        "loss": report.history["loss"],
        "engine": report.engine.engine,
        "reason": report.engine.reason,
    }


def main(arguments: list[str]) -> None:
    """Measures and writes the record."""
    model, engine, share, epochs, out = arguments
    Path(out).write_text(json.dumps(measure(model, engine, float(share), int(epochs))))


if __name__ == "__main__":
    main(sys.argv[1:])
