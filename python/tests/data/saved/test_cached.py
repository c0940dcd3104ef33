"""`cache = "disk"`: a second call reads no file again; a changed file is read anew."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_servers import objects
from pictures import make_folder

from gpukeras import DataError
from gpukeras.data.builder import assemble
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.saved import cache, cached

ROWS = 300


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUKERAS_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


@pytest.fixture
def table(tmp_path):
    random = np.random.default_rng(3)
    columns = {
        "a": random.normal(size=ROWS),
        "b": pa.array(random.choice(["x", "y", "z"], ROWS)).dictionary_encode(),
        "w": random.uniform(1, 2, ROWS),
        "y": random.normal(size=ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    return {
        "kind": "table",
        "paths": [str(tmp_path / "rows.parquet")],
        "label": "y",
        "weights": "w",
    }


def make(features, **options):
    given = {name: options.pop(name) for name in ("labels", "recipe") if name in options}
    return assemble(features, {"cache": "disk", **options}, **given)


def check_same(one, other):
    for mine, theirs in zip(one.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    np.testing.assert_array_equal(one.order(3), other.order(3))
    np.testing.assert_array_equal(one.validation_rows, other.validation_rows)
    assert (one.recipe, one.notes, one.skipped) == (other.recipe, other.notes, other.skipped)
    assert (one.na, one.dropped, one.spec) == (other.na, other.dropped, other.spec)


def reading_nothing(monkeypatch):
    def refuse(*args, **given):
        raise AssertionError("the files were read again")

    monkeypatch.setattr(cached, "build_dataset", refuse)


@pytest.mark.parametrize(
    "options",
    [{}, {"scale": True, "validation": 0.2, "seed": 3}, {"encode": "codes", "shard": (2, 3)}],
)
def test_a_second_call_finds_the_rows_of_the_first(table, monkeypatch, options):
    plain = assemble(table, {**options, "cache": "host"})
    first = make(table, **options)
    reading_nothing(monkeypatch)
    second = make(table, **options, batch_size=64)
    assert first.sources[0].streamed.endswith("kept for later sessions")
    assert second.sources[0].streamed.endswith("as an earlier call kept them")
    assert second.plan("CPU:0").batch_size == 64
    for one, other in ((first, plain), (second, first)):
        one.spec = other.spec
        check_same(one, other)


def test_all_shares_come_from_one_entry(table, monkeypatch):
    make(table)
    reading_nothing(monkeypatch)
    parts = [make(table, shard=(number, 3)).train_rows for number in (1, 2, 3)]
    assert sorted(np.concatenate(parts)) == list(range(ROWS))


def test_a_changed_file_is_read_anew(table, tmp_path):
    before = make(table).arrays[1]
    rows = pq.read_table(tmp_path / "rows.parquet")
    changed = rows.set_column(3, "y", pa.array(np.arange(ROWS, dtype=float)))
    pq.write_table(changed, tmp_path / "rows.parquet")
    np.testing.assert_array_equal(make(table).arrays[1], np.arange(ROWS, dtype=np.float32))
    assert not np.array_equal(before, np.arange(ROWS))
    assert len(cache.open_cache().entries()) == 2


def test_a_file_that_is_gone_is_the_error_it_always_is(table, tmp_path):
    make(table)
    (tmp_path / "rows.parquet").unlink()
    with pytest.raises(DataError, match=r"rows\.parquet does not exist"):
        make(table)


def test_a_damaged_entry_is_made_anew_with_a_note(table, folder):
    make(table)
    (part,) = folder.glob("*/x.npy")
    part.write_bytes(part.read_bytes()[:100])
    data = make(table)
    assert data.notes == ("The entry of `x` in the cache was damaged, and has been made anew.",)
    assert data.sources[0].streamed.endswith("kept for later sessions")
    assert make(table).notes == ()


def test_notes_and_what_was_left_out_are_told_again(tmp_path, monkeypatch):
    lines = [f"{2**53 + 2 * number + 1},{number % 5}" for number in range(50)]
    (tmp_path / "rows.csv").write_text("a,y\n" + "\n".join(lines) + "\n1,2,3\n")
    features = {"kind": "table", "paths": [str(tmp_path / "rows.csv")], "label": "y"}
    first = make(features, on_error="skip")
    assert first.notes
    assert first.skipped.startswith("1 row")
    reading_nothing(monkeypatch)
    check_same(make(features, on_error="skip"), first)


def test_images_of_a_folder_are_decoded_once(tmp_path, monkeypatch):
    features = {"kind": "images", "paths": make_folder(tmp_path / "pets"), "image_size": (16, 20)}
    first = make(features)
    assert first.arrays[0].dtype == np.uint8
    reading_nothing(monkeypatch)
    check_same(make(features), first)


def test_a_table_of_images_counts_by_its_files_and_its_columns(tmp_path, monkeypatch):
    make_folder(tmp_path / "pets")
    paths = sorted(map(str, (tmp_path / "pets").glob("*/*.jpg")))
    images = {"kind": "images", "paths": paths, "column": "path", "image_size": (8, 8)}
    numbers = {"kind": "array", "values": np.arange(len(paths), dtype=float).reshape(-1, 1)}
    inputs = [{"name": "image", "features": images}, {"name": "n", "features": numbers}]
    labels = {"kind": "numeric", "name": "y", "values": np.arange(float(len(paths))), "levels": []}
    first = make({"kind": "inputs", "inputs": inputs}, labels=labels)
    other = {**labels, "values": labels["values"] + 1}
    make({"kind": "inputs", "inputs": inputs}, labels=other)
    assert len(cache.open_cache().entries()) == 2
    reading_nothing(monkeypatch)
    check_same(make({"kind": "inputs", "inputs": inputs}, labels=labels), first)


def test_rows_for_a_recipe_have_an_entry_of_their_own(table, monkeypatch):
    recipe = make(table, scale=True).recipe
    first = make(table, recipe=recipe)
    reading_nothing(monkeypatch)
    assert make(table, recipe=recipe).recipe == first.recipe == recipe


def test_what_has_no_fingerprint_stays_in_a_scratch_file_and_the_plan_says_why(table):
    array = make({"kind": "array", "values": np.ones((50, 3))})
    assert array.plan("CPU:0").reason.endswith(
        "from a scratch file, 600 bytes, of this session only: they come from no file"
    )
    stream = {"kind": "table", "stream": pq.read_table(table["paths"][0]), "label": "y"}
    assert "a database or a stream may give other rows" in make(stream).plan("CPU:0").reason
    assert not os.path.exists(os.environ["GPUKERAS_DATA_CACHE"])


def test_a_cache_that_is_off_or_too_small_changes_no_row(table, monkeypatch):
    plain = build_dataset(table, {"shard": (2, 3)})
    for name, value, why in [
        ("GPUKERAS_DATA_CACHE_GIB", "0", "do not fit into the cache's 0 MiB"),
        ("GPUKERAS_DATA_CACHE", "off", "GPUKERAS_DATA_CACHE is off"),
    ]:
        monkeypatch.setenv(name, value)
        data = make(table, shard=(2, 3))
        assert why in data.plan("CPU:0").reason
        plain.spec = data.spec
        check_same(data, plain)


def test_other_caches_keep_nothing(table, folder):
    for name in ("auto", "host", "none"):
        assemble(table, {"cache": name})
    assert not folder.exists()


def test_the_plan_of_a_device_reads_from_the_cache_too(table):
    assert make(table).plan("GPU:0").mode == "streamed"


def test_objects_of_a_server_are_known_by_their_version(table):
    (path,) = table["paths"]
    with open(path, "rb") as file:
        content = {"/rows.parquet": file.read()}
    with objects(content) as (url, answers):
        remote = {**table, "paths": [f"{url}/rows.parquet?secret=open-sesame"]}
        content["/rows.parquet?secret=open-sesame"] = content["/rows.parquet"]
        first = make(remote)
        asked = answers.sent
        check_same(make(remote), first)
        assert answers.sent - asked <= 2  # a byte, to learn the version
        content["/rows.parquet?secret=open-sesame"] += b"\0"  # another version
        with pytest.raises(DataError, match="no whole Parquet file"):
            make(remote)
    entries = cache.open_cache().entries()
    assert [entry.source for entry in entries] == ["rows.parquet"]
