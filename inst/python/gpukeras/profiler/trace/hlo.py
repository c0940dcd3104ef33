"""From XLA's instructions back to TensorFlow's ops: the programs that a trace carries along.

An event of a compiled program only names an instruction ("fusion.3"). The trace's plane
"/host:metadata" holds each program (an HloProto), whose instructions say from which op they were
made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import runtime

METADATA_PLANE = "/host:metadata"
NUMBERED = re.compile(r"^(.*)\(\d+\)$")  # "module(14)": a program's name and number
XLA_OWN = "XLA_"  # what a program is given and gives back, not an op
STEPS_BACK = 8  # instructions to go back from one that XLA made itself


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compiled program.

    Args:
        opcode: What it is to XLA, such as "fusion" or "while".
        scope: Name of the op it was made from; or "". Of a fusion that of its root; of one that XLA
            made itself (a copy, a part of a reduction) that of the op whose result it takes.
        type: That op's type, or "".
    """

    opcode: str
    scope: str
    type: str


Program = Mapping[str, Instruction]


def read_programs(planes: Any) -> dict[str, Program]:
    """Instructions by name, for each program by its number and by its name.

    A program that is damaged is left out: its instructions then have no scope.
    """
    found: dict[str, Program] = {}
    for plane in planes:
        if plane.name != METADATA_PLANE:
            continue
        for number, entry in plane.event_metadata.items():
            contents = [stat.bytes_value for stat in entry.stats if stat.bytes_value]
            try:
                program = read_program(contents[0]) if contents else {}
            except ValueError:
                continue
            match = NUMBERED.match(entry.name)
            found[match[1] if match else entry.name] = found[str(number)] = program
    return found


def read_program(content: bytes) -> dict[str, Instruction]:
    """The instructions of an HloProto by their names.

    Raises:
        ValueError: if it is damaged.
    """
    message = runtime.trace_message(program=True)
    try:
        message.ParseFromString(content)
    except Exception as error:  # protobuf's own class; naming it would import protobuf here
        raise ValueError(f"The program is damaged: {type(error).__name__}.") from error
    computations = message.hlo_module.computations
    inside = {computation.id: computation.instructions for computation in computations}
    everything = {one.id: one for ones in inside.values() for one in ones}
    named = {}
    for one in everything.values():
        source = _find_source(one, everything, inside)
        scope = _scope(source)
        kind = source.metadata.op_type if scope else ""
        named[one.name] = Instruction(one.opcode, scope, kind)
    return named


def _scope(one: Any) -> str:
    name = one.metadata.op_name
    return "" if name.startswith(XLA_OWN) else name


def _find_source(one: Any, everything: Mapping[int, Any], inside: Mapping[int, Any]) -> Any:
    """The instruction that names the op which one was made from; itself, if none does."""
    level, known = [one], {one.id}
    for _ in range(STEPS_BACK):
        for each in level:
            called = [
                i for c in each.called_computation_ids for i in inside.get(c, ()) if _scope(i)
            ]
            if _scope(each) or called:
                return each if _scope(each) else called[-1]  # a computation ends with its root
        before = {n for each in level for n in each.operand_ids} - known
        known |= before
        level = [everything[number] for number in sorted(before) if number in everything]
    return one
