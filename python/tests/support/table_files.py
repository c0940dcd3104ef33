"""Tables as the bytes of files in each format, and read back."""

import gzip
import io

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from gpukeras.data.reader.table.features import open_table
from gpukeras.data.reader.table.schema import Wanted


def write_bytes(table, suffix):
    """Returns a file's content; Parquet and Arrow files have groups of 5,000 rows."""
    file = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(table, file, row_group_size=5000)
    elif suffix == ".h5":
        write_hdf5(table, file)
    elif suffix == ".arrow":
        with pa.ipc.new_file(file, table.schema) as out:
            out.write_table(table, max_chunksize=5000)
    else:
        pacsv.write_csv(table, file)
    return gzip.compress(file.getvalue()) if suffix.endswith(".gz") else file.getvalue()


def read(paths, columns=None, **options):
    reader = open_table(paths, "x", wanted=Wanted(columns), **options)
    return pa.Table.from_batches(reader.batches(), reader.schema).combine_chunks()


def write_hdf5(table, path):
    """Writes a data set for each column, and a compound one for a second column of a name."""
    with h5py.File(path, "w") as file:
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_integer(column.type):  # as R and bit64 write what is missing
                column = column.fill_null(-(2**63))  # noqa: PLW2901
            elif pa.types.is_floating(column.type):
                column = column.fill_null(np.nan)  # noqa: PLW2901
            values = np.array(column.to_pylist())
            values = values.astype(h5py.string_dtype()) if values.dtype.kind == "U" else values
            if name in file:
                file["compound"] = np.array([(one,) for one in values], [(name, values.dtype)])
            else:
                file[name] = values
