import numpy as np
import pytest

from gpukeras import SpecError
from gpukeras.search.space import Range, Values, describe_space, parse_grid, parse_space

RATE = {"kind": "range", "low": 1e-4, "high": 1.0, "log": True}
OPTIMIZER = {"kind": "values", "values": ["adam", "sgd", "rmsprop"]}
MOMENTUM = {"kind": "range", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}}


@pytest.mark.parametrize(
    ("setting", "shares", "expected"),
    [
        (Range("a", 0.0, 2.0), [0, 0.5, 0.75], [0.0, 1.0, 1.5]),
        (Range("a", 1e-4, 1.0, log=True), [0, 0.25, 0.5], [1e-4, 1e-3, 1e-2]),
        (Range("a", 2.0, 5.0, integer=True), [0, 0.24, 0.25, 0.74, 0.99], [2, 2, 3, 4, 5]),
        (Range("a", 1, 3, integer=True, log=True), [0, 0.49, 0.51, 0.79, 0.8], [1, 1, 2, 2, 3]),
        (Values("a", ("x", "y")), [0, 0.49, 0.5, 0.99], ["x", "x", "y", "y"]),
        (Values("a", ([64, 32], 16)), [0, 0.5], [[64, 32], 16]),
    ],
)
def test_a_share_of_a_setting_is_a_value(setting, shares, expected):
    found = [setting.place(share) for share in shares]
    assert found == (expected if isinstance(expected[0], (str, list)) else pytest.approx(expected))


def test_whole_numbers_are_whole_and_stay_within_their_range():
    setting = Range("units", 16.0, 256.0, integer=True, log=True)
    found = [setting.place(share) for share in np.linspace(0, np.nextafter(1, 0), 1000)]
    assert {type(value) for value in found} == {int}
    assert (min(found), max(found)) == (16, 256)
    halves = np.mean(np.array(found) < 64)  # 16 to 64 is a factor of 4, as 64 to 256
    assert halves == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 1.0, "high": 1.0}, "`a` ranges from 1 to 1: the first must be below the second."),
        ({"low": 2, "high": 1}, "`a` ranges from 2 to 1: the first must be below the second."),
        (
            {"low": 0.0, "high": 1.0, "log": True},
            "`a` ranges from 0 with log = TRUE, which starts above 0.",
        ),
        ({"low": "1", "high": 1.0}, '`a` must be a range whose `low` is a number, not "1".'),
        ({"low": 0.0, "high": None}, "`a` must be a range whose `high` is a number, not NULL."),
        (
            {"low": 0.5, "high": 3, "integer": True},
            "`a` must be a range of whole numbers with a whole `low`, not 0.5.",
        ),
        (
            {"low": 1, "high": 1e12, "integer": True},
            "`a` must be a range of whole numbers with a whole `high`, not 1000000000000.",
        ),
        ({"low": 0.0, "high": 1.0, "log": "yes"}, '`log` must be TRUE or FALSE, not "yes".'),
    ],
)
def test_a_range_that_cannot_be_is_refused_by_name(fields, message):
    with pytest.raises(SpecError) as caught:
        parse_space({"a": {"kind": "range", **fields}})
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "`a` has no values to choose from."),
        (["x", "y", "x"], '`a` has a value twice: "x".'),
        ([[1.0, 2.0], [1.0, 2.0]], "`a` has a value twice: c(1, 2)."),
        (
            [None],
            "`a` must have numbers, strings, TRUE or FALSE, or vectors of these, without missing "
            "values, not NULL.",
        ),
        (
            [float("nan")],
            "`a` must have numbers, strings, TRUE or FALSE, or vectors of these, without missing "
            "values, not NaN.",
        ),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values, message):
    with pytest.raises(SpecError) as caught:
        parse_space({"a": {"kind": "values", "values": values}})
    assert caught.value.message == message
    assert caught.value.details["arg"] == "a"


def test_true_is_no_1():
    space = parse_space({"a": {"kind": "values", "values": [True, 1.0]}})
    assert space.place(np.array([0.0])) == {"a": True}


def test_a_setting_applies_where_its_condition_is_met_only():
    space = parse_space({"momentum": MOMENTUM, "optimizer": OPTIMIZER, "rate": RATE})
    assert [each.name for each in space.settings] == ["optimizer", "momentum", "rate"]
    assert space.place(np.array([0.5, 0.5, 0.5])) == {
        "optimizer": "sgd",
        "momentum": pytest.approx(0.45),
        "rate": pytest.approx(0.01),
    }
    assert set(space.place(np.array([0.0, 0.5, 0.5]))) == {"optimizer", "rate"}


def test_a_condition_on_a_setting_that_does_not_apply_is_not_met():
    inner = {"kind": "values", "values": [True, False], "when": {"momentum": 0.9}}
    given = {
        "optimizer": OPTIMIZER,
        "momentum": {"kind": "values", "values": [0.5, 0.9], "when": {"optimizer": ["sgd"]}},
        "nesterov": inner,
    }
    space = parse_space(given)
    assert space.place(np.array([0.4, 0.9, 0.0])) == {
        "optimizer": "sgd",
        "momentum": 0.9,
        "nesterov": True,
    }
    assert set(space.place(np.array([0.0, 0.9, 0.0]))) == {"optimizer"}


def test_a_single_value_is_fixed_and_takes_no_share():
    space = parse_space({"units": {"kind": "values", "values": [[64, 32]]}, "rate": RATE})
    assert [each.name for each in space.varied] == ["rate"]
    assert space.place(np.array([0.5])) == {"units": [64, 32], "rate": pytest.approx(0.01)}


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"optimiser": "sgd"}, "`a` depends on `optimiser`, which is no setting."),
        ({"a": 1.0}, "`a` depends on itself."),
        ({"rate": 0.1}, "`a` depends on `rate`, which is a range."),
        (
            {"optimizer": ["adam", "SGD"]},
            '`a` applies when `optimizer` is "SGD", which it never is.',
        ),
    ],
)
def test_conditions_that_are_never_met_are_refused(when, message):
    setting = {"kind": "range", "low": 0.0, "high": 1.0, "when": when}
    with pytest.raises(SpecError) as caught:
        parse_space({"a": setting, "optimizer": OPTIMIZER, "rate": RATE})
    assert caught.value.message == message


def test_a_lone_setting_that_depends_on_itself_is_told_that_it_is_alone():
    setting = {"kind": "range", "low": 0.0, "high": 1.0, "when": {"a": 1.0}}
    with pytest.raises(SpecError) as caught:
        parse_space({"a": setting})
    assert caught.value.hint == "There is no other setting."


def test_conditions_in_a_circle_are_refused():
    with pytest.raises(SpecError) as caught:
        parse_space(
            {
                "a": {"kind": "values", "values": [1, 2], "when": {"b": 1}},
                "b": {"kind": "values", "values": [1, 2], "when": {"a": 1}},
            }
        )
    assert caught.value.message == "Settings depend on each other: `a`, `b`."


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "`grid` has no rows: each is a trial."),
        ([{"a": 1}, {"a": 2}, {"a": 1}], "`grid` has row 1 twice: row 3 is the same."),
        (
            [{"a": float("nan")}],
            "`grid$a` must have numbers, strings, TRUE or FALSE, or vectors of these, without "
            "missing values, not NaN.",
        ),
    ],
)
def test_bad_grids_are_refused(rows, message):
    with pytest.raises(SpecError) as caught:
        parse_grid(rows)
    assert caught.value.message == message


def test_a_space_is_described_by_plain_values_in_the_order_of_names():
    space = parse_space({"rate": RATE, "optimizer": OPTIMIZER, "momentum": MOMENTUM})
    assert describe_space(space) == {
        "momentum": {
            "low": 0.0,
            "high": 0.9,
            "log": False,
            "integer": False,
            "when": {"optimizer": ["sgd"]},
        },
        "optimizer": {"values": ("adam", "sgd", "rmsprop")},
        "rate": {"low": 1e-4, "high": 1.0, "log": True, "integer": False},
    }
    assert list(describe_space(space)) == ["momentum", "optimizer", "rate"]
