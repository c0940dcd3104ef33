"""What `bench_data.py` measures: seconds of each way to get all batches of an epoch.

    data_cases.py table csv 400000 | gather 200000 | images 2000

Prints one JSON record.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from data_files import write_images, write_table

from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.loader import loader

BATCH = 256
REPETITIONS = 3
AUGMENT = {"flip": "horizontal", "rotation": 0.1}
IMAGE_SIZE = (160, 160)


def time_ways(ways: Mapping[str, Callable[[], Any]], times: int = REPETITIONS) -> dict[str, float]:
    """The median seconds of each way; the ways take turns, so a slow minute hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(times):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return {name: float(np.median(found)) for name, found in seconds.items()}


def draw_epoch(data: Any, epoch: int = 0) -> int:
    """Draws all blocks of an epoch; gives the rows."""
    plan = data.plan("CPU:0")
    feed = loader.open_loader(data, plan)
    rows = 0
    for block in feed.epoch(epoch):
        rows += len(block.arrays[0]) if block.tail else block.batches * plan.batch_size
    return rows


# Tables ------------------------------------------------------------------------------------------


def table_case(kind: str, rows: int) -> dict[str, float]:
    """From a file's path to the last batch of an epoch."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_table(Path(folder, f"rows.{kind}"), rows, columns=20)
        text = path if kind == "csv" else write_table(Path(folder, "rows.csv"), rows, columns=20)
        draw_epoch(open_table(path))  # imports and starts what both ways share
        ways = {"gpukeras": lambda: draw_epoch(open_table(path))}
        found = time_ways(ways)
        found["make_csv_dataset"] = time_ways({"": lambda: draw_csv_dataset(text)}, 1)[""]
        return found


def open_table(path: Path, **options: Any) -> Any:
    """A dataset of a file that `data_files` wrote."""
    features = {"kind": "table", "paths": [str(path)], "format": "auto", "label": "y"}
    options = {"batch_size": BATCH, "scale": True, **options}
    return data_dataset.build_dataset(features, options)


def draw_csv_dataset(path: Path) -> None:
    """TensorFlow's own way, which is also tfdatasets'."""
    import tensorflow as tf

    rows = tf.data.experimental.make_csv_dataset(
        str(path), BATCH, label_name="y", num_epochs=1, shuffle=True
    )
    for _ in rows:
        pass


# Rows in memory ----------------------------------------------------------------------------------


def gather_case(rows: int, columns: int = 100) -> dict[str, float]:
    """Shuffled batches of a staged matrix; a plain gather into one buffer is the limit."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(rows, columns)).astype(np.float32), rng.normal(size=rows)
    labels = {"kind": "numeric", "values": y, "levels": []}
    data = data_dataset.build_dataset({"kind": "array", "values": x}, {"batch_size": BATCH}, labels)
    y = y.astype(np.float32).reshape(-1, 1)
    adapter = ArrayDataAdapter(x, y, batch_size=BATCH, shuffle=True)
    ways = {
        "gpukeras": lambda: draw_epoch(data),
        "plain gather": lambda: gather_plainly(x, y),
        "Keras' array adapter": lambda: drain(adapter.get_tf_dataset()),
    }
    for way in ways.values():
        way()
    return time_ways(ways, 7)


def gather_plainly(x: np.ndarray, y: np.ndarray) -> None:
    """NumPy's gather of batches into memory that is there already."""
    order = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
    rows, labels = np.empty((BATCH, x.shape[1]), x.dtype), np.empty((BATCH, 1), y.dtype)
    for start in range(0, len(x) - BATCH + 1, BATCH):
        taken = order[start : start + BATCH]
        np.take(x, taken, axis=0, out=rows, mode="clip")
        np.take(y, taken, axis=0, out=labels, mode="clip")


def drain(dataset: Any) -> None:
    """Iterates a tf.data pipeline to its end."""
    for _ in dataset:
        pass


# Images ------------------------------------------------------------------------------------------


def image_case(count: int) -> dict[str, float]:
    """Two epochs of augmented images from a folder, and a later one."""
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), count)
        kept: list[Any] = []
        ways = {
            "first epoch, gpukeras": lambda: kept.append(draw_images(folder)),
            "first epoch, Keras": lambda: drain(keras_images(folder)),
            "later epoch, gpukeras": lambda: draw_epoch(kept[-1], 1),
        }
        draw_epoch(draw_images(folder))
        return time_ways(ways)


def draw_images(folder: str) -> Any:
    """Reads a folder of images and draws an epoch of it."""
    features = {"kind": "images", "paths": [folder], "image_size": list(IMAGE_SIZE)}
    data = builder.assemble(features, {"batch_size": 32}, augment=AUGMENT)
    draw_epoch(data)
    return data


def keras_images(folder: str) -> Any:
    """The same by Keras' own loader, as its guide advises."""
    import keras
    import tensorflow as tf

    layers = [keras.layers.RandomFlip("horizontal"), keras.layers.RandomRotation(0.1)]
    augment = keras.Sequential(layers)
    images = keras.utils.image_dataset_from_directory(
        folder, image_size=IMAGE_SIZE, batch_size=32, verbose=False
    )
    mapped = images.map(
        lambda x, y: (augment(x, training=True), y), num_parallel_calls=tf.data.AUTOTUNE
    )
    return mapped.prefetch(tf.data.AUTOTUNE)


def main(arguments: list[str]) -> None:
    """Measures one case."""
    name, *sizes = arguments
    if name == "table":
        found = table_case(sizes[0], int(sizes[1]))
    else:
        found = {"gather": gather_case, "images": image_case}[name](int(sizes[0]))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
