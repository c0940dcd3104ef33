"""The settings of a search: ranges, values to choose from, and conditions between settings.

settings of R --parse_space()--> Space --sampling--> numbers in [0, 1) --Space.place()--> values
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.options import check_flag, describe, is_number, refused_value

Value = bool | int | float | str | list[Any]
HIGHEST = 2**31 - 1  # of whole numbers, as R's own integers


@dataclass(frozen=True)
class Setting(ABC):
    """One setting of a search.

    Args:
        name: Its name, an argument of the user's builder.
        when: For other settings, the values at which this one applies; elsewhere a trial is
            without it. Empty for always.
    """

    name: str
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, kw_only=True)

    @property
    @abstractmethod
    def kinds(self) -> float:
        """Number of different values; infinity for a range of real numbers."""

    @abstractmethod
    def place(self, share: float) -> Value:
        """Returns the value at a share in [0, 1) of the setting's range."""


@dataclass(frozen=True)
class Range(Setting):
    """A setting between two numbers.

    Args:
        low: The smallest value.
        high: The largest value.
        log: Whether equal ratios, not equal differences, are equally likely.
        integer: Whether its values are whole numbers, both ends included.
    """

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        """Checks the range."""
        for end, value in (("low", self.low), ("high", self.high)):
            if not is_number(value):
                raise refused_value(self.name, value, f"a range whose `{end}` is a number")
            if self.integer and (value != int(value) or abs(value) > HIGHEST):
                whole = f"a range of whole numbers with a whole `{end}`"
                raise refused_value(self.name, value, whole)
        if not self.low < self.high:
            raise SpecError(
                f"`{self.name}` ranges from {self.low:g} to {self.high:g}: the first must be below "
                "the second.",
                arg=self.name,
            )
        if check_flag("log", self.log) and self.low <= 0:
            raise SpecError(
                f"`{self.name}` ranges from {self.low:g} with log = TRUE, which starts above 0.",
                arg=self.name,
            )
        check_flag("integer", self.integer)

    @property
    def kinds(self) -> float:
        """Number of different values."""
        return self.high - self.low + 1 if self.integer else math.inf

    def place(self, share: float) -> Value:
        """Returns the number at a share of the range; of whole numbers, each has equal room."""
        low, high = float(self.low), float(self.high) + self.integer
        if self.log:
            low, high = math.log(low), math.log(high)
        number = low + share * (high - low)
        number = math.exp(number) if self.log else number
        if self.integer:
            return int(min(max(math.floor(number), self.low), self.high))
        return float(min(max(number, self.low), self.high))


@dataclass(frozen=True)
class Values(Setting):
    """A setting that is one of several values; a single value is fixed.

    Args:
        values: Numbers, strings, truth values, or vectors of these.
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        """Checks that there are values, and that no two are equal."""
        if not self.values:
            raise SpecError(f"`{self.name}` has no values to choose from.", arg=self.name)
        for place, value in enumerate(self.values):
            if any(_same(value, other) for other in self.values[:place]):
                raise SpecError(
                    f"`{self.name}` has a value twice: {_show(value)}.",
                    hint="Each value is as likely as the others.",
                    arg=self.name,
                )

    @property
    def kinds(self) -> float:
        """Number of values."""
        return len(self.values)

    def place(self, share: float) -> Value:
        """Returns the value at a share of the list."""
        return self.values[int(share * len(self.values))]


@dataclass(frozen=True)
class Space:
    """The settings of a search, such that each stands after those on which it depends.

    Args:
        settings: The settings in that order.
    """

    settings: tuple[Setting, ...]

    @property
    def varied(self) -> tuple[Setting, ...]:
        """The settings that have more than one value."""
        return tuple(each for each in self.settings if each.kinds > 1)

    def place(self, shares: np.ndarray) -> dict[str, Value]:
        """Returns the settings at a point of the unit cube.

        Args:
            shares: One number in [0, 1) for each setting of `varied`, in their order.

        Returns:
            Values by name; settings whose condition is not met are absent.
        """
        at = dict(zip((each.name for each in self.varied), shares.tolist(), strict=True))
        chosen: dict[str, Value] = {}
        for each in self.settings:
            if _applies(each, chosen):
                chosen[each.name] = each.place(at.get(each.name, 0.0))
        return chosen


def parse_space(described: Mapping[str, Any]) -> Space:
    """Returns the space of R's settings.

    Args:
        described: By name, `{kind: "range", low, high, log, integer, when}`, or
            `{kind: "values", values, when}`.

    Raises:
        SpecError: naming the setting that cannot be.
    """
    settings = [_parse_setting(name, fields) for name, fields in described.items()]
    by_name = {each.name: each for each in settings}
    for each in settings:
        _check_conditions(each, by_name)
    return Space(_in_order(settings))


def parse_grid(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Value]]:
    """Returns the settings of a grid's rows.

    Args:
        rows: One mapping of settings for each trial.

    Raises:
        SpecError: for a grid without rows, with missing values, or with a row twice.
    """
    if not rows:
        raise SpecError("`grid` has no rows: each is a trial.", arg="grid")
    grid: list[dict[str, Value]] = []
    for number, row in enumerate(rows, start=1):
        settings = {name: _plain(f"grid${name}", value) for name, value in row.items()}
        if settings in grid:
            raise SpecError(
                f"`grid` has row {grid.index(settings) + 1} twice: row {number} is the same.",
                hint="Leave duplicates out; folds measure chance.",
                arg="grid",
            )
        grid.append(settings)
    return grid


def describe_space(space: Space) -> dict[str, Any]:
    """Returns a space as JSON values, in the order of names."""
    described: dict[str, Any] = {}
    for each in sorted(space.settings, key=lambda setting: setting.name):
        fields = {name: value for name, value in vars(each).items() if name not in ("name", "when")}
        when = {name: list(values) for name, values in each.when.items()}
        described[each.name] = {**fields, **({"when": when} if when else {})}
    return described


def _parse_setting(name: str, fields: Mapping[str, Any]) -> Setting:
    when = {
        parent: tuple(_plain(name, value) for value in _as_list(values))
        for parent, values in dict(fields.get("when") or {}).items()
    }
    if fields["kind"] == "range":
        low, high = fields["low"], fields["high"]
        log, integer = fields.get("log", False), fields.get("integer", False)
        return Range(name, low, high, log, integer, when=when)
    return Values(name, tuple(_plain(name, each) for each in fields["values"]), when=when)


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple)) else [values]


def _plain(name: str, value: Any) -> Value:
    """Returns a value as JSON can hold it: a number, string, truth value, or a list of these."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)) and value:
        return [_plain(name, item) for item in value]
    if isinstance(value, (bool, str)) or is_number(value):
        return value
    expected = "numbers, strings, TRUE or FALSE, or vectors of these, without missing values"
    raise SpecError(f"`{name}` must have {expected}, not {describe(value)}.", arg=name)


def _same(value: Value, other: Value) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _show(value: Value) -> str:
    if isinstance(value, list):
        return f"c({', '.join(_show(item) for item in value)})"
    return describe(value)


# Conditions -------------------------------------------------------------------------------------


def _applies(setting: Setting, chosen: Mapping[str, Value]) -> bool:
    return all(
        name in chosen and any(_same(chosen[name], value) for value in values)
        for name, values in setting.when.items()
    )


def _check_conditions(setting: Setting, by_name: Mapping[str, Setting]) -> None:
    for name, values in setting.when.items():
        parent = by_name.get(name)
        if parent is None or parent is setting:
            what = "itself" if parent is setting else f"`{name}`, which is no setting"
            others = ", ".join(name for name in by_name if name != setting.name)
            raise SpecError(
                f"`{setting.name}` depends on {what}.",
                hint=f"Other settings are {others}." if others else "There is no other setting.",
                arg=setting.name,
            )
        if not isinstance(parent, Values):
            raise SpecError(
                f"`{setting.name}` depends on `{name}`, which is a range.",
                hint="Conditions name values of tune_values().",
                arg=setting.name,
            )
        for value in values:
            if not any(_same(value, other) for other in parent.values):
                raise SpecError(
                    f"`{setting.name}` applies when `{name}` is {_show(value)}, which it never is.",
                    hint=f"Its values are {', '.join(map(_show, parent.values))}.",
                    arg=setting.name,
                )


def _in_order(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Returns settings with each after those that it depends on, otherwise in their order."""
    placed: dict[str, Setting] = {}
    left = list(settings)
    while left:
        ready = next((each for each in left if all(name in placed for name in each.when)), None)
        if ready is None:
            names = ", ".join(f"`{each.name}`" for each in left)
            raise SpecError(f"Settings depend on each other: {names}.", arg=left[0].name)
        left.remove(ready)
        placed[ready.name] = ready
    return tuple(placed.values())
