"""Folders of what lasts between sessions: where they are, and which must not be used."""

import os
from pathlib import Path

import pytest

from gpukeras.core import cache_folder

HOME = Path("/home/me")


@pytest.mark.parametrize(
    ("variables", "system", "folder"),
    [
        ({}, "linux", "/home/me/.cache/R/gpukeras/data"),
        ({"MY_CACHE": ""}, "linux", "/home/me/.cache/R/gpukeras/data"),
        ({"R_USER_CACHE_DIR": "/r"}, "darwin", "/r/R/gpukeras/data"),
        ({"MY_CACHE": "/some where"}, "linux", "/some where"),
        ({"MY_CACHE": "Off"}, "linux", None),
    ],
)
def test_the_folder_is_named_or_that_of_r(variables, system, folder):
    found = cache_folder.find_folder("data", "MY_CACHE", variables, system, HOME)
    assert found == (None if folder is None else Path(folder))


@pytest.mark.parametrize(
    ("mode", "risk"),
    [(0o700, ""), (0o755, ""), (0o770, ""), (0o777, "can be written to by all users")],
)
def test_a_folder_that_others_may_fill_is_found(tmp_path, mode, risk):
    tmp_path.chmod(mode)
    assert cache_folder.find_risk(tmp_path) == risk
    assert cache_folder.find_risk(tmp_path / "none") == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_found(tmp_path):
    os.chown(tmp_path, 65534, -1)
    assert cache_folder.find_risk(tmp_path) == "belongs to another user"


def test_a_record_is_written_whole_and_alone(tmp_path):
    file = tmp_path / "record.json"
    for record in ({"a": [1.5, "ä"]}, {"b": {}}):
        cache_folder.write_record(file, record)
        assert cache_folder.read_record(file) == record
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", [None, "", "{", "[1]", "3", "null", "[" * 100_000])
def test_a_damaged_or_missing_record_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "record.json").write_text(text)
    assert cache_folder.read_record(tmp_path / "record.json") == {}
