"""The folder of XLA's programs stays within its size, and holds no damaged program."""

import os
import time
import zlib

import pytest

from gpukeras.backend import xla_cache_files as files

# Two fields of a protocol buffer, a key and machine code, with their lengths.
WHOLE = b"\x0a\x03key" + b"\x1a\xc8\x01" + bytes(200)


def keep(folder, name, content=WHOLE, age_s=0.0):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (name if name.endswith(files.JAX_PROGRAM) else f"{files.PROGRAM}{name}")
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


JAX = zlib.compress(bytes(200))


@pytest.mark.parametrize(
    ("content", "whole"),
    [(JAX, True), (files.ZSTANDARD, True), (b"", False), (JAX[:-1], False), (b"text", False)],
)
def test_a_damaged_program_of_jax_is_found_by_unpacking_it(tmp_path, content, whole):
    file = keep(tmp_path, "jit_one-1-cache", content)
    assert files.is_whole(file) is whole
    if os.name == "posix" and whole:
        assert file.stat().st_mode & 0o777 == 0o400
        assert files.is_whole(file)


def test_the_least_recently_used_programs_of_all_kinds_go(tmp_path):
    one, other = tmp_path / "tensorflow-1", tmp_path / "jax-1"
    ages = {keep(one, "1.pb", age_s=30): 30, keep(other, "2-cache", JAX, age_s=10): 10}
    ages |= {keep(one, "3.pb", age_s=20): 20, keep(other, "4-cache", JAX, age_s=40): 40}
    files.clean(tmp_path, len(WHOLE) + len(JAX) + 1)
    assert sorted(age for file, age in ages.items() if file.exists()) == [10, 20]
    files.clean(tmp_path)
    assert sorted(age for file, age in ages.items() if file.exists()) == [10, 20]


def test_damaged_and_abandoned_programs_go_and_all_else_stays(tmp_path):
    kind = tmp_path / "tensorflow-1"
    gone = [keep(kind, "1.pb", b""), keep(kind, "2.tmp", age_s=2 * files.UNFINISHED_S)]
    gone.append(keep(tmp_path / "jax-1", "jit-cache", JAX[:-1]))
    own = tmp_path / "mine" / "photo.jpg"
    own.parent.mkdir()
    own.write_bytes(WHOLE)
    (kind / "notes.txt").write_bytes(WHOLE)
    (kind / f"{files.PROGRAM}link.pb").symlink_to(own)
    stay = [keep(kind, "3.tmp"), own, kind / "notes.txt", kind / f"{files.PROGRAM}link.pb"]
    files.clean(tmp_path, 0)
    assert not any(file.exists() for file in gone)
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
