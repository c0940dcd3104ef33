"""Opens features of all kinds; those that are in memory, texts and several inputs live here.

    {image: array, table: columns} --encode()--> rows of float32: [image, flattened | table]

Rows of image files stay bytes, and are put beside the others block by block, see `input_rows`.
`unpacking` splits each row into one tensor per input, on the device.

    character matrix or columns --encode()--> rows of codes, and the strings they stand for

A row stays one row of numbers, so that all data movement handles a single array. `unpacking`
replaces the codes by the strings in host memory, the only place where TensorFlow stores strings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import (
    ALL_ROWS,
    EXACT_FLOAT32,
    EncodeOptions,
    check_features,
    check_lengths,
    column_fault,
    order_columns,
    row_blocks,
)
from gpukeras.data.reader.image.files import list_column
from gpukeras.data.reader.image.source import ImageFeatures
from gpukeras.data.reader.npy import DiskRows, keep_rows, open_npy_anywhere, read_npy_labels
from gpukeras.data.reader.rows import (
    FeatureRequest,
    Features,
    InputRows,
    MemoryRows,
    Rows,
    RowSource,
)
from gpukeras.data.reader.sparse import open_sparse
from gpukeras.data.reader.windows import WindowFeatures
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import count_rows, learn_array, learn_columns, transform
from gpukeras.data.recipe.imputation import count_missing
from gpukeras.data.recipe.multi_output import check_part_names
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    Input,
    InputsEncoding,
    TextEncoding,
    check_form,
    check_kind,
    check_names,
    lacking_column,
)
from gpukeras.data.recipe.targets import MASKS, SEVERAL
from gpukeras.data.recipe.text_vectorization import TextSpec

# Several inputs -----------------------------------------------------------------------------------

INSIDE = (
    "array",
    "columns",
    "sparse",
    "npy",
    "stored",
    "strings",
)  # kinds of features that an input may have, beside a column of images


class InputsFeatures(Features):
    """Several inputs of one model.

    Args:
        asked: With features `{kind: "inputs", inputs: [{name, features, scale}], listed}`: per
            input, its features in the format of `reader` and whether to standardise its numbers
            (default: as in `spec`; images are scaled to 0 to 1); `listed` is true if the inputs had
            no names and are called "input_1", "input_2" and so on.

    Raises:
        DataError: for inputs without names, or of a kind that cannot be combined.
    """

    def __init__(self, asked: FeatureRequest) -> None:
        """Opens each input."""
        self.arg, encoding, inputs = asked.arg, asked.encoding, asked.features["inputs"]
        check_part_names([part["name"] for part in inputs], asked.arg)
        own = {} if encoding is None else {part.name: part.encoding for part in encoding.inputs}
        self.inputs = {}
        for part in inputs:
            name, arg = part["name"], f"{asked.arg}${part['name']}"
            checked = _check_kind(part["features"], arg)
            self.inputs[name] = open_features(checked, arg, asked.spec, own.get(name))
        self._listed = bool(asked.features.get("listed"))
        self._scales = {part["name"]: part.get("scale") for part in inputs}
        self._columns = {part["name"]: _column_names(part["features"]) for part in inputs}
        self.refuses = next((each.refuses for each in self.inputs.values() if each.refuses), "")

    @property
    def rows(self) -> int:
        """Number of rows, the same for each input.

        Raises:
            DataError: if the numbers differ; names the input.
        """
        first, *others = self.inputs.values()
        rows = first.rows
        for each in others:
            check_lengths(rows, each.rows, each.arg, first.arg)
        return rows

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of a row with all inputs, or None if only an encoding defines it."""
        shapes = [each.row_shape for each in self.inputs.values()]
        if any(shape is None for shape in shapes):
            return None
        return (sum(math.prod(shape) for shape in shapes if shape is not None),)

    def plain_encoding(self) -> Encoding:
        """Returns an encoding that uses the numbers of arrays unchanged."""
        return self._join({name: each.plain_encoding() for name, each in self.inputs.items()})

    def check_policy(self, na: str) -> None:
        """Checks that each input supports a policy for missing values."""
        for each in self.inputs.values():
            each.check_policy(na)

    def learn(self, how: Learning) -> InputsEncoding:
        """Learns the encoding, one per input; see `Features.learn()`.

        Raises:
            SpecError: if `encode` names a column that no input has.
        """
        self._check_encode(how.spec)
        return self._join(
            {
                name: each.learn(replace(how, spec=self._spec_of(name, how.spec)))
                for name, each in self.inputs.items()
            }
        )

    def remarks(self, encoding: Encoding, spec: DatasetSpec) -> tuple[str, ...]:
        """Returns sentences about surprising properties of each input's encoding."""
        each = (self.inputs[part.name].remarks(part.encoding, spec) for part in encoding.inputs)
        return tuple(sentence for part in each for sentence in part)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the rows, all inputs side by side; see `Features.encode()`.

        Raises:
            DataError: if the inputs differ from those in training, or as each input's `encode()`
                raises.
        """
        encoding = self._check_inputs(encoding)
        if encoding.images is not None:
            encoded = ((part.encoding, self.inputs[part.name]) for part in encoding.inputs)
            return InputRows([each.encode(own, how) for own, each in encoded])
        rows = how.count(self.rows)
        packed = aligned_empty((rows, *encoding.shape))
        texts: dict[str, Sequence[str]] = {}
        for part, own in zip(encoding.inputs, encoding.parts, strict=True):
            source = self.inputs[part.name].encode(part.encoding, how)
            for block in row_blocks(rows, source.row_bytes):
                packed[block, own.columns] = source.gather(block).reshape(-1, math.prod(own.shape))
            texts.update((part.name, strings) for strings in source.texts.values())
        made = MemoryRows(packed)
        made.texts = texts
        return made

    def images(self, complete: np.ndarray | None = None) -> tuple[Any, Any] | None:
        """Returns the image files of the rows to use and the form of their rows, or None."""
        sources = (each.images(complete) for each in self.inputs.values())
        return next((images for images in sources if images is not None), None)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of rows without a missing feature, and the incomplete rows per input."""
        complete = self._each_complete(known)
        counts = {f"`{self.arg}${name}`": int((~each).sum()) for name, each in complete.items()}
        return np.logical_and.reduce([*complete.values()]), counts

    def _each_complete(self, known: Collection[str] | None) -> dict[str, np.ndarray]:
        complete = {}
        for name, each in self.inputs.items():
            prefix = f"{name}$"
            own = known and [column[len(prefix) :] for column in known if column.startswith(prefix)]
            complete[name] = each.find_complete(own)
        return complete

    def _spec_of(self, name: str, spec: DatasetSpec) -> DatasetSpec:
        """Returns the options for one input: its scaling, and the encodings of its columns."""
        scale = self._scales[name]
        encode = spec.encode
        if not isinstance(encode, str):
            encode = {column: encode[column] for column in encode if column in self._columns[name]}
        return replace(spec, scale=spec.scale if scale is None else scale, encode=encode)

    def _check_encode(self, spec: DatasetSpec) -> None:
        known = {column for columns in self._columns.values() for column in columns}
        for column in () if isinstance(spec.encode, str) else spec.encode:
            if column not in known:
                raise SpecError(
                    f"`encode` names `{column}`, which is no column of `{self.arg}`.",
                    arg="encode",
                    column=column,
                )

    def _join(self, encodings: Mapping[str, Encoding]) -> InputsEncoding:
        inputs = tuple(map(Input, encodings, encodings.values()))
        return InputsEncoding(inputs, listed=self._listed)

    def _check_inputs(self, encoding: Encoding) -> InputsEncoding:
        checked = check_kind(encoding, InputsEncoding, self.arg)
        expected = [part.name for part in checked.inputs]
        if set(expected) != set(self.inputs):
            raise DataError(
                f"`{self.arg}` must have the inputs {', '.join(expected)}, as in training, "
                f"not {', '.join(self.inputs)}.",
                arg=self.arg,
            )
        return checked


def _check_kind(features: Mapping[str, Any], arg: str) -> Mapping[str, Any]:
    column = features["kind"] == "images" and features.get("column")
    if features["kind"] not in INSIDE and not column:
        raise DataError(
            f"`{arg}` cannot be one of several inputs: it is not rows in memory.",
            hint="Inputs are matrices, arrays, data frames, sparse matrices and .npy files.",
            arg=arg,
        )
    return features


def _column_names(features: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(column["name"] for column in features.get("columns") or ())


# Strings as they are ------------------------------------------------------------------------------

NUMBERS = ("numeric", "integer", "logical")
TEXTS = ("character", "factor")


class StringFeatures(Features):
    """Strings in memory: `{kind: "strings", values, levels, names}` with R's codes as `values`."""

    refuses = "text"

    def __init__(self, asked: FeatureRequest) -> None:
        """Stores the features."""
        require_feature("texts")
        self.features, self.arg = asked.features, asked.arg

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.features["values"])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Number of strings per row."""
        return tuple(np.shape(self.features["values"])[1:])

    def learn(self, how: Learning) -> TextEncoding:
        """Returns the encoding; there is nothing to learn."""
        return TextEncoding(self.row_shape, names=tuple(self.features.get("names") or ()))

    def plain_encoding(self) -> TextEncoding:
        """Returns an encoding that passes texts on."""
        return TextEncoding(self.row_shape)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns an all-true mask: missing strings are an error, see `encode()`."""
        return np.ones(self.rows, dtype=bool), {}

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> MemoryRows:
        """Returns rows of codes, with the strings that they stand for.

        Raises:
            DataError: if the row shape differs from training, strings are missing, or there are too
                many distinct strings.
        """
        check_form(encoding, TextEncoding, self.row_shape, self.arg)
        codes, levels = np.asarray(self.features["values"]), list(self.features["levels"])
        missing = int((codes < 1).any(axis=1).sum())
        if missing:
            rows = count_of(missing, "row")
            raise DataError(f"`{self.arg}` has missing texts in {rows}.", arg=self.arg)
        if len(levels) >= EXACT_FLOAT32:
            raise DataError(
                f"`{self.arg}` has {len(levels):,} different texts, more than {EXACT_FLOAT32:,}.",
                hint="Give them as a tf.data pipeline.",
                arg=self.arg,
            )
        kept = MemoryRows(aligned_copy(codes))
        kept.texts = {"": ["", *levels]}
        return kept


def _open_kept(asked: FeatureRequest) -> StringFeatures | InputsFeatures:
    """Opens unencoded columns: one input if all are strings, else one input per column.

    Raises:
        DataError: for a column that is missing, or holds neither strings nor numbers.
    """
    arg, encoding, columns = asked.arg, asked.encoding, asked.features["columns"]
    check_names([column["name"] for column in columns], arg)
    columns = _choose(columns, arg, encoding)
    single = isinstance(encoding, TextEncoding)
    if single or (encoding is None and all(c["kind"] in TEXTS for c in columns)):
        return StringFeatures(replace(asked, features=_join_texts(columns, arg)))
    inputs = [
        {"name": column["name"], "features": _as_input(column, arg), "scale": False}
        for column in columns
    ]
    return InputsFeatures(FeatureRequest({"inputs": inputs}, arg, encoding=encoding))


def _choose(
    columns: Sequence[Mapping[str, Any]], arg: str, encoding: Encoding | None
) -> Sequence[Mapping[str, Any]]:
    """Selects the columns of an encoding, in its order."""
    names = () if encoding is None else encoding.names or [part.name for part in encoding.parts]
    by_name = {column["name"]: column for column in columns}
    for name in names:
        if name not in by_name:
            raise lacking_column(name, arg)
    return [by_name[name] for name in names] or columns


def _as_input(column: Mapping[str, Any], arg: str) -> dict[str, Any]:
    if column["kind"] in TEXTS:
        return _join_texts([column], f"{arg}${column['name']}")
    if column["kind"] not in NUMBERS:
        raise _refuse(column, arg, "numbers or texts")
    return {"kind": "array", "values": np.asarray(column["values"]).reshape(-1, 1), "names": []}


def _join_texts(columns: Sequence[Mapping[str, Any]], arg: str) -> dict[str, Any]:
    """Joins string columns side by side, with shared levels."""
    levels: dict[str, int] = {}
    parts = []
    for column in columns:
        if column["kind"] not in TEXTS:
            raise _refuse(column, arg, "texts, as in training")
        own = [levels.setdefault(level, len(levels) + 1) for level in column["levels"]]
        codes = np.asarray(column["values"]).reshape(-1).astype(np.int64)
        parts.append(np.array([0, *own])[codes])
    names = [column["name"] for column in columns]
    values = np.stack(parts, axis=1)
    return {"kind": "strings", "values": values, "levels": list(levels), "names": names}


def _refuse(column: Mapping[str, Any], arg: str, expected: str) -> DataError:
    problem = f"must hold {expected}, not {column['kind']}."
    hint = 'With `encode = "none"` columns are given to the model as they are.'
    return column_fault(column["name"], arg, problem, hint)


# Opening ------------------------------------------------------------------------------------------

Given = Mapping[str, Any]


@dataclass(frozen=True)
class InMemory(Features):
    """Features that R holds in memory.

    Args:
        features: The features as R passes them.
        arg: Name of the user's argument, for error messages.
        text: Which columns are text, and how they are encoded.
    """

    features: Given
    arg: str
    text: TextSpec | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return count_rows(self.features, self.arg)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of complete rows, and the number of rows that lack each column."""
        return count_missing(self.features, self.rows, known, self.arg)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the staged rows."""
        return MemoryRows(transform(encoding, self.features, self.arg, how))


class ArrayFeatures(InMemory):
    """A matrix or array in memory."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; a vector becomes one column."""
        return check_features(self.features["values"], self.arg).shape[1:]

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding of the array."""
        x = check_features(self.features["values"], self.arg)
        return learn_array(x, self.features.get("names") or (), replace(how, arg=self.arg))

    def order_as(self, encoding: Encoding) -> Features:
        """Returns the same rows with columns in the encoding's order, if columns have names."""
        return replace(self, features=order_columns(self.features, encoding.names, self.arg))

    def encode_later(self, encoding: Encoding) -> RowSource:
        """Returns a view of R's rows that encodes them as they are gathered."""
        return GivenRows(encoding, self.features, self.arg)


class GivenRows(RowSource):
    """Rows of an array, encoded on access and never staged.

    Args:
        encoding: The encoding to apply.
        features: The array, as R passes it.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the row shape differs from training.
    """

    def __init__(self, encoding: Encoding, features: Given, arg: str) -> None:
        """Checks the shape; encodes no rows."""
        self._x = check_features(features["values"], arg)
        encoding = check_form(encoding, ArrayEncoding, self._x.shape[1:], arg, len(self._x))
        super().__init__((len(self._x), *encoding.staged_shape))
        self._encoding, self._arg = encoding, arg

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows, encoded."""
        try:
            return self._encode(self._x[rows])
        except DataError:
            self._encode(self._x)  # raises the error with the counts over all rows
            raise

    def _encode(self, x: np.ndarray) -> np.ndarray:
        return transform(self._encoding, {"kind": "array", "values": x}, self._arg)


class ColumnFeatures(InMemory):
    """The columns of a data frame."""

    row_shape = None

    def texts(self) -> Collection[str]:
        """Names of the text columns."""
        columns = self.features["columns"]
        return [column["name"] for column in columns if column["kind"] == "character"]

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding of the columns."""
        how = replace(how, arg=self.arg, text=self.text)
        return learn_columns(self.features["columns"], how)


def open_features(
    features: Given,
    arg: str,
    spec: DatasetSpec | None = None,
    encoding: Encoding | None = None,
    text: Given | None = None,
) -> Features:
    """Opens features in the form that R passes them.

    Args:
        features: `{kind: "array", values, names}`, `{kind: "columns", columns}`,
            `{kind: "npy", path}`, `{kind: "sparse", dim, p, i, x, names}`, or of kind "table" (see
            `table.source`), "images" (`image.source`), "records"
            (`tfrecord.source`), "inputs" (`multi_input`) or "windows" (`windows`).
        arg: Name of the user's argument, for error messages.
        spec: The dataset options for reading files.
        encoding: The learned encoding, if it is known.
        text: Which columns are text, and how they are encoded.
    """
    how = TextSpec.from_dict(text) if isinstance(text, Mapping) else text
    asked = FeatureRequest(features, arg, spec or DatasetSpec(), encoding, how)
    opened = OPENERS[features["kind"]](asked)
    return opened if encoding is None else opened.order_as(encoding)


def _open_table(asked: FeatureRequest) -> Features:
    # Imports pyarrow, which takes 0.3 s.
    from gpukeras.data.reader.table.features import TableFeatures

    return TableFeatures(asked)


def _open_records(asked: FeatureRequest) -> Features:
    from gpukeras.data.reader.tfrecord.source import open_records  # imports pyarrow, for scalars

    return open_records(asked)


def _open_columns(asked: FeatureRequest) -> Features:
    """Opens a data frame's columns, which may reach the model unencoded, strings as strings."""
    unencoded = asked.spec.encode == "none"
    if asked.encoding is not None:
        unencoded = isinstance(asked.encoding, (TextEncoding, InputsEncoding))
    if unencoded:
        return _open_kept(asked)
    return ColumnFeatures(asked.features, asked.arg, asked.text)


OPENERS: dict[str, Callable[[FeatureRequest], Features]] = {
    "array": lambda asked: ArrayFeatures(asked.features, asked.arg),
    "columns": _open_columns,
    "strings": StringFeatures,
    "npy": lambda asked: open_npy_anywhere(asked.features["path"], asked.arg),
    "sparse": lambda asked: open_sparse(asked.features, asked.arg),
    "table": _open_table,
    "records": _open_records,
    "images": ImageFeatures,
    "inputs": InputsFeatures,
    "windows": WindowFeatures,
}


def open_labels(labels: Given | None) -> Given | None:
    """Returns labels in the form of `multi_output.learn_labels()`; reads those in files.

    Masks are only listed: `masks.read_masks()` reads them with the size of their images.
    """
    if not labels or labels["kind"] not in ("npy", MASKS, SEVERAL):
        return labels
    if labels["kind"] == MASKS:
        return {**labels, "values": list_column(labels["values"], labels["arg"], labels["arg"])}
    if labels["kind"] == "npy":
        return read_npy_labels(open_npy_anywhere(labels["path"], "y"))
    outputs = [{**part, "labels": open_labels(part["labels"])} for part in labels["outputs"]]
    return {**labels, "outputs": outputs}


def place_rows(source: RowSource, cache: str, arg: str) -> RowSource:
    """Moves rows to the requested storage: to memory or to a scratch file.

    Rows that are already there, or have no requested storage, stay as they are.

    Args:
        source: The rows.
        cache: The option `cache` of the dataset.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if they do not fit.
    """
    kept = isinstance(source, DiskRows)
    if cache == "disk" and not kept:
        return _keep_rows(source, "disk", arg)
    if cache in ("host", "device") and source.streamed and not kept:
        return _keep_rows(source, "memory", arg)
    return source


def _keep_rows(source: RowSource, keep: str, arg: str) -> RowSource:
    kept = keep_rows(
        source.blocks(), source.shape[1:], source.dtype, keep=keep, arg=arg, rows=len(source)
    )
    kept.texts = source.texts
    return kept
