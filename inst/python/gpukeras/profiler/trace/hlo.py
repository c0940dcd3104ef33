"""Maps XLA's instructions to TensorFlow's ops, by the programs that a trace contains.

An event of a compiled program only names an instruction ("fusion.3"). The trace's plane
"/host:metadata" holds each program (an HloProto), whose instructions record the op that they were
made from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import tracing
from gpukeras.profiler.trace.op_scopes import from_jax

METADATA_PLANE = "/host:metadata"
NUMBERED = re.compile(r"^(.*)\(\d+\)$")  # "module(14)": a program's name and number
XLA_OWN = "XLA_"  # arguments and results of a program, not ops
STEPS_BACK = 8  # operands to follow back from an instruction that XLA made itself


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compiled program.

    Args:
        opcode: Its kind in XLA, such as "fusion" or "while".
        scope: Name of the op it was made from; or "". For a fusion, that of its root; for an
            instruction that XLA made itself (a copy, a part of a reduction), that of the op whose
            result it reads.
        type: That op's type, or "".
    """

    opcode: str
    scope: str
    type: str


Program = Mapping[str, Instruction]


def read_programs(planes: Any) -> dict[str, Program]:
    """Returns instructions by name, for each program by its number and by its name.

    Damaged programs are skipped: their instructions then have no scope.
    """
    programs: dict[str, Program] = {}
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
            programs[match[1] if match else entry.name] = programs[str(number)] = program
    return programs


def read_program(content: bytes) -> dict[str, Instruction]:
    """Returns the instructions of an HloProto by their names.

    Raises:
        ValueError: if it is damaged.
    """
    message = tracing.trace_message(program=True)
    try:
        message.ParseFromString(content)
    except Exception as error:  # protobuf's own class; naming it would import protobuf here
        raise ValueError(f"The program is damaged: {type(error).__name__}.") from error
    computations = message.hlo_module.computations
    inside = {computation.id: computation.instructions for computation in computations}
    everything = {instruction.id: instruction for ones in inside.values() for instruction in ones}
    named = {}
    for instruction in everything.values():
        source = _find_source(instruction, everything, inside)
        scope = from_jax(_scope(source))
        kind = source.metadata.op_type if scope else ""
        named[instruction.name] = Instruction(instruction.opcode, scope, kind)
    return named


def _scope(instruction: Any) -> str:
    name = instruction.metadata.op_name
    return "" if name.startswith(XLA_OWN) else name


def _find_source(instruction: Any, everything: Mapping[int, Any], inside: Mapping[int, Any]) -> Any:
    """Returns the instruction that names the op of `one`; `one` itself, if none does."""
    level, known = [instruction], {instruction.id}
    for _ in range(STEPS_BACK):
        for each in level:
            called = [
                i for c in each.called_computation_ids for i in inside.get(c, ()) if _scope(i)
            ]
            if _scope(each) or called:
                return each if _scope(each) else called[-1]  # the root is the last of a computation
        before = {n for each in level for n in each.operand_ids} - known
        known |= before
        level = [everything[number] for number in sorted(before) if number in everything]
    return instruction
