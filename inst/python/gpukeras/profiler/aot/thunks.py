"""Reads what a program of XLA runs on a GPU: thunks, which are kernels, copies, and groups of them.

Command buffers (CUDA graphs) are made of thunks, so they are not in the HLO: XLA's dump has them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_GRAPH, _WHILE, _CONDITIONAL, _SEQUENCE = "kCommandBuffer", "kWhile", "kConditional", "kSequential"
_THUNK = re.compile(r"(\d+): (k\w+)")
_NAME = re.compile(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)')
TripCounts = Mapping[str, int | None]


@dataclass
class Thunk:
    """A thunk.

    Args:
        number: Its number in the dump.
        kind: Such as "kKernel" or "kCommandBuffer".
        part: Which part of its group it is in: "condition" or "body" of a loop, or a branch.
        name: Of its instruction in the HLO.
        inside: The thunks of a group.
    """

    number: int
    kind: str
    part: str = ""
    name: str = ""
    inside: list[Thunk] = field(default_factory=list)

    def part_of(self, part: str) -> list[Thunk]:
        """Returns the thunks of one of its parts."""
        return [thunk for thunk in self.inside if thunk.part == part]

    def walk(self) -> Iterator[Thunk]:
        """Yields it and all that it contains."""
        yield self
        for thunk in self.inside:
            yield from thunk.walk()


@dataclass(frozen=True)
class Loop:
    """A loop that is in no other loop.

    Args:
        name: Of its instruction.
        trip_count: How often it runs; None if XLA does not know.
        kernels: Kernels, library calls and copies of an iteration, with those of all iterations of
            inner loops; None if an inner loop's number is unknown.
        launches: What the host sends in an iteration, where a command buffer is one; None likewise.
        graphs: Command buffers of an iteration, apart from inner loops.
        in_graph: Whether all of the loop is in one command buffer.
        outside: How many thunks of an iteration are in no command buffer, by kind.
    """

    name: str
    trip_count: int | None
    kernels: int | None
    launches: int | None
    graphs: int
    in_graph: bool
    outside: Mapping[str, int]

    @property
    def is_graph(self) -> bool:
        """Whether an iteration is one command buffer, or a part of one."""
        return self.in_graph or (self.graphs == 1 and not self.outside)


# The dump -----------------------------------------------------------------------------------------


def read_thunks(folder: Path) -> list[Thunk]:
    """Returns what runs, from a folder of XLA's dump.

    Where XLA's passes on thunks changed nothing, there is only the sequence before them.

    Raises:
        FileNotFoundError: if the dump has no thunks.
    """
    after = sorted(folder.glob("*.thunk_sequence_after_thunk_passes.txt"))
    files = after or sorted(folder.glob("*.thunk_sequence.txt"))
    if not files:
        raise FileNotFoundError(f"XLA's dump in {folder} has no thunks")
    thunks = parse_thunks(files[-1].read_text(encoding="utf-8"))
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.thunk_metadata.txt")]
    names = {int(number): name for text in texts for name, number in _NAME.findall(text)}
    for top in thunks:
        for thunk in top.walk():
            thunk.name = names.get(thunk.number, "")
    return thunks


def parse_thunks(text: str) -> list[Thunk]:
    """Parses a sequence, in which the thunks of a group are indented.

    A label, such as "body:", names the part of the group that follows.
    """
    root = Thunk(0, _SEQUENCE)
    groups, parts = [(-1, root)], dict[int, str]()  # open groups with their indent; part by group
    for line in filter(str.strip, text.splitlines()):
        indent, match = len(line) - len(line.lstrip()), _THUNK.match(line.strip())
        label = line.strip().removesuffix(":")
        if match is None and label == line.strip():
            continue
        # XLA indents the label of a loop's condition no more than the loop.
        while groups[-1][0] >= indent and label != "condition":
            groups.pop()
        group = groups[-1][1]
        if match is None:
            parts[id(group)] = label
            continue
        thunk = Thunk(int(match[1]), match[2], parts.get(id(group), ""))
        group.inside.append(thunk)
        groups.append((indent, thunk))
    return root.inside


# Loops --------------------------------------------------------------------------------------------


def find_loops(thunks: Sequence[Thunk], counts: TripCounts) -> tuple[Loop, ...]:
    """Returns the loops that are in no other loop.

    XLA unrolls a loop of one iteration: what has no loop counts as one iteration.

    Args:
        thunks: What runs.
        counts: How often loops run, by name.
    """
    return tuple(_find_loops(thunks, counts, False)) or (_as_loop("", thunks, 1, counts, False),)


def _find_loops(thunks: Iterable[Thunk], counts: TripCounts, in_graph: bool) -> Iterator[Loop]:
    for thunk in thunks:
        if thunk.kind == _WHILE:
            yield _as_loop(
                thunk.name, thunk.part_of("body"), counts.get(thunk.name), counts, in_graph
            )
        else:
            yield from _find_loops(thunk.inside, counts, in_graph or thunk.kind == _GRAPH)


def _as_loop(
    name: str, body: Sequence[Thunk], trip_count: int | None, counts: TripCounts, in_graph: bool
) -> Loop:
    return Loop(
        name=name,
        trip_count=trip_count,
        kernels=_count_all(body, counts, graph_is_one=False),
        launches=1 if in_graph else _count_all(body, counts, graph_is_one=True),
        graphs=sum(thunk.kind == _GRAPH for thunk in body),
        in_graph=in_graph,
        outside=dict(Counter(thunk.kind for thunk in body if thunk.kind != _GRAPH)),
    )


def _count_all(thunks: Iterable[Thunk], counts: TripCounts, graph_is_one: bool) -> int | None:
    counted = [_count(thunk, counts, graph_is_one) for thunk in thunks]
    known = [count for count in counted if count is not None]
    return sum(known) if len(known) == len(counted) else None


def _count(thunk: Thunk, counts: TripCounts, graph_is_one: bool) -> int | None:
    if thunk.kind == _WHILE:
        times = counts.get(thunk.name)
        body = _count_all(thunk.part_of("body"), counts, graph_is_one)
        return None if times is None or body is None else times * body
    if thunk.kind == _CONDITIONAL:
        parts = {inner.part for inner in thunk.inside}
        branches = [_count_all(thunk.part_of(part), counts, graph_is_one) for part in parts]
        return None if None in branches else max(filter(None, branches), default=0)
    if thunk.kind == _SEQUENCE or (thunk.kind == _GRAPH and not graph_is_one):
        return _count_all(thunk.inside, counts, graph_is_one)
    return 1  # a kernel, a library call, or a copy with what it contains
