"""TIFF files of every kind of pixels that are read, and the others."""

import io
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.data.reader.image import files

BANDS = {"photometric": "minisblack", "planarconfig": "contig"}


def test_a_missing_tifffile_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(RuntimeMissingError, match="tifffile is needed to read TIFF") as caught:
        files.require_tifffile()
    assert "pip install tifffile" in caught.value.hint


def written(pixels, **options):
    file = io.BytesIO()
    pytest.importorskip("tifffile").imwrite(file, pixels, **options)
    return file.getvalue()


def random(shape, dtype):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape).astype(dtype)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((7, 5), np.uint8, {}),
        ((7, 5), np.uint16, {"compression": "zlib"}),
        ((7, 5), np.uint16, {"bigtiff": True, "byteorder": ">"}),
        ((7, 5, 3), np.uint8, {"photometric": "rgb"}),
        ((7, 5, 4), np.uint16, {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
        ((7, 5, 2), np.uint8, BANDS),
    ],
)
def test_pixels_are_those_of_the_file(raw, shape, dtype, options):
    pixels = random(shape, dtype)
    found = files.read_tiff(written(pixels, **options), raw)
    expected = pixels.reshape(*shape[:2], -1).astype(np.uint16)
    if dtype == np.uint8 and not raw:
        expected = expected * 257
    assert found.dtype == np.uint16
    np.testing.assert_array_equal(found, expected)


def test_planes_pages_and_bits():
    planes = random((3, 7, 5), np.uint8)
    content = written(planes, photometric="rgb", planarconfig="separate")
    np.testing.assert_array_equal(files.read_tiff(content, True), np.moveaxis(planes, 0, -1))
    pages = random((2, 7, 5), np.uint16)
    content = written(pages, photometric="minisblack")
    np.testing.assert_array_equal(files.read_tiff(content)[..., 0], pages[0])
    bits = random((7, 5), np.uint8) > 100
    content = written(bits, photometric="minisblack")
    np.testing.assert_array_equal(files.read_tiff(content)[..., 0], bits * 65535)
    np.testing.assert_array_equal(files.read_tiff(content, True)[..., 0], bits)


def test_white_that_is_zero_is_turned_and_a_palette_looked_up_unless_raw():
    pixels = random((7, 5), np.uint8)
    content = written(pixels, photometric="miniswhite")
    np.testing.assert_array_equal(
        files.read_tiff(content)[..., 0], 65535 - 257 * pixels.astype(int)
    )
    np.testing.assert_array_equal(files.read_tiff(content, True)[..., 0], pixels)
    colours = random((3, 256), np.uint16)
    content = written(pixels, photometric="palette", colormap=colours)
    np.testing.assert_array_equal(files.read_tiff(content), np.moveaxis(colours[:, pixels], 0, -1))
    np.testing.assert_array_equal(files.read_tiff(content, True)[..., 0], pixels)


def test_other_pixels_and_damage_are_refused():
    cases = [
        (written(np.zeros((4, 4), np.float32)), files.OTHER_PIXELS),
        (written(np.zeros((4, 4), np.int16)), files.OTHER_PIXELS),
        (written(np.zeros((4, 4, 5), np.uint8), **BANDS), files.OTHER_CHANNELS),
        (written(np.zeros((40, 40), np.uint8))[:200], None),
        (b"II*\0", None),
    ]
    for content, message in cases:
        with pytest.raises(ValueError, match=message):
            files.read_tiff(content)


def test_sizes_are_read(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(written(np.zeros((7, 5, 3), np.uint16), photometric="rgb"))
    assert files.read_size(str(path)) == (7, 5, 16)


def forge(content, tag, value):
    """Writes another number over a tag of a little-endian file's first page."""
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        place = file.pages[0].tags[tag].valueoffset
    return content[:place] + int(value).to_bytes(2, "little") + content[place + 2 :]


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, ["ImageLength"]),
        ({}, ["ImageWidth"]),
        ({"compression": "zlib"}, ["ImageLength", "ImageWidth"]),
    ],
)
def test_no_memory_is_taken_for_more_pixels_than_the_file_can_hold(options, tags):
    content = written(random((60, 60), np.uint8), photometric="minisblack", **options)
    for tag in tags:
        content = forge(content, tag, 10_000)
    with pytest.raises(ValueError, match="larger than its data"):
        files.read_tiff(content)


def test_a_blank_page_that_is_compressed_is_read():
    blank = np.zeros((3000, 3000), np.uint16)
    assert (files.read_tiff(written(blank, compression="zlib")) == 0).all()


@settings(deadline=None)
@given(
    changes=st.dictionaries(st.integers(0, 400), st.integers(0, 255), min_size=1, max_size=6),
    end=st.none() | st.integers(4, 400),
    bigtiff=st.booleans(),
)
def test_a_damaged_file_is_read_or_a_classed_error(tmp_path_factory, changes, end, bigtiff):
    content = bytearray(written(random((9, 7, 3), np.uint8), photometric="rgb", bigtiff=bigtiff))
    for place, value in changes.items():
        content[place] = value
    path = tmp_path_factory.mktemp("damaged") / "a.tif"
    path.write_bytes(content[:end])
    with suppress(ValueError):
        files.read_size(str(path))
    with suppress(ValueError):
        assert files.read_tiff(bytes(content[:end])).dtype == np.uint16
