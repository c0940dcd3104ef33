"""Connections of DuckDB, and functions of a query that count their calls."""

import threading
from contextlib import contextmanager

import pytest


@contextmanager
def open_duck():
    """A connection to a database in memory; the test is skipped without DuckDB."""
    connection = pytest.importorskip("duckdb").connect()
    yield connection
    connection.close()


def add_watched(connection):
    """Adds `watched()`, which returns its number, to a query; gives the threads of its calls."""
    seen = []

    def watched(value: int) -> int:
        seen.append(threading.get_ident())
        return value

    connection.create_function("watched", watched, ["BIGINT"], "BIGINT")
    return seen
