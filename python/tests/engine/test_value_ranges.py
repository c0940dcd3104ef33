"""Which inputs the checks of operations look at."""

import numpy as np
import pytest

from gpukeras.core.program_graph import Node, Tensor
from gpukeras.engine.value_ranges import CHECKED, CHECKS, UNKNOWN, Range


class Listed(dict[int, Range]):
    """Ranges of some inputs; another one that is asked for is an error."""

    def __missing__(self, place: int) -> Range:
        raise AssertionError(f"asks for input {place}, which is not in CHECKED")


@pytest.mark.parametrize("known", [UNKNOWN, Range(True, np.array(0.0), np.array(1.0))])
def test_no_check_looks_at_an_input_that_is_not_read(known):
    tensor = Tensor((3, 3), "i")
    attributes = {"shrink_axis_mask": 1, "seq_dim": 0, "num_partitions": 2}
    for name, check in CHECKS.items():
        op = Node(name, (tensor,) * 4, (tensor,), attributes, {})
        check(op, Listed(dict.fromkeys(CHECKED[name], known)))


def test_each_input_that_is_read_can_fail_its_check():
    tensor, same = Tensor((3, 3), "i"), Range(False)
    attributes = {"shrink_axis_mask": 1, "seq_dim": 0, "num_partitions": 2}
    for name, check in CHECKS.items():
        op = Node(name, (tensor,) * 4, (tensor,), attributes, {})
        for place in CHECKED[name]:
            ranges = {other: same for other in CHECKED[name]} | {place: UNKNOWN}
            assert not check(op, ranges), name
