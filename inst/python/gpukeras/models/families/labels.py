"""Checks whether labels are what a family takes, and names what is wrong before training."""

from __future__ import annotations

from gpukeras.core.errors import DataError
from gpukeras.data.recipe.targets import PAIR, ColumnRange, LabelRule, describe_label
from gpukeras.models.families.spec import Family, FamilySpec

COUNTS = ("poisson", "negative_binomial", "zero_inflated_poisson")
SINGLE = (*COUNTS, "quantile", "gamma", "beta")
SURVIVAL = ("cox", "discrete_time")
LEVELS = {"multinomial": 2, "ordinal": 3}


def check_label(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    """Checks that labels are what a family takes.

    Args:
        family: The family.
        label: The labels' rule.
        arg: The user's name for the labels, for messages.

    Raises:
        DataError: naming what the family takes, and what the labels are.
    """
    if label.outputs:
        raise _refuse(family, arg, "labels of a single output", "of several outputs")
    if label.survival and family.name not in SURVIVAL:
        raise DataError(
            f'`{arg}` holds survival times, which the family "{family.name}" does not take.',
            hint='The families "cox" and "discrete_time" do.',
            arg=arg,
        )
    if family.name in LEVELS:
        _check_levels(family, label, arg)
    elif family.name in SINGLE:
        _check_number(family, label, arg)
    elif family.name == "gaussian":
        _check_gaussian(family, label, arg)
    elif family.name in SURVIVAL:
        _check_survival(family, label, arg)
    elif family.name == "multi_label":
        _check_columns_of_labels(family, label, arg)
    else:
        _check_trials(family, label, arg)


def explain_choice(label: LabelRule, family: str | None, arg: str) -> str:
    """Says what a model makes of labels that could mean something else; "" if they are plain.

    Args:
        label: The labels' rule.
        family: Name of the model's family, or None.
        arg: The user's name for the labels.
    """
    if family == "ordinal" and label.kind == "class" and not label.ordered:
        return (
            f'The family "ordinal" takes the levels of `{arg}` in the order '
            f"{' < '.join(label.levels)}. Make it ordered(levels = ) for another one."
        )
    if family is not None or label.outputs:
        return ""
    if label.ordered and label.units > 2:
        return (
            f"The levels of `{arg}` are learned as classes, without their order, which the family "
            '"ordinal" of gpu_mlp() takes into account.'
        )
    if label.kind == "matrix" and not label.survival and len(label.row_shape) == 1:
        return _explain_columns(label, arg)
    return ""


def _explain_columns(label: LabelRule, arg: str) -> str:
    """Says that columns are learned as numbers, where these look like something else."""
    meant = ""
    if label.whole and label.minimum >= 0 and label.maximum <= 1 and label.units > 1:
        meant = (
            "columns of 0 and 1. If each is a label, the family of gpu_mlp() is "
            '"multi_label"; if each is a class, make a factor of them'
        )
    elif len(label.ranges) == PAIR:
        first, second = label.ranges
        status = second.whole and second.minimum == 0 and second.maximum == 1
        if first.minimum > 0 and status:
            meant = (
                "a column above 0 and one of 0 and 1. If they are times and status, the family of "
                'gpu_mlp() is "cox" or "discrete_time"'
            )
        elif label.whole and label.minimum >= 0:
            meant = (
                "two columns of counts. If they are successes and failures, the family of "
                'gpu_mlp() is "binomial"'
            )
    return f"`{arg}` is learned as numbers, by squared errors: it has {meant}." if meant else ""


def read_ranges(label: LabelRule) -> tuple[ColumnRange, ...]:
    """Returns the range of each column of labels; none if it was not measured."""
    if label.kind == "matrix":
        return label.ranges
    low, high = (label.minimum, label.maximum) if label.measured else (0.0, 1.0)
    return (ColumnRange(low, high, label.whole),)


def _check_levels(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    if label.kind != "class":
        hint = "factor() makes classes of numbers." if label.columns == 1 else ""
        raise _refuse(family, arg, "a factor", _say(label), hint)
    if family.name == "ordinal" and label.text:
        hint = f"Text has no order but the alphabet's. Make `{arg}` ordered(levels = )."
        raise _refuse(family, arg, "an ordered factor", "text", hint)
    if label.units < LEVELS[family.name]:
        least = LEVELS[family.name]
        hint = 'Use the family "binomial".'
        raise _refuse(family, arg, f"at least {least} levels", str(label.units), hint)


def _check_number(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    if label.kind not in ("number", "binary") or label.columns != 1 or len(label.shape) > 0:
        raise _refuse(family, arg, "one number a row", _say(label))
    (numbers,) = read_ranges(label)
    if family.name in COUNTS:
        _check_counts(family, numbers, arg)
    elif family.name == "gamma" and numbers.minimum <= 0:
        raise _refuse(family, arg, "numbers above 0", _side(numbers.minimum))
    elif family.name == "beta" and not 0 < numbers.minimum <= numbers.maximum < 1:
        beyond = numbers.minimum if numbers.minimum <= 0 else numbers.maximum
        hint = "Squeeze 0 and 1 into the range, as by (y * (n - 1) + 0.5) / n."
        raise _refuse(family, arg, "numbers between 0 and 1, both excluded", _side(beyond), hint)


def _check_counts(family: FamilySpec | Family, numbers: ColumnRange, arg: str) -> None:
    if numbers.minimum < 0:
        raise _refuse(family, arg, "counts of at least 0", _side(numbers.minimum))
    if not numbers.whole:
        hint = "Counts per exposure are counts with offset(log(exposure))."
        raise _refuse(family, arg, "whole numbers", "fractions", hint)


def _check_gaussian(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    if label.kind not in ("number", "binary", "matrix") or len(label.row_shape) > 1:
        raise _refuse(family, arg, "numbers", _say(label))
    if family.dispersion != "none" and label.columns > 1:
        raise _refuse(family, arg, "one number a row to learn a dispersion", _say(label))
    center = label.center if label.kind == "number" else 0.5
    if family.link != "identity" and (label.columns > 1 or center <= 0):
        raise _refuse(family, arg, f"one number a row, above 0 on average ({family.link})", "other")


def _check_columns_of_labels(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    if label.kind != "matrix" or len(label.row_shape) != 1:
        raise _refuse(family, arg, "a matrix with a column of 0 and 1 for each label", _say(label))
    if not label.whole or label.minimum < 0 or label.maximum > 1:
        others = "other whole numbers" if label.whole else "fractions"
        raise _refuse(family, arg, "0 and 1", others)


def _check_trials(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    expected = "0 and 1, two levels, or the columns successes and failures"
    if label.kind == "binary" and not label.shape:
        return
    if label.kind == "class" and label.units == 2:
        return
    if label.kind == "number" and label.counts and label.maximum <= 1:
        return
    if label.kind != "matrix" or label.row_shape != (2,):
        raise _refuse(family, arg, expected, _say(label), "Give cbind(successes, failures).")
    for column, numbers in zip(("successes", "failures"), read_ranges(label), strict=False):
        if numbers.minimum < 0:
            hint = "Failures are the trials less the successes."
            raise _refuse(family, arg, f"{column} of at least 0", _side(numbers.minimum), hint)
        if not numbers.whole:
            hint = "Counts, not shares: successes and failures."
            raise _refuse(family, arg, f"whole {column}", "fractions", hint)


def _check_survival(family: FamilySpec | Family, label: LabelRule, arg: str) -> None:
    if label.kind != "matrix" or label.row_shape != (2,):
        hint = "Give cbind(time, status); a status of 1 is an event."
        raise _refuse(family, arg, "the columns time and status", _say(label), hint)
    if not label.ranges:
        return
    time, status = label.ranges
    if time.minimum <= 0:
        raise _refuse(family, arg, "times above 0", _side(time.minimum))
    if not status.whole or status.minimum < 0 or status.maximum > 1:
        others = "other whole numbers" if status.whole else "fractions"
        hint = "1 is an event, 0 a row that was lost before."
        raise _refuse(family, arg, "a status of 0 or 1", others, hint)
    if status.maximum == 0 and isinstance(family, FamilySpec):  # other rows may have none
        raise _refuse(family, arg, "at least one event, a status of 1,", "none")


def _say(label: LabelRule) -> str:
    return "0 and 1" if label.kind == "binary" else describe_label(label)


def _side(number: float) -> str:
    """Says on which side of a range a number lies; a message shows no data."""
    if number in (0, 1):
        return f"{number:g}"
    return "negative numbers" if number < 0 else "numbers above 1"


def _refuse(
    family: FamilySpec | Family, arg: str, expected: str, actual: str, hint: str = ""
) -> DataError:
    message = f'`{arg}` must hold {expected} for the family "{family.name}", not {actual}.'
    return DataError(message, hint=hint, arg=arg)
