"""The manifest of saved rows: one that was changed, damaged or forged is refused by name."""

import json
import resource

import pytest
from savings import opened, save
from small_fits import make_dataset

from gpukeras import DataError
from gpukeras.data.saved import reader


def edit(folder, change):
    file = folder / reader.MANIFEST
    plain = json.loads(file.read_text())
    change(plain)
    file.write_text(json.dumps(plain))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plain: plain.update(rows=7), "is not as gpu_dataset_save"),
        (lambda plain: plain.pop("crc32"), "is not as gpu_dataset_save"),
        (lambda plain: plain.clear(), "is not as gpu_dataset_save"),
        (lambda plain: plain.update(version=99), "was saved by another version of gpukeras"),
        (lambda plain: plain.update(version=1), "its format is 1, this one reads 2"),
    ],
)
def test_a_changed_manifest_is_an_error(tmp_path, change, message):
    path = save(tmp_path, make_dataset())
    edit(tmp_path / "saved", change)
    with pytest.raises(DataError, match=message):
        opened(path)


@pytest.mark.parametrize("text", [b"", b"not json", b"[]", b"\xff\xfe{", b"3"])
def test_a_manifest_that_is_none_is_an_error(tmp_path, text):
    path = save(tmp_path, make_dataset())
    (tmp_path / "saved" / reader.MANIFEST).write_bytes(text)
    with pytest.raises(DataError, match=f"{reader.MANIFEST} in saved is not as"):
        opened(path)


def forge(folder, change):
    """A manifest that somebody has changed who knows how its checksum is made."""
    file = folder / reader.MANIFEST
    plain = json.loads(file.read_text())
    del plain["crc32"]
    change(plain)
    file.write_text(json.dumps({**plain, "crc32": reader._sum_of(plain)}))


def put(*path):
    """A change of one value of a manifest, which is the last argument."""
    *names, last, value = path

    def change(plain):
        for name in names:
            plain = plain[name]
        plain[last] = value(plain[last]) if callable(value) else value

    return change


NOT_NUMBERS = [float("nan"), float("inf"), "200", None, [200]]
NO_COUNTS = [10**15, 1e15, -1, True, 200.0, 10**4299, *NOT_NUMBERS]


@pytest.mark.parametrize("value", NO_COUNTS, ids=[str(value)[:9] for value in NO_COUNTS])
@pytest.mark.parametrize(
    "path",
    [("rows",), ("block_rows",), ("spec", "dropped"), ("fields", "x", "shape", 0)],
    ids=lambda path: path[-1],
)
def test_a_count_that_is_none_is_refused_before_memory_is_taken(tmp_path, path, value):
    if path == ("spec", "dropped") and value is NO_COUNTS[0]:
        pytest.skip("nobody can know")
    where = save(tmp_path, make_dataset())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    forge(tmp_path / "saved", put(*path, value))
    if path == ("block_rows",) and value is NO_COUNTS[0]:
        assert len(opened(where)) == 200  # all rows are one block
    else:
        with pytest.raises(DataError) as caught:
            opened(where)
        assert caught.value.details["arg"] == "x"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB: 256 MiB


@pytest.mark.parametrize(
    "change",
    [
        lambda plain: plain.update(rows=10**15),
        lambda plain: plain.update(rows=0),
        lambda plain: plain.update(block_rows=0),
        lambda plain: plain.update(block_rows=1),
        lambda plain: plain["fields"].clear(),
        lambda plain: plain["fields"].pop("x"),
        lambda plain: plain.update(fields=[]),
        lambda plain: plain["fields"].update({"../x": plain["fields"]["x"]}),
        lambda plain: plain["fields"].update({"/etc/x": plain["fields"]["x"]}),
        lambda plain: plain["fields"]["x"].update(dtype="float64"),
        lambda plain: plain["fields"]["x"].update(dtype="object"),
        lambda plain: plain["fields"]["x"].update(dtype=["float32"]),
        lambda plain: plain["fields"]["x"].update(shape=[2**40, 2**40]),
        lambda plain: plain["fields"]["x"].update(shape=[1] * 10**6),
        lambda plain: plain["fields"]["x"].update(shape=[0]),
        lambda plain: plain["fields"]["x"].update(shape="12"),
        lambda plain: plain["fields"]["x"].update(crc32=[]),
        lambda plain: plain["fields"]["x"].update(crc32=[1]),
        lambda plain: plain["fields"]["x"].update(crc32="0123456789"),
        lambda plain: plain.update(recipe=[]),
        lambda plain: plain.update(spec=None),
        lambda plain: plain["spec"].pop("seed"),
        lambda plain: plain["spec"].update(seed="1"),
        lambda plain: plain["spec"].pop("validation"),
        lambda plain: plain["spec"].update(validation=7),
        lambda plain: plain["spec"].update(validation=[0.2]),
        lambda plain: plain["spec"].update(na="keep"),
        lambda plain: plain.update(version=True),
        lambda plain: plain.update(version=-1),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path, change):
    path = save(tmp_path, make_dataset())
    forge(tmp_path / "saved", change)
    with pytest.raises(DataError, match="is not as gpu_dataset_save"):
        opened(path)


@pytest.mark.parametrize("shape", [[1], [2, 2], [10**9]])
def test_files_that_hold_other_rows_than_told_are_refused(tmp_path, shape):
    path = save(tmp_path, make_dataset())
    forge(tmp_path / "saved", put("fields", "x", "shape", shape))
    with pytest.raises(DataError, match="the file x.npy of saved (has|is damaged)"):
        opened(path)


def test_a_manifest_that_is_too_deep_is_an_error(tmp_path):
    path = save(tmp_path, make_dataset())
    (tmp_path / "saved" / reader.MANIFEST).write_text("[" * 10**5)
    with pytest.raises(DataError, match="is not as gpu_dataset_save"):
        opened(path)
