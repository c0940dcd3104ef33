import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.reader import npy, storage
from gpukeras.data.reader.rows import MemoryRows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))
    return tmp_path


def blocks_of(values, sizes):
    starts = np.cumsum([0, *sizes])
    return [values[start:end] for start, end in zip(starts, starts[1:], strict=False)]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    dtype=st.sampled_from(["f4", "u1", "i4"]),
    keep=st.sampled_from(["auto", "memory", "disk"]),
    known=st.booleans(),
    limit=st.sampled_from([0, 100, 10**6]),
    rooms=st.booleans(),
)
def test_rows_come_back_in_any_order(sizes, shape, dtype, keep, known, limit, rooms):
    rows = sum(sizes)
    values = np.random.default_rng(1).integers(0, 100, (rows, *shape)).astype(dtype)
    before, storage.MEMORY_BYTES = storage.MEMORY_BYTES, limit
    try:
        writer = storage.RowsWriter(shape, dtype, keep, "x", rows if known else None)
        for block in blocks_of(values, sizes):
            if rooms:
                room = writer.room(len(block))
                room[...] = block
                block = room
            writer.write(block)
        source = writer.finish()
    finally:
        storage.MEMORY_BYTES = before
    assert source.shape == values.shape
    order = np.random.default_rng(2).permutation(rows)
    np.testing.assert_array_equal(source.gather(order), values[order])
    np.testing.assert_array_equal(source.gather(slice(0, rows)), values)


def test_rows_made_in_their_place_are_not_copied():
    writer = storage.RowsWriter((2,), keep="memory", rows=5)
    room = writer.room(5)
    room[...] = 1.0
    writer.write(room)
    source = writer.finish()
    assert isinstance(source, MemoryRows)
    assert np.shares_memory(source.array, room)


def test_a_scratch_file_goes_with_its_rows(folder):
    writer = storage.RowsWriter((1,), keep="disk")
    writer.write(np.ones((3, 1)))
    source = writer.finish()
    (file,) = folder.iterdir()
    assert file.suffix == ".rows"
    del source
    assert not list(folder.iterdir())


def test_giving_up_leaves_nothing(folder):
    writer = storage.RowsWriter((1,), keep="disk")
    writer.write(np.ones((3, 1)))
    writer.close()
    assert not list(folder.iterdir())


@pytest.mark.parametrize("harm", ["gone", "changed"])
def test_a_scratch_file_that_was_harmed_is_named(folder, harm):
    writer = storage.RowsWriter((1,), keep="disk")
    writer.write(np.ones((300, 1)))
    source = writer.finish()
    (file,) = folder.iterdir()
    if harm == "gone":
        file.unlink()
    else:
        file.write_bytes(b"x")
    with pytest.raises(DataError, match="`x`") as caught:
        source.gather(np.arange(3))
    assert caught.value.details["path"] == str(file)


def test_rows_that_do_not_fit_are_refused(folder, monkeypatch):
    monkeypatch.setattr(storage.host, "read_free_memory", lambda: 10.0)
    with pytest.raises(DataError, match="more than the 10 bytes free"):
        storage.RowsWriter((2,), keep="memory", rows=100)
    monkeypatch.setattr(storage, "SPARE_BYTES", 2**60)
    with pytest.raises(DataError, match="does not fit into the temporary folder"):
        storage.RowsWriter((2,), keep="disk", rows=100)
    assert not list(folder.iterdir())


def test_few_rows_of_many_are_read_in_parts(folder, monkeypatch):
    monkeypatch.setattr(npy, "MAP_BYTES", 64)
    values = np.arange(1000, dtype=np.float32).reshape(-1, 2)
    writer = storage.RowsWriter((2,), keep="disk")
    writer.write(values)
    rows = np.array([499, 0, 250, 250])
    np.testing.assert_array_equal(writer.finish().gather(rows), values[rows])
