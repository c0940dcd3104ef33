"""Reads the work of the host's threads: computing ops, calls into TensorFlow, and marked steps.

The rules for which events are work come from traces of TensorFlow 2.21 on a CPU:

- "sequential/dense/MatMul:MatMul" is an op of a graph: its name, a colon, its type. It covers the
  whole computation, also if other threads of the pool help.
- An event with the stat "hlo_op" is an instruction of a program compiled by XLA. It covers the work
  of the launching thread. Parts that it passes to the pool run between a `StartRegion` and a
  `StopRegion` of another thread; the number in the launching thread's `Record` links them.
- "KernelAndDeviceFunc::Run" in an "EagerLocalExecute: MatMul" is an op that runs eagerly.
- `ExecutorState::Process`, `FunctionRun`, "end: x", `ThunkExecutor::Execute`, `EagerExecute`
  enclose these events, so they are not counted again. An op that holds others ("While") or waits
  does not count either.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gpukeras.profiler.trace.events import Entry, Line, Plane, find_outermost
from gpukeras.profiler.trace.hlo import Instruction, Program

OP = re.compile(r"^([^:\s]+):([A-Za-z_]\w*)$")
EAGER = "EagerLocalExecute: "
EAGER_RUN = ("KernelAndDeviceFunc::Run", "KernelAndDeviceOp::Run")
PROCESS = "ExecutorState::Process"
REGION = "ThreadpoolListener::"
CALLS = ("TFE_Py", "EagerExecute", "EagerLocalExecute")
WAITING = re.compile(r"^Iterator\w*GetNext\w*Op::DoCompute$")  # for the next batch of tf.data
HOLDERS = {"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "For"}
HOLDERS |= {"PartitionedCall", "StatefulPartitionedCall", "RemoteCall", "SymbolicGradient"}
WAITERS = {"_Send", "_Recv", "_HostSend", "_HostRecv", "_EagerConst", "IteratorGetNext"}
WAITERS |= {"IteratorGetNextAsOptional", "MultiDeviceIteratorGetNextFromShard", "MakeIterator"}
NO_WORK = HOLDERS | WAITERS
HLO_HOLDERS = {"while", "conditional", "call", "async-start", "async-done", "async-update"}
PYTHON_GAP = 10**10  # picoseconds


class Ran(NamedTuple):
    """An op, or a part of one, that ran on a thread; times in picoseconds."""

    name: str
    scope: str
    type: str
    begin: int
    end: int
    part: bool = False


@dataclass(frozen=True)
class Region:
    """A part of an op's work that another thread ran; times in picoseconds."""

    number: int
    begin: int
    end: int


Span = TypeVar("Span", Ran, Region)


# Ops ---------------------------------------------------------------------------------------------


def read_ops(plane: Plane, programs: Mapping[str, Program]) -> list[tuple[Line, list[Ran]]]:
    """Returns the ops of each thread; none lies within another op of the same thread."""
    compiled = plane.has_stat("hlo_op")
    lines = []
    for line in plane.lines:
        lines.append((line, _keep_outermost(_each_op(plane, line, programs, compiled))))
    return _add_regions(plane, lines) if compiled else lines


def _each_op(
    plane: Plane, line: Line, programs: Mapping[str, Program], compiled: bool
) -> Iterator[Ran]:
    eager = ""
    for entry in line.entries:
        name, begin, end, _ = entry
        if name.startswith(EAGER):
            eager = name.removeprefix(EAGER)
        elif name in EAGER_RUN:
            if eager and not eager.startswith("__") and eager not in NO_WORK:
                yield Ran(eager, "", eager, begin, end)
        elif op := split_op(name, compiled):
            yield Ran(op[0], op[0], op[1], begin, end)
        elif compiled and ":" not in name and (ran := _read_instruction(entry, plane, programs)):
            yield ran


@functools.lru_cache(maxsize=100_000)
def split_op(name: str, compiled: bool) -> tuple[str, str] | None:
    """Returns name and type of the op in an event's name, or None if it is not a computing op.

    Args:
        name: Such as "sequential/dense/MatMul:MatMul".
        compiled: Whether the trace also has the instructions of XLA's programs; then the op that
            calls a program does not count.
    """
    match = OP.match(name)
    if not match or match[2] in NO_WORK:
        return None
    if compiled and (match[2].startswith("__") or match[2].startswith("Xla")):
        return None
    return match[1], match[2]


def _read_instruction(entry: Entry, plane: Plane, programs: Mapping[str, Program]) -> Ran | None:
    name = plane.stat(entry, "hlo_op")
    if not isinstance(name, str):
        return None
    program = plane.stat(entry, "program_id")
    module = plane.stat(entry, "hlo_module") if str(program) not in programs else ""
    instruction = find_instruction(programs, name, program, module)
    if instruction.opcode in HLO_HOLDERS:
        return None
    return Ran(name, instruction.scope, instruction.type, entry.begin, entry.end)


def find_instruction(
    programs: Mapping[str, Program], name: str, program: object, module: object
) -> Instruction:
    """Returns an instruction by its name and its program's number or name.

    If the program is missing, the opcode is read from the name and the op is unknown.

    Args:
        programs: XLA's programs by number and by name.
        name: The instruction's name.
        program: The program's number.
        module: The program's name.
    """
    instructions = programs.get(str(program)) or programs.get(str(module)) or {}
    return instructions.get(name) or Instruction(name.split(".")[0], "", "")


def _keep_outermost(ops: Iterable[Ran]) -> list[Ran]:
    kept: list[Ran] = []
    for op in ops:
        if not kept or op.begin >= kept[-1].end:
            kept.append(op)
    return kept


# Parts of ops on other threads -------------------------------------------------------------------


def _add_regions(plane: Plane, lines: list[tuple[Line, list[Ran]]]) -> list[tuple[Line, list[Ran]]]:
    regions = {index: _read_regions(plane, line) for index, (line, _) in enumerate(lines)}
    givers = _find_givers(plane, lines, regions)
    return [
        (line, sorted([*ops, *_fill(regions[index], ops, givers)], key=lambda op: op.begin))
        for index, (line, ops) in enumerate(lines)
    ]


def _read_regions(plane: Plane, line: Line) -> list[Region]:
    regions, opened = [], None
    for entry in line.entries:
        if entry.name == f"{REGION}StartRegion":
            opened = (_number(plane, entry, "_c"), entry.begin)
        elif entry.name == f"{REGION}StopRegion" and opened:
            regions.append(Region(*opened, entry.begin))
            opened = None
    return regions


def _find_givers(
    plane: Plane, lines: list[tuple[Line, list[Ran]]], regions: Mapping[int, list[Region]]
) -> dict[int, Ran]:
    """Returns by a region's number the op that it belongs to, also across nested regions."""
    givers: dict[int, Ran] = {}
    passed: dict[int, int] = {}
    for index, (line, ops) in enumerate(lines):
        records = [entry for entry in line.entries if entry.name == f"{REGION}Record"]
        for entry, op in _match_times(records, ops):
            givers[_number(plane, entry, "_p")] = op
        for entry, region in _match_times(records, regions[index]):
            passed[_number(plane, entry, "_p")] = region.number
    for number in sorted(passed):  # a region has a higher number than the region it comes from
        if number not in givers and passed[number] in givers:
            givers[number] = givers[passed[number]]
    return givers


def _number(plane: Plane, entry: Entry, stat: str) -> int:
    value = plane.stat(entry, stat)
    return value if isinstance(value, int) else -1


def _match_times(entries: Iterable[Entry], spans: list[Span]) -> Iterator[tuple[Entry, Span]]:
    """Yields each entry with the span that contains its begin; both sorted, spans disjoint."""
    at = 0
    for entry in entries:
        while at < len(spans) and spans[at].end < entry.begin:
            at += 1
        if at < len(spans) and spans[at].begin <= entry.begin:
            yield entry, spans[at]


def _fill(regions: list[Region], ops: list[Ran], givers: Mapping[int, Ran]) -> Iterator[Ran]:
    """Yields regions as parts of their ops' work, in the gaps between the thread's own ops."""
    at = 0
    for region in regions:
        giver = givers.get(region.number)
        if giver is None:
            continue
        begin = region.begin
        while at < len(ops) and ops[at].end <= begin:
            at += 1
        inner = at
        while inner < len(ops) and ops[inner].begin < region.end:
            if ops[inner].begin > begin:
                yield _part(giver, begin, ops[inner].begin)
            begin = max(begin, ops[inner].end)
            inner += 1
        if begin < region.end:
            yield _part(giver, begin, region.end)


def _part(giver: Ran, begin: int, end: int) -> Ran:
    return Ran(giver.name, giver.scope, giver.type, begin, end, part=True)


# The thread that calls TensorFlow ----------------------------------------------------------------


def read_steps(plane: Plane) -> tuple[Line | None, list[tuple[int, Entry]]]:
    """Returns the thread that marked steps, and the steps by number; (None, []) if none is."""
    for line in plane.lines if plane.has_stat("step_num") else ():
        marked = [entry for entry in line.entries if plane.stat(entry, "step_num") is not None]
        if marked:
            outer = find_outermost(marked)
            return line, [(_number(plane, entry, "step_num"), entry) for entry in outer]
    return None, []


def find_caller(plane: Plane) -> Line | None:
    """Returns the thread with the most calls from Python into TensorFlow, or None."""
    counts = [(sum(e.name.startswith(CALLS) for e in line.entries), line) for line in plane.lines]
    most, line = max(counts, key=lambda pair: pair[0], default=(0, None))
    return line if most else None


def read_calls(plane: Plane, caller: Line, steps: list[Entry]) -> list[Entry]:
    """Returns the calling thread's work: outermost calls, and Python between two within a step.

    The profiler does not record Python itself. The time between two calls within a step counts as
    Python; only a gap of more than 10 ms counts as waiting, since a step's Python takes 0.1 to 3 ms
    (measured). Time in which TensorFlow waited for the next batch of tf.data is left out too.

    Args:
        plane: The host's plane.
        caller: The calling thread.
        steps: The marked steps.
    """
    marks = {id(step) for step in steps}
    entries = [
        entry
        for entry in caller.entries
        if id(entry) not in marks and entry.end > entry.begin and not entry.name.startswith("end: ")
    ]
    calls = find_outermost(entries)
    calls = sorted([*calls, *_read_gaps(calls, steps)], key=lambda call: call.begin)
    waits = [e for line in plane.lines for e in line.entries if WAITING.match(e.name)]
    return list(cut_out(calls, waits)) if waits else calls


def _read_gaps(calls: list[Entry], steps: list[Entry]) -> Iterator[Entry]:
    at = 0
    for step in steps:
        begin = step.begin
        while at < len(calls) and calls[at].end <= step.begin:
            at += 1
        while at < len(calls) and calls[at].begin < step.end:
            yield from _gap(begin, calls[at].begin)
            begin = max(begin, calls[at].end)
            at += 1
        yield from _gap(begin, step.end)


def _gap(begin: int, end: int) -> Iterator[Entry]:
    if 0 < end - begin <= PYTHON_GAP:
        yield Entry("Python", begin, end)


def cut_out(entries: Iterable[Entry], holes: Iterable[Entry]) -> Iterator[Entry]:
    """Yields the entries without the time of the holes."""
    holes = sorted(holes, key=lambda hole: hole.begin)
    for entry in entries:
        begin = entry.begin
        for hole in holes:
            if hole.end <= begin or hole.begin >= entry.end:
                continue
            if hole.begin > begin:
                yield Entry(entry.name, begin, hole.begin)
            begin = hole.end
        if begin < entry.end:
            yield Entry(entry.name, begin, entry.end)


def read_processing(line: Line) -> list[Entry]:
    """Returns the times in which a thread ran the ops of a graph, one after another."""
    return find_outermost([entry for entry in line.entries if entry.name == PROCESS])
