"""The manifest of saved rows: one that was changed, damaged or forged is refused by name."""

import json
import re
import resource
from itertools import product

import pytest
from savings import opened, save
from small_fits import make_dataset

from gpukeras import DataError
from gpukeras.data.saved import reader

UNLIKE = f"{reader.MANIFEST} in saved is not as gpu_dataset_save"
GONE = object()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The manifest of a saved dataset, and what it holds."""
    folder = tmp_path_factory.mktemp("manifest")
    save(folder, make_dataset())
    file = folder / "saved" / reader.MANIFEST
    return file, file.read_text()


def put(text, *path, sign=True):
    """A manifest with another value, the last of `path`, by who knows how its checksum is made."""
    *names, last, value = path
    whole = json.loads(text)
    crc32, part = whole.pop("crc32"), whole
    for name in names:
        part = part[name]
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return json.dumps({**whole, "crc32": reader._sum_of(whole) if sign else crc32})


def list_unlike(kept, contents, message):
    """Which contents of a manifest are taken, or refused in other words."""
    (file, text), found = kept, []
    for what, content in contents:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        try:
            opened(file.parent)
            found.append(f"{what}: taken")
        except DataError as error:
            if error.details["arg"] != "x" or not re.search(message, str(error)):
                found.append(f"{what}: {error}")
    file.write_text(text)
    return found


def test_a_changed_manifest_is_an_error(kept):
    whole = json.loads(kept[1])
    del whole["crc32"]
    contents = {"rows": put(kept[1], "rows", 7, sign=False), "no sum": json.dumps(whole)}
    contents |= {text: text for text in ("", "{}", "not json", "[]", "3", "[" * 10**5)}
    contents["no UTF-8"] = b"\xff\xfe{"
    assert list_unlike(kept, contents.items(), UNLIKE) == []
    for version, message in {99: "saved by another version", 1: "is 1, this one reads 2"}.items():
        changed = put(kept[1], "version", version, sign=False)
        assert list_unlike(kept, [(version, changed)], message) == []


NOT_NUMBERS = [float("nan"), float("inf"), "200", None, [200]]
NO_COUNTS = [10**15, 1e15, -1, True, 200.0, 10**4299, *NOT_NUMBERS]
COUNTS = [("rows",), ("block_rows",), ("spec", "dropped"), ("fields", "x", "shape", 0)]
TAKEN = [("block_rows",), ("spec", "dropped")]  # all rows are one block; nobody can know


def test_a_count_that_is_none_is_refused_before_memory_is_taken(kept):
    contents = [
        (f"{path} {str(value)[:9]}", put(kept[1], *path, value))
        for path, value in product(COUNTS, NO_COUNTS)
        if path not in TAKEN or value is not NO_COUNTS[0]
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert list_unlike(kept, contents, f"{UNLIKE}|the file x.npy of saved") == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB: 256 MiB
    kept[0].write_text(put(kept[1], "block_rows", NO_COUNTS[0]))
    assert len(opened(kept[0].parent)) == 200


FORGED = [
    *[("rows", 0), ("block_rows", 0), ("block_rows", 1), ("fields", {}), ("fields", [])],
    *[("recipe", []), ("spec", None), ("version", True), ("version", -1)],
    *[("fields", "x", GONE), ("spec", "seed", GONE), ("spec", "validation", GONE)],
    *[("fields", "x", "dtype", value) for value in ("float64", "object", ["float32"])],
    *[("fields", "x", "shape", value) for value in ([2**40, 2**40], [1] * 10**6, [0], "12")],
    *[("fields", "x", "crc32", value) for value in ([], [1], "0123456789")],
    *[("spec", "validation", value) for value in (7, [0.2])],
    *[("spec", "seed", "1"), ("spec", "na", "keep")],
]


def test_a_forged_manifest_is_refused(kept):
    contents = [(str(path)[:60], put(kept[1], *path)) for path in FORGED]
    same = json.loads(kept[1])["fields"]["x"]
    contents += [(name, put(kept[1], "fields", name, same)) for name in ("../x", "/etc/x")]
    assert list_unlike(kept, contents, UNLIKE) == []


@pytest.mark.parametrize("shape", [[1], [2, 2], [10**9]])
def test_files_that_hold_other_rows_than_told_are_refused(kept, shape):
    forged = put(kept[1], "fields", "x", "shape", shape)
    assert list_unlike(kept, [(shape, forged)], "the file x.npy of saved (has|is damaged)") == []
