"""Reads HDF5 files as tables, a block of rows at a time.

A data set of one axis is a column, named by its path in the file. One of two axes is a column for
each place of the second: `x.1`, `x.2`, as R's `data.frame(x = matrix)` calls them. A compound data
set, such as R's packages write of a data frame, is a column for each of its fields. Scalars are no
columns. Links to other files are refused, as what they name would be read instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gpukeras.data.files.arrow import batch_rows, pa
from gpukeras.data.files.files import AnyFile, FileFaultError, RemoteFile

NAME = "HDF5"
MOST_ROWS = 2**17  # per block, where the file's own chunks are larger
# Deflate's largest ratio is 1,032; what other filters pack more than this is hardly worth learning.
MOST_RATIO = 2**14
UNREADABLE = pa.binary()  # the type of columns that no column of features may have
LINKED = "Write the values into the file itself."


@dataclass(frozen=True)
class _Column:
    """Where the values of a column lie.

    Args:
        values: The data set.
        place: A place of its second axis, the name of a field, or None for all of it.
    """

    values: Any
    place: int | str | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype in the file."""
        dtype: np.dtype[Any] = self.values.dtype
        return dtype[self.place] if isinstance(self.place, str) else dtype

    @cached_property
    def type(self) -> pa.DataType:
        """The type of the values in Arrow."""
        import h5py

        if self.place is None and self.values.ndim > 1:
            return pa.list_(UNREADABLE)  # images, for example
        if h5py.check_enum_dtype(self.dtype):
            return pa.dictionary(pa.int32(), pa.string())
        if self.dtype.kind == "S" or h5py.check_string_dtype(self.dtype):
            return pa.string()
        plain = self.dtype.kind in "fiub" and self.dtype.itemsize <= 8
        return pa.from_numpy_dtype(self.dtype.newbyteorder("=")) if plain else UNREADABLE

    def convert(self, block: np.ndarray) -> pa.Array:
        """Returns the column's values in a block of the data set's rows."""
        values = block[self.place] if isinstance(self.place, str) else block
        values = values[:, self.place] if isinstance(self.place, int) else values
        if self.type == pa.string():
            return pa.array(values.astype(object), pa.binary()).cast(pa.string())
        if pa.types.is_dictionary(self.type):
            return self._convert_levels(values)
        values = np.ascontiguousarray(values, self.dtype.newbyteorder("="))
        if self.dtype.kind == "i" and self.dtype.itemsize >= 4:  # R's and bit64's NA
            return pa.array(values, mask=values == np.iinfo(values.dtype).min)
        return pa.array(values)

    def _convert_levels(self, values: np.ndarray) -> pa.Array:
        """Returns a factor; a number without a level is missing, as R writes NA."""
        import h5py

        levels = sorted(h5py.check_enum_dtype(self.dtype).items(), key=lambda level: level[1])
        numbers = np.array([number for _, number in levels])
        codes = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        indices = pa.array(codes.astype(np.int32), mask=numbers[codes] != values)
        return pa.DictionaryArray.from_arrays(indices, [name for name, _ in levels])


def read_facts(path: AnyFile) -> tuple[pa.Schema, int | None, None]:
    """Returns a file's schema and number of rows, which is None if columns differ in it."""
    with _opened(path) as file:
        columns = _list_columns(file)
        lengths = {len(column.values) for _, column in columns} or {0}
        schema = pa.schema([(name, column.type) for name, column in columns])
        return schema, lengths.pop() if len(lengths) == 1 else None, None


def read_batches(path: AnyFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the given columns of a file in batches.

    Raises:
        FileFaultError: if they differ in their number of rows.
    """
    with _opened(path) as file:
        known = dict(_list_columns(file))
        columns = [known[name] for name in names]
        rows = _count_rows(columns)
        schema = pa.schema([(name, known[name].type) for name in names])
        chunks = max((column.values.chunks or (1,))[0] for column in columns)
        step = min(MOST_ROWS, max(batch_rows(schema), chunks))
        for start in range(0, rows, step):
            sets = {column.values.name: column.values for column in columns}
            blocks = {name: values[start : start + step] for name, values in sets.items()}
            arrays = [column.convert(blocks[column.values.name]) for column in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _list_columns(file: Any) -> list[tuple[str, _Column]]:
    """Returns the columns by their names, which may be there twice."""
    columns: list[tuple[str, _Column]] = []
    for name, values in _list_sets(file).items():
        if values.dtype.names and values.ndim == 1:
            columns += [(field, _Column(values, field)) for field in values.dtype.names]
        elif values.ndim == 2:
            places = range(values.shape[1])
            columns += [(f"{name}.{place + 1}", _Column(values, place)) for place in places]
        else:
            columns.append((name, _Column(values)))
    return columns


def _list_sets(file: Any) -> dict[str, Any]:
    """Returns the data sets of all groups that have rows, each once."""
    import h5py

    sets: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Group):
            for link in item:
                if isinstance(item.get(link, getlink=True), h5py.ExternalLink):
                    raise FileFaultError(f"links to another file as `{link}`.", LINKED)
        elif isinstance(item, h5py.Dataset) and item.shape:
            if item.is_virtual or item.external:
                raise FileFaultError(f"keeps the values of `{name}` in another file.", LINKED)
            _check_size(item, file.id.get_filesize())
            sets[name] = item

    look("", file)
    file.visititems(look)  # a group that holds itself is visited once
    return sets


def _check_size(values: Any, file_bytes: int) -> None:
    """Refuses a data set that is larger than its bytes in the file can be, as if it was damaged.

    HDF5 would make up the values that are not there.
    """
    stored = min(values.id.get_storage_size(), file_bytes)
    most = stored if values.chunks is None else MOST_RATIO * stored
    if math.prod(values.shape) * values.dtype.itemsize > most:
        raise OSError("a data set is larger than its bytes")


def _count_rows(columns: Sequence[_Column]) -> int:
    first = columns[0].values
    for column in columns[1:]:
        if len(column.values) != len(first):
            names = [each.name.lstrip("/") for each in (first, column.values)]
            raise FileFaultError(
                f"has {len(first):,} rows in `{names[0]}` and {len(column.values):,} in "
                f"`{names[1]}`.",
                "Rows are the first axis, which R's packages write last: write t(x), or choose "
                "`columns` of one length.",
            )
    return len(first)


@contextmanager
def _opened(path: AnyFile) -> Iterator[Any]:
    import h5py  # a dependency of Keras; it takes 0.2 s

    try:
        with h5py.File(path.open() if isinstance(path, RemoteFile) else path, "r") as file:
            yield file
    except (KeyError, RuntimeError, TypeError, ValueError) as error:  # as of damaged files
        raise OSError(str(error)) from error
