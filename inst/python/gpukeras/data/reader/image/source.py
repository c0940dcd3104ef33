"""Image files and masks as rows: rows are encoded once, or decoded on each access.

    list_images() ----> ImageFeatures --encode()--> stored uint8 rows | ImageRows

A uint8 row takes a quarter of float32's memory and transfer. It is rounded to integer grey levels,
so it differs from Keras' float32 by at most half a level. The device casts to float32 and scales
(`augment`). If a file has 16 bits, all rows are float32 from 0 to 255, and nothing is rounded.

list_column() --read_masks()--> rows of class numbers (uint8), kept in memory or on disk
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of, list_some
from gpukeras.core.options import Spec, check_choice, check_counts, check_flag, describe, option
from gpukeras.data.arrays import ALL_ROWS, EncodeOptions
from gpukeras.data.reader.image.decode import FLOATS, MASK, ImageForm, ImageRows, decode_all
from gpukeras.data.reader.image.files import (
    TIFF_SUFFIXES,
    ImageFiles,
    has_deep,
    list_column,
    list_images,
    read_headers,
    require_tifffile,
)
from gpukeras.data.reader.rows import FeatureRequest, Features, RowSource
from gpukeras.data.reader.storage import STORAGES, RowsWriter, keep_rows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import Encoding, ImageEncoding, check_kind
from gpukeras.data.recipe.targets import LabelRule

COLORS = {"rgb": 3, "grayscale": 1, "rgba": 4}
KEEPS = {"host": "memory", "device": "memory", "disk": "disk", "none": "none"}  # by `cache`
INTERPOLATIONS = ("bilinear", "nearest", "bicubic", "lanczos3", "lanczos5")


# Options -----------------------------------------------------------------------------------------


def _check_size(arg: str, value: Any) -> tuple[int, ...]:
    size = check_counts(arg, value)
    if len(size) != 2:
        found = count_of(len(size), "number")
        raise SpecError(f"`image_size` must be height and width, not {found}.", arg=arg)
    return size


@dataclass(frozen=True)
class ImageSpec(Spec):
    """Options for reading image files; None is the default, or the value in training.

    Args:
        image_size: Height and width in pixels. Default 224 x 224, the input size of most of Keras'
            pretrained models (Keras' folder reader defaults to 256 x 256, which none of them
            takes).
        color: "rgb" (the default), "grayscale" or "rgba".
        interpolation: "bilinear" (the default), "nearest", "bicubic", "lanczos3" or "lanczos5".
        crop_to_aspect_ratio: Crop the longer side before resizing instead of distorting the image;
            default false.
    """

    image_size: tuple[int, int] | None = option(None, _check_size)
    color: str | None = option(None, check_choice, tuple(COLORS))
    interpolation: str | None = option(None, check_choice, INTERPOLATIONS)
    crop_to_aspect_ratio: bool | None = option(None, check_flag)

    @property
    def form(self) -> ImageForm:
        """The options as an `ImageForm`, with defaults filled in."""
        height, width = self.image_size or (224, 224)
        shape = (height, width, COLORS[self.color or "rgb"])
        return ImageForm(shape, self.interpolation or "bilinear", bool(self.crop_to_aspect_ratio))


def choose_form(spec: ImageSpec, encoding: ImageEncoding) -> ImageForm:
    """Returns the image form that an encoding was learned with.

    Raises:
        SpecError: if a given option differs from training.
    """
    height, width, channels = encoding.row_shape
    size = (height, width, channels)
    form = ImageForm(size, encoding.interpolation, encoding.crop_to_aspect_ratio)
    colors = {count: name for name, count in COLORS.items()}
    had = {
        "image_size": form.shape[:2],
        "color": colors[form.shape[2]],
        "interpolation": form.interpolation,
        "crop_to_aspect_ratio": form.crop_to_aspect_ratio,
    }
    for name, trained in had.items():
        asked = getattr(spec, name)
        if asked is not None and asked != trained:
            raise SpecError(
                f"`{name}` is {_say(asked)}, but training had {_say(trained)}.",
                hint="Leave it out: images are read as in training.",
                arg=name,
            )
    return form


def _say(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else describe(value)


# Features ----------------------------------------------------------------------------------------


class ImageFeatures(Features):
    """Image files as features.

    Args:
        asked: With features `{kind: "images", paths, ...}`: a folder with one subfolder per class,
            or image files; with `column`, the values of that column of a data frame. The other
            entries are fields of `ImageSpec`. The option `cache` chooses the storage of decoded
            rows, `on_error` the treatment of a damaged file. Only files of a class folder can be
            skipped: files given by path must match labels or rows by position.

    Attributes:
        files: The files; without skipped files after the first access to `rows`.
    """

    refuses = "a set of image files"

    def __init__(self, asked: FeatureRequest) -> None:
        """Lists the files; reads none.

        Raises:
            SpecError: for an invalid option.
            DataError: if there are no files, or a folder cannot be read.
        """
        options, self.arg = dict(asked.features), asked.arg
        options.pop("kind", None)
        paths, column = options.pop("paths"), options.pop("column", None)
        self._spec = ImageSpec.from_dict(options)
        files = list_column(paths, column, self.arg) if column else list_images(paths, self.arg)
        self._checked = asked.spec.on_error == "stop"
        if not self._checked and files.codes is None:
            raise SpecError(
                f'`on_error` = "skip" needs a folder of classes: `{self.arg}` names files, and '
                "none can be left out.",
                hint="Leave damaged files out of it yourself.",
                arg="on_error",
            )
        require_feature("images")
        if any(path.lower().endswith(TIFF_SUFFIXES) for path in files.paths):
            require_tifffile()
        if column:  # rows without a path can be dropped
            self.refuses = ""
        self.files, self._keep = files, KEEPS.get(asked.spec.cache, "auto")
        known = asked.encoding
        self._form = self._spec.form if known is None else self._form_of(known)
        self._kept: tuple[ImageForm, RowSource] | None = None

    @property
    def rows(self) -> int:
        """Number of files; finds files to skip by decoding all of them."""
        self._skip()
        return len(self.files)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self._form.shape

    def labels(self) -> dict[str, Any] | None:
        """Returns the classes as a factor in the form that R passes; None without classes.

        Raises:
            DataError: if there is only one class.
        """
        self._skip()
        files = self.files
        if files.codes is None:
            return None
        if len(files.classes) < 2:
            raise DataError(
                f"`{self.arg}` has one class only, its subfolder {files.classes[0]}.",
                hint="Labels need at least two subfolders.",
                arg=self.arg,
                path=files.folder,
            )
        levels = list(files.classes)
        return {"kind": "factor", "name": "y", "values": files.codes, "levels": levels}

    def learn(self, how: Learning) -> ImageEncoding:
        """Returns the encoding; nothing is learned."""
        return self._form.learn(how.spec.scale, self.files.column)

    def images(self, complete: np.ndarray | None = None) -> tuple[ImageFiles, ImageForm]:
        """Returns the files of the rows to use, and the form of their rows."""
        return self.files if complete is None else self.files.take(complete), self._form

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of rows with a path, and how many have none: all have in a folder."""
        missing = self.files.missing
        return ~missing, {self.files.column: int(missing.sum())}

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the rows; decodes all of them now unless they are decoded on access.

        Args:
            encoding: The encoding to apply.
            how: The rows to use, and where to note what they lose.

        Raises:
            DataError: for a file that is gone, damaged or no image; names it.
        """
        form = self._form_of(encoding)
        self._skip()
        if how.complete is not None:
            return self._read(self.files.take(how.complete), form)
        if self._kept is None or self._kept[0] != form:
            self._kept = form, self._read(self.files, form)
        return self._kept[1]

    def _form_of(self, encoding: Encoding) -> ImageForm:
        return choose_form(self._spec, check_kind(encoding, ImageEncoding, self.arg))

    def _read(
        self, files: ImageFiles, form: ImageForm, good: np.ndarray | None = None
    ) -> RowSource:
        """Returns the rows of files; with `good`, skips damaged files and clears their flags."""
        files.check_present()
        if has_deep(files.paths):
            form = replace(form, values=FLOATS)
        blocks = decode_all(files, form, good)
        if self._keep != "none":
            how = {"keep": self._keep, "arg": files.arg, "rows": len(files)}
            return keep_rows(blocks, form.shape, form.dtype, **how)
        if good is None:
            return ImageRows(files, form)
        deque(blocks, maxlen=0)
        return ImageRows(files.take(good), form)

    def _skip(self) -> None:
        """Leaves damaged files out; runs once."""
        if self._checked:
            return
        files, good = self.files, np.ones(len(self.files), dtype=bool)
        self._kept = self._form, self._read(files, self._form, good)
        self._checked, self.files = True, files.take(good)
        if not good.all():
            count, first = int((~good).sum()), files.name(int(good.argmin()))
            self.skipped = f"{count_of(count, 'damaged image file')}, the first {first}"
            _check_classes(self.files)


def _check_classes(files: ImageFiles) -> None:
    assert files.codes is not None  # the files are in class folders
    left = np.bincount(files.codes, minlength=len(files.classes) + 1)[1:]
    if not left.all():
        name = files.classes[int(left.argmin())]
        raise DataError(
            f"`{files.arg}`: none of the images in the subfolder {name} can be decoded.",
            hint="Remove the subfolder, or mend its files.",
            arg=files.arg,
            path=os.path.join(files.folder, name),
        )


# Masks --------------------------------------------------------------------------------------------

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
