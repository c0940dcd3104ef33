"""Measures trainings on the same rows in Parquet files, a DuckDB file, PostgreSQL and S3.

    data_sources.py compare ROWS ROUNDS KIND...
    data_sources.py train KIND PLACE     (a process of its own for each)

The servers are those of the tests: PostgreSQL from Debian and moto's S3, both on the loopback, on
the same cores as the training. `first_s` is from the source to the end of the first epoch,
`later_s` the next epoch alone, `cpu_s` the processor's seconds of the training up to the end of the
first epoch, without those of servers. All kinds take turns in each round. The medians of the rounds
count, also of the ratios to Parquet of the same round. Memory is the peak above that of a process
that has trained on a small file and has opened the driver. DuckDB has also read its table once
before: it caches its file (175 MiB here) as long as the connection is open, whoever reads it.
Prints one JSON record.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import object_servers
import postgres
import pyarrow.dataset
from data_files import write_table
from data_memory import BATCH, read_status, reset_peak

from gpukeras.data import builder
from gpukeras.models import mlp
from gpukeras.training import fit

COLUMNS = 28  # numbers, beside a category and the label
SMALL = 20_000
FILES = 20
QUERY = "SELECT * FROM flights"
KINDS = ("parquet", "duckdb", "postgres", "s3")


# Places of the rows ------------------------------------------------------------------------------


def fill_duckdb(folder: Path, stack: ExitStack) -> str:
    """Copies the rows into a DuckDB file."""
    import duckdb

    path = folder / "rows.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.sql(f"CREATE TABLE flights AS SELECT * FROM '{folder}/*.parquet'")
    return str(path)


def fill_postgres(folder: Path, stack: ExitStack) -> str:
    """Copies the rows into a new PostgreSQL server."""
    import adbc_driver_postgresql.dbapi as dbapi

    server = stack.enter_context(postgres.serve())
    with dbapi.connect(server.url) as connection, connection.cursor() as cursor:
        rows = pyarrow.dataset.dataset(sorted(map(str, folder.glob("*.parquet"))))
        cursor.adbc_ingest("flights", rows.scanner(batch_readahead=1).to_reader())
        connection.commit()
        cursor.execute("ANALYZE flights")
    return str(server.url)


def fill_s3(folder: Path, stack: ExitStack) -> str:
    """Puts the files into a bucket of a new server; its address and keys go to the environment."""
    from pyarrow import fs

    port = stack.enter_context(object_servers.s3_server())
    os.environ.update(
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}",
        AWS_ACCESS_KEY_ID=object_servers.KEY,
        AWS_SECRET_ACCESS_KEY=object_servers.SECRET,
        AWS_DEFAULT_REGION="us-east-1",
    )
    store = fs.S3FileSystem(
        endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
    )
    store.create_dir("bucket")
    for file in folder.glob("*.parquet"):
        fs.copy_files(str(file), f"bucket/{file.name}", destination_filesystem=store)
    return "s3://bucket/*.parquet"


PLACES: Mapping[str, Callable[[Path, ExitStack], str]] = {
    "parquet": lambda folder, stack: f"{folder}/*.parquet",
    "duckdb": fill_duckdb,
    "postgres": fill_postgres,
    "s3": fill_s3,
}


# Trainings ---------------------------------------------------------------------------------------


@contextmanager
def open_source(kind: str, place: str) -> Iterator[dict[str, Any]]:
    """The source as `gpu_dataset()` hands it over."""
    if kind in ("parquet", "s3"):
        yield {"paths": [place]}
        return
    if kind == "duckdb":
        import duckdb

        connection = duckdb.connect(place, read_only=True)
        for _ in connection.sql(QUERY).to_arrow_reader():  # fills its cache
            pass
    else:
        import adbc_driver_postgresql.dbapi as dbapi

        connection = dbapi.connect(place)
    with connection:
        yield {"stream": {"connection": connection, "query": QUERY}}


def make_dataset(source: Mapping[str, Any]) -> Any:
    """All columns but the label are features."""
    features = {"kind": "table", "scale": True, "label": ["y"], **source}
    return builder.assemble(features, {"batch_size": BATCH})


def train(kind: str, place: str) -> dict[str, float]:
    """Trains a small network for two epochs."""
    with tempfile.TemporaryDirectory() as folder:
        small = write_table(Path(folder, "small.parquet"), SMALL, COLUMNS)
        data = make_dataset({"paths": [str(small)]})
        model = mlp.build_mlp(data, {"units": [64]})
        fit.fit(model, data, {"epochs": 1, "engine": "compiled"})
    with open_source(kind, place) as source:
        before = read_status("VmRSS")
        reset_peak()
        began, cpu = time.perf_counter(), time.process_time()
        data = make_dataset(source)
        made = time.perf_counter()
        model = mlp.build_mlp(data, {"units": [64]})
        rows = fit.fit(model, data, {"epochs": 1, "engine": "compiled"}).rows
        first, cpu = time.perf_counter(), time.process_time() - cpu
        fit.fit(model, data, {"epochs": 1, "engine": "compiled"})
        return {
            "rows": rows,
            "made_s": made - began,
            "first_s": first - began,
            "later_s": time.perf_counter() - first,
            "cpu_s": cpu,
            "extra_bytes": read_status("VmHWM") - before,
            "load": os.getloadavg()[0],
        }


def compare(rows: int, rounds: int, kinds: list[str]) -> dict[str, dict[str, float]]:
    """Trains on each kind in turn, once a round; returns the medians."""
    found: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(FILES):  # moto reads the whole object for each range
            write_table(folder / f"part-{number:02d}.parquet", rows // FILES, COLUMNS)
        places = {kind: PLACES[kind](folder, stack) for kind in kinds}
        for _ in range(rounds):
            found.append({kind: run_training(kind, places[kind]) for kind in kinds})
    return {kind: summarize(kind, found) for kind in kinds}


def run_training(kind: str, place: str) -> dict[str, float]:
    """Trains in a process of its own; its record goes to the standard error too."""
    command = [sys.executable, __file__, "train", kind, place]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    record: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(kind, {name: round(value, 2) for name, value in record.items()}, file=sys.stderr)
    return record


def summarize(kind: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, float]:
    """The medians of a kind's records, and of Parquet's seconds relative to them."""
    records = [each[kind] for each in rounds]
    medians = {name: statistics.median(one[name] for one in records) for name in records[0]}
    for when in ("first", "later"):
        ratios = [each["parquet"][f"{when}_s"] / each[kind][f"{when}_s"] for each in rounds]
        medians[f"{when}_ratio"] = statistics.median(ratios)
    return medians


def main(arguments: list[str]) -> None:
    """Measures and prints the record."""
    what, *given = arguments
    if what == "train":
        found: Any = train(*given)
    else:
        rows, rounds, *kinds = given
        found = compare(int(rows), int(rounds), ["parquet", *(kinds or KINDS[1:])])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
