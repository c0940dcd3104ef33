"""Files of images, whole and damaged, and their rows."""

import os
import struct
from contextlib import contextmanager

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader.image import source as images
from gpukeras.data.reader.rows import FeatureRequest
from gpukeras.data.recipe.columns import Learning

PLAIN = DatasetSpec()
SIZES = [(40, 60), (33, 21), (17, 80), (64, 64), (9, 9), (50, 50)]


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


def opened(paths, size=(16, 20), keep="auto", on_error="stop", options=(), encoding=None):
    features = {"kind": "images", "paths": paths, "image_size": size, **dict(options)}
    spec = DatasetSpec(cache=CACHES[keep], on_error=on_error)
    return images.ImageFeatures(FeatureRequest(features, "x", spec, encoding))


def encoded(features, spec=PLAIN):
    encoding = features.learn(Learning(np.ones(features.rows, dtype=bool), spec))
    return encoding, features.encode(encoding)


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
