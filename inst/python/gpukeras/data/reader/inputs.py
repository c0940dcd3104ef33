"""Several inputs given as a list: each has its own encoding, and encoded rows lie side by side.

    {image: array, table: columns} --encode()--> rows of float32: [image, flattened | table]

Rows of image files stay bytes, and are put beside the others block by block, see `input_rows`.
`unpacking` splits each row into one tensor per input, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import Notes, check_lengths, row_blocks
from gpukeras.data.reader.rows import Features, InputRows, MemoryRows, RowSource
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.multi_output import check_part_names
from gpukeras.data.recipe.recipe import Encoding, Input, InputsEncoding, check_kind

Opener = Callable[..., Features]
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
        features: `{kind: "inputs", inputs: [{name, features, scale}], listed}`: per input, its
            features in the format of `reader` and whether to standardise its numbers (default: as
            in `spec`; images are scaled to 0 to 1); `listed` is true if the inputs had no names and
            are called "input_1", "input_2" and so on.
        arg: Name of the user's argument, for error messages.
        open_part: Opens the features of one input: `registry.open_features()`.
        spec: The dataset options for reading.
        encoding: The learned encoding, or None.

    Raises:
        DataError: for inputs without names, or of a kind that cannot be combined.
    """

    def __init__(
        self,
        features: Mapping[str, Any],
        arg: str,
        open_part: Opener,
        spec: DatasetSpec | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        """Opens each input."""
        self.arg, inputs = arg, features["inputs"]
        check_part_names([part["name"] for part in inputs], arg)
        own = {} if encoding is None else {part.name: part.encoding for part in encoding.inputs}
        self.inputs = {
            part["name"]: open_part(
                _check_kind(part["features"], f"{arg}${part['name']}"),
                f"{arg}${part['name']}",
                spec,
                own.get(part["name"]),
            )
            for part in inputs
        }
        self._listed = bool(features.get("listed"))
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

    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> RowSource:
        """Returns the rows, all inputs side by side; see `Features.encode()`.

        Raises:
            DataError: if the inputs differ from those in training, or as each input's `encode()`
                raises.
        """
        encoding = self._check_inputs(encoding)
        if encoding.images is not None:
            encoded = ((part.encoding, self.inputs[part.name]) for part in encoding.inputs)
            return InputRows([each.encode(own, complete, notes) for own, each in encoded])
        rows = self.rows if complete is None else int(complete.sum())
        packed, start = aligned_empty((rows, *encoding.shape)), 0
        texts: dict[str, Sequence[str]] = {}
        for part in encoding.inputs:
            source = self.inputs[part.name].encode(part.encoding, complete, notes)
            stop = start + math.prod(part.encoding.shape)
            for block in row_blocks(rows, source.row_bytes):
                packed[block, start:stop] = source.gather(block).reshape(-1, stop - start)
            texts.update((part.name, own) for own in source.texts.values())
            start = stop
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
