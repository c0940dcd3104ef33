"""Archives of unknown origin: what may be read, and what is refused before it is."""

import io
import pickle
import stat
import zipfile

import numpy as np
import pytest

from gpukeras.export.zip_limits import FREE_BYTES, check_members, explain_fault


def write_archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def a_member(name="config.json", **changes):
    member = zipfile.ZipInfo(name)
    member.orig_filename = name
    member.file_size = member.compress_size = 10
    for field, value in changes.items():
        setattr(member, field, value)
    return member


def npz_of(*arrays):
    file = io.BytesIO()
    np.savez(file, *arrays)
    return file.getvalue()


def test_an_archive_as_keras_writes_it_may_be_read(tmp_path):
    members = [("config.json", "{}"), ("assets/words/a.txt", "x"), ("assets/", "")]
    members += [("gpukeras-masks.npz", npz_of(np.zeros(9, np.uint8)))]
    assert explain_fault(write_archive(tmp_path / "a.keras", members)) == ""
    packed = write_archive(tmp_path / "b.keras", members, zipfile.ZIP_DEFLATED)
    assert explain_fault(packed) == ""


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("/etc/passwd", {}, "lies outside"),
        ("../evil", {}, "lies outside"),
        ("assets/../../evil", {}, "lies outside"),
        ("C:/evil", {}, "lies outside"),
        ("assets\\..\\evil", {}, "lies outside"),
        ("a\0b", {}, "lies outside"),
        ("assets/a", {"external_attr": (stat.S_IFLNK | 0o777) << 16}, "a link"),
        ("assets/a", {"external_attr": (stat.S_IFCHR | 0o600) << 16}, "a device"),
        ("assets/a", {"flag_bits": 1}, "encrypted"),
        ("assets/a", {"compress_type": zipfile.ZIP_LZMA}, "compressed in a way"),
        ("assets/a", {"file_size": FREE_BYTES + 101_000}, "would swell from 1000"),
        ("assets/a", {"compress_size": 1001}, "overlap"),
    ],
)
def test_members_that_must_not_be_read(name, changes, said):
    assert check_members([a_member()], 1000) == ""
    assert said in check_members([a_member(), a_member(name, **changes)], 1000)


def test_many_members_and_twins_are_refused():
    assert "2 members with the name 'config.json'" in check_members([a_member()] * 2, 1000)
    many = [a_member(str(number)) for number in range(10_001)]
    assert "10001 members" in check_members(many, 10**6)


def test_a_name_of_any_length_is_told_shortly():
    fault = check_members([a_member("../" + "\x1b" * 500)], 1000)
    assert len(fault) < 400
    assert "\x1b" not in fault


def test_a_real_bomb_and_a_real_link_are_refused(tmp_path):
    content = bytes(FREE_BYTES + 8 * 2**20)
    bomb = write_archive(tmp_path / "a.keras", [("a", content)], zipfile.ZIP_DEFLATED)
    assert "zip bomb" in explain_fault(bomb)
    link = zipfile.ZipInfo("assets/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert "a link" in explain_fault(write_archive(tmp_path / "b.keras", [(link, "/etc/passwd")]))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_refused_wherever_they_lie(tmp_path, protocol):
    text = pickle.dumps({"a": 1}, protocol=protocol)
    alone = tmp_path / "model.keras"
    alone.write_bytes(text)
    assert "is a Python pickle" in explain_fault(alone)
    inside = write_archive(tmp_path / "a.keras", [("config.json", "{}"), ("assets/x", text)])
    assert "pickle in its member 'assets/x'" in explain_fault(inside)


def test_pickles_in_disguise_are_refused(tmp_path):
    named = write_archive(tmp_path / "a.keras", [("assets/state.pkl", "S'a'\n.")])
    assert "pickle" in explain_fault(named)
    objects = npz_of(np.array([{"a": 1}], dtype=object))
    arrays = write_archive(tmp_path / "b.keras", [("model.weights.npz", objects)])
    assert "pickle in its member 'model.weights.npz'" in explain_fault(arrays)
    inner = io.BytesIO()
    write_archive(inner, [("0.pkl", pickle.dumps(1))])
    nested = write_archive(tmp_path / "c.keras", [("model.weights.npz", inner.getvalue())])
    assert "pickle" in explain_fault(nested)
    bomb = io.BytesIO()
    write_archive(bomb, [("0", bytes(FREE_BYTES + 2**23))], zipfile.ZIP_DEFLATED)
    nested = write_archive(tmp_path / "d.keras", [("model.weights.npz", bomb.getvalue())])
    assert "zip bomb" in explain_fault(nested)


def test_what_is_no_archive_is_told(tmp_path):
    path = tmp_path / "model.keras"
    assert explain_fault(path) == "does not exist"
    assert explain_fault(tmp_path) == "is a folder"
    for content, said in [
        (b"", "not a .keras file"),
        (b"text", "not a .keras file"),
        (b"\x89HDF\r\n\x1a\n....", "HDF5"),
        (b"PK\x03\x04 and no more", "no complete archive"),
    ]:
        path.write_bytes(content)
        assert said in explain_fault(path)


def test_damage_is_seen_by_its_checksum(tmp_path):
    path = write_archive(tmp_path / "a.keras", [("config.json", "{}"), ("w", b"weights" * 100)])
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"weightsweights", b"weightsweightz", 1))
    assert "the checksum of its member 'w' is wrong" in explain_fault(path)
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        assert explain_fault(path)
