"""Several inputs of one model, as one row of numbers.

    {image: array, table: columns} --encode()--> rows of float32: [image, flattened | table]

Rows of image files stay bytes, and are put beside the others block by block. On the device
`transforms.build_unpack()` splits each row into one tensor per input.

Columns of a data frame that reach the model as they are become inputs too, one for each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import (
    ALL_ROWS,
    EncodeOptions,
    check_lengths,
    column_fault,
    row_blocks,
    side_by_side,
)
from gpukeras.data.reader.rows import (
    FeatureRequest,
    Features,
    Gatherer,
    MemoryRows,
    Rows,
    RowSource,
    row_numbers,
)
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.multi_output import check_part_names
from gpukeras.data.recipe.recipe import (
    Encoding,
    Input,
    InputsEncoding,
    TextEncoding,
    check_kind,
    check_names,
    lacking_column,
)
from gpukeras.data.recipe.targets import CATEGORIES
from gpukeras.data.recipe.windows import NUMBERS

# Kinds of features that an input may have, beside a column of images.
INSIDE = ("array", "columns", "sparse", "npy", "strings")


def each_input(asked: FeatureRequest) -> Iterator[tuple[str, FeatureRequest]]:
    """Yields the name of each input, and how its features are asked for.

    Raises:
        DataError: for inputs without names, or of a kind that cannot be combined.
    """
    inputs = asked.features["inputs"]
    check_part_names([part["name"] for part in inputs], asked.arg)
    known = () if asked.encoding is None else asked.encoding.inputs
    encodings = {part.name: part.encoding for part in known}
    for part in inputs:
        name = part["name"]
        arg = f"{asked.arg}${name}"
        _check_kind(part["features"], arg)
        yield name, FeatureRequest(part["features"], arg, asked.spec, encodings.get(name))


def _check_kind(features: Mapping[str, Any], arg: str) -> None:
    column = features["kind"] == "images" and features.get("column")
    if features["kind"] not in INSIDE and not column:
        raise DataError(
            f"`{arg}` cannot be one of several inputs: it is not rows in memory.",
            hint="Inputs are matrices, arrays, data frames, sparse matrices and .npy files.",
            arg=arg,
        )


class InputsFeatures(Features):
    """Several inputs of one model.

    Args:
        asked: With features `{kind: "inputs", inputs: [{name, features, scale}], listed}`: per
            input, its features in the format of `reader` and whether to standardise its numbers
            (default: as in `spec`; images are scaled to 0 to 1); `listed` is true if the inputs had
            no names and are called "input_1", "input_2" and so on.
        inputs: Each input by its name, opened; see `each_input()`.
    """

    def __init__(self, asked: FeatureRequest, inputs: Mapping[str, Features]) -> None:
        """Stores the inputs."""
        self.arg = asked.arg
        self.inputs = inputs
        parts = asked.features["inputs"]
        self._listed = bool(asked.features.get("listed"))
        self._scales = {part["name"]: part.get("scale") for part in parts}
        self._columns = {part["name"]: _column_names(part["features"]) for part in parts}
        self.refuses = next((each.refuses for each in inputs.values() if each.refuses), "")

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
        checked = self._check_inputs(encoding)
        texts: dict[str, Sequence[str]] = {}

        def encode_each() -> Iterator[RowSource]:
            for part in checked.inputs:
                source = self.inputs[part.name].encode(part.encoding, how)
                texts.update((part.name, strings) for strings in source.texts.values())
                yield source

        if checked.images is not None:
            made: RowSource = InputRows([*encode_each()])
        else:
            made = MemoryRows(_pack(checked, encode_each(), how.count(self.rows)))
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


def _pack(encoding: InputsEncoding, sources: Iterable[RowSource], rows: int) -> np.ndarray:
    """Returns the rows of all inputs side by side; each is encoded when those before are packed."""
    packed = aligned_empty((rows, *encoding.shape))
    for own, source in zip(encoding.parts, sources, strict=True):
        for block in row_blocks(rows, source.row_bytes):
            packed[block, own.columns] = source.gather(block).reshape(-1, math.prod(own.shape))
    return packed


def _column_names(features: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(column["name"] for column in features.get("columns") or ())


class InputRows(RowSource):
    """Rows of several inputs, flattened side by side as float32 when they are gathered.

    Images keep their bytes in storage, a quarter of float32's memory.

    Args:
        parts: The rows of each input.
    """

    def __init__(self, parts: Sequence[RowSource]) -> None:
        """Gathers nothing."""
        self._parts = tuple(parts)
        self._widths = [int(np.prod(part.shape[1:])) for part in parts]
        streamed = "; ".join(part.streamed for part in parts if part.streamed)
        super().__init__((len(parts[0]), sum(self._widths)), np.float32, streamed)
        self.movable = all(part.movable for part in parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all rows as a device would hold them."""
        return sum(part.stored_bytes for part in self._parts)

    @property
    def resident_bytes(self) -> int:
        """Host memory of the inputs' rows in bytes."""
        return sum(part.resident_bytes for part in self._parts)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in host memory."""
        numbers = row_numbers(rows, len(self))
        packed = aligned_empty((len(numbers), self.shape[1]))
        for part, place in zip(self._parts, side_by_side(self._widths), strict=True):
            packed[:, place] = part.gather(numbers).reshape(len(numbers), -1)
        return packed

    def gatherer(self, place: str) -> Gatherer:
        """Returns a function that gathers rows as tensors; on a device, from the stored bytes."""
        if place == "CPU:0":
            return super().gatherer(place)
        ops, gatherers = runtime.keras().ops, [part.gatherer(place) for part in self._parts]

        def gather(rows: np.ndarray) -> Any:
            parts = [take(rows) for take in gatherers]
            flat = [
                ops.reshape(ops.cast(part, "float32"), (-1, width))
                for part, width in zip(parts, self._widths, strict=True)
            ]
            return ops.concatenate(flat, axis=1)

        return gather


# Columns as they are ------------------------------------------------------------------------------


def split_columns(asked: FeatureRequest) -> FeatureRequest:
    """Returns columns that stay unencoded as one input if all are strings, else as one for each.

    Raises:
        DataError: for a column that is missing, or holds neither strings nor numbers.
    """
    arg = asked.arg
    encoding = asked.encoding
    check_names([column["name"] for column in asked.features["columns"]], arg)
    columns = _choose(asked.features["columns"], arg, encoding)
    single = isinstance(encoding, TextEncoding)
    if single or (encoding is None and all(each["kind"] in CATEGORIES for each in columns)):
        return replace(asked, features=_join_texts(columns, arg))
    inputs = [
        {"name": column["name"], "features": _as_input(column, arg), "scale": False}
        for column in columns
    ]
    return FeatureRequest({"kind": "inputs", "inputs": inputs}, arg, encoding=encoding)


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
    if column["kind"] in CATEGORIES:
        return _join_texts([column], f"{arg}${column['name']}")
    if column["kind"] not in NUMBERS:
        raise _refuse(column, arg, "numbers or texts")
    return {"kind": "array", "values": np.asarray(column["values"]).reshape(-1, 1), "names": []}


def _join_texts(columns: Sequence[Mapping[str, Any]], arg: str) -> dict[str, Any]:
    """Joins string columns side by side, with shared levels."""
    levels: dict[str, int] = {}
    parts = []
    for column in columns:
        if column["kind"] not in CATEGORIES:
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
