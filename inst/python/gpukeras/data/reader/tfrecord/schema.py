"""Reads, describes and parses the records of foreign TFRecord files.

    describe --Description--> parse_example of whole batches --> RecordTable | RecordArray

Scalars become the columns of a table (see `tables`), one feature with a fixed shape becomes an
array, one encoded image becomes an image.

In a TFRecord file each record is preceded by its length, and both have checksums. Records after a
wrong checksum, or after an incomplete record, cannot be found. A complete record that lacks a
feature does not affect the records after it.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import check_choice, check_counts, describe, refused_value
from gpukeras.data.files.files import Skipped, check_unchanged, file_error, path_error, read_stamp
from gpukeras.data.files.paths import FORMATS, check_file, check_local, find_files
from gpukeras.data.reader.image.decode import ImageForm, decode_content
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, ImageEncoding, TableEncoding

# Records ------------------------------------------------------------------------------------------

BATCH_BYTES = 4 * 2**20  # of records per parsed batch
MOST_RECORDS = 8192
SKIP = 'Write the file again, or use `on_error = "skip"`.'
GZIP = b"\x1f\x8b\x08"

Arrays = Mapping[str, np.ndarray]
Parse = Callable[[Any], Arrays]  # batch of serialized records to arrays; raises TensorFlow's errors
Explain = Callable[[str], str]  # TensorFlow's message about a record to plain words


class RecordFiles:
    """A list of TFRecord files.

    Args:
        paths: The paths in reading order.
        arg: Name of the user's argument, for error messages.
        on_error: "stop", or "skip": leave out a record that cannot be parsed, and the rest of a
            file from a broken record on; both are counted.

    Raises:
        DataError: for a file that does not exist, is not readable, or is empty.
    """

    def __init__(self, paths: tuple[Path, ...], arg: str, on_error: str = "stop") -> None:
        """Checks that the files exist."""
        require_feature("records")
        self.arg, self._skips = arg, on_error == "skip"
        self._missing = Skipped()
        self.paths = tuple(path for path in paths if self._is_there(path))
        if not self.paths:
            raise DataError(f"`{arg}`: {self._missing.first}", arg=arg)
        self._stamps = {path: read_stamp(path) for path in self.paths}
        self.skipped = replace(self._missing)

    def read_first(self) -> tuple[Path, bytes]:
        """Returns the path of the first record's file, and the record.

        Raises:
            DataError: if there is no record, or the first is damaged.
        """
        for path in self.paths:
            try:
                for record in self._open(path).take(1):
                    return path, record.numpy()
            except runtime.reader().errors.OpError as error:
                if not self._skips:
                    raise self._broken(path, 0, str(error)) from error
        raise DataError(f"`{self.arg}` has no records.", hint="Check the files.", arg=self.arg)

    def read(self, parse: Parse, explain: Explain, record_bytes: int) -> Iterator[Arrays]:
        """Yields all records in order, parsed, in batches.

        Args:
            parse: Function that parses a batch.
            explain: Function that translates TensorFlow's error about a record.
            record_bytes: Approximate size of a record in bytes.

        Raises:
            DataError: for a faulty record or file, unless `on_error` is "skip"; names the file and
                the record, counted from 1.
        """
        self.skipped = replace(self._missing)
        size = int(np.clip(BATCH_BYTES // max(1, record_bytes), 1, MOST_RECORDS))
        for path in self.paths:
            check_unchanged(path, self.arg, self._stamps[path])
            yield from self._read_file(path, parse, explain, size)
            check_unchanged(path, self.arg, self._stamps[path])

    def _read_file(self, path: Path, parse: Parse, explain: Explain, size: int) -> Iterator[Arrays]:
        done, records = 0, self._batches(path, size)
        while (batch := next(records, None)) is not None:
            yield from self._parse(path, batch, done, parse, explain)
            done += len(batch)
        if done == 0:
            self._leave(file_error(path, self.arg, "has no records.", SKIP), files=1)

    def _batches(self, path: Path, size: int) -> Iterator[Any]:
        """Yields batches of records up to the first broken record."""
        tf, packed = runtime.reader(), _is_packed(path)
        done = length = 0
        try:
            for batch in self._open(path).batch(size).prefetch(2):
                yield batch
                done += len(batch)
                if packed:
                    length += int(tf.reduce_sum(tf.strings.length(batch))) + 16 * len(batch)
        except tf.errors.OpError:
            rest, message = self._read_to_fault(path, done, size)
            if len(rest):
                yield rest
            self._leave(self._broken(path, done + len(rest), message), files=1)
            return
        # TensorFlow reports no error if a compressed file was cut between two records.
        if packed and not _is_whole(path, length):
            self._leave(self._broken(path, done, "truncated"), files=1)

    def _read_to_fault(self, path: Path, done: int, size: int) -> tuple[Any, str]:
        """Returns the complete records before the broken one, and TensorFlow's message."""
        tf, rest = runtime.reader(), []
        message = "the file changed while it was read"
        try:
            for record in self._open(path).skip(done).take(size):
                rest.append(record)
        except tf.errors.OpError as error:
            message = str(error)
        return tf.stack(rest) if rest else tf.zeros([0], tf.string), message

    def _parse(
        self, path: Path, batch: Any, done: int, parse: Parse, explain: Explain
    ) -> Iterator[Arrays]:
        errors = runtime.reader().errors
        try:
            yield parse(batch)
            return
        except errors.OpError:
            pass  # the error of a batch does not name the record
        for place in range(len(batch)):
            try:
                yield parse(batch[place : place + 1])
            except errors.OpError as error:
                number, problem = done + place + 1, explain(str(error))
                what = f"has a record that cannot be read, number {number:,}: {problem}."
                self._leave(file_error(path, self.arg, what, SKIP, record=number), rows=1)

    def _leave(self, error: DataError, rows: int = 0, files: int = 0) -> None:
        if not self._skips:
            raise error
        self.skipped.add(error.message, rows, files)

    def _is_there(self, path: Path) -> bool:
        try:
            check_file(path, self.arg)
        except DataError as error:
            if not self._skips:
                raise
            self._missing.add(error.message, files=1)
            return False
        return True

    def _open(self, path: Path) -> Any:
        tf = runtime.reader()
        with tf.device("/CPU:0"):
            return tf.data.TFRecordDataset(str(path), "GZIP" if _is_packed(path) else "")

    def _broken(self, path: Path, before: int, message: str) -> DataError:
        """Returns the error for a file that is broken after `before` records."""
        number = before + 1
        if "truncated" in message or "Read less bytes" in message:
            problem = f"ends within record {number:,}: it is cut short."
        elif "corrupted" in message and before == 0:
            problem = "is no TFRecord file, or its first record has a wrong checksum."
        elif "corrupted" in message:
            problem = f"has a wrong checksum in record {number:,}."
        else:
            problem = f"cannot be read from record {number:,} on."
        return file_error(path, self.arg, problem, SKIP, record=number)


def _is_packed(path: Path) -> bool:
    if path.suffix.lower() == ".gz":
        return True
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def _is_whole(path: Path, length: int) -> bool:
    """Whether a gzip file holds `length` bytes and a proper end.

    The last four bytes store the length. If they differ from `length`, as in a file of several gzip
    members, the file is decompressed again to count.
    """
    with path.open("rb") as file:
        file.seek(-4, 2)
        if int.from_bytes(file.read(4), "little") == length % 2**32:
            return True
    read = 0
    try:
        with gzip.open(path) as unpacked:
            while piece := unpacked.read(2**20):
                read += len(piece)
    except (OSError, EOFError, zlib.error):
        return False
    return read == length


# Schemas ------------------------------------------------------------------------------------------

DTYPES = ("float32", "int64", "string", "factor", "image", "uint8")
IMAGES = (b"\xff\xd8\xff", b"\x89PNG")  # first bytes of JPEG and PNG
FOUND = {"bytes_list": "string", "float_list": "float32", "int64_list": "int64"}


@dataclass(frozen=True)
class RecordField:
    """One feature of the records.

    Args:
        dtype: "float32", "int64", "string", "factor" (integers or strings that are classes),
            "image" (an encoded JPEG or PNG) or "uint8" (raw bytes).
        shape: Shape in one record; () is a scalar.
        stored: The type in the file if `dtype` does not define it: "int64" or "string".
    """

    dtype: str
    shape: tuple[int, ...] = ()
    stored: str = ""

    def __post_init__(self) -> None:
        """Checks the dtype, and that it may have this shape."""
        check_choice("description", self.dtype, DTYPES)
        if self.shape and self.dtype in ("string", "factor", "image"):
            raise SpecError(
                f"`description`: a {self.dtype} has no shape, one record holds one.",
                arg="description",
            )
        if self.dtype == "uint8" and not self.shape:
            raise SpecError(
                "`description`: raw bytes need their shape.",
                hint='Such as c("uint8", 28, 28, 1).',
                arg="description",
            )

    @property
    def is_array(self) -> bool:
        """Whether the field is an array or image, and not a scalar column."""
        return bool(self.shape) or self.dtype in ("image", "uint8")

    @property
    def text(self) -> str:
        """The dtype and shape, for error messages."""
        return " x ".join([self.dtype, *map(str, self.shape)])


@dataclass(frozen=True)
class Description:
    """The fields to read from the records.

    Args:
        fields: Fields by name: features, label and weights.
        label: Name of the label, or None.
        weights: Name of the weights, or None.
        inferred: Names of the fields that were inferred from the first record.
        record_bytes: Size of the first record in bytes.
    """

    fields: Mapping[str, RecordField]
    label: str | None
    weights: str | None
    inferred: tuple[str, ...]
    record_bytes: int

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of label and weights."""
        return tuple(name for name in (self.label, self.weights) if name)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(name for name in self.fields if name not in self.beside)

    @property
    def array(self) -> str | None:
        """Name of the feature that is an array, or None if all are scalars."""
        return next((name for name in self.features if self.fields[name].is_array), None)

    def note(self, file: str) -> str:
        """Returns a sentence about what was inferred, or ""."""
        if not self.inferred:
            return ""
        found = ", ".join(f"{name} ({self.fields[name].text})" for name in self.inferred)
        return f"Read from the first record of {file}, as `description` does not say it: {found}."


def open_files(features: Mapping[str, Any], arg: str, on_error: str) -> RecordFiles:
    """Opens the files of `features["paths"]`."""
    check_local(features["paths"], arg, "TFRecord files")
    # The format has no effect: only the paths are used.
    paths = find_files(features["paths"], arg, FORMATS[0]).paths
    return RecordFiles(tuple(map(Path, map(str, paths))), arg, on_error)


def read_description(
    features: Mapping[str, Any], files: RecordFiles, arg: str, encoding: Encoding | None = None
) -> tuple[Description, str]:
    """Returns the fields to read, and the name of the file whose first record was examined.

    Args:
        features: `{paths, description, label, weights}`; the last three may be missing.
        files: The files.
        arg: Name of the user's argument, for error messages.
        encoding: The learned encoding, if it is known; it replaces a description.

    Raises:
        SpecError: for an invalid description.
        DataError: if the first record lacks a feature, or holds one that cannot be read.
    """
    described = parse_description(features.get("description"))
    label, weights = features.get("label") or None, features.get("weights") or None
    path, record = files.read_first()
    kinds_found = _read_kinds(record, path, arg)
    described = described or _describe_by_encoding(kinds_found, encoding)
    requested = [*(described or kinds_found), label, weights]
    fields, inferred = {}, []
    for name in dict.fromkeys(name for name in requested if name):
        if name not in kinds_found:
            raise _lacking(name, list(kinds_found), path, arg)
        if name not in described:
            inferred.append(name)
        fields[name] = _complete(described.get(name), name, kinds_found[name], path, arg)
    description = Description(fields, label, weights, tuple(inferred), len(record))
    _check_features(description, arg)
    return description, path.name


def parse_description(value: Any) -> dict[str, RecordField]:
    """Parses a description as R passes it: by name a dtype, or a dtype and a shape.

    Raises:
        SpecError: for anything else.
    """
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(
            f"`description` must name each feature, not {describe(value)}.",
            hint='Such as list(age = "float32", pixels = c("float32", 28, 28)).',
            arg="description",
        )
    return {str(name): _parse_field(name, field) for name, field in value.items()}


def _parse_field(name: str, value: Any) -> RecordField:
    if isinstance(value, Mapping):
        value = [value.get("dtype"), *np.ravel(value.get("shape", ())).tolist()]
    parts = list(value) if isinstance(value, (list, tuple)) else [value]
    if not parts or not isinstance(parts[0], str):
        raise refused_value(f"description${name}", value, "a kind, or a kind and a shape")
    sizes = [float(part) if _is_number(part) else part for part in parts[1:]]
    return RecordField(parts[0], check_counts(f"description${name}", sizes) if sizes else ())


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and text.isdigit()  # R's c("float32", 28) is two strings


def _read_kinds(record: bytes, path: Path, arg: str) -> dict[str, tuple[str, int, bytes]]:
    """Returns the kind, the length, and the first value if bytes, of each feature of a record."""
    message = runtime.reader().train.Example()
    try:
        message.ParseFromString(record)
    except Exception as error:  # google.protobuf is not a direct dependency
        raise _foreign(path, arg) from error
    if not message.features.feature:
        raise _foreign(path, arg)
    kinds = {}
    for name, feature in sorted(message.features.feature.items()):
        kind = feature.WhichOneof("kind") or "float_list"
        values = getattr(feature, kind).value
        kinds[name] = kind, len(values), values[0] if kind == "bytes_list" and values else b""
    return kinds


def _describe_by_encoding(
    kinds: Mapping[str, tuple[str, int, bytes]], encoding: Encoding | None
) -> dict[str, RecordField]:
    """Returns the fields that an encoding uses, or none if they are ambiguous."""
    if isinstance(encoding, TableEncoding):
        rules = [rule for rule in encoding.columns if rule.name in kinds]
        return {
            rule.name: RecordField("factor" if rule.levels else FOUND[kinds[rule.name][0]])
            for rule in rules
        }
    fields: dict[str, RecordField] = {}
    for name, (kind, count, content) in kinds.items():
        if isinstance(encoding, ImageEncoding) and content.startswith(IMAGES):
            fields[name] = RecordField("image")
        if isinstance(encoding, ArrayEncoding) and _holds(encoding.row_shape, kind, count):
            fields[name] = RecordField(FOUND[kind], encoding.row_shape)
    return fields if len(fields) == 1 else {}


def _holds(row_shape: tuple[int, ...], kind: str, count: int) -> bool:
    """Whether a field has the numbers of a row."""
    return kind != "bytes_list" and count == math.prod(row_shape)


def _complete(
    field: RecordField | None, name: str, content_of: tuple[str, int, bytes], path: Path, arg: str
) -> RecordField:
    """Returns a field as described, or as inferred from the first record."""
    kind, count, content = content_of
    if field is not None:
        stored = FOUND[kind] if field.dtype == "factor" else ""
        return RecordField(field.dtype, field.shape, stored)
    if count == 0:
        raise _unclear(name, "is empty", path, arg)
    if kind != "bytes_list":
        return RecordField(FOUND[kind], () if count == 1 else (count,))
    if content.startswith(IMAGES):
        return RecordField("image")
    if not _is_text(content):
        raise _unclear(name, "holds bytes that are no text", path, arg)
    if count > 1:
        raise _unclear(name, f"holds {count} texts", path, arg)
    return RecordField("string")


def _is_text(content: bytes) -> bool:
    """Whether bytes are UTF-8 without control characters other than tab, CR and LF."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return False
    return not any(ord(character) < 32 and character not in "\t\r\n" for character in text)


def _check_features(description: Description, arg: str) -> None:
    names = description.features
    if not names:
        raise DataError(f"`{arg}` has no features but the labels.", arg=arg)
    if description.array is not None and len(names) > 1:
        found = ", ".join(f"{name} ({description.fields[name].text})" for name in names[:8])
        raise SpecError(
            f"`description` must be scalars, or one array or image, not {found}.",
            hint="Name one of the arrays, or scalars only, with their kinds.",
            arg="description",
        )
    for name in description.beside:
        if description.fields[name].dtype in ("image", "uint8"):
            raise DataError(f"`{name}` of `{arg}` holds bytes: it cannot be labels.", arg="y")


# Parsing -----------------------------------------------------------------------------------------


def build_parser(
    fields: Mapping[str, RecordField], image_shape: tuple[int, int, int] | None = None
) -> Any:
    """Returns a function from a batch of serialized records to arrays by name, rows first.

    Args:
        fields: The fields to read.
        image_shape: Height, width and channels of images.
    """
    tf, shape = runtime.reader(), image_shape or (0, 0, 0)
    spec = {name: tf.io.FixedLenFeature(*_stored(tf, field)) for name, field in fields.items()}

    def parse(records: Any) -> Any:
        parsed = tf.io.parse_example(records, spec)
        for name, field in fields.items():
            if field.dtype == "image":
                parsed[name] = _decode_images(tf, parsed[name], shape)
            elif field.dtype == "uint8":
                raw = tf.io.decode_raw(parsed[name], tf.uint8)
                parsed[name] = tf.reshape(raw, (-1, *field.shape))
        return parsed

    program = tf.function(
        parse, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)]
    )

    def run(records: Any) -> Arrays:
        with tf.device("/CPU:0"):
            arrays = {name: tensor.numpy() for name, tensor in program(records).items()}
        for name, array in arrays.items():
            if len(array) != len(records):  # raw bytes have another length
                raise tf.errors.InvalidArgumentError(None, None, f"Key: {name}.  Number of values")
        return arrays

    return run


def _stored(tf: Any, field: RecordField) -> tuple[tuple[int, ...], Any]:
    """Returns the shape and dtype in the file."""
    stored = field.stored or field.dtype
    if stored == "float32":
        return field.shape, tf.float32
    if stored == "int64":
        return field.shape, tf.int64
    return (), tf.string


def _decode_images(tf: Any, contents: Any, shape: tuple[int, int, int]) -> Any:
    """Decodes images into rows of uint8 in parallel."""
    form, spec = ImageForm(shape, "bilinear", False), tf.TensorSpec(shape, tf.uint8)
    return tf.map_fn(
        lambda content: decode_content(content, form),
        contents,
        fn_output_signature=spec,
        parallel_iterations=16,
    )


def explain_fault(message: str) -> str:
    """Translates TensorFlow's message about a record into plain words, without any value."""
    missing = re.search(r"Feature: (.+?) \(data type: (\w+)\) is required", message)
    if missing:
        return f"it lacks the feature `{missing[1]}`"
    other = re.search(r"Key: (.+?)(?:, Index: \d+)?\.  (Data types|Number of)", message)
    if other and other[2] == "Data types":
        return f"its feature `{other[1]}` is of another type than described"
    if other:
        return f"its feature `{other[1]}` has another number of values than described"
    if "image" in message or "JPEG" in message or "PNG" in message:
        return "its image is damaged, or of a kind that TensorFlow cannot decode"
    if "decode_raw" in message or "DecodeRaw" in message or "reshape" in message.lower():
        return "its raw bytes have another length than described"
    return "it is no tf.train.Example"


def check_text(column: Sequence[bytes] | np.ndarray, name: str, arg: str) -> list[str]:
    """Decodes UTF-8 strings.

    Args:
        column: The encoded strings.
        name: Name of the feature.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: for invalid UTF-8; names the feature.
    """
    try:
        return [text.decode() for text in column]
    except UnicodeDecodeError as error:
        raise DataError(
            f"Feature `{name}` of `{arg}` holds bytes that are no UTF-8 text.",
            hint='Describe it as "image", or as c("uint8", ...) with its shape.',
            arg=arg,
            column=name,
        ) from error


def _lacking(name: str, found: Sequence[str], path: Path, arg: str) -> DataError:
    text = f"the first record of {path.name} has no feature `{name}`."
    hint = f"It has {', '.join(found[:12])}{', ...' if len(found) > 12 else ''}."
    return path_error(path, arg, text, hint, column=name)


def _unclear(name: str, found: str, path: Path, arg: str) -> DataError:
    text = f"feature `{name}` {found} in the first record of {path.name}."
    hint = 'Say what it is, such as description = list(name = c("float32", 28, 28)).'
    return path_error(path, arg, text, hint, column=name)


def _foreign(path: Path, arg: str) -> DataError:
    text = f"the first record of {path.name} is no tf.train.Example with features."
    hint = "Other records must be read with tf.data: gpu_dataset() takes such a dataset."
    return path_error(path, arg, text, hint, record=1)
