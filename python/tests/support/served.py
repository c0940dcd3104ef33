"""A small model of a data frame with columns of several kinds, and servers of it."""

import http.client
import json
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
from children import PATIENCE_S

from gpukeras.data.dataset import map_dataset as data_dataset

LEVELS = ["x", "y", "z"]


def berlin_offsets(seconds):
    """Seconds by which Berlin is ahead of UTC, as R computes them: from the zone's database."""
    zone = ZoneInfo("Europe/Berlin")
    times = (datetime.fromtimestamp(second, zone) for second in seconds)
    return np.array([time.utcoffset().total_seconds() for time in times])


def make_columns(rows=40, seed=1):
    """Columns as R passes them: a number, a category, a date, a time and a duration."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(1, 4, rows).astype(np.int32)
    days = np.floor(rng.uniform(19000, 20000, rows))
    return [
        {"name": "a", "kind": "numeric", "values": rng.normal(size=rows), "levels": []},
        {"name": "b", "kind": "factor", "values": codes, "levels": LEVELS},
        {"name": "day", "kind": "date", "values": days},
        {
            "name": "at",
            "kind": "time",
            "values": days * 86400 + 3600,
            "offsets": berlin_offsets(days * 86400 + 3600),
            "zone": "Europe/Berlin",
        },
        {"name": "took", "kind": "duration", "values": rng.uniform(1, 9, rows), "units": "hours"},
    ]


def frame_dataset(columns=None, **options):
    """A dataset of a frame, with labels that depend on the number and the category."""
    columns = make_columns() if columns is None else columns
    given = {"kind": "columns", "columns": columns}
    labels = {"kind": "numeric", "values": columns[0]["values"] * 2 + columns[1]["values"]}
    options = {"batch_size": 8, "seed": 1, **options}
    return data_dataset.build_dataset(given, options, labels)


def to_json_rows(columns):
    """The same rows as a client writes them."""
    number, category, day, at, took = (column["values"] for column in columns)
    return [
        {
            "a": float(number[row]),
            "b": columns[1]["levels"][category[row] - 1],
            "day": str(np.datetime64(int(day[row]), "D")),
            "at": str(np.datetime64(int(at[row]), "s")) + "Z",
            "took": float(took[row]),
        }
        for row in range(len(number))
    ]


def ask(port, path="/predict", body=None, headers=(), method=None):
    """Status, content and headers of one request of its own connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        return exchange(connection, path, body, headers, method)
    finally:
        connection.close()


def exchange(connection, path="/predict", body=None, headers=(), method=None):
    """The same on an open connection."""
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {
        **({"Content-Type": "application/json"} if body is not None else {}),
        **dict(headers),
    }
    connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read()), dict(answer.getheaders())
