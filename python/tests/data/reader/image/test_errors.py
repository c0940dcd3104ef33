"""Images that are damaged, gone or closed are named, or left out where that was asked for."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from pictures import (
    as_nobody,
    encode,
    encode_bmp,
    encode_gif,
    encoded,
    make_folder,
    opened,
    picture,
    write,
)

from gpukeras import DataError, SpecError
from gpukeras.data.arrays import EncodeOptions
from gpukeras.data.recipe.recipe import ImageEncoding


def damage(kind):
    whole = {"jpg": encode(picture(), "jpg"), "png": encode(picture(), "png")}
    whole["bmp"] = encode_bmp(picture())
    whole["gif"] = encode_gif(np.arange(1600).astype(np.uint8).reshape(40, 40) % 128)
    suffix, _, how = kind.partition(" ")
    content = whole.get(suffix, b"")
    return {
        "cut": content[: len(content) // 2],
        "short": content[:-20],
        "flipped": content[:-400] + bytes([content[-400] ^ 255]) + content[-399:]
        if content
        else b"",
        "text": b"This is no image, whatever its name says.",
        "empty": b"",
    }[how]


BAD = {
    "jpg cut": "is damaged, cut short",
    "jpg short": "is damaged, cut short",
    "png cut": "is damaged, cut short",
    "png short": "is damaged, cut short",
    "png flipped": "is damaged, cut short",
    "bmp cut": "is damaged, cut short",
    "gif cut": "is damaged, cut short",
    "jpg text": "is no JPEG, PNG, GIF, BMP or TIFF image",
    "jpg empty": "is empty",
}


@pytest.mark.tf
@pytest.mark.parametrize(("kind", "message"), BAD.items())
def test_a_damaged_file_is_named(tmp_path, kind, message):
    folder = tmp_path / "pets"
    make_folder(folder)
    path = write(folder / "dogs" / f"01.{kind[:3]}", damage(kind))
    if kind[:3] != "jpg":
        (folder / "dogs" / "01.jpg").unlink()
    with pytest.raises(DataError, match=rf"`x`: the image dogs.01.{kind[:3]} {message}") as caught:
        encoded(opened(str(folder)))
    assert (caught.value.details["path"], caught.value.details["row"]) == (path, 5)
    assert str(tmp_path) not in caught.value.message
    assert "on_error" in caught.value.hint


@pytest.mark.tf
@pytest.mark.parametrize("keep", ["memory", "disk", "none"])
def test_damaged_files_may_be_left_out(tmp_path, keep):
    folder = tmp_path / "pets"
    make_folder(folder)
    whole = encoded(opened(str(folder), keep="memory"))[1].gather(np.array([1, 2, 3, 5]))
    write(folder / "cats" / "00.jpg", damage("jpg cut"))
    write(folder / "dogs" / "01.jpg", damage("jpg empty"))
    features = opened(str(folder), keep=keep, on_error="skip")
    assert features.rows == 4
    assert features.labels()["values"].tolist() == [1, 1, 2, 2]
    assert features.skipped == "2 damaged image files, the first cats/00.jpg"
    recipe, source = encoded(features)
    np.testing.assert_array_equal(source.gather(slice(0, 4)), whole)
    np.testing.assert_array_equal(features.encode(recipe).gather(slice(0, 4)), whole)
    marked = np.array([True, False, True, True])
    np.testing.assert_array_equal(
        features.encode(recipe, EncodeOptions(marked)).gather(slice(0, 3)), whole[marked]
    )


@pytest.mark.tf
def test_what_is_skipped_stays_the_same_when_training_had_another_size(tmp_path):
    folder = tmp_path / "pets"
    make_folder(folder)
    write(folder / "cats" / "00.jpg", b"")
    encoding = ImageEncoding((6, 7, 3))
    for known in (encoding, None):
        features = opened(str(folder), None, on_error="skip", encoding=known)
        assert features.rows == 5
        assert features.encode(encoding).shape == (5, 6, 7, 3)
        assert features.skipped == "1 damaged image file, the first cats/00.jpg"


@pytest.mark.tf
def test_a_class_without_a_whole_file_is_refused(tmp_path):
    folder = tmp_path / "pets"
    make_folder(folder, per_class=1)
    write(folder / "cats" / "00.jpg", b"")
    with pytest.raises(DataError, match="none of the images in the subfolder cats"):
        assert opened(str(folder), on_error="skip").rows


def test_named_files_cannot_be_skipped(tmp_path):
    path = write(tmp_path / "1.jpg", b"-")
    with pytest.raises(SpecError, match="needs a folder of classes"):
        opened([path], on_error="skip")


@pytest.mark.tf
def test_a_file_that_vanishes_later_is_named(tmp_path):
    folder = make_folder(tmp_path / "pets")
    _, anew = encoded(opened(folder, keep="none"))
    _, kept = encoded(opened(folder, keep="memory"))
    first = anew.gather(slice(0, 6))
    os.remove(f"{folder}/dogs/00.jpg")
    with pytest.raises(DataError, match=r"the image dogs.00.jpg is gone"):
        anew.gather(slice(0, 6))
    np.testing.assert_array_equal(anew.gather(slice(0, 3)), first[:3])
    np.testing.assert_array_equal(kept.gather(slice(0, 6)), first)
    os.mkdir(f"{folder}/dogs/00.jpg")
    with pytest.raises(DataError, match=r"the image dogs.00.jpg "):
        anew.gather(slice(0, 6))


@pytest.mark.tf
@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="Windows has no such permissions")
def test_a_closed_file_is_named():
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        folder = make_folder(Path(above) / "pets")
        encoded(opened(folder, keep="none"))[1].gather(slice(0, 1))
        os.chmod(f"{folder}/cats/02.jpg", 0o000)
        features = opened(folder)
        with as_nobody(), pytest.raises(DataError, match=r"cats.02.jpg cannot be opened: Perm"):
            encoded(features)


@pytest.mark.tf
def test_a_failure_leaves_no_scratch_file(tmp_path, monkeypatch):
    folder = tmp_path / "pets"
    make_folder(folder)
    write(folder / "dogs" / "02.jpg", b"")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("R_SESSION_TMPDIR", str(scratch))
    with pytest.raises(DataError, match="is empty"):
        encoded(opened(str(folder), keep="disk"))
    assert list(scratch.iterdir()) == []
