"""Images of 16 bits and TIFF files as rows, and masks as they are stored."""

import io

import numpy as np
import pytest
from pictures import encode, encode_bmp, encode_gif, encoded, opened, picture, write
from tabled import palette_png, png

from gpukeras import DataError
from gpukeras.data.reader.image.decode import MASK, ImageForm, decode
from gpukeras.data.reader.image.files import list_images

NEAREST = {"interpolation": "nearest"}


def rows_of(paths, size, **options):
    source = encoded(opened(paths, size, options={**NEAREST, **options}))[1]
    return source.gather(slice(0, len(paths)))


def deep_picture(channels=3):
    values = np.random.default_rng(1).integers(0, 65536, (9, 11, channels))
    return values.astype(np.uint16)


@pytest.mark.tf
@pytest.mark.parametrize("keep", ["memory", "disk", "none"])
def test_16_bits_keep_their_fractions(tmp_path, keep):
    pixels = deep_picture()
    path = write(tmp_path / "a.png", png(pixels))
    options = {"interpolation": "nearest"}
    recipe, source = encoded(opened([path], (9, 11), keep=keep, options=options))
    rows = source.gather(slice(0, 1))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows[0], pixels / 257, atol=1e-4)
    assert recipe.shape == (9, 11, 3)


@pytest.mark.tf
def test_bytes_beside_16_bits_have_the_same_range(tmp_path):
    shallow = picture(9, 11)
    paths = [
        write(tmp_path / "deep.png", png(deep_picture())),
        write(tmp_path / "a.png", png(shallow)),
        write(tmp_path / "a.bmp", encode_bmp(shallow)),
        write(tmp_path / "a.gif", encode_gif(shallow[..., 0] // 2)),
    ]
    rows = rows_of(paths, (9, 11))
    np.testing.assert_allclose(rows[1], shallow, atol=1e-4)
    np.testing.assert_allclose(rows[2], shallow, atol=1e-4)
    np.testing.assert_allclose(rows[3, ..., 0], shallow[..., 0] // 2 * 2, atol=1e-4)
    assert rows_of(paths[1:], (9, 11)).dtype == np.uint8


@pytest.mark.tf
@pytest.mark.parametrize(("color", "channels"), [("grayscale", 1), ("rgb", 3), ("rgba", 4)])
@pytest.mark.parametrize("own", [1, 3, 4])
def test_channels_are_as_asked_at_16_bits(tmp_path, color, channels, own):
    pixels = deep_picture(own)
    path = write(tmp_path / "a.png", png(pixels))
    row = rows_of([path], (9, 11), color=color)[0]
    assert row.shape == (9, 11, channels)
    if own == channels:
        np.testing.assert_allclose(row, pixels / 257, atol=1e-4)
    if channels == 4 and own < 4:
        np.testing.assert_array_equal(row[..., 3], 255)


@pytest.mark.tf
def test_resizing_stays_within_the_range(tmp_path):
    squares = np.kron([[0, 65535], [65535, 0]], np.ones((5, 5)))[..., None]
    path = write(tmp_path / "a.png", png(squares.astype(np.uint16)))
    for way in ("bicubic", "lanczos3", "bilinear"):
        row = rows_of([path], (23, 23), color="grayscale", interpolation=way)
        assert row.min() >= 0
        assert row.max() <= 255


@pytest.mark.tf
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_tiff_is_read_as_png(tmp_path, dtype):
    tifffile = pytest.importorskip("tifffile")
    pixels = deep_picture().astype(dtype)
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, photometric="rgb")
    paths = [write(tmp_path / "a.tif", file.getvalue()), write(tmp_path / "a.png", png(pixels))]
    rows = rows_of(paths, (9, 11))
    assert rows.dtype == (np.uint8 if dtype == np.uint8 else np.float32)
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.tf
def test_tiff_that_cannot_be_read_is_named(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    bands = {"photometric": "minisblack", "planarconfig": "contig"}
    for number, pixels in enumerate([np.zeros((4, 4), np.float32), np.zeros((4, 4, 5), np.uint8)]):
        file = io.BytesIO()
        tifffile.imwrite(file, pixels, **(bands if pixels.ndim > 2 else {}))
        path = write(tmp_path / f"{number}.tif", file.getvalue())
        message = ["has other pixels than unsigned", "has more than 4 channels"][number]
        with pytest.raises(DataError, match=f"the image {number}.tif {message}"):
            rows_of([path], (4, 4))
    path = write(tmp_path / "cut.tif", file.getvalue()[:20])
    with pytest.raises(DataError, match=r"the image cut.tif is damaged"):
        rows_of([path], (4, 4))


# Masks -------------------------------------------------------------------------------------------


def mask_row(path, size=(9, 13)):
    form = ImageForm((*size, 1), "nearest", False, MASK)
    return decode(list_images([path], "mask"), np.array([0]), form)[0, ..., 0]


@pytest.mark.tf
def test_masks_have_the_numbers_of_the_file(tmp_path):
    classes = np.random.default_rng(0).integers(0, 4, (9, 13)).astype(np.uint8)
    grey = classes[..., None]
    contents = {
        "grey.png": png(grey),
        "grey16.png": png(grey.astype(np.uint16)),
        "alpha.png": png(np.concatenate([grey, 255 - grey], axis=-1)),
        "rgb.png": png(np.repeat(grey, 3, axis=-1)),
        "rgba.png": png(np.concatenate([np.repeat(grey, 3, axis=-1), 255 - grey], axis=-1)),
        "palette.png": palette_png(classes),
        "palette2.png": palette_png(classes, 2),
        "a.bmp": encode_bmp(np.repeat(grey, 3, axis=-1)),
    }
    for name, content in contents.items():
        found = mask_row(write(tmp_path / name, content))
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, classes, err_msg=name)
    small = mask_row(write(tmp_path / "small.png", png(grey)), (4, 5))
    assert set(np.unique(small)) <= set(range(4))


@pytest.mark.tf
def test_tiff_masks_have_the_numbers_of_the_file(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    classes = np.random.default_rng(0).integers(0, 4, (9, 13))
    for dtype in (np.uint8, np.uint16):
        file = io.BytesIO()
        tifffile.imwrite(file, classes.astype(dtype))
        found = mask_row(write(tmp_path / "a.tif", file.getvalue()))
        np.testing.assert_array_equal(found, classes)


@pytest.mark.tf
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jpg", lambda: encode(picture(9, 13), "jpg"), "is a JPEG, which changes the classes"),
        ("a.png", lambda: png(picture(9, 13)), "has colours: a mask has one channel"),
        ("b.png", lambda: png(deep_picture(1)), "has values above 255"),
        ("c.png", lambda: png(picture(9, 13))[:90], "is damaged, cut short"),
        ("d.png", lambda: b"", "is empty"),
    ],
)
def test_images_that_are_no_masks_are_named(tmp_path, name, content, message):
    path = write(tmp_path / name, content())
    with pytest.raises(DataError, match=rf"`mask`: the image {name} {message}"):
        mask_row(path)
