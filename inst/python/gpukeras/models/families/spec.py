"""Families as records: what a user asks for, and what a dataset's labels make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    Spec,
    check_choice,
    check_flag,
    check_fraction,
    check_number,
    describe,
    is_number,
    option,
)

NONE = "none"
CONSTANT = "constant"
ROWS = "rows"
EFRON, BRESLOW = "efron", "breslow"
MOST = 10_000  # classes without names, in a file
MOST_STRATA = 1000  # strata, each with a baseline hazard of its own


@dataclass(frozen=True)
class Kind:
    """What a family can be.

    Args:
        links: Its links; the first is the default.
        dispersions: How its second parameter may be learned; the first is the default.
        own: Names of options that it has besides.
    """

    links: tuple[str, ...]
    dispersions: tuple[str, ...] = (NONE,)
    own: tuple[str, ...] = ()


PROBABILITY = ("logit", "probit", "cloglog")
KINDS: Mapping[str, Kind] = {
    "gaussian": Kind(("identity", "log", "inverse"), (NONE, CONSTANT, ROWS)),
    "quantile": Kind(("identity",), own=("quantiles",)),
    "poisson": Kind(("log", "identity", "sqrt")),
    "negative_binomial": Kind(("log", "identity", "sqrt"), (CONSTANT, ROWS)),
    "zero_inflated_poisson": Kind(("log",)),
    "gamma": Kind(("log", "identity", "inverse"), (CONSTANT, ROWS)),
    "beta": Kind(PROBABILITY, (CONSTANT, ROWS)),
    "binomial": Kind(PROBABILITY),
    "multinomial": Kind(("logit",)),
    "multi_label": Kind(("logit",)),
    "ordinal": Kind(PROBABILITY),
    "cox": Kind(("log",), own=("ties",)),
    "discrete_time": Kind(("logit", "cloglog"), own=("breaks", "proportional")),
}


def _check_numbers(arg: str, value: Any) -> tuple[float, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return tuple(check_number(arg, each) for each in values)


def _check_name(arg: str, value: Any) -> str:
    if not isinstance(value, str) or value not in KINDS:
        known = ", ".join(f'"{name}"' for name in KINDS)
        raise SpecError(
            f"`family` must be the name of a family, not {describe(value)}.",
            hint=f"Families are {known}.",
            arg="family",
        )
    return value


@dataclass(frozen=True)
class FamilySpec(Spec):
    """What a user asks for.

    Args:
        name: A key of `KINDS`.
        link: One of its links; by default the first.
        dispersion: "none" (no second parameter is learned), "constant" (one number for all rows) or
            "rows" (it depends on the features); by default the family's first.
        quantiles: Probabilities in (0, 1), ascending, for "quantile".
        ties: How "cox" treats events at the same time: "efron" or "breslow".
        breaks: Ends of the intervals of "discrete_time", ascending; by default quantiles of the
            times of events.
        proportional: Whether effects of "discrete_time" are the same in all intervals; by default
            each interval has its own.
    """

    name: str = option("gaussian", _check_name)
    link: str = "auto"
    dispersion: str = "auto"
    quantiles: tuple[float, ...] = option((), _check_numbers)
    ties: str | None = option(None, check_choice, (EFRON, BRESLOW))
    breaks: tuple[float, ...] = option((), _check_numbers)
    proportional: bool = option(False, check_flag)

    def __post_init__(self) -> None:
        """Checks each field, and fills in the family's defaults."""
        super().__post_init__()
        kind = KINDS[self.name]
        self._set(
            link=self._choose("link", kind.links),
            dispersion=self._choose("dispersion", kind.dispersions),
        )
        for name in ("quantiles", "ties", "breaks", "proportional"):
            if getattr(self, name) and name not in kind.own:
                raise SpecError(f'The family "{self.name}" has no `{name}`.', arg=name)
        if "quantiles" in kind.own:
            self._set(quantiles=_check_quantiles(self.quantiles or (0.1, 0.5, 0.9)))
        if "ties" in kind.own:
            self._set(ties=self.ties or EFRON)
        _check_ascending("breaks", self.breaks)
        if self.breaks and self.breaks[0] <= 0:
            raise SpecError("`breaks` must be above 0: time begins there.", arg="breaks")

    def _choose(self, arg: str, choices: tuple[str, ...]) -> str:
        value = getattr(self, arg)
        if value in ("auto", None):
            return choices[0]
        if value not in choices:
            listed = ", ".join(f'"{choice}"' for choice in choices)
            raise SpecError(
                f'The {arg} of the family "{self.name}" must be one of {listed}, '
                f"not {describe(value)}.",
                arg=arg,
            )
        return str(value)


def _check_quantiles(values: tuple[float, ...]) -> tuple[float, ...]:
    for value in values:
        check_fraction("quantiles", value)
    _check_ascending("quantiles", values)
    return values


def _check_ascending(arg: str, values: tuple[float, ...]) -> None:
    if any(high <= low for low, high in pairwise(values)):
        raise SpecError(f"`{arg}` must be in ascending order, each once.", arg=arg)


def parse_family(value: Any) -> FamilySpec:
    """Returns the family of a name or a mapping of options.

    Raises:
        SpecError: for an unknown family, link or option.
    """
    if isinstance(value, Mapping):
        options = {name: each for name, each in value.items() if each is not None}
        return FamilySpec.from_dict(options)
    return FamilySpec(name=value)


def describe_family(family: Any) -> FamilySpec:
    """Returns a family with its defaults filled in, for R's gpu_family()."""
    return parse_family(family)


@dataclass(frozen=True)
class Family:
    """A family with what the training labels gave; plain data, stored in the model.

    Args:
        name: A key of `KINDS`.
        link: The link of the mean.
        dispersion: "none", "constant" or "rows".
        quantiles: Probabilities, for "quantile".
        columns: Number of labels' columns, or of classes.
        center: Mean of the training labels.
        scale: Standard deviation of the training labels.
        shift: Mean of the training rows' offset, 0 without one.
        names: Names of the classes or of the labels' columns, if they have some.
        ties: "efron" or "breslow", for "cox"; else "".
        breaks: Ends of the intervals, for "discrete_time".
        proportional: Whether all intervals share their effects, for "discrete_time".
        strata: Number of strata, for "cox"; 0 without `strata()`.
    """

    name: str
    link: str
    dispersion: str = NONE
    quantiles: tuple[float, ...] = ()
    columns: int = 1
    center: float = 0.0
    scale: float = 1.0
    shift: float = 0.0
    names: tuple[str, ...] = ()
    ties: str = ""
    breaks: tuple[float, ...] = ()
    proportional: bool = False
    strata: int = 0

    def __post_init__(self) -> None:
        """Checks itself, as it may come from a file.

        Ordered classes have a weight each: a file of a few bytes must not ask for any memory.

        Raises:
            SpecError: if it holds something else.
        """
        kind = KINDS.get(self.name) if isinstance(self.name, str) else None
        numbers = (self.columns, self.center, self.scale, self.shift, *self.quantiles, *self.breaks)
        known = isinstance(self.strata, int) and 0 <= self.strata <= MOST_STRATA
        sound = kind is not None and self.link in kind.links and self.dispersion in kind.dispersions
        sound = sound and known and all(map(is_number, numbers)) and self.scale > 0
        sound = sound and isinstance(self.proportional, bool)
        if not sound or not 1 <= self.columns <= max(MOST, len(self.names)):
            raise SpecError("This is no family of gpu_family().", arg="family")

    def to_config(self) -> dict[str, Any]:
        """Returns it as plain values, for a Keras configuration."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Family:
        """Returns the family of a Keras configuration."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in config.items()
        }
        return cls(**values)


def family_options(family: Family) -> dict[str, Any]:
    """Returns the options of a family besides its name and its link, as a user gives them."""
    kind = KINDS[family.name]
    own = {name: getattr(family, name) for name in kind.own}
    options = {
        name: list(value) if isinstance(value, tuple) else value for name, value in own.items()
    }
    return {"dispersion": family.dispersion, **options} if len(kind.dispersions) > 1 else options
