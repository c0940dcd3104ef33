"""A training's state with a value of every kind, and how two are compared."""

import math

import numpy as np

from gpukeras.checkpoint.state import TrainingState
from gpukeras.models.state import Snapshot

WHOLE = TrainingState(
    Snapshot({"weights/0000": np.ones((2, 3), np.float32), "optimizer/0000": np.array(7)}),
    epoch=2,
    position=17,
    rows=544,
    history={"loss": [0.1 + 0.2, math.nan], "val_loss": [math.inf, 1e-310]},
    epoch_s=[0.5, 0.25],
    epoch_rows=[1000, 1000],
    learning_rate=[1e-3, 5e-4],
    engine="graph_loop",
    keepers={
        "early stopping": ({"wait": 3, "best": -math.inf}, {"weights/0000": np.zeros(3)}),
        "schedule/plateau": ({"factor": 0.5}, {}),
        "other": ({}, {"weights/0000": np.ones(3), "1/2": np.array([1], np.uint32)}),
    },
    extra={"micro_batch": 16},
)


def assert_same(one, other):
    """Equal to the last bit; NaN is equal to itself."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, Snapshot):
        assert_same(one.arrays, other.arrays)
    else:
        assert one == other or (one != one and other != other)
