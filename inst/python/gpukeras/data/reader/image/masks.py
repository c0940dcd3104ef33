"""Mask images as labels: the numbers of their pixels are classes.

list_column() --read_masks()--> rows of class numbers (uint8), kept in memory or on disk
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of, list_some
from gpukeras.core.options import check_counts
from gpukeras.data.reader.image.decode import MASK, ImageForm, decode_all
from gpukeras.data.reader.image.formats import read_headers
from gpukeras.data.reader.image.paths import ImageFiles
from gpukeras.data.reader.npy import STORAGES, RowsWriter, keep_rows
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.targets import LabelRule

VALUES = 256  # that a pixel of a mask may have
OUTSIDE = -1  # in a table from values to classes
BLACK_AND_WHITE = (0, 255)  # the values of masks with two classes, as most programs draw them


def read_masks(
    labels: Mapping[str, Any],
    images: tuple[ImageFiles, ImageForm],
    rule: LabelRule | None = None,
    cache: str = "auto",
) -> dict[str, Any]:
    """Reads masks, resized as their images without mixing classes.

    Args:
        labels: `{kind: "masks", values, classes}`: `values` are the `ImageFiles`, and `classes` the
            values of the pixels of each class, or None: 0 and 255 if there are no others, else all
            from 0 to the highest.
        images: The files and the form of the features, for the same rows.
        rule: The rule of the training's labels, or None to find the classes.
        cache: The option `cache` of the dataset.

    Returns:
        The labels with a `RowSource` of class numbers as `values` (uint8, (rows, height, width)),
        and `pixels`, the value of each class.

    Raises:
        SpecError: if `classes` are not different numbers from 0 to 255.
        DataError: for a mask that is missing, damaged, of another size than its image, or has a
            value outside of the classes; names the column and the row.
    """
    files, form = labels["values"], images[1]
    files.check_present()
    _check_sizes(files, images[0])
    pixels = _choose_pixels(labels, rule)
    form = ImageForm((*form.shape[:2], 1), "nearest", form.crop_to_aspect_ratio, MASK)
    keep = STORAGES.get(cache, "auto")
    rows, seen = _read(files, form, keep, _tabulate(pixels))
    if not pixels:
        pixels = _find_pixels(seen)
        if pixels != tuple(range(len(pixels))):
            rows = _recode(rows, _tabulate(pixels), keep, files.arg)
    return {**labels, "values": rows, "pixels": pixels}


def _choose_pixels(labels: Mapping[str, Any], rule: LabelRule | None) -> tuple[int, ...]:
    """Returns the values of the classes, as in training or as given; empty to find them."""
    if labels.get("classes") is None:
        return () if rule is None else rule.pixels
    pixels = check_counts("classes", labels["classes"], 0)
    if len(set(pixels)) < max(2, len(pixels)) or max(pixels) >= VALUES:
        raise SpecError(
            "`classes` must be at least two different numbers from 0 to 255.",
            hint="They are the values of a mask's pixels, such as c(0, 255).",
            arg="classes",
        )
    if rule is not None and rule.pixels != pixels:
        raise SpecError(
            "`classes` are not those that the `recipe` has.",
            hint="Leave them out: masks are read as in training.",
            arg="classes",
        )
    return pixels


def _tabulate(pixels: Sequence[int]) -> np.ndarray:
    """Returns the class of each value; without classes, the value itself."""
    if not pixels:
        return np.arange(VALUES)
    table = np.full(VALUES, OUTSIDE)
    table[list(pixels)] = np.arange(len(pixels))
    return table


def _find_pixels(seen: np.ndarray) -> tuple[int, ...]:
    present = np.flatnonzero(seen)
    if present[-1] == BLACK_AND_WHITE[1] and set(present.tolist()) <= set(BLACK_AND_WHITE):
        return BLACK_AND_WHITE
    return tuple(range(int(present[-1]) + 1))


def _read(
    files: ImageFiles, form: ImageForm, keep: str, table: np.ndarray
) -> tuple[RowSource, np.ndarray]:
    """Returns the rows as classes, and which values they had."""
    seen, start = np.zeros(VALUES, dtype=bool), 0
    with RowsWriter(form.shape[:2], np.uint8, keep, files.arg, len(files)) as writer:
        for rows in decode_all(files, form):
            values = rows[..., 0]
            seen |= np.bincount(values.reshape(-1), minlength=VALUES) > 0
            if (table[seen] == OUTSIDE).any():
                raise _outside(files, start, values, table)
            writer.write(table[values].astype(np.uint8))
            start += len(rows)
    return writer.finish(), seen


def _outside(files: ImageFiles, start: int, values: np.ndarray, table: np.ndarray) -> DataError:
    """Returns the error for the first mask with a value outside of the classes."""
    bad = table[values] == OUTSIDE
    first = int(bad.any(axis=(1, 2)).argmax())
    outside = np.unique(values[first][bad[first]]).tolist()
    known = [str(value) for value in np.flatnonzero(table != OUTSIDE)]
    order = "the value" if len(outside) == 1 else "the values"
    return files.error(
        start + first,
        f"has {order} {list_some([str(value) for value in outside])}, "
        f"outside of the classes {list_some(known, 10)}.",
        "Name the value of each class by `classes`, or mend the mask.",
    )


def _recode(rows: RowSource, table: np.ndarray, keep: str, arg: str) -> RowSource:
    blocks = (table[block].astype(np.uint8) for block in rows.blocks())
    return keep_rows(blocks, rows.shape[1:], np.uint8, keep=keep, arg=arg, rows=len(rows))


def _check_sizes(files: ImageFiles, images: ImageFiles) -> None:
    """Refuses a mask of another size than its image, which it would not cover."""
    pairs = zip(read_headers(files.paths), read_headers(images.paths), strict=True)
    for number, (mask, image) in enumerate(pairs):
        if mask is None or image is None:  # its decoder names what is wrong
            continue
        size, expected = (mask.height, mask.width), (image.height, image.width)
        if size != expected:
            raise files.error(
                number,
                f"is {size[0]} x {size[1]} pixels, but its image {images.name(number)} is "
                f"{expected[0]} x {expected[1]}.",
                "A mask has one pixel for each pixel of its image.",
            )


def refuse_without_images(labels: Mapping[str, Any], arg: str) -> DataError:
    """Returns the error for masks of rows that are no images."""
    count = count_of(len(labels["values"]), "mask image")
    return DataError(
        f"`{labels['arg']}` has {count}, but `{arg}` has no images.",
        hint="Name the column of images by `image`.",
        arg=labels["arg"],
    )
