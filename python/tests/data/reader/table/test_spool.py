import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.reader import storage
from gpukeras.data.reader.table import features as table_features

SCHEMA = pa.schema([("x", pa.int64()), ("f", pa.dictionary(pa.int8(), pa.string()))])


def batch(start, rows, levels=("a", "b")):
    codes = pa.array([i % len(levels) for i in range(rows)], pa.int8())
    column = pa.DictionaryArray.from_arrays(codes, list(levels))
    return pa.record_batch([pa.array(range(start, start + rows)), column], SCHEMA)


def filled(*batches, **options):
    kept = table_features.Spool(SCHEMA, "x", **options)
    for each in batches:
        kept.write(each)
    kept.finish()
    return kept


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    return tmp_path


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([0, 200, 10**6]))
def test_batches_come_back_as_they_were(sizes, memory):
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    given_batches = [batch(start, rows) for start, rows in zip(starts, sizes, strict=True)]
    before, table_features.MEMORY_BYTES = table_features.MEMORY_BYTES, memory
    try:
        kept = filled(*given_batches)
        for _ in range(2):
            assert [each.to_pydict() for each in kept.batches()] == [
                each.to_pydict() for each in given_batches
            ]
        kept.close()
    finally:
        table_features.MEMORY_BYTES = before
    assert kept.rows == sum(sizes)


def test_a_scratch_file_holds_what_is_too_much_for_memory(folder, monkeypatch):
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 100)
    kept = filled(batch(0, 50), batch(50, 50, ("c", "b", "d")))
    (file,) = folder.iterdir()
    assert file.suffix == ".arrows"
    assert [each["f"].dictionary.to_pylist() for each in kept.batches()] == [
        ["a", "b"],
        ["c", "b", "d"],
    ]
    kept.close()
    assert not list(folder.iterdir())


def test_what_will_be_too_much_is_never_in_memory(folder):
    kept = table_features.Spool(SCHEMA, "x", expected=10**12)
    assert len(list(folder.iterdir())) == 1
    kept.close()


def test_the_scratch_file_goes_with_its_spool(folder, monkeypatch):
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 100)
    kept = filled(batch(0, 50))
    assert list(folder.iterdir())
    del kept
    assert not list(folder.iterdir())


def test_files_are_read_anew_where_that_is_quicker(folder, monkeypatch):
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 100)
    kept = filled(batch(0, 50), anew=lambda: iter([batch(0, 20), batch(20, 30)]))
    assert not list(folder.iterdir())
    assert [each.num_rows for each in kept.batches()] == [20, 30]


def test_files_that_became_others_are_refused(monkeypatch):
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 100)
    kept = filled(batch(0, 50), anew=lambda: iter([batch(0, 20)]))
    with pytest.raises(DataError, match="20 rows where it had 50: its files changed while they"):
        list(kept.batches())


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_scratch_file_that_was_harmed_is_named(folder, monkeypatch, harm):
    monkeypatch.setattr(table_features, "MEMORY_BYTES", 100)
    kept = filled(batch(0, 500))
    (file,) = folder.iterdir()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(DataError, match="scratch file of `x` is gone or damaged") as caught:
        list(kept.batches())
    assert caught.value.details["path"] == str(file)


def test_a_full_disk_is_said(folder, monkeypatch):
    monkeypatch.setattr(storage, "SPARE_BYTES", 2**60)
    with pytest.raises(DataError, match="does not fit into the temporary folder"):
        table_features.Spool(SCHEMA, "x", expected=10**12)
    assert not list(folder.iterdir())
