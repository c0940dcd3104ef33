import os
import struct
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpukeras import DataError, SpecError, runtime
from gpukeras.images import features as images
from gpukeras.images import files as image_files
from gpukeras.images import rows as image_rows
from gpukeras.recipes import Recipe, same_encoding
from gpukeras.rows import MemoryRows
from gpukeras.scratch import DiskRows
from gpukeras.specs import DatasetSpec

PLAIN = DatasetSpec()
SIZES = [(40, 60), (33, 21), (17, 80), (64, 64), (9, 9), (50, 50)]


# Files -------------------------------------------------------------------------------------------


def picture(height=40, width=60, channels=3, seed=0):
    """Smooth as a photograph, so that a JPEG is near it."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width] / 10.0
    waves = [np.sin(random.uniform(0.2, 1, 2) @ [rows.ravel(), columns.ravel()]) for _ in "rgba"]
    values = 127.5 + 120 * np.stack(waves[:channels], axis=-1)
    return values.reshape(height, width, channels).astype(np.uint8)


def encode_bmp(image):
    height, width, _ = image.shape
    padding = bytes(-width * 3 % 4)
    body = b"".join(row[:, ::-1].tobytes() + padding for row in image[::-1])
    header = struct.pack("<IHHI", 54 + len(body), 0, 0, 54)
    details = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(body), 0, 0, 0, 0)
    return b"BM" + header + details + body


def encode_gif(*greys):
    """Frames of grey levels below 128, shown twice as bright; codes of 8 bits throughout."""
    height, width = greys[0].shape
    palette = bytes(2 * level for level in range(128) for _ in "rgb")
    content = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF6, 0, 0) + palette
    for grey in greys:
        pixels = grey.tobytes()
        codes = (
            b"".join(b"\x80" + pixels[i : i + 100] for i in range(0, len(pixels), 100)) + b"\x81"
        )
        blocks = [codes[i : i + 255] for i in range(0, len(codes), 255)]
        content += b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x07"
        content += b"".join(bytes([len(block)]) + block for block in blocks) + b"\x00"
    return content + b";"


def encode(image, suffix):
    tf = runtime.tensorflow()
    if suffix == "bmp":
        return encode_bmp(image)
    return (tf.io.encode_jpeg if suffix == "jpg" else tf.io.encode_png)(image).numpy()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def make_folder(root, per_class=3, classes=("cats", "dogs"), suffix="jpg"):
    for position, name in enumerate(classes):
        for number in range(per_class):
            size = SIZES[(position * per_class + number) % len(SIZES)]
            image = picture(*size, seed=position * 100 + number)
            write(root / name / f"{number:02d}.{suffix}", encode(image, suffix))
    return str(root)


CACHES = {"memory": "host", "disk": "disk", "none": "none", "auto": "auto"}


def opened(paths, size=(16, 20), keep="auto", on_error="stop", options=(), recipe=None):
    features = {"kind": "images", "paths": paths, "image_size": size, **dict(options)}
    spec = DatasetSpec(cache=CACHES[keep], on_error=on_error)
    return images.open_images(features, "x", spec, recipe)


def encoded(features, spec=PLAIN):
    recipe = features.learn(np.ones(features.rows, dtype=bool), spec)
    return recipe, features.encode(recipe)


@contextmanager
def as_nobody():
    """Root may open everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


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
    recipe = features.learn(np.ones(3, dtype=bool), PLAIN)
    assert recipe == Recipe("images", (16, 20, 1), interpolation="bilinear")
    scaled = features.learn(np.ones(3, dtype=bool), DatasetSpec(scale=True))
    assert scaled.scale == (255.0,)
    assert not same_encoding(recipe, scaled)


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
    recipe = Recipe("images", (16, 20, 3), interpolation="bilinear")
    with pytest.raises(SpecError, match=message):
        opened([path], None, options=options).encode(recipe)
    with pytest.raises(SpecError, match=message):
        opened([path], None, options=options, recipe=recipe)


def test_other_kinds_of_rows_are_refused(tmp_path):
    path = write(tmp_path / "1.jpg", b"-")
    with pytest.raises(DataError, match="must be a matrix or array, as in training"):
        opened(path).encode(Recipe("array", (16, 20, 3)))


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


# Bad files ---------------------------------------------------------------------------------------


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
    "jpg text": "is no JPEG, PNG, GIF or BMP image",
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
        features.encode(recipe, marked).gather(slice(0, 3)), whole[marked]
    )


@pytest.mark.tf
def test_what_is_skipped_stays_the_same_when_training_had_another_size(tmp_path):
    folder = tmp_path / "pets"
    make_folder(folder)
    write(folder / "cats" / "00.jpg", b"")
    recipe = Recipe("images", (6, 7, 3), interpolation="bilinear")
    for known in (recipe, None):
        features = opened(str(folder), None, on_error="skip", recipe=known)
        assert features.rows == 5
        assert features.encode(recipe).shape == (5, 6, 7, 3)
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
