"""Divides the files of a table among workers, so that each reads its own part.

Units are files, or the row groups of Parquet files. Each worker takes consecutive units, of about
equally many bytes (files) or rows (row groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files import parquet


def split_units(weights: Sequence[int], count: int) -> list[range]:
    """Splits units into consecutive runs of about equal weight, none of them empty.

    Args:
        weights: The weight of each unit; at least `count` units.
        count: Number of runs.
    """
    ends, sums = [0], [*accumulate(weights)]
    for number in range(1, count):
        goal = sums[-1] * number / count
        least, most = ends[-1] + 1, len(weights) - (count - number)
        near = min(range(least, most + 1), key=lambda end: abs(sums[end - 1] - goal))
        ends.append(near)
    return [range(*pair) for pair in zip(ends, [*ends[1:], len(weights)], strict=True)]


def choose_parts(
    parts: Sequence[Any], format: str, index: int, count: int, arg: str
) -> tuple[tuple[Any, ...], str]:
    """Returns what a worker reads: its files, with their row groups, and a phrase for it.

    Args:
        parts: All files, as `base.Part`.
        format: Their format.
        index: Number of the worker, from 0.
        count: Number of workers.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if there are fewer files, or row groups, than workers.
    """
    if format != "parquet":
        _check_enough(len(parts), count, "file", arg)
        run = split_units([part.stamp[0] for part in parts], count)[index]
        return tuple(parts[run.start : run.stop]), _name_run("file", run, len(parts))
    groups = [
        (number, group, rows)
        for number, part in enumerate(parts)
        for group, rows in enumerate(parquet.read_groups(part.path))
    ]
    _check_enough(len(groups), count, "row group", arg)
    run = split_units([rows for *_, rows in groups], count)[index]
    chosen: dict[int, dict[int, int]] = {}
    for number, group, rows in groups[run.start : run.stop]:
        chosen.setdefault(number, {})[group] = rows
    taken = tuple(
        replace(parts[number], facts=sum(own.values()), groups=tuple(own))
        for number, own in chosen.items()
    )
    where = f", in {len(taken):,} of {count_of(len(parts), 'file')}" if len(parts) > 1 else ""
    return taken, _name_run("row group", run, len(groups)) + where


def _check_enough(units: int, count: int, noun: str, arg: str) -> None:
    if units < count:
        raise DataError(
            f"`{arg}` has {count_of(units, noun)} for {count} workers.",
            hint="Write more files, or Parquet files with more row groups, or use fewer workers.",
            arg=arg,
        )


def _name_run(noun: str, run: range, units: int) -> str:
    which = (
        f"{noun} {run.stop:,}" if len(run) == 1 else f"{noun}s {run.start + 1:,} to {run.stop:,}"
    )
    return f"{which} of {units:,}"
