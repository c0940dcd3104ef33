"""The folder of XLA's programs stays within its size, and holds no damaged program."""

import os
import time

import pytest

from gpukeras.backend import xla_cache_files as files

# Two fields of a protocol buffer, a key and machine code, with their lengths.
WHOLE = b"\x0a\x03key" + b"\x1a\xc8\x01" + bytes(200)


def keep(folder, name, content=WHOLE, age_s=0.0):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{files.PROGRAM}{name}"
    file.write_bytes(content)
    used = time.time() - age_s
    os.utime(file, (used, used))
    return file


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (WHOLE, True),
        (b"", False),
        (WHOLE[:-1], False),
        (WHOLE[:5], False),
        (WHOLE + b"\x0a", False),
        (bytes(len(WHOLE)), False),
        (b"text", False),
    ],
)
def test_a_damaged_program_is_found_by_the_lengths_of_its_fields(tmp_path, content, whole):
    assert files.is_whole(keep(tmp_path, "1.pb", content)) is whole


def test_the_least_recently_used_programs_of_all_kinds_go(tmp_path):
    one, other = tmp_path / "tensorflow-1", tmp_path / "tensorflow-2"
    ages = {keep(one, "1.pb", age_s=30): 30, keep(other, "2.pb", age_s=10): 10}
    ages |= {keep(one, "3.pb", age_s=20): 20, keep(other, "4.pb", age_s=40): 40}
    files.clean(tmp_path, 2 * len(WHOLE) + 1)
    assert sorted(age for file, age in ages.items() if file.exists()) == [10, 20]
    files.clean(tmp_path)
    assert sorted(age for file, age in ages.items() if file.exists()) == [10, 20]


def test_damaged_and_abandoned_programs_go_and_all_else_stays(tmp_path):
    kind = tmp_path / "tensorflow-1"
    gone = [keep(kind, "1.pb", b""), keep(kind, "2.tmp", age_s=2 * files.UNFINISHED_S)]
    own = tmp_path / "mine" / "photo.jpg"
    own.parent.mkdir()
    own.write_bytes(WHOLE)
    (kind / "notes.txt").write_bytes(WHOLE)
    (kind / f"{files.PROGRAM}link.pb").symlink_to(own)
    stay = [keep(kind, "3.tmp"), own, kind / "notes.txt", kind / f"{files.PROGRAM}link.pb"]
    files.clean(tmp_path, 0)
    assert [file.exists() for file in gone] == [False, False]
    assert [file.exists() for file in stay] == [True] * 4


def test_a_folder_is_made_for_the_user_alone_if_it_can_be(tmp_path):
    folder = tmp_path / "xla" / "kind"
    assert files.can_keep(folder)
    assert [each.stat().st_mode & 0o777 for each in (folder, folder.parent)] == [0o700, 0o700]
    assert list(folder.iterdir()) == []
    (tmp_path / "file").touch()
    assert not files.can_keep(tmp_path / "file" / "kind")


def test_a_full_disk_keeps_no_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LEAST_FREE_BYTES", 2**80)
    assert not files.can_keep(tmp_path / "xla" / "kind")
