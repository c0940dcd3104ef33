"""Tables that come once, as a stream."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpukeras import DataError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader.rows import FeatureRequest
from gpukeras.data.reader.table import features as table_features
from gpukeras.data.reader.table.features import TableFeatures
from gpukeras.data.recipe.columns import Learning


def stream_table(rows=2000):
    numbers = np.arange(float(rows))
    return pa.table(
        {"a": numbers, "s": ["x", "y"] * (rows // 2), "y": numbers % 3, "b": [b""] * rows}
    )


def test_rows_of_a_stream_are_those_of_a_file(tmp_path):
    spec, columns = DatasetSpec(scale=True), ["a", "s"]
    given = {"kind": "table", "columns": columns, "label": "y"}
    table = stream_table()
    pq.write_table(table.drop(["b"]), tmp_path / "a.parquet")
    file = TableFeatures(
        FeatureRequest({**given, "paths": [str(tmp_path / "a.parquet")]}, "x", spec)
    )
    stream = TableFeatures(FeatureRequest({**given, "stream": table}, "x", spec))
    keep = np.ones(2000, bool)
    recipe = stream.learn(Learning(keep, spec))
    assert recipe == file.learn(Learning(keep, spec))
    assert stream.rows == 2000
    assert np.array_equal(stream.labels()["values"], file.labels()["values"])
    same = file.encode(recipe).gather(slice(None))
    assert np.array_equal(stream.encode(recipe).gather(slice(None)), same)
    with pytest.raises(DataError, match="came once, and are gone"):
        stream.encode(recipe)


def test_a_faulty_row_of_a_stream_is_named():
    spec = DatasetSpec()
    features = TableFeatures(FeatureRequest({"stream": pa.table({"a": [1.0, None]})}, "x", spec))
    recipe = features.learn(Learning(np.ones(2, bool), spec))
    with pytest.raises(DataError, match="the first is in row 2[.]") as found:
        features.encode(recipe)
    assert found.value.details["row"] == 2


def test_a_stream_that_breaks_off_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    monkeypatch.setattr(table_features, "UNKNOWN_BYTES", 1)
    seen = []

    def failing():
        for _ in range(5):
            yield stream_table().to_batches()[0]
            seen.append(len(list(tmp_path.iterdir())))
        raise OSError("lost")

    reader = pa.RecordBatchReader.from_batches(stream_table().schema, failing())
    given = {"stream": reader, "columns": ["a"], "label": "y"}
    with pytest.raises(DataError, match="behind row 10,000: lost"):
        TableFeatures(FeatureRequest(given)).rows  # noqa: B018 (reads the rows)
    assert max(seen) == 1
    assert list(tmp_path.iterdir()) == []
