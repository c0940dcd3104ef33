"""Files for the data benchmarks: tables of a wanted size, and folders of JPEGs.

data_files.py FOLDER csv|parquet BYTES FILES
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

CHUNK_ROWS = 100_000
CATEGORIES = np.array(["red", "green", "blue", "black", "white"])


def make_chunk(rows: int, columns: int, seed: int) -> pa.Table:
    """Numbers `x1`, ..., a category, and a label that depends on the first number."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(columns, rows)).round(6)
    table = {f"x{column + 1}": values[column] for column in range(columns)}
    table["colour"] = CATEGORIES[rng.integers(len(CATEGORIES), size=rows)]
    table["y"] = (2 * values[0] + rng.normal(size=rows)).round(6)
    return pa.table(table)


def make_chunks(rows: int, columns: int) -> Iterator[pa.Table]:
    """The rows in tables of at most `CHUNK_ROWS`."""
    for seed, start in enumerate(range(0, rows, CHUNK_ROWS)):
        yield make_chunk(min(CHUNK_ROWS, rows - start), columns, seed)


def write_table(path: Path, rows: int, columns: int) -> Path:
    """A CSV or Parquet file, by its suffix."""
    schema = make_chunk(1, columns, 0).schema
    opened = pa.csv.CSVWriter if path.suffix == ".csv" else pa.parquet.ParquetWriter
    with opened(str(path), schema) as writer:
        for chunk in make_chunks(rows, columns):
            writer.write_table(chunk)
    return path


def write_large(folder: Path, kind: str, size_bytes: float, files: int, columns: int = 40) -> None:
    """Files that together have about a size."""
    trial = write_table(folder / f"trial.{kind}", CHUNK_ROWS, columns)
    rows = int(size_bytes / trial.stat().st_size * CHUNK_ROWS / files)
    trial.unlink()
    for number in range(files):
        write_table(folder / f"part-{number:03d}.{kind}", rows, columns)


def write_images(folder: Path, count: int, classes: int = 2) -> None:
    """JPEGs of about 400 x 300 in one subfolder a class: smooth, as photographs are."""
    import tensorflow as tf

    rng = np.random.default_rng(1)
    for number in range(count):
        target = folder / f"class{number % classes}"
        target.mkdir(parents=True, exist_ok=True)
        height, width = rng.integers(250, 350), rng.integers(350, 450)
        coarse = rng.uniform(0, 255, (1, 12, 16, 3)).astype(np.float32)
        image = tf.image.resize(coarse, (height, width), "bicubic")[0]
        pixels = tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8)
        (target / f"{number:05d}.jpg").write_bytes(tf.io.encode_jpeg(pixels).numpy())


def main(arguments: list[str]) -> None:
    """Writes large files in a process of its own, whose memory goes with it."""
    folder, kind, size_bytes, files = arguments
    write_large(Path(folder), kind, float(size_bytes), int(files))
    print(json.dumps({"files": int(files)}))


if __name__ == "__main__":
    main(sys.argv[1:])
