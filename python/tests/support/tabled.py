"""A table of image files: pictures with bright squares, masks of these, and numbers."""

import struct
import zlib

import numpy as np
from pictures import write

from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data.loader.loader import open_loader
from gpukeras.training import evaluate, fit

SIZE = (12, 16)
OPTIONS = {"batch_size": 4, "seed": 1, "shuffle": False}


def png(pixels):
    """A PNG of an array of uint8 or uint16, (height, width, channels)."""
    return runtime.reader().io.encode_png(pixels).numpy()


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def palette_png(indices, bits=8):
    """A PNG with a palette of colours that are far from their indices."""
    height, width = indices.shape
    header = struct.pack(">IIBBBBB", width, height, bits, 3, 0, 0, 0)
    colours = bytes((index * 37 + shift) % 256 for index in range(2**bits) for shift in (90, 7, 55))
    packed = [
        np.packbits(np.unpackbits(row[:, None].astype(np.uint8), axis=1)[:, 8 - bits :].reshape(-1))
        for row in indices
    ]
    body = b"".join(b"\0" + row.tobytes() for row in packed)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"PLTE", colours)
        + chunk(b"tRNS", bytes(2**bits))
        + chunk(b"IDAT", zlib.compress(body))
        + chunk(b"IEND", b"")
    )


def square(row, size=SIZE):
    """Where the bright square of a row is."""
    inside = np.zeros(size, bool)
    top, left = row % (size[0] - 4), 3 * row % (size[1] - 4)
    inside[top : top + 4, left : left + 4] = True
    return inside


def write_table(folder, rows=8, values=(0, 255), size=SIZE):
    """Writes an image and a mask for each row; returns their paths and a number."""
    images, masks = [], []
    for row in range(rows):
        inside = square(row, size)
        picture = np.where(inside, 200, 10 * row).astype(np.uint8)
        mask = np.where(inside, values[1 + row % (len(values) - 1)], values[0]).astype(np.uint8)
        images.append(write(folder / f"{row}.png", png(np.stack([picture] * 3, axis=-1))))
        masks.append(write(folder / f"mask_{row}.png", png(mask[..., None])))
    return {"path": images, "mask": masks, "age": np.arange(rows) % 5 - 1.5}


def image_features(table, size=SIZE, **options):
    return {
        "kind": "images",
        "paths": table["path"],
        "column": "path",
        "image_size": size,
        **options,
    }


def input_features(table, **options):
    """Images, and the numbers of the table, as two inputs."""
    column = {"name": "age", "kind": "numeric", "values": table["age"], "levels": []}
    columns = {"kind": "columns", "columns": [column]}
    parts = [
        {"name": "image", "features": image_features(table, **options), "scale": False},
        {"name": "columns", "features": columns, "scale": True},
    ]
    return {"kind": "inputs", "inputs": parts, "listed": False}


def mask_labels(table, classes=None):
    values = table["mask"]
    return {"kind": "masks", "name": "mask", "arg": "mask", "values": values, "classes": classes}


def counts(table):
    values = table["age"]
    return {"kind": "numeric", "name": "count", "arg": "count", "values": values, "levels": []}


def build(features, labels=None, recipe=None, augment=None, **options):
    given = {**OPTIONS, **options}
    return builder.assemble(features, given, labels, recipe=recipe, augment=augment)


def train(folder, engines=("keras", "compiled")):
    """Trainings on masks and on two inputs with engines: losses, and the masks of an epoch."""
    import keras

    table, found = write_table(folder), {}
    moves = {"crop": (8, 10), "flip": "both", "rotation": 0.1}
    data = build(image_features(table), mask_labels(table), augment=moves)
    blocks = open_loader(data, data.plan("CPU:0")).epoch(1)
    found["masks"] = [np.asarray(block.arrays[1]).tolist() for block in blocks]
    both = build(input_features(table), counts(table), augment=moves)
    image, columns = keras.Input((8, 10, 3), name="image"), keras.Input((1,), name="columns")
    for engine in engines:
        keras.utils.set_random_seed(1)
        stack = [keras.Input((8, 10, 3)), keras.layers.Conv2D(2, 3, padding="same")]
        model = keras.Sequential([*stack, keras.layers.Softmax()])
        model.compile("adam", "sparse_categorical_crossentropy")
        losses = fit.fit(model, data, {"epochs": 2, "engine": engine}).history["loss"]
        joined = keras.layers.Concatenate()([keras.layers.Flatten()(image), columns])
        model = keras.Model([image, columns], keras.layers.Dense(1)(joined))
        model.compile("sgd", "huber")
        more = fit.fit(model, both, {"epochs": 2, "engine": engine}).history["loss"]
        found[engine] = [*losses, *more, evaluate.evaluate(model, both)["metrics"]["loss"]]
    return found
