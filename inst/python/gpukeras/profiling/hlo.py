"""From XLA's instructions back to TensorFlow's ops: the programs that a trace carries along.

An event of a compiled program only names an instruction ("fusion.3"). The trace's plane
"/host:metadata" holds each program (an HloProto), whose instructions say from which op they were
made. Of that message few fields are needed, so it is read here field by field.

Field numbers: https://github.com/openxla/xla/blob/main/xla/service/hlo.proto (HloProto: hlo_module
1; HloModuleProto: computations 3; HloComputationProto: instructions 2, id 5; HloInstructionProto:
name 1, opcode 2, metadata 7, id 35, operand_ids 36, called_computation_ids 38) and xla_data.proto
(OpMetadata: op_type 1, op_name 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

METADATA_PLANE = "/host:metadata"
NUMBERED = re.compile(r"^(.*)\(\d+\)$")  # "module(14)": a program's name and number
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
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


@dataclass(frozen=True)
class _Found:
    """An instruction as it is stored."""

    name: str
    opcode: str
    scope: str
    type: str
    number: int
    operands: tuple[int, ...]
    called: tuple[int, ...]


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
                program = parse_program(contents[0]) if contents else {}
            except (ValueError, IndexError):
                continue
            match = NUMBERED.match(entry.name)
            found[match[1] if match else entry.name] = found[str(number)] = program
    return found


def parse_program(content: bytes) -> dict[str, Instruction]:
    """The instructions of an HloProto by their names.

    Raises:
        ValueError, IndexError: if it is damaged.
    """
    computations: dict[int, list[_Found]] = {}
    for module in _messages(content, 1):
        for computation in _messages(module, 3):
            number = next((int(v) for f, v in _fields(computation) if f == 5), 0)
            computations[number] = [_parse_one(one) for one in _messages(computation, 2)]
    instructions = [one for ones in computations.values() for one in ones]
    everything = {one.number: one for one in instructions}
    named = {}
    for one in instructions:
        source = _find_source(one, everything, computations)
        named[one.name] = Instruction(one.opcode, source.scope, source.type)
    return named


def _parse_one(content: bytes) -> _Found:
    number, operands, called, metadata = 0, [], [], {}
    texts: dict[int, str] = {}
    for field, value in _fields(content):
        if field == 35:
            number = int(value)
        elif field in (36, 38):
            (operands if field == 36 else called).extend(_numbers(value))
        elif field == 7:
            metadata = dict(_fields(value))
        elif field in (1, 2):
            texts[field] = _text(value)
    scope, kind = _text(metadata.get(2, b"")), _text(metadata.get(1, b""))
    if scope.startswith("XLA_"):  # what a program is given and gives back, not an op
        scope = kind = ""
    name, opcode = texts.get(1, ""), texts.get(2, "")
    return _Found(name, opcode, scope, kind, number, tuple(operands), tuple(called))


def _find_source(
    one: _Found, everything: Mapping[int, _Found], computations: Mapping[int, list[_Found]]
) -> _Found:
    """The instruction that names the op which one was made from; itself, if none does."""
    level, known = [one], {one.number}
    for _ in range(STEPS_BACK):
        for each in level:
            inner = [i for c in each.called for i in computations.get(c, ()) if i.scope]
            if each.scope or inner:
                return each if each.scope else inner[-1]  # a computation ends with its root
        before = {n for each in level for n in each.operands} - known
        known |= before
        level = [everything[number] for number in sorted(before) if number in everything]
    return one


# The format --------------------------------------------------------------------------------------


def _text(value: bytes | int) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _messages(content: bytes, number: int) -> Iterator[bytes]:
    return (v for field, v in _fields(content) if field == number and isinstance(v, bytes))


def _numbers(value: bytes | int) -> Iterator[int]:
    """The numbers of a repeated field, of which many may be packed into one."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _fields(content: bytes | int) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of each field of a message; fixed-width numbers are passed over."""
    if isinstance(content, int):
        raise ValueError("A number is no message.")
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(content, at)
            yield key >> 3, value
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        elif kind == BYTES:
            length, at = _varint(content, at)
            if at + length > len(content):
                raise ValueError("A field is longer than its message.")
            yield key >> 3, content[at : at + length]
            at += length
        else:
            raise ValueError(f"There is no wire type {kind}.")


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
