import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpukeras import DataError, SpecError
from gpukeras.data.files.paths import check_file, find_files


@pytest.fixture
def folder(tmp_path):
    for name in ("b.csv", "a.csv", "c.CSV", "d.parquet", "e.arrow", "f.csv.gz", "_SUCCESS", ".hid"):
        (tmp_path / name).write_text("x\n1\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "g.tsv").write_text("x\n1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "names", "format"),
    [
        ("a.csv", ["a.csv"], "csv"),
        (["b.csv", "a.csv"], ["b.csv", "a.csv"], "csv"),
        (["f.csv.gz", "*.CSV"], ["f.csv.gz", "c.CSV"], "csv"),
        ("**/*.tsv", ["g.tsv"], "csv"),
        ("sub", ["g.tsv"], "csv"),
        ("d.parquet", ["d.parquet"], "parquet"),
        (["e.arrow"], ["e.arrow"], "feather"),
    ],
)
def test_files_and_their_format_are_found(folder, given, names, format):
    several = [given] if isinstance(given, str) else given
    found = find_files([str(folder / one) for one in several], "x")
    assert ([path.name for path in found.paths], found.format) == (names, format)


def test_a_format_that_is_said_needs_no_suffix(folder):
    (folder / "data.2024").write_text("x\n1\n")
    found = find_files(str(folder / "data.2024"), "x", "csv")
    assert (found.paths[0].name, found.format) == ("data.2024", "csv")


def test_brackets_in_a_name_are_no_glob(folder):
    (folder / "a[1].csv").write_text("x\n1\n")
    assert find_files(str(folder / "a[1].csv"), "x").paths[0].name == "a[1].csv"


def test_the_tilde_is_the_users_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    assert find_files("~/*.parquet", "x").paths == (folder / "d.parquet",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nothing/*.csv", r"`x`: no file matches \*\.csv"),
        ("empty", "the folder empty has no files"),
        ("*", "the folder empty has no files"),
        (["a.csv", "d.parquet"], "d.parquet is parquet, and a.csv is csv: formats cannot be mixed"),
        ("x.xlsx", "x.xlsx has the unknown suffix .xlsx"),
        ("d.parquet.gz", "has the unknown suffix .gz"),
        ("plain", "plain has no suffix"),
        ([], "`x` names no files"),
    ],
)
def test_what_is_no_table_is_refused(folder, given, message):
    (folder / "empty").mkdir()
    several = [given] if isinstance(given, str) else given
    with pytest.raises(DataError, match=message) as raised:
        find_files([str(folder / one) for one in several], "x")
    assert raised.value.details["arg"] == "x"
    assert raised.value.hint


def test_unknown_suffixes_name_the_known_ones(folder):
    with pytest.raises(DataError, match=r"\.tsv.*\.parquet.*\.feather.*`format`") as raised:
        find_files(str(folder / "x.xlsx"), "x")
    assert raised.value.details["path"] == str(folder / "x.xlsx")


def test_an_unknown_format_is_refused(folder):
    with pytest.raises(SpecError, match='"auto", "csv", "parquet", "feather"'):
        find_files(str(folder / "a.csv"), "x", "xls")


@pytest.mark.parametrize(
    ("name", "message"),
    [("none.csv", "does not exist"), ("sub", "is a folder"), ("void.csv", "is empty")],
)
def test_files_that_cannot_be_read_are_named(folder, name, message):
    (folder / "void.csv").write_text("")
    with pytest.raises(DataError, match=f"`x`: the file {name} {message}") as raised:
        check_file(folder / name, "x")
    assert raised.value.details["path"] == str(folder / name)


def test_a_file_without_permission_is_named(folder):
    """Asked by a user who is not root, whom no permission holds."""
    path = folder / "a.csv"
    path.chmod(0)
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.getuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o055)
    # All is imported before the user changes: that one may not read the libraries.
    program = (
        "import os, pathlib, sys\n"
        "from gpukeras.data.files.paths import check_file\n"
        "os.getuid() or os.setuid(65534)\n"
        "try:\n    check_file(pathlib.Path(sys.argv[1]), 'x')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], env=env, capture_output=True, text=True
    )
    assert "DataError `x`: the file a.csv cannot be opened: Permission denied." in done.stdout
