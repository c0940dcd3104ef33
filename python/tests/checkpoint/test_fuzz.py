"""Damage of every kind to the newest checkpoint: the one before is used, and no error is not ours.

Bursts of bytes, as disks and networks make them; archives that somebody has forged, with checksums
that are right. The seeds are fixed; the nightly search has others, and more of them.
"""

import json
import random
import re
import struct
import zipfile

import numpy as np
import pytest

from gpukeras import CheckpointError
from gpukeras.checkpoint.format import STATE, DamagedError, read_file
from gpukeras.checkpoint.manager import Checkpointer
from gpukeras.checkpoint.state import TrainingState
from gpukeras.models.state import Snapshot

IDENTITY = {
    "batch_size": 32,
    "layers": ["Dense"],
    "learning_rate": 0.1,
    "schedule": {"kind": "cosine", "steps": 3},
    "versions": {"Keras": "3.15.1"},
}
NEWEST = "checkpoint-000002.npz"
ODD = [
    *(None, True, False, "", "text", "\udc80", [], {}, [[]], [None], {"a": {}}, -1, 0, 1.5),
    *(2**31, 2**53, 2**63, 2**64, 10**400, -(10**30), float("nan"), float("inf"), -float("inf")),
    *(
        "object",
        "float32",
        "V8",
        "f4,f4",
        "(1",
        "M8[s]",
        "U5",
        [0, 2**60],
        [2**31] * 4,
        [[1]],
        ["1"],
    ),
]


def make_state(epoch):
    arrays = {"weights/0000": np.full((5, 4), float(epoch)), "weights/0001": np.ones(0, np.float32)}
    return TrainingState(
        Snapshot(arrays),
        epoch=epoch,
        position=3,
        rows=96,
        history={
            "loss": [0.5] * epoch,
            "val_loss": [float("nan")] * epoch,
            "f1_score": [[[0.5, 1], [0.25, float("nan")]]] * epoch,
        },
        epoch_s=[1.0] * epoch,
        epoch_rows=[100] * epoch,
        learning_rate=[0.1] * epoch,
        engine="keras",
        keepers={"stopping": ({"best": 0.5}, {"w": np.ones(3)})},
        extra={"spent_s": 0.5},
    )


@pytest.fixture
def folder(tmp_path):
    """With two good checkpoints, of the epochs 1 and 2."""
    with Checkpointer(tmp_path / "run", IDENTITY) as kept:
        for epoch in (1, 2):
            kept.save(make_state(epoch))
    return tmp_path / "run"


def resume(folder):
    """The epoch that a training would go on after, and the notes; or the error's message."""
    with Checkpointer(folder, IDENTITY) as kept:
        try:
            state = kept.resume()
        except CheckpointError as error:
            return error.message, ()
        return state.epoch, kept.notes


# Bursts ------------------------------------------------------------------------------------------


def burst(whole, rng):
    """A file's bytes with some of them changed, doubled, lost or cut off."""
    length = rng.choice([1, 2, 4, 8, 16, 64, 512])
    place = rng.randrange(min(len(whole), rng.choice([24, 200, len(whole)])))
    end = min(len(whole), place + length)
    kind = rng.choice(["zeros", "ones", "noise", "lost", "twice", "cut", "swapped"])
    middle = {
        "zeros": bytes(end - place),
        "ones": b"\xff" * (end - place),
        "noise": rng.randbytes(end - place),
        "lost": b"",
        "twice": whole[place:end] * 2,
        "cut": b"",
        "swapped": whole[place:end][::-1],
    }[kind]
    return whole[:place] + middle + (b"" if kind == "cut" else whole[end:])


def read_bits(path):
    """All that a file holds, so that a difference of one bit shows."""
    plain, arrays = read_file(path)
    return repr(plain), {
        name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()
    }


def check_bursts(folder, seeds):
    """A burst is found, or it hit what has no meaning, and all is as it was written."""
    whole, written = (folder / NEWEST).read_bytes(), read_bits(folder / NEWEST)
    harmless = 0
    for seed in seeds:
        damaged = burst(whole, random.Random(seed))
        (folder / NEWEST).write_bytes(damaged)
        epoch, notes = resume(folder)
        if epoch == 2:  # a date, or what the archive says twice
            harmless += 1
            assert read_bits(folder / NEWEST) == written, seed
            continue
        assert epoch == 1, seed
        assert len(notes) == 1, seed
        assert notes[0].startswith(f"{NEWEST} was passed over: "), seed
    assert harmless < len(seeds) / 2


@pytest.mark.costly
def test_a_burst_of_bytes_is_found_and_the_one_before_is_used(folder):
    check_bursts(folder, range(300))


@pytest.mark.nightly
def test_thousands_of_bursts(folder):
    check_bursts(folder, range(1000, 21_000))


def find_contents(whole):
    """The places of the members' contents in an archive: their first and last byte."""
    with zipfile.ZipFile(whole) as archive:
        for info in archive.infolist():
            whole.seek(info.header_offset)
            head = struct.unpack(zipfile.structFileHeader, whole.read(zipfile.sizeFileHeader))
            start = info.header_offset + zipfile.sizeFileHeader + head[-2] + head[-1]
            yield start, start + info.file_size


@pytest.mark.costly
def test_a_bit_of_what_was_saved_is_found_wherever_it_is(folder):
    path = folder / NEWEST
    with path.open("rb") as file:
        contents = list(find_contents(file))
    whole = path.read_bytes()
    places = [place for start, end in contents for place in range(start, end)]
    assert len(places) > len(whole) / 3
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            read_file(path)


def test_a_member_that_is_listed_as_empty_is_damage(folder):
    """The CRC-32 of nothing is 0, so zeros for checksum and sizes are right in themselves."""
    path = folder / NEWEST
    whole = path.read_bytes()
    places = [match.start() for match in re.finditer(b"PK\x01\x02", whole)]
    assert len(places) == 4
    for place in places:
        path.write_bytes(whole[: place + 16] + bytes(12) + whole[place + 28 :])
        with pytest.raises(DamagedError):
            read_file(path)
        assert resume(folder)[0] == 1


# Forged archives ---------------------------------------------------------------------------------


def forge(path, state, members=None, **how):
    """An archive of a state, JSON or bytes, and of members, bytes or arrays."""
    with zipfile.ZipFile(path, "w") as archive:
        if state is not None:
            text = state if isinstance(state, bytes) else json.dumps(state)
            archive.writestr(STATE, text, **how)
        for name, content in (members or {}).items():
            with archive.open(name, "w") as member:
                if isinstance(content, bytes):
                    member.write(content)
                else:
                    np.lib.format.write_array(member, content, allow_pickle=True)


def take_apart(path):
    with zipfile.ZipFile(path) as archive:
        whole = {info.filename: archive.read(info) for info in archive.infolist()}
    return json.loads(whole.pop(STATE)), whole


def array(header, content=b""):
    """A .npy file with a header of one's own."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def described(shape, dtype="'<f4'", fortran=False):
    return f"{{'descr': {dtype}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


GOOD = {"version": 1, "plain": {}, "arrays": {"a": "float32"}}
STATES = {
    "none": None,
    "nothing": b"",
    "no JSON": b"{",
    "a list": [],
    "a number": 3,
    "null": b"null",
    "no plain": {"version": 1, "arrays": {}},
    "no version": {"plain": {}, "arrays": {}},
    "a later version": {**GOOD, "version": 2},
    "a version of text": {**GOOD, "version": "1"},
    "plain is a list": {**GOOD, "plain": []},
    "arrays is a list": {**GOOD, "arrays": ["a"]},
    "arrays is a number": {**GOOD, "arrays": 7},
    "no array": {**GOOD, "arrays": {}},
    "another array": {**GOOD, "arrays": {"b": "float32"}},
    "one array too many": {**GOOD, "arrays": {"a": "float32", "b": "float32"}},
    "another size": {**GOOD, "arrays": {"a": "bfloat16"}},
    "another dtype": {**GOOD, "arrays": {"a": "int32"}},
    "a dtype of objects": {**GOOD, "arrays": {"a": "finfo"}},
    "a dtype that is a module": {**GOOD, "arrays": {"a": "np"}},
    "a dtype that is no text": {**GOOD, "arrays": {"a": 4}},
    "4301 digits": b'{"version": 1, "plain": {"a": ' + b"9" * 4301 + b'}, "arrays": {}}',
    "too deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe{",
}
ONE = {"a.npy": array(described("(1,)"), bytes(4))}
MEMBERS = {
    "another suffix": {"a.txt": array(described("(1,)"), bytes(4))},
    "nothing": {"a.npy": b""},
    "another version": {"a.npy": b"\x93NUMPY\x02\x00" + array(described("(1,)"))[8:] + b"1234"},
    "objects": {"a.npy": np.array([{}, None])},
    "texts": {"a.npy": np.array(["a", "b"])},
    "times": {"a.npy": np.array([1, 2], "M8[s]")},
    "records": {"a.npy": np.zeros(2, "f4,f4")},
    "too few values": {"a.npy": array(described("(3,)"), bytes(8))},
    "too many values": {"a.npy": array(described("(1,)"), bytes(8))},
    "a negative shape": {"a.npy": array(described("(-1, -2)"), bytes(8))},
    "a shape of true": {"a.npy": array(described("(True, 1, 2)"), bytes(8))},
    "a shape of a fraction": {"a.npy": array(described("(2.0,)"), bytes(8))},
    "a shape of text": {"a.npy": array(described("'12'"), bytes(8))},
    "a huge shape": {"a.npy": array(described(f"({2**40}, {2**12})"), bytes(8))},
    "a huge shape of nothing": {"a.npy": array(described(f"(0, {2**62}, {2**62})"))},
    "too many dimensions": {"a.npy": array(described((1,) * 100), bytes(4))},
    "4000 digits": {"a.npy": array(described(f"({'9' * 4000},)"), bytes(8))},
    "a call": {"a.npy": array(described("(exit(),)"), bytes(8))},
    "too deep": {"a.npy": array(described("(" * 300 + ")" * 300), bytes(8))},
    "a dtype of odd words": {"a.npy": array(described("(2,)", "'(1'"), bytes(8))},
}


def check_passed_over(folder):
    with pytest.raises(DamagedError):
        read_file(folder / NEWEST)
    epoch, notes = resume(folder)
    assert epoch == 1
    assert notes[0].startswith(f"{NEWEST} was passed over: ")


@pytest.mark.costly
@pytest.mark.parametrize("case", STATES)
def test_a_forged_state_is_damage(folder, case):
    forge(folder / NEWEST, GOOD, ONE)
    assert read_file(folder / NEWEST)[1]["a"].tolist() == [0]
    forge(folder / NEWEST, STATES[case], ONE)
    check_passed_over(folder)


@pytest.mark.parametrize("case", MEMBERS)
@pytest.mark.filterwarnings("error")
def test_a_forged_member_is_damage(folder, case):
    forge(folder / NEWEST, GOOD, MEMBERS[case])
    check_passed_over(folder)


def test_an_archive_that_unpacks_to_more_than_it_has_is_damage(folder):
    state = {**GOOD, "plain": {"a": "a" * 10**6}}
    forge(folder / NEWEST, state, ONE, compress_type=zipfile.ZIP_DEFLATED)
    check_passed_over(folder)


def test_members_that_share_their_bytes_are_damage(folder):
    with zipfile.ZipFile(folder / NEWEST, "w") as archive:
        archive.writestr(STATE, json.dumps(GOOD))
        archive.writestr("a.npy", array(described("(250,)"), bytes(1000)))
        archive.filelist.extend([archive.filelist[-1]] * 20)
    check_passed_over(folder)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_twice_is_damage(folder):
    with zipfile.ZipFile(folder / NEWEST, "w") as archive:
        archive.writestr(STATE, json.dumps(GOOD))
        for _ in range(2):
            archive.writestr("a.npy", array(described("(1,)"), bytes(4)))
    check_passed_over(folder)


def change(value, rng):
    """A copy of plain values in which one is another."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        return {**value, name: change(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        place = rng.randrange(len(value))
        return [*value[:place], change(value[place], rng), *value[place + 1 :]]
    return rng.choice(ODD)


def check_forgeries(folder, seeds):
    """What is forged is taken where it may be true, refused by us, or passed over."""
    header, rest = take_apart(folder / NEWEST)
    passed = 0
    for seed in seeds:
        forge(folder / NEWEST, change(header, random.Random(seed)), rest)
        found, notes = resume(folder)
        if isinstance(found, str):  # it may be that of another training, or version
            assert found.startswith("`checkpoint` "), (seed, found)
        passed += found == 1 and len(notes) == 1
    assert passed > len(seeds) / 4


@pytest.mark.costly
@pytest.mark.filterwarnings("error")
def test_one_value_of_a_header_is_forged(folder):
    check_forgeries(folder, range(400))


@pytest.mark.nightly
def test_one_value_of_thousands_of_headers_is_forged(folder):
    check_forgeries(folder, range(10_000, 40_000))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", "three"),
        ("epoch", True),
        ("epoch", 10**30),
        ("position", -1),
        ("rows", 1.5),
        ("history", []),
        ("history", {"loss": "text"}),
        ("history", {"loss": ["text"]}),
        ("history", {"f1_score": [[0.5, "text"]]}),
        ("history", {"f1_score": [[0.5, [0.25]]]}),
        ("epoch_s", 3),
        ("epoch_rows", [float("nan")]),
        ("learning_rate", [None]),
        ("engine", 7),
        ("keepers", {"a": 1}),
        ("keepers", [["a"]]),
        ("extra", {"spent_s": "long"}),
    ],
)
def test_a_state_that_no_training_has_is_passed_over(folder, name, value):
    header, rest = take_apart(folder / NEWEST)
    header["plain"]["state"][name] = value
    forge(folder / NEWEST, header, rest)
    assert resume(folder) == (
        1,
        (f"{NEWEST} was passed over: its {name} is not what a training has.",),
    )


@pytest.mark.parametrize(
    "identity", [7, [], {"versions": [1]}, {"learning_rate": "fast"}, {"learning_rate": [1]}]
)
def test_an_identity_that_is_none_is_passed_over(folder, identity):
    header, rest = take_apart(folder / NEWEST)
    header["plain"]["identity"] = identity
    forge(folder / NEWEST, header, rest)
    assert resume(folder)[0] == 1


def test_a_folder_of_forgeries_alone_is_an_error_of_ours(folder):
    for path in folder.glob("checkpoint-*"):
        forge(path, {**GOOD, "plain": {"state": []}}, ONE)
    assert resume(folder)[0].startswith("`checkpoint`: all checkpoints in run are damaged. ")
