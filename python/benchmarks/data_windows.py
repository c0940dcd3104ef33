"""Windows of a time series: the seconds of an epoch, and how much memory they take.

    data_windows.py time 1000000 | memory windows 1000000 | memory rows 1000000

Windows of 96 rows of 20 columns, which predict the next value of the first. `memory rows` measures
a dataset of the same rows without windows. Prints one JSON record.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from data_cases import BATCH, drain, draw_epoch, time_ways
from data_memory import read_status, reset_peak

from gpukeras.data import builder

WINDOW, COLUMNS = 96, 20


def make_series(rows: int) -> list[dict[str, Any]]:
    """Columns as R passes them; the first one numbers the rows."""
    values = np.random.default_rng(1).normal(size=(COLUMNS, rows))
    times = {"name": "when", "kind": "numeric", "values": np.arange(rows, dtype=float)}
    columns = [
        {"name": f"v{place}", "kind": "numeric", "values": column, "levels": []}
        for place, column in enumerate(values)
    ]
    return [times, *columns]


def open_windows(columns: list[dict[str, Any]], shuffle: bool = True) -> Any:
    """The dataset of windows."""
    given = {"window": WINDOW, "time": "when", "targets": "v0", "horizon": 1}
    features = {"kind": "windows", "columns": columns, **given}
    return builder.assemble(features, {"batch_size": BATCH, "shuffle": shuffle})


def open_rows(columns: list[dict[str, Any]]) -> Any:
    """The dataset of the rows themselves."""
    features = {"kind": "columns", "columns": columns[1:]}
    labels = {"name": "y", **{key: columns[1][key] for key in ("kind", "values", "levels")}}
    return builder.assemble(features, {"batch_size": BATCH}, labels)


def measure_time(rows: int, times: int) -> dict[str, float]:
    """The seconds of an epoch of shuffled windows, and of Keras' own."""
    import keras

    columns = make_series(rows)
    data = open_windows(columns)
    matrix = np.stack([column["values"] for column in columns[1:]], axis=1).astype(np.float32)
    made = keras.utils.timeseries_dataset_from_array(
        matrix[:-1], matrix[WINDOW:, 0], sequence_length=WINDOW, batch_size=BATCH, shuffle=True
    )
    ways = {
        "gpukeras": lambda: draw_epoch(data),
        "timeseries_dataset_from_array": lambda: drain(made),
    }
    draw_epoch(open_windows(make_series(2000)))
    return time_ways(ways, times)


def measure_memory(what: str, rows: int) -> dict[str, float]:
    """The peak of making a dataset and drawing an epoch, above that of a small one."""
    make = {"windows": open_windows, "rows": open_rows}[what]
    draw_epoch(make(make_series(20_000)))
    columns = make_series(rows)
    before = read_status("VmRSS")
    reset_peak()
    data = make(columns)
    made = read_status("VmRSS") - before
    draw_epoch(data)
    return {"peak_bytes": read_status("VmHWM") - before, "made_bytes": made}


def main(arguments: list[str]) -> None:
    """Measures and prints the record."""
    what, *rest = arguments
    if what == "time":
        found = measure_time(int(rest[0]), int(rest[1]) if len(rest) > 1 else 3)
    else:
        found = measure_memory(rest[0], int(rest[1]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
