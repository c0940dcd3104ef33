"""What `make gpu-evidence` keeps of a trace: all but the names of computers."""

import evidence_steps
import pytest
from evidence_steps import without_field

# As Protobuf writes fields 1 (a varint above 127), 4 twice, 2 (8 bytes), 3 (4 bytes), 5 (a text).
NUMBER, HOST, OTHER = b"\x08\x96\x01", b"\x22\x05node7", b"\x22\x05node8"
DOUBLE, FLOAT, TEXT = b"\x11" + bytes(8), b"\x1d" + bytes(4), b"\x2a\x03abc"


def test_a_field_is_left_out_wherever_it_stands():
    whole = HOST + NUMBER + DOUBLE + OTHER + FLOAT + TEXT
    assert without_field(whole, 4) == NUMBER + DOUBLE + FLOAT + TEXT
    assert without_field(whole, 9) == whole
    assert without_field(b"", 4) == b""


@pytest.mark.parametrize(
    "message",
    [HOST[:-1], b"\x08\x96", b"\x0b", DOUBLE[:-1]],
    ids=["cut", "varint", "kind", "double"],
)
def test_what_is_no_message_is_not_kept(message):
    with pytest.raises(ValueError, match="Protobuf message"):
        without_field(message, 4)


@pytest.mark.tf
def test_names_of_computers_are_left_out_of_a_trace():
    from gpukeras.backend import tracing

    space = tracing.trace_message()
    space.hostnames.extend(["node7", "node8"])
    space.planes.add(name="/device:GPU:0", id=3)
    kept = tracing.trace_message()
    kept.ParseFromString(without_field(space.SerializeToString(), evidence_steps.HOSTNAMES))
    assert (list(kept.hostnames), kept.planes[0].name) == ([], "/device:GPU:0")
