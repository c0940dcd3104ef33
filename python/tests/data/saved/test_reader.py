"""Reading what was saved: the same rows, split and predictions; every damage is named."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from savings import in_one_folder, opened, save
from small_fits import make_dataset, make_model

from gpukeras import DataError, SpecError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.dataset import map_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.reader import npy
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Recipe
from gpukeras.data.saved import reader as saved
from gpukeras.data.saved import writer as storage

CACHES = ["auto", "none", "host", "disk", True]


def check_same(one, other):
    """Two datasets have the same rows, split, order and recipe."""
    assert len(one.sources) == len(other.sources)
    for mine, theirs in zip(one.arrays, other.arrays, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(one.train_rows, other.train_rows)
    np.testing.assert_array_equal(one.validation_rows, other.validation_rows)
    np.testing.assert_array_equal(one.order(3), other.order(3))
    assert one.recipe == other.recipe
    assert (one.na, one.dropped) == (other.na, other.dropped)


def labels_of(kind, rows):
    i = np.arange(rows)
    records = {
        "numeric": {"values": np.sin(i)},
        "integer": {"values": i.astype(np.int32)},
        "logical": {"values": (i % 3 == 0).astype(float)},
        "factor": {"values": i % 3 + 1, "levels": ["ä", "b c", "日本"]},
        "character": {"values": i % 2 + 1, "levels": ["no", "yes"]},
        "matrix": {"values": np.stack([i, np.cos(i)], axis=1), "names": ["a", "ß"]},
    }
    return {"kind": kind, "name": "y", "levels": [], **records[kind]}


# Round trips -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["numeric", "integer", "logical", "factor", "character", "matrix", None]
)
@pytest.mark.parametrize(("validation", "weighted"), [(0, False), (0.3, True)])
def test_labels_weights_and_split_come_back(tmp_path, kind, validation, weighted):
    x = np.random.default_rng(5).normal(size=(40, 3))
    labels = None if kind is None else labels_of(kind, 40)
    weights = np.linspace(0, 2, 40) if weighted and labels else None
    options = {"validation": validation, "seed": 11, "scale": True}
    given = {"kind": "array", "values": x, "names": ["a", "é", "c"]}
    data = map_dataset.build_dataset(given, options, labels, weights)
    check_same(opened(save(tmp_path, data)), data)


@pytest.mark.parametrize("cache", CACHES)
def test_columns_with_missing_values_come_back(tmp_path, cache):
    i = np.arange(50)
    columns = [
        {"name": "größe", "kind": "numeric", "values": np.where(i % 7, np.sin(i), np.nan)},
        {"name": "日", "kind": "factor", "values": i % 3 + 1, "levels": ["a", "b", "unused", "z"]},
        {"name": "when", "kind": "date", "values": 19000.0 + i},
    ]
    given = {"kind": "columns", "columns": columns}
    data = map_dataset.build_dataset(
        given, {"na": "impute", "validation": 0.2, "seed": 2}, labels_of("factor", 50)
    )
    check_same(opened(save(tmp_path, data), cache=cache), data)


def test_dropped_rows_are_told_again(tmp_path):
    x = np.array([[1.0], [np.nan], [3.0], [4.0]])
    data = map_dataset.build_dataset({"kind": "array", "values": x}, {"na": "drop"})
    back = opened(save(tmp_path, data))
    check_same(back, data)
    assert back.dropped == 1


@pytest.mark.parametrize("cache", ["auto", "none"])
@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 1), np.float32),
        ((7, 2, 3, 4, 5), np.float32),
        ((9, 8, 6, 3), np.uint8),
        ((1, 8, 6, 3), np.uint8),
    ],
)
def test_arrays_of_all_ranks_come_back(tmp_path, cache, shape, kind):
    x = np.random.default_rng(6).integers(0, 256, shape).astype(kind)
    rows = np.arange(len(x), dtype=np.int32)
    images = kind is np.uint8 and len(shape) == 4
    recipe = Recipe((ImageEncoding if images else ArrayEncoding)(shape[1:]))
    data = map_dataset.MapDataset((MemoryRows(x),), recipe, DatasetSpec(), rows, rows[:0])
    check_same(opened(save(tmp_path, data), cache=cache), data)


def test_a_worker_saves_and_takes_its_share(tmp_path):
    data = make_dataset(rows=100, validation=0.2, shard=[2, 3], batch_size=9)
    back = opened(save(tmp_path, data))
    assert len(back) == len(data.rows("all")) < 100
    np.testing.assert_array_equal(back.arrays[0], data.sources[0].gather(data.rows("all")))
    assert len(opened(tmp_path / "saved", shard=[1, 2]).train_rows) == 14


@in_one_folder
@given(
    rows=st.integers(1, 50),
    map_bytes=st.sampled_from([1, 100, 2**20]),
    wanted=st.lists(st.integers(0, 49), max_size=60),
)
def test_gathering_is_indexing(tmp_path, monkeypatch, rows, map_bytes, wanted):
    monkeypatch.setattr(npy, "MAP_BYTES", map_bytes)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 64)
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(np.float32)
    every = np.arange(rows, dtype=np.int32)
    data = map_dataset.MapDataset(
        (MemoryRows(x), MemoryRows(every)),
        Recipe(ArrayEncoding((3,))),
        DatasetSpec(),
        every,
        every[:0],
    )
    path = save(tmp_path, data, overwrite=True)
    back = opened(path, cache="none")
    numbers = np.array([number % rows for number in wanted], dtype=np.int32)
    np.testing.assert_array_equal(back.sources[0].gather(numbers), x[numbers])
    np.testing.assert_array_equal(back.sources[1].gather(slice(rows)), every)
    part = slice(rows // 3, rows // 2)
    np.testing.assert_array_equal(back.sources[0].gather(part), x[part])


def test_many_rows_stay_in_their_files(tmp_path, monkeypatch):
    monkeypatch.setattr(saved, "MEMORY_BYTES", 1000)
    data = make_dataset()
    path = save(tmp_path, data)
    back = opened(path)
    assert back.sources[0].streamed == "a block at a time from the saved x.npy, 4.0 KiB"
    assert back.sources[0].resident_bytes == 0
    assert back.plan("CPU:0").mode == "streamed"
    assert opened(path, cache="host").sources[0].streamed == ""
    check_same(back, data)


# Training ----------------------------------------------------------------------------------------


@pytest.mark.tf
def test_training_and_predicting_give_the_same_bits(tmp_path):
    from gpukeras.training import fit, predict

    data = make_dataset(validation=0.25)
    back = opened(save(tmp_path, data), batch_size=32, cache="none")
    weights, outputs, losses = [], [], []
    for rows in (data, back):
        model = make_model()
        report = fit.fit(model, rows, {"epochs": 2, "engine": "keras"})
        losses.append(report.history["val_loss"])
        weights.append(model.get_weights())
        outputs.append(predict.predict(model, data=rows)["values"])
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(*outputs)
    for mine, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# Options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("encode", "codes"), ("hash_bins", 9), ("scale", True), ("na", "drop"), ("validation", 0.5)],
)
def test_what_was_settled_cannot_be_chosen_anew(tmp_path, name, value):
    path = save(tmp_path, make_dataset(validation=0.25))
    with pytest.raises(SpecError, match=f"`{name}` was settled when the rows were saved"):
        opened(path, **{name: value})


def test_labels_of_others_are_refused(tmp_path):
    path = save(tmp_path, make_dataset())
    given = {"labels": {}, "weights": np.ones(200), "class_weight": "balanced", "recipe": {}}
    for name, value in given.items():
        arg = "y" if name == "labels" else name
        with pytest.raises(SpecError, match=f"`{arg}` was settled"):
            saved.build_saved({"path": path}, Request({}, **{name: value}))
    saved.build_saved(
        {"path": path}, Request({}, labels=None, weights=None, recipe=None, formula="")
    )


def test_feeding_can_be_chosen_anew(tmp_path):
    path = save(tmp_path, make_dataset(validation=0.25, seed=7))
    back = opened(path, validation=0.25, seed=3, batch_size=10, shuffle=False, drop_last=True)
    assert back.spec.seed == 3
    assert opened(path, seed=None).spec.seed == 7
    assert opened(path, batch_size=151).plan("CPU:0").batch_size == 150
    assert back.plan("CPU:0").batch_size == 10
    assert back.order(1).tolist() == back.train_rows.tolist()


# Damage ------------------------------------------------------------------------------------------


def remove(path):
    path.unlink()


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


def pad(path):
    path.write_bytes(path.read_bytes() + b"\0")


def flip(place):
    def change(path):
        raw = bytearray(path.read_bytes())
        raw[place] ^= 1
        path.write_bytes(raw)

    return change


def write_as(change):
    return lambda path: np.save(path, change(np.load(path)))


def write_pickle(path):
    np.save(path, np.array([None] * 400), allow_pickle=True)


def put_pipe(path):
    path.unlink()
    os.mkfifo(path)


def put_folder(path):
    path.unlink()
    path.mkdir()


HEADER = "is damaged: its header is not the one that was saved"
SUM = "is damaged: its checksum is not the one that was saved"
FAULTS = [
    (remove, "is missing"),
    (truncate, r"has [\d,]+ bytes where [\d,]+ were saved"),
    (pad, r"has [\d,]+ bytes where [\d,]+ were saved"),
    (flip(0), HEADER),
    (flip(70), HEADER),
    (flip(-1), SUM),
    (flip(128), SUM),
    (write_as(lambda array: array[:-1]), r"has [\d,]+ bytes where [\d,]+ were saved"),
    (write_as(lambda array: array.view(f"V{array.itemsize}")), HEADER),
    (write_as(lambda array: array[None]), HEADER),
    (write_as(lambda array: array.reshape(2, -1)), HEADER),
    (write_as(lambda array: array[::-1].copy()), SUM),
    (write_pickle, r"has [\d,]+ bytes where [\d,]+ were saved"),
    (put_pipe, "cannot be read: it is a pipe, not a file"),
    (put_folder, "cannot be read: it is a folder, not a file"),
]


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "validation.npy"])
@pytest.mark.parametrize(("spoil", "message"), FAULTS)
def test_a_broken_file_is_named(tmp_path, name, spoil, message):
    path = save(tmp_path, make_dataset(validation=0.2))
    spoil(tmp_path / "saved" / name)
    with pytest.raises(DataError, match=f"`x`: the file {name} of saved ({message})") as caught:
        opened(path)
    assert caught.value.details["path"].endswith(name)


@pytest.mark.parametrize("place", range(0, 128, 7))
def test_each_bit_of_a_header_is_seen(tmp_path, place):
    path = save(tmp_path, make_dataset())
    flip(place)(tmp_path / "saved" / "x.npy")
    with pytest.raises(DataError, match=HEADER):
        opened(path, on_error="skip")


def test_damaged_rows_can_be_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK_BYTES", 25 * (5 * 4 + 4 + 1))
    data = make_dataset(rows=100, validation=0.2)
    path = save(tmp_path, data)
    flip(128 + 4 * 30)(tmp_path / "saved" / "y.npy")
    with pytest.raises(DataError, match=f"the file y.npy of saved {SUM}"):
        opened(path)
    for cache in ("auto", "none", "host"):
        back = opened(path, on_error="skip", cache=cache)
        assert back.skipped == f"25 rows left out: y.npy {SUM}"
        left = np.r_[:25, 50:100]
        for mine, theirs in zip(back.arrays, data.arrays, strict=True):
            np.testing.assert_array_equal(mine, theirs[left])
        held = np.isin(left, data.validation_rows)
        np.testing.assert_array_equal(back.validation_rows, np.flatnonzero(held))
        assert "25 rows" in back.plan("CPU:0").skipped


def test_no_intact_row_is_an_error_all_the_same(tmp_path):
    path = save(tmp_path, make_dataset())
    flip(-1)(tmp_path / "saved" / "x.npy")
    with pytest.raises(DataError, match=SUM):
        opened(path, on_error="skip")


def test_a_file_too_many_is_named(tmp_path):
    path = save(tmp_path, make_dataset())
    folder = tmp_path / "saved"
    shutil.copy(folder / "y.npy", folder / "weights.npy")
    with pytest.raises(DataError, match="the file weights.npy of saved is not listed in"):
        opened(path)
    (folder / "weights.npy").rename(folder / "notes.npy")
    assert len(opened(path)) == 200


def test_a_folder_without_saved_rows_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no saved dataset"):
        opened(tmp_path)
    with pytest.raises(DataError, match="`x`: the folder nowhere does not exist"):
        opened(tmp_path / "nowhere")


def test_a_folder_of_which_only_validation_rows_are_left_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1)
    data = make_dataset(rows=4, validation=0.5, batch_size=2)
    path = save(tmp_path, data)
    for row in data.train_rows:
        flip(128 + 4 * int(row))(tmp_path / "saved" / "y.npy")
    with pytest.raises(DataError, match="`x` has no training rows left"):
        opened(path, on_error="skip", batch_size=2)


@pytest.mark.parametrize(("spoil", "found"), [(remove, "is gone"), (truncate, "changed after it")])
def test_a_file_that_changes_later_is_an_error(tmp_path, spoil, found):
    data = opened(save(tmp_path, make_dataset()), cache="none")
    spoil(tmp_path / "saved" / "x.npy")
    for rows in (np.array([3, 1]), slice(2)):
        with pytest.raises(DataError, match=f"the file x.npy {found}"):
            data.sources[0].gather(rows)
