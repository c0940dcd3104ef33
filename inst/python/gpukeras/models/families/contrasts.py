"""Coefficients that rows determine, with the names and the meaning that R's own models give them.

A factor has a column for each level, an interaction one for each combination of levels, and a
softmax a predictor for each class, so that their coefficients are not determined by the rows alone.
R's `model.matrix()` leaves columns out. Where the formula also has the term without a factor (its
margin), a level's coefficient is compared with that of the factor's first level, which becomes the
margin's own: as [first] = 1 - sum of the other levels, predictions stay the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.models.families.coefficients import INTERCEPT, Term
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import Family

Cell = tuple[tuple[str, str], ...]  # an encoded column's elements, each with its level or its name


@dataclass(frozen=True)
class Element:
    """A part of a formula's term.

    Args:
        name: Its name.
        levels: Its levels if it is a factor of an interaction; none for numbers.
    """

    name: str
    levels: tuple[str, ...] = ()


Formula = Sequence[Sequence[Element]]


def read_formula(plain: Any) -> list[list[Element]]:
    """Returns a formula's terms, each with its elements, as R passes them; none for None."""
    return [
        [Element(each["name"], tuple(each.get("levels") or ())) for each in term]
        for term in plain or ()
    ]


def contrast_terms(
    terms: tuple[Term, ...], recipe: Recipe, family: Family, formula: Formula = ()
) -> tuple[Term, ...]:
    """Returns coefficients that rows determine, with the names of R's `model.matrix()`.

    Args:
        terms: See `coefficients.read_coefficients()`.
        recipe: The encoding of the model.
        family: The family.
        formula: The terms of its formula, if that has interactions.
    """
    terms = _contrast_crossed(terms, recipe, family, formula)
    crossed = {_join(term) for term in formula if len(term) > 1}
    for rule in recipe.features.columns:
        if rule.name not in crossed:
            terms = _contrast(terms, rule, family)
    if family.name != "multinomial" or not terms:
        return terms
    absent = set() if recipe.label is None else set(recipe.label.absent)
    first = next(term.predictor for term in terms if term.predictor not in absent)
    # By place: columns of a matrix may share a name.
    base = [term.estimate for term in terms if term.predictor == first]
    own = itertools.cycle(base)
    compared = [replace(term, estimate=term.estimate - next(own)) for term in terms]
    return tuple(term for term in compared if term.predictor not in {first, *absent})


# Single columns ----------------------------------------------------------------------------------


def _contrast(terms: tuple[Term, ...], rule: ColumnRule, family: Family) -> tuple[Term, ...]:
    """Returns terms with the levels of a factor compared with its first one."""
    if rule.logical:
        false = f"{rule.name}=FALSE"
        return _compare(terms, {false: "", rule.name: f"{rule.name}TRUE"}, false, family)
    levels = [level for level in rule.levels if level not in rule.absent]
    names = {f"{rule.name}={level}": f"{rule.name}{level}" for level in levels}
    if not names or not rule.onehot:
        return terms
    return _compare(terms, names, next(iter(names)), family)


def _compare(
    terms: tuple[Term, ...], names: Mapping[str, str], first: str, family: Family
) -> tuple[Term, ...]:
    """Returns terms of which some are compared with one of them, which the intercept takes.

    Args:
        terms: The terms.
        names: The new names of those that are compared, by their own.
        first: The name of that with which they are compared.
        family: The family.
    """
    base = {term.predictor: term.estimate for term in reversed(terms) if term.term == first}
    classes = likelihood(family).names(family) if family.name == "ordinal" else []
    thresholds = {f"{low}|{high}" for low, high in itertools.pairwise(classes)}
    contrasts = list[Term]()
    seen = set[tuple[str, str]]()
    for term in terms:
        shift = base.get(term.predictor, base.get("", 0.0))
        # The mark of missing values behind the levels has the name of a level that is "NA".
        level = term.term in names and (term.predictor, term.term) not in seen
        seen.add((term.predictor, term.term))
        if level and term.term == first:
            continue
        if level:
            contrasts.append(replace(term, term=names[term.term], estimate=term.estimate - shift))
        elif term.term == INTERCEPT:
            contrasts.append(replace(term, estimate=term.estimate + shift))
        elif term.term in thresholds:
            contrasts.append(replace(term, estimate=term.estimate - shift))
        else:
            contrasts.append(term)
    return tuple(contrasts)


# Interactions ------------------------------------------------------------------------------------


def _contrast_crossed(
    terms: tuple[Term, ...], recipe: Recipe, family: Family, formula: Formula
) -> tuple[Term, ...]:
    """Returns terms with interactions compared with their margins.

    They stay as they are if a combination of levels has no training row: rows then do not tell all
    of them, and which ones R leaves out depends on the rows.
    """
    columns = _Columns(recipe, formula)
    if not columns.crossed or columns.find_gap():
        return terms
    parts = [
        # A logical has no column of FALSE, which is the margin of interactions.
        [*group, *(Term(name, 0.0, predictor) for name in columns.false)]
        for predictor, group in itertools.groupby(terms, lambda term: term.predictor)
    ]
    terms = tuple(term for part in parts for term in _move_to_margins(part, columns))
    for crossed in columns.crossed:
        if all(each.levels for each in crossed) and not columns.contrasted(crossed):
            # Each row is in one of its columns: the last one tells the rows nothing more.
            names = {term.term: term.term for term in terms if columns.owner(term.term) == crossed}
            terms = _compare(terms, names, list(names)[-1], family)
    return tuple(replace(term, term=columns.names.get(term.term, term.term)) for term in terms)


def _move_to_margins(terms: Sequence[Term], columns: _Columns) -> Iterator[Term]:
    """Yields a predictor's terms, of which the first levels have become their margins' own."""
    values = dict[Cell, float]()
    for term in terms:
        cell = columns.cells.get(term.term)
        if cell is not None:
            values.setdefault(cell, term.estimate)
    for crossed in sorted(columns.crossed, key=len, reverse=True):
        for name in columns.contrasted(crossed):
            own = [cell for cell in values if _place(cell) == {each.name for each in crossed}]
            _compare_cells(values, own, name, columns.first_level(name))
    seen = set[str]()
    for term in terms:
        cell = columns.cells.get(term.term)
        if cell is None or term.term in seen:
            yield term
        elif cell in values and not columns.is_unused(cell):
            yield replace(term, estimate=values[cell])
        seen.add(term.term)


def _compare_cells(values: dict[Cell, float], own: list[Cell], name: str, first: str) -> None:
    """Compares the cells of an interaction with those of a factor's first level, in place."""
    for cell in own:
        margin = _without(cell, name)
        if (name, first) not in cell or margin not in values:
            continue
        moved = values.pop(cell)
        values[margin] += moved
        for other in own:
            if other in values and _without(other, name) == margin:
                values[other] -= moved


def _without(cell: Cell, name: str) -> Cell:
    return tuple(part for part in cell if part[0] != name)


def _place(cell: Cell) -> set[str]:
    return {element for element, _ in cell}


class _Columns:
    """The encoded columns of a formula's terms.

    Attributes:
        crossed: The interactions.
        cells: What each encoded column is, by its name.
        names: The names that R gives to columns of interactions, by their own.
        false: Names for the missing columns of logicals that are FALSE.
    """

    def __init__(self, recipe: Recipe, formula: Formula) -> None:
        """Finds the columns of each term by the names that R has made of them."""
        self.crossed = [term for term in formula if len(term) > 1]
        self.cells = dict[str, Cell]()
        self.names = dict[str, str]()
        self.false = list[str]()
        self._terms = [{each.name for each in term} for term in formula]
        self._levels = {each.name: each.levels for term in self.crossed for each in term}
        self._unused = {
            (rule.name, level) for rule in recipe.features.columns for level in rule.absent
        }
        self._zeros = set[Cell]()
        for rule in recipe.features.columns if self.crossed else ():
            if rule.onehot and rule.levels:
                self._add_factor(rule)
            elif rule.logical:
                self.false.append(f"{rule.name}=FALSE")
                self.cells[rule.name] = ((rule.name, "TRUE"),)
                self.cells[self.false[-1]] = ((rule.name, "FALSE"),)
            elif rule.kind == "number":
                self._add_number(rule.name, formula)
                if rule.constant == 0 and len(self.cells.get(rule.name, ())) > 1:
                    self._zeros.add(self.cells[rule.name])
        self._find_unused({rule.name for rule in recipe.features.columns})

    def _find_unused(self, columns: set[str]) -> None:
        """Adds levels of factors without a column whose every interaction is 0 in training rows."""
        crossed = [cell for cell in self.cells.values() if len(cell) > 1]
        for name, levels in self._levels.items():
            for level in levels if name not in columns else ():
                own = {cell for cell in crossed if (name, level) in cell}
                if own and own <= self._zeros:
                    self._unused.add((name, level))

    def _add_factor(self, rule: ColumnRule) -> None:
        term = next((each for each in self.crossed if _join(each) == rule.name), None)
        if term is None:
            self.cells |= {f"{rule.name}={level}": ((rule.name, level),) for level in rule.levels}
            return
        for levels in itertools.product(*(each.levels for each in term)):
            name = f"{rule.name}={':'.join(levels)}"
            parts = [(each.name, level) for each, level in zip(term, levels, strict=True)]
            self.cells[name] = tuple(sorted(parts))
            self.names[name] = ":".join(element + level for element, level in parts)
            if ":".join(levels) in rule.absent:
                self._zeros.add(self.cells[name])

    def _add_number(self, name: str, formula: Formula) -> None:
        """Adds a column to the term whose name it has, up to the name of a matrix's column."""
        found = [match for term in formula if (match := _match(name, term)) is not None]
        if not found:
            return
        parts, _ = min(found, key=lambda match: match[1])
        self.cells[name] = tuple(sorted(parts))
        if len(parts) > 1:
            self.names[name] = ":".join(
                element + level if self._levels.get(element) else level for element, level in parts
            )

    def owner(self, name: str) -> Sequence[Element]:
        """Returns the interaction that an encoded column is of; nothing for others."""
        place = _place(self.cells.get(name, ()))
        return next((term for term in self.crossed if {each.name for each in term} == place), ())

    def contrasted(self, term: Sequence[Element]) -> list[str]:
        """Returns the factors of an interaction without which the formula has the term too."""
        return [
            each.name
            for each in term
            if each.levels and {other.name for other in term} - {each.name} in self._terms
        ]

    def first_level(self, name: str) -> str:
        """Returns a factor's first level with a training row, as far as that is known."""
        return next((each for each in self._levels[name] if (name, each) not in self._unused), "")

    def is_unused(self, cell: Cell) -> bool:
        """Whether a cell's column is 0 in all training rows, as one of its levels has none."""
        return len(cell) > 1 and not self._unused.isdisjoint(cell)

    def find_gap(self) -> bool:
        """Whether a combination of levels that have training rows has none itself."""
        cells = (cell for cell in self._zeros if any(self._levels.get(name) for name, _ in cell))
        return any(self._unused.isdisjoint(cell) for cell in cells)


def _join(term: Sequence[Element]) -> str:
    return ":".join(each.name for each in term)


def _match(name: str, term: Sequence[Element]) -> tuple[list[tuple[str, str]], int] | None:
    """Returns the elements of a column that has a term's name, and what it has beside; or None."""
    patterns = [
        "|".join(re.escape(f"{each.name}={level}") for level in each.levels)
        if each.levels
        else re.escape(each.name) + ".*?"
        for each in term
    ]
    found = re.fullmatch(":".join(f"({pattern})" for pattern in patterns), name)
    if found is None:
        return None
    parts = list[tuple[str, str]]()
    more = 0
    for each, text in zip(term, found.groups(), strict=True):
        parts.append((each.name, text[len(each.name) + 1 :] if each.levels else text))
        more += 0 if each.levels else len(text) - len(each.name)
    return parts, more
