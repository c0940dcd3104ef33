"""Damage of every kind to the newest checkpoint: the one before is used, and no error is not ours.

Bursts of bytes, as disks and networks make them; headers that somebody has forged, with checksums
that are right. The seeds are fixed; the nightly search has others, and more of them.
"""

import json
import random
import zlib

import numpy as np
import pytest

from gpukeras import CheckpointError
from gpukeras.checkpoint.format import HEAD, MAGIC, VERSION, DamagedError, read_file
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
NEWEST = "checkpoint-000002.gpukeras"
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


def check_bursts(folder, seeds):
    whole = (folder / NEWEST).read_bytes()
    harmless = 0
    for seed in seeds:
        damaged = burst(whole, random.Random(seed))
        (folder / NEWEST).write_bytes(damaged)
        epoch, notes = resume(folder)
        if damaged == whole:
            harmless += 1
            assert epoch == 2, seed
            continue
        assert epoch == 1, seed
        assert len(notes) == 1, seed
        assert notes[0].startswith(f"{NEWEST} was passed over: "), seed
    assert harmless < len(seeds) / 2


def test_a_burst_of_bytes_is_found_and_the_one_before_is_used(folder):
    check_bursts(folder, range(300))


@pytest.mark.nightly
def test_thousands_of_bursts(folder):
    check_bursts(folder, range(1000, 21_000))


@pytest.mark.parametrize(
    ("start", "end"), [(12, 24), (12, 16), (16, 24), (8, 24), (0, 24), (8, 12), (8, 9)]
)
def test_a_header_that_reads_as_empty_is_damage(folder, start, end):
    """The CRC-32 of nothing is 0, so zeros for checksum and length are a right header.

    The version, which is under no checksum, counts from 1.
    """
    path = folder / NEWEST
    whole = bytearray(path.read_bytes())
    whole[start:end] = bytes(end - start)
    path.write_bytes(whole)
    with pytest.raises(DamagedError):
        read_file(path)
    assert resume(folder)[0] == 1


# Forged headers ----------------------------------------------------------------------------------


def forge(path, header, rest):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(HEAD.pack(MAGIC, VERSION, zlib.crc32(text), len(text)) + text + rest)


def take_apart(path):
    whole = path.read_bytes()
    length = HEAD.unpack(whole[: HEAD.size])[3]
    return json.loads(whole[HEAD.size : HEAD.size + length]), whole[HEAD.size + length :]


HEADERS = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": [],
    "a number": 3,
    "null": None,
    "no arrays": {"plain": {}},
    "no plain": {"arrays": []},
    "plain is a list": {"plain": [], "arrays": []},
    "arrays is a record": {"plain": {}, "arrays": {"a": 1}},
    "arrays is a number": {"plain": {}, "arrays": 7},
    "a short entry": {"plain": {}, "arrays": [["a", "float32", [1]]]},
    "a long entry": {"plain": {}, "arrays": [["a", "float32", [1], 0, 0]]},
    "a name that is a list": {"plain": {}, "arrays": [[["a"], "float32", [0], 0]]},
    "a name twice": {"plain": {}, "arrays": [["a", "float32", [0], 0]] * 2},
    "a negative shape": {"plain": {}, "arrays": [["a", "float32", [-1], 0], ["b", "int8", [4], 0]]},
    "a shape of true": {"plain": {}, "arrays": [["a", "int8", [True], 0]]},
    "a shape of NaN": {"plain": {}, "arrays": [["a", "int8", [float("nan")], 0]]},
    "a shape of text": {"plain": {}, "arrays": [["a", "int8", "12", 0]]},
    "a huge shape": {"plain": {}, "arrays": [["a", "float64", [2**40, 2**12], 0]]},
    "a huge shape of nothing": {"plain": {}, "arrays": [["a", "float64", [0, 2**52, 2**52], 0]]},
    "too many dimensions": {"plain": {}, "arrays": [["a", "int8", [1] * 100, 0]]},
    "a dtype of records": {"plain": {}, "arrays": [["a", "f4,f4", [1], 0]]},
    "a dtype of texts": {"plain": {}, "arrays": [["a", "U5", [1], 0]]},
    "a dtype that is no text": {"plain": {}, "arrays": [["a", 4, [1], 0]]},
    "a dtype of odd words": {"plain": {}, "arrays": [["a", "(1", [1], 0]]},
    "a checksum of text": {"plain": {}, "arrays": [["a", "int8", [0], "0"]]},
    "4301 digits": b'{"plain": {}, "arrays": [["a", "int8", [' + b"9" * 4301 + b"], 0]]}",
    "4000 digits": b'{"plain": {}, "arrays": [["a", "int8", [' + b"9" * 4000 + b"], 0]]}",
    "too deep": b"[" * 100_000,
    "no UTF-8": b"\xff\xfe{",
}


@pytest.mark.parametrize("case", HEADERS)
@pytest.mark.parametrize("rest", [b"", b"\0" * 8])
def test_a_forged_header_is_damage(folder, case, rest):
    forge(folder / NEWEST, HEADERS[case], rest)
    with pytest.raises(DamagedError):
        read_file(folder / NEWEST)
    epoch, notes = resume(folder)
    assert epoch == 1
    assert notes[0].startswith(f"{NEWEST} was passed over: ")


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
        forge(path, {"plain": {"state": []}, "arrays": []}, b"")
    assert resume(folder)[0].startswith("`checkpoint`: all checkpoints in run are damaged. ")
