"""Which columns of tables in files are read, and which may be anything."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from gpukeras import DataError
from gpukeras.data.dataset import map_dataset


def build(path, **more):
    features = {"kind": "table", "paths": [str(path)], "label": "y", **more}
    return map_dataset.build_dataset(features, {"seed": 1})


def test_columns_left_out_may_have_any_type(tmp_path):
    table = pa.table({"a": [1.0, 2.0], "b": [b"x", b"y"], "y": [0.0, 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a column `b` of type binary"):
        build(tmp_path / "a.parquet")
    data = build(tmp_path / "a.parquet", columns=["a"])
    assert np.array_equal(data.sources[0].gather(slice(0, 2)).ravel(), [1.0, 2.0])


def test_a_fault_is_located_beside_columns_left_out(tmp_path):
    for number, value in enumerate((1.0, None)):
        table = pa.table({"a": [2.0, value], "b": [b"x", b"y"], "y": [0.0, 1.0]})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=r"the first is in row 2 of 1\.parquet"):
        build(tmp_path, columns=["a"])


def test_files_may_differ_in_columns_left_out(tmp_path):
    pacsv.write_csv(pa.table({"a": [1.0, 2.0], "y": [0.0, 1.0]}), tmp_path / "1.csv")
    more = pa.table({"a": [3.0], "y": [0.0], "more": ["x"]})
    pacsv.write_csv(more, tmp_path / "2.csv")
    with pytest.raises(DataError, match="a column `more` that files before it do not have"):
        build(tmp_path)
    other = pa.table({"a": [1.0, 2.0], "b": ["u", "v"], "y": [0.0, 1.0]})
    pacsv.write_csv(other, tmp_path / "1.csv")
    assert len(build(tmp_path, columns=["a"])) == 3
