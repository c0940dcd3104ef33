"""Palette masks become grey levels that are the palette's indices."""

import numpy as np
import pytest
from pictures import encode, picture
from tabled import palette_png, png

from gpukeras.backend import runtime
from gpukeras.data.reader.image.files import is_palette, read_bits, read_palette_as_grey


@pytest.mark.tf
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_grey_levels_are_the_indices(bits):
    indices = np.random.default_rng(0).integers(0, 2**bits, (9, 13))
    content = palette_png(indices, bits)
    assert is_palette(content)
    assert read_bits(content) == bits
    grey = runtime.tensorflow().io.decode_png(read_palette_as_grey(content), channels=1).numpy()
    np.testing.assert_array_equal(grey[..., 0] // (255 // (2**bits - 1)), indices)


@pytest.mark.tf
def test_other_files_stay_as_they_are():
    for content in (png(picture(5, 6)), encode(picture(5, 6), "jpg"), b"", b"\x89PNG"):
        assert not is_palette(content)
        assert read_palette_as_grey(content) is content
        assert read_bits(content) == 8
    assert read_bits(png(np.zeros((2, 2, 1), np.uint16))) == 16


@pytest.mark.tf
def test_a_file_that_is_cut_short_ends_in_the_decoder():
    content = palette_png(np.zeros((40, 40), int))
    for length in range(26, len(content) - 12):
        shortened = read_palette_as_grey(content[:length])
        assert shortened.startswith(b"\x89PNG")


def test_a_file_without_a_header_stays_as_it_is():
    content = palette_png(np.zeros((4, 4), int))
    for damaged in (content.replace(b"IHDR", b"IHDX"), content[:11] + b"\1" + content[12:]):
        assert read_palette_as_grey(damaged) is damaged
