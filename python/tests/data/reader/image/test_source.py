"""Folders and files of images, decoded, resized and labelled as Keras does it."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import (
    PLAIN,
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
from gpukeras.backend import runtime
from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader.image import decode as image_rows
from gpukeras.data.reader.image import files as image_files
from gpukeras.data.reader.image import source as images
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.reader.storage import DiskRows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Recipe
from gpukeras.data.recipe.serialization import same_encoding

# Listing -----------------------------------------------------------------------------------------


@pytest.mark.tf
def test_files_and_classes_are_in_the_order_of_keras(tmp_path):
    for name in [
        "b/2.jpg",
        "b/10.jpg",
        "b/sub/1.PNG",
        "a/z.jpeg",
        "a/Y.jpg",
        "c/a.gif",
        "c/a-b/x.bmp",
    ]:
        write(tmp_path / name, b"-")
    for name in ["b/notes.txt", "b/Thumbs.db", ".hidden/1.jpg", "top.jpg"]:
        write(tmp_path / name, b"-")
    keras = runtime.keras().utils.image_dataset_from_directory
    theirs = keras(str(tmp_path), shuffle=False, verbose=False, batch_size=None)
    found = image_files.list_images(str(tmp_path), "x")
    assert list(found.paths) == theirs.file_paths
    assert list(found.classes) == theirs.class_names == ["a", "b", "c"]
    assert found.codes.dtype == np.int32
    assert found.codes.tolist() == [1, 1, 2, 2, 2, 3, 3]


@pytest.mark.tf
def test_all_rows_of_a_folder_are_complete(tmp_path):
    # Asked for where another input of the model may lack values.
    features = opened(make_folder(tmp_path))
    np.testing.assert_array_equal(features.find_complete(None), np.ones(6, dtype=bool))


def test_hidden_files_are_left_out(tmp_path):
    for name in ["a/1.jpg", "a/._1.jpg", "b/.DS_Store", "b/2.jpg"]:
        write(tmp_path / name, b"-")
    found = image_files.list_images(str(tmp_path), "x")
    assert [found.name(number) for number in range(len(found))] == ["a/1.jpg", "b/2.jpg"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "the folder pets has no subfolders"),
        (["1.jpg", "2.jpg"], "the folder pets has no subfolders"),
        (["a/1.jpg", "b/notes.txt"], "has no image file in its subfolder b"),
    ],
)
def test_folders_without_images_are_refused(tmp_path, names, message):
    folder = tmp_path / "pets"
    folder.mkdir()
    for name in names:
        write(folder / name, b"-")
    with pytest.raises(DataError, match=message) as caught:
        image_files.list_images(str(folder), "x")
    assert caught.value.details["path"] == str(folder)
    assert "one subfolder a class" in caught.value.hint
    assert str(tmp_path) not in caught.value.message


def test_files_may_be_named(tmp_path):
    paths = [write(tmp_path / name, b"-") for name in ("b.jpg", "a.png", "without_suffix")]
    found = image_files.list_images(paths, "newdata")
    assert list(found.paths) == paths
    assert found.codes is None
    assert found.describe() == "3 image files"
    with pytest.raises(DataError, match=r"`newdata`: the image c.jpg does not exist") as caught:
        image_files.list_images([*paths, str(tmp_path / "c.jpg")], "newdata")
    assert caught.value.details["row"] == 4
    with pytest.raises(DataError, match="is a folder"):
        image_files.list_images([*paths, str(tmp_path)], "newdata")
    with pytest.raises(DataError, match="names no image files"):
        image_files.list_images([], "newdata")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="Windows has no such permissions")
@pytest.mark.parametrize("closed", ["", "b"])
def test_a_closed_folder_is_named(closed):
    with tempfile.TemporaryDirectory() as above:  # pytest's own folders are closed to nobody
        Path(above).chmod(0o755)
        folder = Path(above) / "pets"
        for name in ("a/1.jpg", "b/1.jpg"):
            write(folder / name, b"-")
        (folder / closed).chmod(0o000)
        with as_nobody(), pytest.raises(DataError, match="cannot be read: Permission") as caught:
            image_files.list_images(str(folder), "x")
        (folder / closed).chmod(0o755)
    assert Path(caught.value.details["path"]) == folder / closed


# Decoding ----------------------------------------------------------------------------------------


def keras_rows(folder, size, **how):
    keras = runtime.keras().utils.image_dataset_from_directory
    batches = keras(folder, shuffle=False, verbose=False, image_size=size, **how)
    return np.concatenate([rows.numpy() for rows, _ in batches])


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("keep", ["memory", "disk", "none"])
@pytest.mark.parametrize(
    ("suffix", "options", "theirs"),
    [
        ("jpg", {}, {}),
        ("png", {"color": "grayscale"}, {"color_mode": "grayscale"}),
        ("png", {"color": "rgba", "interpolation": "nearest"}, None),
        ("jpg", {"crop_to_aspect_ratio": True}, {"crop_to_aspect_ratio": True}),
        ("bmp", {"interpolation": "bicubic"}, {"interpolation": "bicubic"}),
    ],
)
def test_rows_are_those_of_keras_in_whole_levels(tmp_path, keep, suffix, options, theirs):
    folder = make_folder(tmp_path / "pets", suffix=suffix)
    recipe, source = encoded(opened(folder, keep=keep, options=options))
    if theirs is None:
        theirs = {"color_mode": "rgba", "interpolation": "nearest"}
    expected = np.clip(keras_rows(folder, (16, 20), **theirs), 0, 255)
    rows = source.gather(slice(0, 6))
    assert rows.dtype == np.uint8
    assert rows.shape == (6, *recipe.shape) == expected.shape
    np.testing.assert_allclose(rows, expected, atol=0.501)
    kinds = {"memory": MemoryRows, "disk": DiskRows, "none": image_rows.ImageRows}
    assert type(source) is kinds[keep]
    order = np.array([4, 0, 0, 5])
    np.testing.assert_array_equal(source.gather(order), rows[order])
    np.testing.assert_array_equal(source.gatherer("CPU:0")(order).numpy(), rows[order])


@pytest.mark.tf
def test_sizes_are_224_by_default_and_kinds_may_be_mixed(tmp_path):
    grey = (np.arange(30 * 30) % 128).astype(np.uint8).reshape(30, 30)
    paths = [
        write(tmp_path / "1.gif", encode_gif(grey, 127 - grey)),
        write(tmp_path / "2.bmp", encode_bmp(np.repeat(2 * grey[..., None], 3, axis=-1))),
    ]
    recipe, source = encoded(opened(paths, None))
    assert recipe.shape == source.shape[1:] == (224, 224, 3)
    for color, channels in images.COLORS.items():
        options = {"color": color, "interpolation": "nearest"}
        _, source = encoded(opened(paths, (30, 30), options=options))
        rows = source.gather(slice(0, 2))
        assert rows.shape == (2, 30, 30, channels)
        np.testing.assert_array_equal(rows[0, :, :, 0], 2 * grey)  # the first frame
        np.testing.assert_array_equal(rows[1], rows[0])


@pytest.mark.tf
def test_a_jpeg_gets_an_opaque_fourth_channel(tmp_path):
    path = write(tmp_path / "1.jpg", encode(picture(16, 20), "jpg"))
    _, opaque = encoded(opened(path, options={"color": "rgba"}))
    _, plain = encoded(opened(path))
    rows = opaque.gather(slice(0, 1))
    np.testing.assert_array_equal(rows[..., :3], plain.gather(slice(0, 1)))
    assert (rows[..., 3] == 255).all()


@pytest.mark.tf
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.lists(st.integers(0, 5), min_size=1, max_size=20), chunk=st.integers(1, 4))
def test_gathered_rows_do_not_depend_on_chunks(tmp_path_factory, monkeypatch, order, chunk):
    folder = tmp_path_factory.getbasetemp() / "chunks"
    if not folder.exists():
        make_folder(folder, suffix="png")
    _, kept = encoded(opened(str(folder), (8, 8), keep="memory"))
    _, anew = encoded(opened(str(folder), (8, 8), keep="none"))
    monkeypatch.setattr(image_rows, "CHUNK_BYTES", chunk * 8 * 8 * 3)
    np.testing.assert_array_equal(anew.gather(np.array(order)), kept.gather(np.array(order)))
    _, again = encoded(opened(str(folder), (8, 8), keep="memory"))
    np.testing.assert_array_equal(again.gather(slice(0, 6)), kept.gather(slice(0, 6)))


# Recipes and labels ------------------------------------------------------------------------------


def test_recipes_and_labels(tmp_path):
    for name in ["a/1.jpg", "a/2.jpg", "b/1.jpg"]:
        write(tmp_path / name, b"-")
    features = opened(str(tmp_path), options={"color": "grayscale"})
    assert features.rows == 3
    assert features.row_shape == (16, 20, 1)
    labels = features.labels()
    assert (labels["kind"], labels["name"], labels["levels"]) == ("factor", "y", ["a", "b"])
    assert labels["values"].tolist() == [1, 1, 2]
    recipe = features.learn(Learning(np.ones(3, dtype=bool), PLAIN))
    assert recipe == ImageEncoding((16, 20, 1))
    scaled = features.learn(Learning(np.ones(3, dtype=bool), DatasetSpec(scale=True)))
    assert scaled.scale == (255.0,)
    assert not same_encoding(Recipe(recipe), Recipe(scaled))


def test_labels_need_two_classes(tmp_path):
    path = write(tmp_path / "only" / "1.jpg", b"-")
    with pytest.raises(DataError, match="one class only, its subfolder only"):
        opened(str(tmp_path)).labels()
    assert opened([path]).labels() is None


@pytest.mark.tf
def test_new_files_are_read_as_in_training(tmp_path):
    folder = make_folder(tmp_path / "pets", suffix="png")
    options = {"color": "grayscale", "interpolation": "nearest"}
    recipe, source = encoded(opened(folder, (12, 10), options=options))
    new = opened([f"{folder}/dogs/01.png"], None).encode(recipe)
    np.testing.assert_array_equal(new.gather(slice(0, 1)), source.gather(slice(4, 5)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": (8, 8)}, "`image_size` is 8 x 8, but training had 16 x 20"),
        ({"color": "rgba"}, '`color` is "rgba", but training had "rgb"'),
        ({"interpolation": "nearest"}, '`interpolation` is "nearest", but training had "bilinear"'),
        ({"crop_to_aspect_ratio": True}, "`crop_to_aspect_ratio` is TRUE, but training had FALSE"),
    ],
)
def test_options_that_training_had_not_are_refused(tmp_path, options, message):
    path = write(tmp_path / "1.jpg", b"-")
    encoding = ImageEncoding((16, 20, 3))
    with pytest.raises(SpecError, match=message):
        opened([path], None, options=options).encode(encoding)
    with pytest.raises(SpecError, match=message):
        opened([path], None, options=options, encoding=encoding)


def test_other_kinds_of_rows_are_refused(tmp_path):
    path = write(tmp_path / "1.jpg", b"-")
    with pytest.raises(DataError, match="must be a matrix or array, as in training"):
        opened(path).encode(ArrayEncoding((16, 20, 3)))


@pytest.mark.parametrize(
    "options",
    [
        {"image_size": 224},
        {"image_size": (0, 5)},
        {"image_size": (1, 2, 3)},
        {"color": "cmyk"},
        {"interpolation": "area"},
        {"crop_to_aspect_ratio": "yes"},
        {"size": (1, 2)},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(SpecError) as caught:
        images.ImageSpec.from_dict(options)
    assert caught.value.details["arg"] == next(iter(options))
