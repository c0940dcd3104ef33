"""Reads rows that come once, in sequence: Arrow streams, query results, chunks of an R function.

    Arrow object | connection and query | address | R function --open_stream()--> StreamReader

All of them are a schema and record batches. Whoever needs the rows again stores them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpukeras.core.errors import DataError, GpuKerasError, SpecError
from gpukeras.core.messages import find_reason, hide_credentials
from gpukeras.data.files.arrow import batch_rows, pa
from gpukeras.data.files.batch_source import ForeignStream, open_query, open_source
from gpukeras.data.files.columnar import LONG, is_rounded, validated
from gpukeras.data.files.errors import Skipped
from gpukeras.data.files.r_chunks import ChunkReader
from gpukeras.data.files.schema import check_types, choose_columns

STREAM, R_CHUNKS = "stream", "r chunks"  # formats; an R function runs on the calling thread only
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class StreamReader:
    """Rows in sequence, with the interface of `files.base.TableReader`.

    Args:
        schema: Schema of the batches.
        source: Yields the batches, for the names of the columns wanted.
        arg: Name of the user's argument, for error messages.
        format: `STREAM` or `R_CHUNKS`.
        close: Releases the source, such as the result of a query.
    """

    files = ()
    known_rows = None
    skipped = Skipped()

    def __init__(
        self,
        schema: pa.Schema,
        source: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
        arg: str,
        format: str = STREAM,
        close: Callable[[], Any] = lambda: None,
    ) -> None:
        """Checks the names of the columns; reads no rows."""
        choose_columns(schema.names, None, arg, None)
        self.schema, self.arg, self.format = schema, arg, format
        self._source: Callable[[Sequence[str]], Iterator[pa.RecordBatch]] | None = source
        self._close = close
        self._notes: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.schema.names)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        return tuple(self._notes)

    def select(self, names: Sequence[str]) -> StreamReader:
        """Restricts the reader to some columns, in that order, and returns it.

        Raises:
            DataError: if one of them has a type that cannot be read.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        check_types(schema, self.arg, None)
        self.schema = schema
        return self

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yields all rows in batches of a few MiB. Can be called once.

        Raises:
            DataError: if the rows break off, with the number of the last row (`row`), or if they
                were read before.
        """
        source, self._source = self._source, None
        if source is None:
            raise DataError(
                f"The rows of `{self.arg}` came once, and are gone.",
                hint="Make the dataset again.",
                arg=self.arg,
            )
        rows = 0
        try:
            for batch in source(self.names):
                chosen = validated(batch.select(list(self.names)))
                self._look(chosen)
                step = batch_rows(chosen.schema)
                for start in range(0, chosen.num_rows, step):
                    yield chosen.slice(start, step)
                rows += chosen.num_rows
        except GpuKerasError:
            raise
        except Exception as error:
            raise broken_off(self.arg, rows, error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Releases the source."""
        close, self._close = self._close, lambda: None
        with suppress(Exception):  # a lost connection cannot be closed
            close()

    def _look(self, batch: pa.RecordBatch) -> None:
        for name, values in zip(batch.schema.names, batch.columns, strict=True):
            if values.type in LONG and is_rounded(values):
                said = f"Column `{name}` of `{self.arg}` has whole numbers beyond 2^53: "
                self._notes.setdefault(f"{said}they are rounded.")


def broken_off(arg: str, rows: int, error: Exception) -> DataError:
    """Returns the error for rows that end in a failure, without credentials.

    The driver's own exception is left out of the chain: it may show them. Behind the first row a
    text in quotes may be a value, and is left out too.

    Args:
        arg: Name of the user's argument, for error messages.
        rows: Number of rows before the failure.
        error: What the driver says.
    """
    told = find_reason(RuntimeError(hide_credentials(str(error))))  # whole, before it is cut
    if rows == 0:
        return DataError(f"`{arg}` cannot be read: {told}.", arg=arg, row=0)
    told = QUOTED.sub("...", told)
    return DataError(
        f"`{arg}` broke off behind row {rows:,}: {told}.",
        hint="No row of it was kept. Make the dataset again.",
        arg=arg,
        row=rows,
    )


def open_stream(given: Any, arg: str) -> StreamReader:
    """Opens rows that come once.

    Args:
        given: An object with an Arrow C stream or a reader of record batches (a table of pyarrow or
            polars, a `pyarrow.dataset.Dataset`, a relation of DuckDB); `{connection, query}` with a
            connection of ADBC or DuckDB; `{address}` of an Arrow C stream as text, which is moved;
            or `{call}` with an R function, see `r_chunks`. `{source, here}` reads an object's rows
            on the calling thread if `here` is true.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the source cannot be opened.
        SpecError: if it is none of these.
    """
    parts = dict(given) if isinstance(given, Mapping) else {"source": given}
    if "call" in parts:
        chunks = ChunkReader(parts["call"], arg, broken_off)
        return StreamReader(chunks.schema, chunks.batches, arg, R_CHUNKS)
    here = bool(parts.get("here", "address" in parts))
    source = parts.get("connection", parts.get("source"))
    try:
        if "connection" in parts:
            found = open_query(source, parts["query"])
        else:
            found = open_source(ForeignStream(parts["address"]) if "address" in parts else source)
    except Exception as error:
        raise broken_off(arg, 0, error) from None
    if found is None:
        raise SpecError(
            f"`{arg}` gives no Arrow stream: it is a {type(source).__name__}.",
            hint="Give an Arrow table or reader, or a connection of ADBC or DuckDB with a query.",
            arg=arg,
        )
    schema = found.schema.remove_metadata()
    try:
        return StreamReader(schema, found.read, arg, R_CHUNKS if here else STREAM, found.close)
    except BaseException:
        found.close()
        raise
