"""Each combination of settings, seeds, folds and groups is one model."""

import numpy as np
import pytest

from gpukeras.core.errors import SpecError
from gpukeras.many.members import Groups, list_members
from gpukeras.many.resamples import Resample

FOLDS = (
    Resample("a", np.array([2, 0, 3], np.int32), np.array([1], np.int32)),
    Resample("b", np.array([1, 2, 3], np.int32), np.array([0], np.int32)),
)


def test_settings_change_last():
    found = list_members(2, [7, 8], FOLDS, None)
    assert [(one.number, one.setting, one.seed, one.fold) for one in found] == [
        (1, 0, 7, "a"),
        (2, 0, 7, "b"),
        (3, 0, 8, "a"),
        (4, 0, 8, "b"),
        (5, 1, 7, "a"),
        (6, 1, 7, "b"),
        (7, 1, 8, "a"),
        (8, 1, 8, "b"),
    ]


def test_groups_divide_the_rows_of_each_fold_in_their_order():
    groups = Groups(("x", "y"), np.array([0, 0, 1, 0]))
    found = list_members(1, [None], FOLDS[:1], groups)
    assert [(one.group, one.train.tolist(), one.held_out.tolist()) for one in found] == [
        ("x", [0, 3], [1]),
        ("y", [2], []),
    ]


def test_a_group_without_rows_to_train_on_is_named():
    groups = Groups(("x", "y"), np.array([0, 1, 0, 0]))
    with pytest.raises(SpecError, match='The group "y" has no row to train on.'):
        list_members(1, [None], FOLDS[:1], groups)
