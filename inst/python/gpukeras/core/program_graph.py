"""A traced program as plain records, which hold nothing of TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

MOST_COLUMNS = 4096  # of a last axis, and of a constant that is kept


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a program.

    Args:
        shape: Its shape, or None if the rank is unknown.
        kind: "i" for whole numbers, "f", "b", or "" for others.
        value: Its value, if it is a small constant; or None.
        least: The least number of a constant.
        most: The largest.
        variable: The shape of the variable that it refers to, or None.
    """

    shape: tuple[int | None, ...] | None
    kind: str = ""
    value: np.ndarray | None = None
    least: float = -np.inf
    most: float = np.inf
    variable: tuple[int | None, ...] | None = None


@dataclass(frozen=True, eq=False)
class Node:
    """An operation of a program.

    Args:
        type: Its type, such as "GatherV2".
        inputs: Its inputs.
        outputs: Its outputs.
        attributes: Its whole numbers, by name.
        functions: The functions that it calls, by the name of the attribute, or by number.
        stateful: Whether it may give another value each time.
    """

    type: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, int]
    functions: Mapping[str, Graph]
    stateful: bool = False


@dataclass(frozen=True, eq=False)
class Graph:
    """What matters of a function's graph, its operations in their order.

    Args:
        inputs: Its inputs.
        nodes: Its operations, without the inputs.
        outputs: Its outputs.
        decisive: Numbers of the inputs that something which is checked depends on.
    """

    inputs: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Tensor, ...]
    decisive: frozenset[int] = frozenset()
