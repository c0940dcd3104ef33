"""Reads XLA's text of an optimized program: HLO, one instruction a line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128}  # others: in their name
_SHAPE = re.compile(r"\b(pred|token|opaque|(?:[sufc]|bf)\d+\w*)\[([\d,]*)\]")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_OPCODE = re.compile(r"(?:^|[\s)}\]])([a-z][\w-]*)\(")
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
_TRIP_COUNT = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r'custom_call_target="([^"]*)"')
# They name memory that exists already.
_NAMING = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "while", "after-all"}
_HOST_OPCODES = {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
_HOST_CALLS = ("callback", "MoveToHost", "MoveToDevice", "PinToDevice")
_HOST_MEMORY = re.compile(r"\{[\d,]*:[^}]*S\(5\)[^}]*\}")


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Args:
        name: Its name.
        opcode: What it does, such as "fusion".
        bytes: Bytes of its result.
        text: Its line.
    """

    name: str
    opcode: str
    bytes: int
    text: str


def count_bytes(shape: str) -> int:
    """Returns the bytes of a shape, such as "(s32[], bf16[8,2]{1,0})"."""
    total = 0
    for dtype, sizes in _SHAPE.findall(shape):
        digits = re.search(r"\d+", dtype)
        bits = _BITS[dtype] if dtype in _BITS else int(digits[0] if digits else 0)
        elements = math.prod(int(size) for size in sizes.split(",") if size)
        total += math.ceil(elements * bits / 8)
    return total


def read_instructions(hlo: str) -> Iterator[Instruction]:
    """Yields all instructions."""
    for line in hlo.splitlines():
        match = _INSTRUCTION.match(line)
        opcode = _OPCODE.search(match[2]) if match else None
        if match and opcode:
            size = count_bytes(match[2][: opcode.start(1)])
            yield Instruction(match[1], opcode[1], size, line.strip())


def read_entry(hlo: str) -> tuple[Instruction, ...]:
    """Returns the instructions of the entry computation that have memory of their own."""
    entry = _ENTRY.search(hlo)
    instructions = read_instructions(entry[0] if entry else "")
    return tuple(instruction for instruction in instructions if instruction.opcode not in _NAMING)


def read_trip_counts(hlo: str) -> dict[str, int | None]:
    """Returns how often each loop runs, by the name of its instruction; None if XLA does not know.

    Then the host waits for the device before each iteration.
    """
    counts: dict[str, int | None] = {}
    for instruction in read_instructions(hlo):
        if instruction.opcode == "while":
            known = _TRIP_COUNT.search(instruction.text)
            counts[instruction.name] = int(known[1]) if known else None
    return counts


def count_conditionals(hlo: str) -> int:
    """Returns the number of branches that are chosen while the program runs."""
    return sum(instruction.opcode == "conditional" for instruction in read_instructions(hlo))


def find_host_transfers(hlo: str) -> tuple[str, ...]:
    """Returns the names of instructions that exchange data with the host."""
    return tuple(
        instruction.name for instruction in read_instructions(hlo) if _meets_host(instruction)
    )


def _meets_host(instruction: Instruction) -> bool:
    called = _CALLED.search(instruction.text)
    calls = called is not None and any(part in called[1] for part in _HOST_CALLS)
    return (
        instruction.opcode in _HOST_OPCODES
        or calls
        or _HOST_MEMORY.search(instruction.text) is not None
    )
