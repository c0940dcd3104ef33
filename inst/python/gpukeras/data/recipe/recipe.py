"""Defines recipes: how a user's values are encoded as numbers, as learned from the training rows.

A `Recipe` is plain data: names, levels, means and deviations. It is stored with the model that it
trained, so that prediction encodes a data frame as training did. Its `features` are an `Encoding`,
one record for each kind of rows; the module `columns` describes columns, and `targets` the labels.

Several inputs are flattened side by side into one row of numbers, so that plans, shuffles, scratch
files, saved datasets and streams handle a single array. An input is a group of a data frame's
columns, an element of a list, or a window of rows beside what is known ahead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from gpukeras.core.errors import DataError
from gpukeras.data.arrays import column_name, side_by_side
from gpukeras.data.recipe.columns import CategoryRule, ColumnRule, ScaledRule
from gpukeras.data.recipe.targets import ClassLabel, LabelRule, MatrixLabel, MisfitError
from gpukeras.data.recipe.windows import WindowRule

Shape = tuple[int, ...]
Numbers = tuple[float, ...]


def _check(field: str, fits: bool) -> None:
    if not fits:
        raise MisfitError(field)


# Encodings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One input and its place in the row.

    Args:
        name: The model's name for the input.
        shape: Shape of one row of the input, as the model takes it.
        columns: The input's columns in the row.
    """

    name: str
    shape: Shape
    columns: slice


def _place_parts(shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    """Places inputs side by side in a row."""
    return tuple(map(Part, shapes, shapes.values(), side_by_side(map(math.prod, shapes.values()))))


class BaseEncoding(ABC):
    """What all encodings have; the properties of one that has none of it.

    Attributes:
        kind: The tag of the encoding where it is stored, and in R.
        noun: The user's rows in words, for messages.
        columns: The rule of each column.
        names: Names of an array's columns, for messages.
        inputs: Several inputs, in their order in a row.
        listed: Whether they were given without names: the model gets a list of them.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    columns: tuple[ColumnRule, ...] = ()
    names: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    listed: bool = False

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """Shape of one row of features as the model takes it."""

    @property
    def staged_shape(self) -> Shape:
        """Shape of one encoded row as stored, before the device crops it."""
        return self.shape

    @property
    def parts(self) -> tuple[Part, ...]:
        """The inputs in a row; none if the model has a single input, which takes the row."""
        return ()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features of a data frame."""
        return tuple(name for rule in self.columns for name in rule.features)

    @property
    def known(self) -> frozenset[str]:
        """Names of the data frame columns that it encodes; `<input>$<column>` for an input."""
        own = frozenset(rule.name for rule in self.columns)
        inputs = (f"{part.name}${name}" for part in self.inputs for name in part.encoding.known)
        return own.union(inputs)

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the columns with an indicator of missing values, as in `known`."""
        own = [rule.name for rule in self.columns if rule.indicator]
        inputs = [
            f"{part.name}${name}" for part in self.inputs for name in part.encoding.indicators
        ]
        return (*own, *inputs)

    @property
    def has_texts(self) -> bool:
        """Whether the model takes texts."""
        return any(part.encoding.has_texts for part in self.inputs)

    @property
    def keeps_values(self) -> bool:
        """Whether values reach the model unchanged."""
        return bool(self.inputs) and all(part.encoding.keeps_values for part in self.inputs)

    @property
    def standardises(self) -> bool:
        """Whether numbers are divided by what was learned."""
        own = any(rule.scale != 1.0 for rule in self.columns)
        return own or any(part.encoding.standardises for part in self.inputs)

    @property
    def images(self) -> Input | None:
        """The input of image files that stands beside others; None if there is none."""
        encodings = (part for part in self.inputs if isinstance(part.encoding, ImageEncoding))
        return next(encodings, None)


@dataclass(frozen=True)
class RowEncoding(BaseEncoding):
    """An encoding of rows that are given as an array of one shape.

    Args:
        row_shape: Shape of one row as given.
    """

    row_shape: Shape

    def __post_init__(self) -> None:
        """Checks that rows have values."""
        _check("row_shape", len(self.row_shape) > 0)

    @property
    def shape(self) -> Shape:
        """Shape of one row as the model takes it."""
        return self.row_shape


@dataclass(frozen=True)
class PixelEncoding(RowEncoding):
    """An encoding of rows that may be images, which the device crops.

    Args:
        scale: Divides the last axis, or None; see `arrays.divisors()`.
        crop: Height and width after the crop, or None without a crop.
    """

    scale: Numbers | None = None
    crop: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Checks that what was learned fits the rows."""
        super().__post_init__()
        self._check_width("scale", self.scale)
        _check("crop", self.crop is None or len(self.crop) == 2)

    def _check_width(self, name: str, learned: Numbers | None) -> None:
        _check(name, learned is None or len(learned) == self.row_shape[-1])

    @property
    def shape(self) -> Shape:
        """Shape of one row as the model takes it, after the crop."""
        return self.staged_shape if self.crop is None else (*self.crop, self.staged_shape[-1])

    @property
    def staged_shape(self) -> Shape:
        """Shape of one row as stored."""
        return self.row_shape

    @property
    def standardises(self) -> bool:
        """Whether numbers are divided by what was learned."""
        return self.scale is not None


@dataclass(frozen=True)
class ArrayEncoding(PixelEncoding):
    """Numbers of a matrix or array.

    Args:
        center: Subtracted from the last axis, or None.
        fill: Replaces missing values along the last axis, or None if none are imputed.
        marked: Columns of the last axis that an indicator of missing values follows.
        names: Column names, for messages.
    """

    kind = "array"
    noun = "a matrix or array"

    center: Numbers | None = None
    fill: Numbers | None = None
    marked: tuple[int, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Checks that what was learned fits the rows."""
        super().__post_init__()
        self._check_width("center", self.center)
        self._check_width("fill", self.fill)
        _check("marked", all(0 <= column < self.row_shape[-1] for column in self.marked))

    @property
    def staged_shape(self) -> Shape:
        """Shape of one row as stored, with the indicators of missing values."""
        return (*self.row_shape[:-1], self.row_shape[-1] + len(self.marked))

    @property
    def keeps_values(self) -> bool:
        """Whether values reach the model unchanged."""
        return self.center is None and self.scale is None and self.fill is None

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the columns with an indicator of missing values."""
        return tuple(column_name(self.names, column) for column in self.marked)


@dataclass(frozen=True)
class ImageEncoding(PixelEncoding):
    """Image files.

    Args:
        interpolation: How images were resized.
        crop_to_aspect_ratio: Whether they were first cropped to the aspect ratio of `row_shape`.
        path_column: The column of a data frame that holds the paths of images, or "".
    """

    kind = "images"
    noun = "image files"

    interpolation: str = "bilinear"
    crop_to_aspect_ratio: bool = False
    path_column: str = ""

    def __post_init__(self) -> None:
        """Checks that rows have height, width and channels."""
        super().__post_init__()
        _check("row_shape", len(self.row_shape) == 3)


@dataclass(frozen=True)
class TextEncoding(RowEncoding):
    """Texts that stay texts.

    Args:
        names: Column names, for messages.
    """

    kind = "strings"
    noun = "texts"

    names: tuple[str, ...] = field(default=(), compare=False)

    has_texts = True
    keeps_values = True


@dataclass(frozen=True)
class ColumnsEncoding(BaseEncoding):
    """An encoding of a data frame's columns.

    Args:
        columns: One rule per column.
    """

    columns: tuple[ColumnRule, ...] = ()

    def __post_init__(self) -> None:
        """Checks that there are columns."""
        _check("columns", len(self.columns) > 0)

    @property
    def places(self) -> Iterator[tuple[ColumnRule, slice]]:
        """Each column with its features' places in a row."""
        widths = (len(rule.features) for rule in self.columns)
        return zip(self.columns, side_by_side(widths), strict=True)


@dataclass(frozen=True)
class Group:
    """Columns of a data frame that form one of the model's inputs.

    Args:
        name: The model's name for the input.
        columns: The columns' names.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableEncoding(ColumnsEncoding):
    """Rows of a data frame or table.

    Args:
        groups: The columns of each input, in the order of `columns`; none for a single input.
    """

    kind = "columns"
    noun = "a data frame"

    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        """Checks that the groups have all columns, in their order."""
        super().__post_init__()
        grouped = [name for group in self.groups for name in group.columns]
        _check("groups", not self.groups or grouped == [rule.name for rule in self.columns])

    @property
    def shape(self) -> Shape:
        """Number of encoded features."""
        return (len(self.feature_names),)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The groups in a row."""
        widths = {rule.name: len(rule.features) for rule in self.columns}
        return _place_parts(
            {group.name: (sum(widths[name] for name in group.columns),) for group in self.groups}
        )


@dataclass(frozen=True)
class SeriesEncoding(ColumnsEncoding):
    """Windows of the rows of a data frame of time series.

    Args:
        windows: How rows become windows.
    """

    kind = "windows"
    noun = "a data frame of time series"

    windows: WindowRule = field(kw_only=True)

    def __post_init__(self) -> None:
        """Checks that the columns that are known ahead are there."""
        super().__post_init__()
        _check("windows", self.known.issuperset(self.windows.known))

    @property
    def shape(self) -> Shape:
        """Shape of a window; flat if columns that are known ahead lie beside it."""
        parts = self.parts
        plain = (self.windows.window, len(self.feature_names))
        return (parts[-1].columns.stop,) if parts else plain

    @property
    def parts(self) -> tuple[Part, ...]:
        """The window, and what is known ahead; none without the latter."""
        rule = self.windows
        if not rule.known:
            return ()
        ahead = sum(len(column.features) for column in self.columns if column.name in rule.known)
        window = (rule.window, len(self.feature_names))
        return _place_parts({"window": window, "known": (rule.horizon, ahead)})


@dataclass(frozen=True)
class Input:
    """One of several inputs that were given as a list.

    Args:
        name: The model's name for the input.
        encoding: The input's encoding.
    """

    name: str
    encoding: Encoding


@dataclass(frozen=True)
class InputsEncoding(BaseEncoding):
    """Several inputs, each with its own encoding; encoded rows lie side by side.

    Args:
        inputs: The inputs, in their order in a row.
        listed: Whether the inputs were given without names: the model gets a list of them.
    """

    kind = "inputs"
    noun = "a named list of inputs"

    inputs: tuple[Input, ...] = ()
    listed: bool = False

    def __post_init__(self) -> None:
        """Checks that there are inputs, each with its own name."""
        _check("inputs", len({part.name for part in self.inputs}) == len(self.inputs) > 0)

    @property
    def shape(self) -> Shape:
        """Number of values of all inputs."""
        return (sum(math.prod(part.encoding.shape) for part in self.inputs),)

    @property
    def staged_shape(self) -> Shape:
        """Number of values of all inputs as stored."""
        return (sum(math.prod(part.encoding.staged_shape) for part in self.inputs),)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The inputs in a row."""
        return _place_parts({part.name: part.encoding.shape for part in self.inputs})


@dataclass(frozen=True)
class BatchesEncoding(BaseEncoding):
    """Batches that are passed on unchanged."""

    kind = "batches"
    noun = "a matrix or array"

    shape = ()
    keeps_values = True


Encoding = (
    ArrayEncoding
    | TextEncoding
    | TableEncoding
    | SeriesEncoding
    | ImageEncoding
    | InputsEncoding
    | BatchesEncoding
)


# Recipes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """The encoding of features and labels.

    Args:
        features: The encoding of the features.
        label: Rule of the labels, or None.
        formula: R's formula as text, "" without one.
        na: The policy for missing values: "error", "impute" or "drop".
        mixed: Whether training used mixup, so that classes are one-hot columns.
        mapped: Whether the user's `map` function, which no recipe holds, transforms the rows.
    """

    features: Encoding
    label: LabelRule | None = None
    formula: str = ""
    na: str = "error"
    mixed: bool = False
    mapped: bool = False

    @property
    def shape(self) -> Shape:
        """Shape of one row of features as the model takes it."""
        return self.features.shape

    @property
    def parts(self) -> tuple[Part, ...]:
        """The inputs in a row; none if the model has a single input, which takes the row."""
        return self.features.parts

    @property
    def image(self) -> Encoding:
        """The encoding of the input of image files, or of the rows themselves."""
        images = self.features.images
        return self.features if images is None else images.encoding

    @property
    def keeps_values(self) -> bool:
        """Whether values reach the model unchanged."""
        return self.features.keeps_values and not self.mapped

    def with_row_shape(self, shape: Shape) -> Recipe:
        """Returns the recipe for rows of another shape; the same unless an array's values stay."""
        if not isinstance(self.features, ArrayEncoding) or not self.keeps_values:
            return self
        return replace(self, features=replace(self.features, row_shape=tuple(shape)))

    @property
    def mixes_classes(self) -> bool:
        """Whether the model takes classes as one-hot columns, because training uses mixup."""
        return self.mixed and self.label is not None and self.label.kind == "class"

    @property
    def target(self) -> LabelRule | None:
        """Rule of the labels as the model takes them."""
        if self.label is None or not self.mixes_classes:
            return self.label
        return MatrixLabel((self.label.units,), self.label.levels)


# Checks of new rows ------------------------------------------------------------------------------


EncodingType = TypeVar("EncodingType", bound=BaseEncoding)
RowType = TypeVar("RowType", bound=RowEncoding)
IMAGE_TABLE = "a data frame with a column of images"


def without_absent(recipe: Recipe) -> Recipe:
    """Returns a recipe that knows of no level as absent, and of no number as constant."""
    label = recipe.label
    if isinstance(label, ClassLabel):
        label = replace(label, absent=())
    return replace(recipe, features=_without_absent(recipe.features), label=label)


def _without_absent(encoding: Encoding) -> Encoding:
    match encoding:
        case InputsEncoding():
            parts = (
                replace(each, encoding=_without_absent(each.encoding)) for each in encoding.inputs
            )
            return replace(encoding, inputs=tuple(parts))
        case ColumnsEncoding():
            return replace(encoding, columns=tuple(map(_without_gaps, encoding.columns)))
    return encoding


def _without_gaps(rule: ColumnRule) -> ColumnRule:
    if isinstance(rule, CategoryRule):
        return replace(rule, absent=())
    return replace(rule, constant=None) if isinstance(rule, ScaledRule) else rule


def check_kind(
    encoding: Encoding, kind: type[EncodingType], arg: str, shape: Shape | None = None
) -> EncodingType:
    """Checks that features have the kind of the training rows.

    Args:
        encoding: The learned encoding.
        kind: The type of encoding that the features take.
        arg: The user's name for the features, for messages.
        shape: Shape of one row of the features, if it is known.

    Returns:
        The encoding, as one of `kind`.

    Raises:
        DataError: if it is of another kind.
    """
    if isinstance(encoding, kind):
        return encoding
    expected = IMAGE_TABLE if encoding.images is not None else encoding.noun
    numbers = any(issubclass(each, TextEncoding) for each in (type(encoding), kind))
    expected, found = (
        "numbers" if numbers and noun == ArrayEncoding.noun else noun
        for noun in (expected, kind.noun.replace("named ", ""))
    )
    column = isinstance(encoding, TableEncoding) and shape == (1,)
    hint = 'One column stays a data frame by data[, "column", drop = FALSE].' if column else ""
    raise DataError(f"`{arg}` must be {expected}, as in training, not {found}.", hint=hint, arg=arg)


def check_form(
    encoding: Encoding, kind: type[RowType], shape: Shape, arg: str, rows: int | None = None
) -> RowType:
    """Checks that features have the kind and the row shape of the training rows.

    Args:
        encoding: The learned encoding.
        kind: The type of encoding that the features take.
        shape: Shape of one row of the features.
        arg: The user's name for the features, for messages.
        rows: Rows of an array in memory, of which R may have dropped dimensions.

    Returns:
        The encoding, as one of `kind`.

    Raises:
        DataError: if either differs.
    """
    found = check_kind(encoding, kind, arg, shape)
    if tuple(shape) != found.row_shape:
        raise DataError(
            f"Each row of `{arg}` must have shape {found.row_shape}, not {tuple(shape)}.",
            hint=_explain_dropped(found.row_shape, tuple(shape), rows),
            arg=arg,
        )
    return found


def _explain_dropped(expected: tuple[int, ...], found: tuple[int, ...], rows: int | None) -> str:
    """Says how R keeps dimensions of 1, if an array has lost some."""
    size = math.prod(expected)
    if rows is None or size not in (math.prod(found), rows * math.prod(found)):
        return ""
    commas = ", " * len(expected)
    is_one_row = size == rows * math.prod(found)
    if not is_one_row and len(found) >= len(expected):
        return ""
    what, which = (
        ("One row stays an array", "1") if is_one_row else ("Rows keep their shape", "rows")
    )
    return f"{what} by x[{which}, {commas}drop = FALSE]."


def check_array(encoding: Encoding, shape: Shape, arg: str) -> ArrayEncoding:
    """Checks that rows of a file, pipeline or sparse matrix have the form of the training rows.

    Raises:
        DataError: if they do not, or training marked missing values.
    """
    if isinstance(encoding, ArrayEncoding) and encoding.marked:
        raise DataError(
            f"`{arg}` must be a matrix or array: training imputed missing values and marked them.",
            arg=arg,
        )
    return check_form(encoding, ArrayEncoding, shape, arg)


def check_columns(encoding: ColumnsEncoding, names: Collection[str], arg: str) -> None:
    """Checks that all columns of an encoding are present.

    Args:
        encoding: The learned encoding.
        names: Names of the columns given.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if a column is missing; names it.
    """
    known = set(names)
    missing = [rule.name for rule in encoding.columns if rule.name not in known]
    if missing:
        raise lacking_column(missing[0], arg)


def lacking_column(name: str, arg: str) -> DataError:
    """Returns the error of data that lack a column of the training rows."""
    message = f"`{arg}` lacks the column `{name}` that the model was trained on."
    return DataError(message, arg=arg, column=name)


def check_names(names: Sequence[str], arg: str) -> None:
    """Raises DataError if two columns share a name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"`{arg}` has more than one column `{repeated[0]}`.",
            hint="Give the columns different names.",
            arg=arg,
            column=repeated[0],
        )
