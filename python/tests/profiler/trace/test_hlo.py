"""XLA's programs are read as TensorFlow reads them."""

import numpy as np
import pytest
from xspaces import content_of

from gpukeras.backend import tracing
from gpukeras.profiler.trace.hlo import read_program, read_programs

pytestmark = pytest.mark.tf


def test_programs_are_read_as_tensorflow_reads_them():
    from tensorflow.compiler.xla.service import hlo_pb2

    space = tracing.trace_message()
    space.ParseFromString(content_of("cpu_compiled"))
    plane = next(plane for plane in space.planes if plane.name == "/host:metadata")
    for number, entry in plane.event_metadata.items():
        message = hlo_pb2.HloProto.FromString(entry.stats[0].bytes_value)
        inside = [i for c in message.hlo_module.computations for i in c.instructions]
        programs = read_programs(space.planes)
        program = programs[str(number)]
        assert programs[entry.name.rpartition("(")[0]] is program
        assert program.keys() == {one.name for one in inside}
        for one in inside:
            assert program[one.name].opcode == one.opcode
            if one.metadata.op_name and not one.metadata.op_name.startswith("XLA_"):
                assert program[one.name].scope == one.metadata.op_name
                assert program[one.name].type == one.metadata.op_type


def make_program(*instructions, computation=1):
    from tensorflow.compiler.xla.service import hlo_pb2

    message = hlo_pb2.HloProto()
    made = message.hlo_module.computations.add(id=computation)
    for number, (name, scope, operands) in enumerate(instructions):
        one = made.instructions.add(name=name, opcode="add", id=number, operand_ids=operands)
        one.metadata.op_name, one.metadata.op_type = scope, scope and "Add"
    return message


def test_what_xla_made_itself_counts_for_the_op_that_it_takes_from():
    message = make_program(
        ("one", "a/dense/MatMul", []), ("copy", "", [0]), ("two", "", [1]), ("alone", "", [])
    )
    program = read_program(message.SerializeToString())
    assert [program[n].scope for n in ("one", "copy", "two")] == ["a/dense/MatMul"] * 3
    assert (program["alone"].scope, program["alone"].type) == ("", "")


def test_a_fusion_without_a_name_is_named_by_its_root():
    message = make_program(("fusion", "", [5]), ("other", "a/other/Mul", []))
    inner = message.hlo_module.computations.add(id=9)
    for number, scope in ((20, "a/dense/Mul"), (21, "a/dense/Relu")):
        inner.instructions.add(name=f"i{number}", id=number).metadata.op_name = scope
    message.hlo_module.computations[0].instructions[0].called_computation_ids.append(9)
    assert read_program(message.SerializeToString())["fusion"].scope == "a/dense/Relu"


def test_a_damaged_program_is_an_error_or_a_program():
    whole = make_program(("one", "a/b", []), ("two", "", [0])).SerializeToString()
    assert read_program(b"") == {}
    random, outcomes = np.random.default_rng(3), set()
    for _ in range(300):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)])
        damaged[random.integers(len(damaged))] = random.integers(256)
        try:
            read_program(bytes(damaged))
            outcomes.add("program")
        except ValueError:
            outcomes.add("error")
    assert outcomes == {"program", "error"}
