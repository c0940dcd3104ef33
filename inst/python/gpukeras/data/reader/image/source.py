"""Image files as rows: decoded and resized once, on all cores, and stored as uint8.

    list_images() --open_images()--> ImageFeatures --encode()--> stored uint8 rows | ImageRows

A uint8 row takes a quarter of float32's memory and transfer. It is rounded to integer grey levels,
so it differs from Keras' float32 by at most half a level. The device casts to float32 and scales
(`augment`). If a file has 16 bits, all rows are float32 from 0 to 255, and nothing is rounded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import (
    DatasetSpec,
    Spec,
    check_choice,
    check_counts,
    check_flag,
    describe,
    option,
)
from gpukeras.data.arrays import Notes
from gpukeras.data.reader.image import formats
from gpukeras.data.reader.image.decode import FLOATS, ImageForm, ImageRows, decode_all
from gpukeras.data.reader.image.formats import has_deep
from gpukeras.data.reader.image.paths import ImageFiles, list_column, list_images
from gpukeras.data.reader.npy import keep_rows
from gpukeras.data.reader.rows import Features, RowSource
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import Encoding, ImageEncoding, check_kind

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
        files: The files.
        spec: Options for reading the files.
        keep: Storage of decoded rows: "memory", "disk", "auto" (see `RowsWriter`), or "none" to
            decode on each access.
        on_error: "stop" or "skip".
        encoding: The learned encoding, or None.

    Attributes:
        files: The files; without skipped files after the first access to `rows`.
    """

    refuses = "a set of image files"

    def __init__(
        self,
        files: ImageFiles,
        spec: ImageSpec,
        keep: str = "auto",
        on_error: str = "stop",
        encoding: Encoding | None = None,
    ) -> None:
        """Stores the arguments; reads no data."""
        require_feature("images")
        if any(path.lower().endswith(formats.SUFFIXES) for path in files.paths):
            formats.require_tifffile()
        self.arg = files.arg
        self.files = files
        if files.column:  # rows without a path can be dropped
            self.refuses = ""
        self._spec, self._keep = spec, keep
        self._form = spec.form if encoding is None else self._form_of(encoding)
        self._kept: tuple[ImageForm, RowSource] | None = None
        self._checked = on_error == "stop"

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
        """Returns the encoding; nothing is learned, and `scale` maps values to the range 0 to 1."""
        form = self._form
        return ImageEncoding(
            form.shape,
            scale=(255.0,) * form.shape[2] if how.spec.scale else None,
            interpolation=form.interpolation,
            crop_to_aspect_ratio=form.crop_to_aspect_ratio,
            path_column=self.files.column,
        )

    def images(self, complete: np.ndarray | None = None) -> tuple[ImageFiles, ImageForm]:
        """Returns the files of the rows to use, and the form of their rows."""
        return self.files if complete is None else self.files.take(complete), self._form

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of rows with a path, and how many have none."""
        if not self.files.column:
            return super().count_missing(known)
        missing = self.files.missing
        return ~missing, {self.files.column: int(missing.sum())}

    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> RowSource:
        """Returns the rows; decodes all of them now unless they are decoded on access.

        Args:
            encoding: The encoding to apply.
            complete: Mask of the rows to use, or None for all rows.
            notes: Unused: uint8 values lose no digits.

        Raises:
            DataError: for a file that is gone, damaged or no image; names it.
        """
        form = self._form_of(encoding)
        self._skip()
        if complete is not None:
            return self._read(self.files.take(complete), form)
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


def open_images(
    features: Mapping[str, Any],
    arg: str,
    spec: DatasetSpec | None = None,
    encoding: Encoding | None = None,
) -> ImageFeatures:
    """Opens image files as features.

    Args:
        features: `{kind: "images", paths, ...}`: a folder with one subfolder per class, or image
            files; with `column`, the values of that column of a data frame. The other entries are
            fields of `ImageSpec`.
        arg: Name of the user's argument, for error messages.
        spec: Dataset options: `cache` chooses the storage of decoded rows, `on_error` the treatment
            of a damaged file. Only files of a class folder can be skipped: files given by path must
            match labels or rows by position.
        encoding: The learned encoding, if it is known.

    Raises:
        SpecError: for an invalid option.
        DataError: if there are no files, or a folder cannot be read.
    """
    spec = spec or DatasetSpec()
    paths, column = features["paths"], features.get("column")
    others = ("kind", "paths", "column")
    options = {name: value for name, value in features.items() if name not in others}
    image_spec = ImageSpec.from_dict(options)
    files = list_column(paths, column, arg) if column else list_images(paths, arg)
    if spec.on_error == "skip" and files.codes is None:
        raise SpecError(
            f'`on_error` = "skip" needs a folder of classes: `{arg}` names files, and none can be '
            "left out.",
            hint="Leave damaged files out of it yourself.",
            arg="on_error",
        )
    keep = KEEPS.get(spec.cache, "auto")
    return ImageFeatures(files, image_spec, keep, spec.on_error, encoding)


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
