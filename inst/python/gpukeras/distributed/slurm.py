"""Reads the workers' addresses from Slurm's environment variables, without Slurm's programs.

`srun` passes each task the step's computers ("node[01-03,07],gpu1"), the number of tasks on each
("2(x3),1"), and the task's own number. Slurm assigns no ports: they are derived from the job's
number, so that all tasks choose the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from gpukeras.core.errors import SpecError

MOST_NAMES = 100_000  # a longer list is damaged
# Ports of a job on a computer: 19 workers and the control channel. They lie below those of
# outgoing connections (from 32768), and jobs with close numbers do not share any.
FIRST_PORT, JOB_PORTS, JOBS = 12_000, 20, 1000
STEP_SIGNS = ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID")


def parse_slurm(environment: Mapping[str, str]) -> tuple[list[str], int] | None:
    """Returns the workers' addresses and the index of this one among them, counted from 0.

    Args:
        environment: Variables of the process.

    Returns:
        None outside of a Slurm job.

    Raises:
        SpecError: if the variables cannot be parsed, contradict each other, or are those of the
            batch script instead of a task's.
    """
    names = parse_nodes(_first(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    if not names or not environment.get("SLURM_PROCID"):
        return None
    rank = _number(environment, "SLURM_PROCID")
    counts = parse_counts(_first(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"))
    counts = counts or [1] * len(names)
    _check_counts(environment, names, counts, rank)
    places = list(_place(counts, environment.get("SLURM_DISTRIBUTION", "")))
    _check_place(environment, places[rank])
    first = choose_port(_number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID"))
    return [f"{names[node]}:{first + local}" for node, local in places], rank


def choose_port(job: int, step: int = 0) -> int:
    """Returns the port of a job's first worker on a computer; each step of a job has another."""
    return FIRST_PORT + JOB_PORTS * ((job + 7 * step) % JOBS)


# Lists --------------------------------------------------------------------------------------------


def parse_nodes(text: str) -> list[str]:
    """Parses a list of computers into their names.

    Args:
        text: For example "node[01-03,07],gpu1" or "rack[0-1]n[1-2]-ib".

    Raises:
        SpecError: if it cannot be parsed.
    """
    names: list[str] = []
    for item in re.findall(r"(?:\[[^\]]*\]|[^,])+", text.strip()):
        names += itertools.islice(_expand(item), MOST_NAMES + 1 - len(names))
        if len(names) > MOST_NAMES:
            raise SpecError(f"Slurm's list of computers has more than {MOST_NAMES} names.")
    return names


def _expand(item: str) -> Iterator[str]:
    """Yields all names of "rack[0-1]n[1-2]", the last number changing first."""
    parts = re.split(r"\[([^\[\]]*)\]", item.strip())  # alternates text and brackets' content
    if any(mark in text for text in parts[::2] for mark in "[] "):
        raise _unreadable(item)
    options = [_numbers(part, item) if i % 2 else [part] for i, part in enumerate(parts)]
    return map("".join, itertools.product(*options))


def _numbers(inside: str, item: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or not first <= last < first + MOST_NAMES:
            raise _unreadable(item)
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers


def _unreadable(item: str) -> SpecError:
    return SpecError(
        f'Slurm\'s list of computers has "{item[:40]}", which cannot be read.',
        hint='Names are such as "node[01-03,07]".',
        arg="SLURM_STEP_NODELIST",
    )


def parse_counts(text: str) -> list[int]:
    """Parses the number of tasks on each computer: "2(x3),1" is [2, 2, 2, 1].

    Raises:
        SpecError: if it cannot be parsed.
    """
    counts: list[int] = []
    for part in text.split(",") if text.strip() else []:
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            raise SpecError(
                f'Slurm\'s numbers of tasks have "{part[:40]}", which cannot be read.',
                hint='They are such as "2(x3),1".',
                arg="SLURM_STEP_TASKS_PER_NODE",
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


# Tasks --------------------------------------------------------------------------------------------


def _place(counts: list[int], distribution: str) -> Iterator[tuple[int, int]]:
    """Yields each task's computer and its number there, in the order of the tasks."""
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    if distribution.startswith("cyclic"):
        places.sort(key=lambda place: place[::-1])
    return iter(places)


def _check_counts(
    environment: Mapping[str, str], names: list[str], counts: list[int], rank: int
) -> None:
    total = _first(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or str(sum(counts))
    in_step = any(environment.get(name) for name in STEP_SIGNS)
    if not in_step and total not in ("0", "1"):
        raise SpecError(
            f"This is the batch script of a Slurm job, not one of its {total} tasks.",
            hint="Start the program by srun in it: `srun Rscript train.R`.",
            arg="SLURM_PROCID",
        )
    if len(names) != len(counts) or total != str(sum(counts)) or rank >= sum(counts):
        raise SpecError(
            f"Slurm's variables contradict each other: {len(names)} computers, tasks on "
            f"{len(counts)} of them, {total} tasks, and this is task {rank}, counted from 0.",
            hint="Start the workers by srun, or give `workers` and `index`.",
            arg="SLURM_STEP_TASKS_PER_NODE",
        )


def _check_place(environment: Mapping[str, str], place: tuple[int, int]) -> None:
    """Checks the computed place of this task against Slurm's, so that all tasks agree."""
    told = [environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_LOCALID")]
    if any(text and text != str(expected) for text, expected in zip(told, place, strict=True)):
        raise SpecError(
            "Slurm has placed the tasks on the computers in an order that is not known here.",
            hint="Start them by `srun --distribution=block`.",
            arg="SLURM_DISTRIBUTION",
        )


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name) or "0"
    if not re.fullmatch("[0-9]{1,18}", text):
        raise SpecError(f'{name} must be a whole number, not "{text[:40]}".', arg=name)
    return int(text)
