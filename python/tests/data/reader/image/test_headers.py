"""Sizes and depths are those of the decoded images."""

import numpy as np
import pytest
from pictures import encode, encode_bmp, encode_gif, picture, write
from tabled import png

from gpukeras.backend import runtime
from gpukeras.data.reader.image.files import Header, has_deep, read_header, read_headers


@pytest.mark.tf
def test_sizes_of_each_format(tmp_path):
    jpeg = runtime.tensorflow().io.encode_jpeg
    contents = {
        "a.jpg": encode(picture(33, 21), "jpg"),
        "progressive.jpg": jpeg(picture(33, 21), progressive=True).numpy(),
        "described.jpg": jpeg(picture(33, 21), xmp_metadata="-" * 3000).numpy(),
        "a.png": encode(picture(33, 21), "png"),
        "a.bmp": encode_bmp(picture(33, 21)),
        "a.gif": encode_gif(np.zeros((33, 21), np.uint8)),
    }
    for name, content in contents.items():
        assert read_header(write(tmp_path / name, content)) == Header(33, 21, 8), name
    deep = write(tmp_path / "deep.png", png(np.zeros((3, 4, 3), np.uint16)))
    assert read_header(deep) == Header(3, 4, 16)


@pytest.mark.tf
def test_what_no_header_is_gives_none(tmp_path):
    whole = encode(picture(), "jpg")
    for number, content in enumerate([b"", b"text", whole[:20], whole[:3], b"\x89PNG\r\n\x1a\n"]):
        assert read_header(write(tmp_path / f"{number}.png", content)) is None
    assert read_header(str(tmp_path / "gone.png")) is None
    assert read_header(str(tmp_path)) is None


@pytest.mark.tf
def test_many_are_read_in_their_order(tmp_path):
    paths = [write(tmp_path / f"{n}.png", png(np.zeros((n + 1, 3, 1), np.uint8))) for n in range(5)]
    many = paths * 120
    assert [header.height for header in read_headers(many)] == [1, 2, 3, 4, 5] * 120
    assert not has_deep(many)
    deep = write(tmp_path / "deep.png", png(np.zeros((3, 4, 3), np.uint16)))
    assert has_deep([*many, deep])
    assert not has_deep([])
