"""Fingerprints: equal for equal files and options, another one for everything that changes rows."""

import os
import shutil

import numpy as np
import pytest

from gpukeras.core.options import DatasetSpec
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.data.saved import fingerprint
from gpukeras.data.saved.fingerprint import NotKeptError, read_fingerprint

TABLE = {"kind": "table", "label": "y"}


@pytest.fixture
def table(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n3,4\n")
    return {**TABLE, "paths": [str(tmp_path / "*.csv")]}


def key(features, recipe=None, given=None, **options):
    return read_fingerprint(features, DatasetSpec(**options), recipe, given or {}).key


def test_the_same_files_and_options_have_the_same_key(table):
    assert len(key(table)) == 32
    assert key(table) == key(dict(reversed(table.items())))
    same = {"batch_size": 7, "shuffle": False, "drop_last": True, "shard": (2, 3), "cache": "disk"}
    assert key(table) == key(table, **same)
    assert key(table, seed=1) == key(table, seed=2)  # nothing is drawn


def test_a_file_that_is_written_again_makes_another_key(table, tmp_path):
    before, file = key(table), tmp_path / "b.csv"
    found = file.stat()
    file.write_text("x,y\n1,2\n3,5\n")  # as long as before
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))  # and as old
    assert file.stat().st_size == found.st_size
    assert key(table) != before


def test_a_file_more_or_less_or_elsewhere_makes_another_key(table, tmp_path):
    keys = {key(table)}
    shutil.copy2(tmp_path / "a.csv", tmp_path / "c.csv")
    keys.add(key(table))
    (tmp_path / "b.csv").unlink()
    keys.add(key(table))
    (tmp_path / "a.csv").rename(tmp_path / "d.csv")
    keys.add(key(table))
    assert len(keys) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"scale": True},
        {"encode": "codes"},
        {"encode": {"x": "hash"}},
        {"hash_bins": 32},
        {"na": "drop"},
        {"on_error": "skip"},
        {"validation": 0.5},
    ],
)
def test_options_that_encode_make_another_key(table, options):
    assert key(table, **options) != key(table)


def test_the_seed_counts_where_validation_rows_are_drawn(table):
    assert key(table, validation=0.5, seed=1) != key(table, validation=0.5, seed=2)


@pytest.mark.parametrize(
    "given",
    [
        {"formula": "y ~ x"},
        {"class_weight": "balanced"},
        {"class_weight": {"a": 2.0}},
        {"text": {"columns": ["x"]}},
        {"weights": np.ones(4)},
        {"weights": np.ones(4, np.float32)},
        {"weights": np.ones((4, 1))},
        {"labels": {"kind": "numeric", "values": np.arange(4)}},
        {"labels": {"kind": "numeric", "values": np.array(["a", "é"])}},
    ],
)
def test_what_comes_beside_the_files_counts(table, given):
    assert key(table, given=given) != key(table)
    assert key(table, given=given) == key(table, given=given)


def test_a_recipe_and_a_version_count(table, monkeypatch):
    plain, with_recipe = key(table), key(table, Recipe(ArrayEncoding((3,))))
    assert plain != with_recipe
    assert with_recipe != key(table, Recipe(ArrayEncoding((3,), scale=(1.0, 2.0, 3.0))))
    monkeypatch.setattr("gpukeras.__version__", "99")
    newer = key(table)
    monkeypatch.setattr(fingerprint, "VERSION", 99)
    assert len({plain, newer, key(table)}) == 3


def test_values_of_unlike_types_do_not_meet(table):
    kinds = [1, 1.0, True, "1", None, [1], ["1"], {"1": 1}, np.array([1]), np.array([1.0])]
    assert len({key({**table, "columns": each}) for each in kinds}) == len(kinds)
    assert key({**table, "columns": ["a", "b"]}) != key({**table, "columns": ["ab"]})


def test_images_and_masks_count_by_their_files(tmp_path):
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    for path in paths:
        (tmp_path / path).write_bytes(b"pixels")
    images = {"kind": "images", "column": "path", "paths": [*paths[:2], ""]}
    inputs = {"kind": "inputs", "inputs": [{"name": "a", "features": images, "scale": None}]}
    masks = {"labels": {"kind": "masks", "values": paths[2:]}}
    before = [key(images), key(inputs), key(images, given=masks)]
    (tmp_path / "2.png").write_bytes(b"other pixels")
    assert [key(images), key(inputs)] == before[:2]
    assert key(images, given=masks) != before[2]
    (tmp_path / "0.png").write_bytes(b"other pixels")
    assert not {key(images), key(inputs)} & set(before)


def test_the_name_has_no_folders(table, tmp_path):
    def name(features):
        return read_fingerprint(features, DatasetSpec(), None, {}).source

    assert name(table) == "*.csv"
    paths = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    assert name({**table, "paths": paths[:1]}) == "a.csv"
    assert name({**table, "paths": paths}) == "a.csv and 1 other"
    (tmp_path / "x.npy").touch()
    assert name({"kind": "npy", "path": str(tmp_path / "x.npy")}) == "x.npy"
    images = {"kind": "images", "column": "path", "paths": paths}
    assert name(images) == tmp_path.name


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ({"kind": "array", "values": np.ones(3)}, "they come from no file"),
        ({"kind": "table", "stream": object()}, "a database or a stream may give other rows"),
        ({"kind": "generator", "call": print}, "a function may give other rows next time"),
    ],
)
def test_rows_without_files_have_none_and_the_reason_says_so(features, reason):
    with pytest.raises(NotKeptError, match=reason):
        key(features)


def test_values_that_are_not_plain_have_none(table):
    with pytest.raises(NotKeptError, match="a builtin_function_or_method has no fingerprint"):
        key({**table, "columns": print})
