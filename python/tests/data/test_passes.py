"""What the passes over rows tell the listener of the call that makes a dataset."""

import gzip
import os
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from children import PATIENCE_S

from gpukeras import api
from gpukeras.core import progress
from gpukeras.data.reader import npy, storage
from gpukeras.data.reader.table import csv_records as records
from gpukeras.data.reader.table import features as table_features

ROWS = 3000
TABLE = pa.table({"x": np.arange(ROWS) / 7, "k": ["a", "b", "c"] * (ROWS // 3), "y": np.ones(ROWS)})
OPTIONS = {"seed": 1, "scale": True, "validation": 0.2, "batch_size": 32}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(progress, "EVENT_S", 0.0)
    monkeypatch.setattr(records, "BLOCK_BYTES", 4096)


def write(path):
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path, row_group_size=500)
    else:
        pacsv.write_csv(TABLE, path)
    return path


def table(*paths):
    return {"kind": "table", "paths": [str(path) for path in paths], "label": "y"}


def make(features, on_event, **more):
    return api.make_dataset(features, {**OPTIONS, **more}, on_event=on_event)["handle"]


def hear(features, **more):
    """The passes in order: verb, units, total, and what was told."""
    events, passes = [], []
    make(features, events.append, **more)
    for event in events:
        here = (event["verb"], event["units"], event["steps"])
        if not passes or passes[-1][:3] != here or event["step"] < passes[-1][3][-1]:
            passes.append((*here, []))
        passes[-1][3].append(event["step"])
    for *_, steps in passes:
        assert steps == sorted(steps)
    return passes


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_a_table_is_read_learned_from_and_encoded(tmp_path, name):
    path = write(tmp_path / name)
    passes = hear(table(path))
    assert [verb for verb, *_ in passes] == ["reading", "learning from", "encoding"]
    _, units, total, steps = passes[0]
    sizes = {"bytes": os.path.getsize(path), "rows": ROWS}
    assert units == ("bytes" if name.endswith("csv") else "rows")
    assert total == steps[-1] == sizes[units]
    assert len(steps) > 3 or units == "rows"  # batches of some MiB
    for _, units, total, steps in passes[1:]:
        assert (units, total, steps[-1]) == ("rows", ROWS, ROWS)


def test_compressed_files_are_counted_as_they_are_stored(tmp_path):
    plain, files = write(tmp_path / "rows.csv"), [tmp_path / "a.csv.gz", tmp_path / "b.csv.gz"]
    for level, file in enumerate(files, 1):
        file.write_bytes(gzip.compress(plain.read_bytes(), level))
    _, units, total, steps = hear(table(*files))[0]
    assert units == "bytes"
    assert total == steps[-1] == sum(map(os.path.getsize, files))
    assert len(steps) > 3


def test_an_array_in_a_file_is_counted_in_rows(tmp_path, monkeypatch):
    tens = [slice(start, start + 10) for start in range(0, 40, 10)]
    monkeypatch.setattr(npy, "row_blocks", lambda rows, row_bytes: tens)
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(40, 2)))
    features = {"kind": "npy", "path": str(tmp_path / "x.npy")}
    passes = hear(features)
    assert ("reading", "rows", 40, [10, 20, 30, 40]) in passes


@pytest.mark.parametrize("steps", [4, None])
def test_kept_batches_of_a_function_are_counted(steps):
    def call(epoch, batch):
        if batch > 4:
            return None
        values = np.full((8, 2), batch, np.float64)
        return {"features": {"kind": "array", "values": values, "names": ["a", "b"]}}

    passes = hear({"kind": "generator", "call": call, "steps": steps}, cache=True)
    assert passes[0] == ("keeping", "batches", steps, [1, 2, 3, 4])


@pytest.mark.parametrize("verb", ["reading", "learning from", "encoding"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_what_a_listener_ends_leaves_no_files(tmp_path, monkeypatch, name, verb):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(storage, "scratch_folder", lambda: scratch)
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 0)
    path = write(tmp_path / name)
    seen = []

    def listen(event):
        seen.append(len(list(scratch.iterdir())))
        return event["verb"] == verb and event["step"] > 1000

    with pytest.raises(KeyboardInterrupt):
        make(table(path), listen, cache="disk", on_error="skip")
    assert max(seen) > 0
    ends = time.monotonic() + PATIENCE_S
    while list(scratch.iterdir()) and time.monotonic() < ends:
        time.sleep(0.01)  # a thread that reads ahead ends what it reads
    assert list(scratch.iterdir()) == []
